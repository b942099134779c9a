"""An encoding of another package trains, is evaluated, compared and exported as ours are."""

import os
import subprocess
import sys

import pytest
from commands import ROOT

PROJECT = """
[project]
name = "zigzag"
version = "1.0"

[project.entry-points."tape.encodings"]
zigzag = "zigzag:Zigzag"
"""
MODULE = """
from tape.positions.rotary import RoPE, inverse_frequencies


class Zigzag(RoPE):
    factor: float = 0.5  # of RoPE's frequencies

    def __init__(self, config, **arguments):
        super().__init__(config, **arguments)
        self.register_constant("inv_freq", self.factor * inverse_frequencies(config)[0])
"""


@pytest.mark.slow
def test_an_installed_encoding_is_used_by_every_command(tmp_path):
    (source := tmp_path / "source").mkdir()
    (source / "pyproject.toml").write_text(PROJECT)
    (source / "zigzag.py").write_text(MODULE)
    site = tmp_path / "site"
    how = ["--no-deps", "--no-build-isolation", "--no-index", "-q", "--target", str(site)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(site), str(ROOT)])}

    def run(*words):
        words = [sys.executable, "-m", *map(str, words)]
        done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    run("pip", "install", *how, source)
    assert "zigzag" in run("tape.cli", "train", "--help", "position=zigzag")
    small = ["experiment=addition", "model=arithmetic_small", "trainer.max_steps=2"]
    small += ["trainer.eval_steps=2", "eval_blocks=8", "task.samples=1"]
    small += ["length=10", "data.max_first=2", "data.max_second=2"]
    run("tape.cli", "train", "position=zigzag", "+position.factor=0.25", "name=own", *small)
    run("tape.cli", "evaluate", "output/own", "--task", "addition", "--samples", 1)
    assert "| zigzag |" in run("tape.cli", "compare", "output/own", "--out", "table")
    run("tape.cli", "export", "output/own", "--out", "alone")
    assert (tmp_path / "alone" / "zigzag.py").is_file()
