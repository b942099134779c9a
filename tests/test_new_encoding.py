"""`tape new-encoding` in a copy of the files, and the contract of what it makes."""

import importlib.util
import runpy
import shutil
import subprocess
import sys

import pytest
import torch
from commands import ROOT, tape
from conftest import make_model, random_tokens, refuses
from omegaconf import OmegaConf

from tape import TapeForCausalLM
from tape.cli import new_encoding
from tape.core.files import write_text
from tape.encodings import ENCODINGS

MODULE, YAML = "tape/encodings/wave.py", "config/position/wave.yaml"
REGISTRY, LOOPS = "tape/encodings/__init__.py", "tests/references.py"
WRITTEN = [LOOPS, YAML, MODULE, REGISTRY]


def copy_folders(folder, *names):
    for name in names:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    return folder


def contents(folder):
    return {path: path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_a_new_encoding_trains_at_once(tmp_path, monkeypatch, capsys):
    """With as many of the files as the command reads and writes."""
    checkout = copy_folders(tmp_path, "tape", "config/position")
    for name in (LOOPS, "pyproject.toml"):
        write_text(checkout / name, (ROOT / name).read_text())
    monkeypatch.setattr(new_encoding, "ROOT", checkout)
    before = contents(checkout)
    tape("new-encoding", "wave")
    changed = {path for path, text in contents(checkout).items() if before.get(path) != text}
    assert changed == {checkout / name for name in WRITTEN}
    said = capsys.readouterr().out
    assert all(name in said for name in WRITTEN)
    assert said.endswith("test it: bash script/test.sh tests/test_contract.py -k wave\n")
    for check in (["check"], ["format", "--check"]):
        command = [sys.executable, "-m", "ruff", *check, "--no-cache", "."]
        done = subprocess.run(command, cwd=checkout, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout
    registry = (checkout / REGISTRY).read_text()
    assert "from tape.encodings.wave import Wave\n" in registry
    assert '    "wave": Wave,\n}\n' in registry

    spec = importlib.util.spec_from_file_location("tape.encodings.wave", checkout / MODULE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(ENCODINGS, "wave", module.Wave)
    settings = OmegaConf.to_container(OmegaConf.load(checkout / YAML))
    assert settings.items() <= make_model("wave").config.position.items()
    model, tokens = make_model(settings).train(), random_tokens(2, 9)
    optimizer, losses = torch.optim.AdamW(model.parameters()), []
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


TAKEN = ("fox", "rotary", "alibi", "adape", "keep", "score_bias", "gemma", "tape_xavier")
WRONG = ("Wave", "wave-1", "1wave", "_wave", "wave form", "../wave", "wäve", "", "lambda", "none")


def test_names_that_cannot_be_are_refused():
    messages = dict.fromkeys(TAKEN, "exists; choose another name")
    messages |= dict.fromkeys((*WRONG, "w" * 31), "must be 1 to 30 lower-case letters, digits")
    messages |= dict.fromkeys(("null", "no", "on", "llama"), "is a word of YAML or of tape speed")
    for name, message in messages.items():
        refuses(rf"^name '{name}':? {message}", new_encoding.check, name)


def test_an_installation_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(new_encoding, "ROOT", copy_folders(tmp_path, "tape/positions"))
    before = contents(tmp_path)
    with pytest.raises(SystemExit, match=r"^error: new-encoding writes to a checkout of the repo"):
        tape("new-encoding", "wave")
    assert contents(tmp_path) == before
