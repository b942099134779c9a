"""Rooms of the project and the floor of each: a room imports only from rooms below it. Entry points
are how plug-ins above are found; a command's module is named in a table."""

import ast
import tomllib
from itertools import chain

from commands import ROOT

from tape.cli.commands import all_commands

FLOORS = """
tape.core
tape.positions
tape.encodings
tape.attention
tape.model
tape.data
tape.imports
tape.evaluation
tape.training
tape.export tape.results
tape.analysis
tape.tasks
arithmetic scrolls
tape.cli
""".strip()
TOP = ("tape", "arithmetic", "scrolls")
FLOOR = {room: n for n, rooms in enumerate(FLOORS.split("\n")) for room in rooms.split()}
FILES = [path for top in TOP for path in (ROOT / top).rglob("*.py")]
MODULES = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in FILES}
TABLES = ("tape.cli.commands", "scrolls.commands")  # of commands, a plug-in's own


def room_of(module):
    first, *rest = module.split(".")
    return ".".join([first, *rest[:1]]) if first == "tape" else first


def imports_of(path):
    """The modules of this project that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module == "tape":
            names = {alias.name for alias in node.names} - {"__version__"}
            yield from (f"tape.{name}" for name in names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module


def named_by(path):
    """The modules of this project that a file names in strings."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from {node.value.partition(":")[0]} & {name for name in MODULES if "." in name}


def test_rooms_import_from_floors_below():
    wrong, rooms = set(), set()
    for module, path in MODULES.items():
        if (room := room_of(module)) == "tape.__init__":
            continue
        rooms.add(room)
        strings = named_by(path) if module in TABLES else ()
        for name in chain(imports_of(path), strings):
            other = room_of(name)
            if other in FLOOR and other != room and FLOOR[other] >= FLOOR[room]:
                wrong.add((module, name))
            assert other in {*FLOOR, "tape"} or other.split(".")[0] not in TOP, name
    assert not wrong
    assert rooms == {*FLOOR} and len(rooms) <= 20


def test_modules_are_imported_and_not_named():
    """But in the tables of commands, and of the entry points of pyproject.toml."""
    named = {module: {*named_by(path)} for module, path in MODULES.items() if module not in TABLES}
    assert not {module: names for module, names in named.items() if names}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    targets = [command.module for command in all_commands().values()]
    for group in project["entry-points"].values():
        targets += [target.partition(":")[0] for target in group.values()]
    packages = {name.removesuffix(".__init__") for name in MODULES}
    assert {*targets} <= packages


def test_code_is_read_only_where_it_is_the_subject():
    """Constants are imported. Functions are examples of a task; code is exported and compared."""
    reading = {name for name, path in MODULES.items() if "ast" in imports_of(path)}
    others = {"tape.training.settings"}  # fields of TrainingArguments, whose import takes seconds
    assert reading == {"tape.core.provenance", "tape.export.flatten", "scrolls.sample"} | others


def test_the_decoder_does_not_know_hydra():
    for path in (ROOT / "tape").rglob("*.py"):
        if "cli" in path.relative_to(ROOT).parts:
            continue
        assert not {name.split(".")[0] for name in imports_of(path)} & {"hydra", "omegaconf"}, path
