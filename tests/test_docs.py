"""What the documents show is true: code runs, files exist, names are known."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from conftest import make_model
from pages import PAGES, ROOT, blocks

from arithmetic.problems import character_tokenizer
from tape import TapeForCausalLM
from tape.encodings import ALIASES, ENCODINGS
from tape.positions.base import Positions


def test_the_readmes_python_runs(capsys):
    for code in blocks(ROOT / "README.md", "python"):
        exec(compile(code, "README.md", "exec"), {})
    assert capsys.readouterr().out == "torch.Size([1, 10, 4096])\n"


def test_the_notebook_runs(monkeypatch, capsys):
    monkeypatch.setitem(ENCODINGS, "near", None)  # and removed again
    names = {}
    for cell in json.loads((ROOT / "docs" / "notebook.ipynb").read_text())["cells"]:
        if cell["cell_type"] == "code":
            code = "".join(cell["source"]).replace("steps=300", "steps=10")
            exec(compile(code, "notebook.ipynb", "exec"), names)
    plt.close("all")
    assert names["near"].config.position["extent"] == 4
    assert capsys.readouterr().out.startswith("torch.Size([10240, 64])")


def test_the_sequences_of_the_analyses_are_whole_problems(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "output").mkdir()
    (code,) = blocks(ROOT / "docs" / "inside.md", "python")
    exec(compile(code, "inside.md", "exec"), {})
    ids = np.fromfile("output/problems.ids", dtype="<u2").reshape(64, 34)
    texts = character_tokenizer().batch_decode(ids)
    assert all(re.fullmatch(r"\d{10}\+\d{10}=\d{11}<\S+>", text) for text in texts)


def test_the_readmes_encoding_works(monkeypatch, tmp_path):
    """Frequencies beyond the share do not rotate, also after reloading."""
    module, index = {}, torch.arange(7)[None]
    exec(compile(blocks(ROOT / "README.md", "python")[0], "prope.py", "exec"), module)
    monkeypatch.setitem(ENCODINGS, "prope", module["PRoPE"])
    make_model({"name": "prope", "share": 0.5}).save_pretrained(tmp_path)
    models = TapeForCausalLM.from_pretrained(tmp_path), make_model("rope")
    given = Positions(index, index), torch.float32
    state, expected = (model.model.position.state(*given).clone() for model in models)
    expected[..., expected.shape[-1] // 2 :] = torch.tensor([[1.0], [0.0]])  # cosine and sine
    assert torch.equal(state, expected)


def test_the_first_screen_names_the_commands_for_everything():
    """CI runs the tests by the same command."""
    first_screen = "\n".join((ROOT / "README.md").read_text().splitlines()[:20])
    for command in ("train", "test"):
        assert re.search(rf"^bash script/{command}\.sh +# .*\d minutes", first_screen, re.MULTILINE)
    assert "\nbash script/test.sh\n" in (ROOT / ".ci" / "run").read_text()


def test_encodings_of_earlier_tokens_only_are_named():
    text = " ".join((ROOT / "docs" / "encodings.md").read_text().split())
    (names,) = re.findall(r"query sees later tokens are refused by (.*?) and mixtures", text)
    causal = {name for name, encoding in ENCODINGS.items() if encoding.causal}
    assert {*re.findall(r"`(\w+)`", names)} == causal


def test_the_guides_encoding_is_the_packages():
    guide, package = ROOT / "CONTRIBUTING.md", ROOT / "tape" / "encodings"
    code, loops = blocks(guide, "python"), ROOT / "tests/references.py"
    files = [package / "bias.py"] * 2 + [loops] + [package / "fox.py"] * (len(code) - 4) + [loops]
    for block, file in zip(code, files, strict=True):
        assert block in file.read_text(), file
    assert blocks(guide, "yaml") == [(ROOT / "config" / "position" / "fox.yaml").read_text()]
    layer = "".join(blocks(ROOT / "docs" / "code.md", "python")[0].split())
    assert layer in "".join((ROOT / "tape" / "model" / "layer.py").read_text().split())


def test_every_room_has_its_line():
    text = (ROOT / "docs" / "code.md").read_text()
    rooms = {path.parent for path in (ROOT / "tape").glob("*/*.py")}
    shown = {*re.findall(r"^tape/(\w+)/ +\S", text, re.MULTILINE)}
    assert rooms and {room.name for room in rooms} == shown
    for encoding in ENCODINGS:
        assert encoding == "tape_yarn" or f"| `position={encoding}` |" in text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)#]+)", text):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


def test_the_site_builds_without_dead_links(tmp_path):
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "site.css" in (tmp_path / "efficiency" / "index.html").read_text()


@pytest.mark.slow
def test_the_site_is_published_by_version(tmp_path):
    """With the commands of the recipe, but for the push."""
    recipe = (ROOT / "CONTRIBUTING.md").read_text()
    commands = re.findall(r"^(mike \w.*) --push (.*)$", recipe, re.MULTILINE)
    assert [words.split()[1] for words, _ in commands] == ["deploy", "set-default"]
    environment = os.environ | {
        f"GIT_{role}_{what}": "me" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
    }

    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"  # an active .venv

    def git(*words):
        command = ["git", "-C", tmp_path / "clone", *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    clone = ["git", "clone", "-q", "--depth", "1", ROOT.as_uri(), tmp_path / "clone"]
    subprocess.run(clone, check=True)
    for words, names in commands:
        command = [*words.split(), *names.split()]
        subprocess.run(command, cwd=tmp_path / "clone", env=environment, check=True)
    (published,) = json.loads(git("show", "gh-pages:versions.json"))
    assert published["aliases"] == ["latest"]
    assert "latest/" in git("show", "gh-pages:index.html")
    page = git("show", f"gh-pages:{published['version']}/findings/index.html")
    assert '"provider": "mike"' in page


def test_every_encoding_is_documented():
    for page in ("README.md", "docs/encodings.md"):
        for name in (*ENCODINGS, *ALIASES):
            assert f"`{name}`" in (ROOT / page).read_text(), (page, name)
    table = (ROOT / "docs" / "encodings.md").read_text().partition("### Pictures")[0]
    assert re.findall(r"^\| `(\w+)`", table, re.MULTILINE) == list(ENCODINGS)


def test_scripts_are_strict_and_say_what_they_do():
    for script in (ROOT / "script").rglob("*.sh"):
        lines = script.read_text().splitlines()
        if lines[0].startswith("# Sourced by "):
            continue  # by scripts that are strict
        assert lines[0] == "#!/usr/bin/env bash" and lines[1].startswith("# "), script
        assert "set -euo pipefail" in lines, script
