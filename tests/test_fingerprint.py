"""A run records the code that computes it, and other code does not continue it unnoticed."""

import ast
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import make_model, refuses

from tape.core import provenance as origin
from tape.encodings import ENCODINGS
from tape.model.checkpoint import load_model

ROOMS = {
    "attention": ("backends", "cpu", "flash", "flex", "gpu", "masks", "payload"),
    "model": ("inputs", "layer", "loss", "modeling", "options"),
    "positions": ("base", "sampling"),
}
PARTS = [(name, encoding.__module__) for name, encoding in ENCODINGS.items()]
PARTS += [("rope", f"tape.{room}.{each}") for room, names in ROOMS.items() for each in names]
UNUSED = {"tape.encodings.relative", "tape.encodings.xpos", "tape.core.run_folder"}


@contextmanager
def edited(folder, name, change):
    """Has the source file of a module changed; the loaded module stays as it is."""
    module = sys.modules[name]
    path, copy = module.__file__, folder / f"{name}.py"
    copy.write_text(change(Path(path).read_text()))
    module.__file__ = str(copy)
    try:
        yield
    finally:
        module.__file__ = path


def other(source):
    """Adds a statement to the first function."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.body.append(ast.parse("x = 1 - 1").body[0])
            break
    return ast.unparse(tree)


def same(source):
    """The same code with other comments, docstrings, format, imports and messages of errors."""
    tree = ast.parse(source)
    tree.body.reverse()
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            node.exc.args = [ast.Constant("another message")]
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node):
            node.body[0].value.value = "Another text."
    return f"# A comment.\nimport sys as another\n{ast.unparse(tree)}"


@pytest.mark.parametrize(("name", "module"), PARTS)
def test_the_fingerprint_is_of_the_encoding_and_the_decoder(tmp_path, name, module):
    model = make_model(name)
    before = origin.fingerprint(model)
    with edited(tmp_path, module, other):
        assert origin.fingerprint(model) != before
    with edited(tmp_path, module, same):
        assert origin.fingerprint(model) == before
    for unused in UNUSED - {module}:
        with edited(tmp_path, unused, other):
            assert origin.fingerprint(model) == before, unused


def test_code_may_move_to_another_module(tmp_path):
    model = make_model("rope")
    before, moved = origin.fingerprint(model), []

    def without_last(source):
        *rest, last = ast.parse(source).body
        moved.append(ast.unparse(last))
        return "\n".join(map(ast.unparse, rest))

    with edited(tmp_path, "tape.positions.rotary", without_last):
        assert origin.fingerprint(model) != before
        with edited(tmp_path, "tape.model.layer", lambda source: f"{source}\n{moved[-1]}"):
            assert origin.fingerprint(model) == before


def test_changed_code_does_not_continue_a_run_unnoticed(start, finished, tmp_path, capsys):
    steps, report = "trainer.max_steps=10", finished / "report" / "report.json"
    before = report.read_bytes()
    load_model(finished)
    assert "has changed since" not in capsys.readouterr().err
    with edited(tmp_path, "tape.encodings.tape", other):
        for given in ((), (steps,)):  # finished, or to be resumed
            refuses(r"run: the code .* has changed; .*=true$", start, *given)
        assert report.read_bytes() == before
        load_model(finished)
        assert "has changed since" in capsys.readouterr().err
        start(steps, "accept_new_code=true")
        start(steps)  # the new code is the run's from now on
    refuses("has changed", start, steps)
