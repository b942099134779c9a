"""`tape new-encoding` in a copy of the files, and the contract of what it makes."""

import importlib.util
import os
import re
import runpy
import shutil
import subprocess
import sys

import pytest
import torch
from commands import ROOT
from conftest import make_model, random_tokens
from omegaconf import OmegaConf

from tape import TapeForCausalLM
from tape.commands import new_encoding
from tape.positions import ENCODINGS

MODULE, YAML = "tape/positions/wave.py", "config/position/wave.yaml"
REGISTRY, LOOPS = "tape/positions/__init__.py", "tests/references.py"
WRITTEN = [LOOPS, YAML, MODULE, REGISTRY]
ALL = ("arithmetic", "benchmarks", "config", "scrolls", "tape", "tests", "pyproject.toml")


def copy_files(folder, *names):
    for name in names:
        source, target = ROOT / name, folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
    return folder


def contents(folder):
    return {path: path.read_text() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """As many of the files as the command reads and writes."""
    copy_files(tmp_path, "tape", "config/position", LOOPS, "pyproject.toml")
    monkeypatch.setattr(new_encoding, "ROOT", tmp_path)
    return tmp_path


def test_a_new_encoding_trains_at_once(checkout, monkeypatch, capsys):
    before = contents(checkout)
    new_encoding.main(["wave"])
    changed = {path for path, text in contents(checkout).items() if before.get(path) != text}
    assert changed == {checkout / name for name in WRITTEN}
    said = capsys.readouterr().out
    assert all(name in said for name in (*WRITTEN, "tests/test_contract.py -k wave"))
    for check in (["check"], ["format", "--check"]):
        command = [sys.executable, "-m", "ruff", *check, "--no-cache", "."]
        done = subprocess.run(command, cwd=checkout, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout
    for name, line in (
        (REGISTRY, "from tape.positions.wave import Wave\n"),
        (REGISTRY, '    "wave": Wave,\n}\n'),
    ):
        assert line in (checkout / name).read_text()

    spec = importlib.util.spec_from_file_location("tape.positions.wave", checkout / MODULE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(ENCODINGS, "wave", module.Wave)
    settings = OmegaConf.to_container(OmegaConf.load(checkout / YAML))
    assert settings.items() <= make_model("wave").config.position.items()
    model, tokens = make_model(settings).train(), random_tokens(2, 9)
    optimizer = torch.optim.AdamW(model.parameters())
    losses = []
    for _ in range(3):
        losses.append(model(tokens, labels=tokens).loss)
        losses[-1].backward()
        optimizer.step()
    assert losses[2] < losses[0]
    model.save_pretrained(checkout / "model")
    assert TapeForCausalLM.from_pretrained(checkout / "model").config.position["name"] == "wave"
    decoder = runpy.run_path(str(checkout / LOOPS))["decoder"]
    with pytest.raises(NotImplementedError, match="wave"):
        decoder(model.state_dict(), model.config, [1, 2])


TAKEN = ("fox", "rotary", "alibi", "adape", "keep", "score_bias")
WRONG = ("Wave", "wave-1", "1wave", "_wave", "wave form", "../wave", "wäve", "", "lambda", "none")


def test_names_that_cannot_be_are_refused():
    messages = dict.fromkeys(TAKEN, "exists; choose another name")
    messages |= dict.fromkeys((*WRONG, "w" * 31), "must be 1 to 30 lower-case letters, digits")
    for name, message in messages.items():
        with pytest.raises(ValueError, match=rf"^name '{name}':? {message}"):
            new_encoding.check(name)


def test_an_installation_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(new_encoding, "ROOT", copy_files(tmp_path, "tape/positions"))
    before = contents(tmp_path)
    with pytest.raises(SystemExit, match=r"^error: new-encoding writes to a checkout of the repo"):
        new_encoding.main(["wave"])
    assert contents(tmp_path) == before


@pytest.mark.slow
def test_the_contract_is_that_of_the_new_encoding(tmp_path):
    """All of it holds, as the guide runs it, but the loop, which is not written."""
    copy_files(tmp_path, *ALL)
    command = [sys.executable, "-m", "tape.commands", "new-encoding", "wave"]
    subprocess.run(command, cwd=tmp_path, check=True)
    command = [sys.executable, "-m", "pytest", "tests/test_contract.py", "-k", "wave"]
    done = subprocess.run(
        [*command, "-rA", "--tb=line", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    found = re.findall(r"^(PASSED|FAILED) \S+::(\w+)\[.*wave", done.stdout, re.MULTILINE)
    failed = {name for outcome, name in found if outcome == "FAILED"}
    loops = {"test_equals_the_loops", "test_equals_the_loops_with_all_options"}
    assert failed == loops and len({name for _, name in found}) > 9, done.stdout + done.stderr
    assert "NotImplementedError: wave" in done.stdout
