"""Sweeps from training to the comparison, with tiny runs; the commands run in this process."""

import re
import signal
import subprocess
import sys
import time

import psutil
import pytest
from commands import ROOT, run_command
from hydra.core.global_hydra import GlobalHydra
from test_generated import SETTINGS

from tape.sweep.engine import Engine

TEXT = ["vocab_size=300", "length=32", "trainer.max_steps=2", "trainer.logging_steps=1"]
TEXT += ["model.hidden_size=32", "model.intermediate_size=64", "model.num_hidden_layers=2"]
TEXT += ["eval_blocks=8", "report.tokens=512", "trainer.eval_steps=1000"]


@pytest.fixture
def sweep(tmp_path, monkeypatch):
    """Runs sweep.py, and every command of it in this process."""

    async def execute(self, words, log=None):
        GlobalHydra.instance().clear()  # sweep.py has composed runs
        outcome = run_command("-m", "tape.commands", *words, folder=tmp_path)
        if log is None:
            print(outcome.out, outcome.err)
        else:
            with log.open("a") as file:
                file.write(outcome.out + outcome.err)
        return outcome.status

    monkeypatch.setattr(Engine, "execute", execute)
    return lambda *words: run_command("sweep.py", *words, folder=tmp_path)


def begun(outcome):
    return re.findall(r"^output/(\w+): run . of \d begins", outcome.out, re.MULTILINE)


@pytest.mark.slow
def test_addition(sweep, tmp_path):
    own = [setting for setting in SETTINGS["addition"] if not setting.startswith("experiment=")]
    words = ["sweep=addition", "vary.position=[rope,tape]", "seeds=[0]"]
    words += ["evaluation='samples=2 processes=1'", "--", *own]
    words += ["trainer.eval_steps=1000", "task.samples=1"]
    first = sweep(*words)
    assert first.status == 0, first.out + first.err
    table = (tmp_path / "output" / "compare_add" / "table.md").read_text()
    assert "| rope | 1 | " in table and "| tape | 1 | " in table and table in first.out
    again = sweep(*words)
    assert again.status == 0 and begun(first) and not begun(again) and table in again.out
    recorded = (tmp_path / "output" / "add_rope_0" / "run.json").read_text()
    assert "evaluate" not in recorded  # it has no influence on the weights


@pytest.mark.slow
def test_a_killed_sweep_ends_as_an_undisturbed_one(tmp_path, text):
    """SIGKILL to the sweep and all its processes when a run has saved: only processes show it."""
    words = ["sweep=encodings", "name=e", "recipe=quick", "seeds=[0]", "vary.position=[alibi]"]
    words += ["evaluation='--max_tokens 3000 --processes 1'", "--", *TEXT, "data=text"]
    words += [f"data.files={text}", "trainer.max_steps=8", "trainer.save_steps=2"]
    command, results = [sys.executable, ROOT / "sweep.py", *words], []
    for name in ("whole", "killed"):
        folder = tmp_path / name
        folder.mkdir()
        if name == "killed":
            sweep = psutil.Popen(command, cwd=folder, stdout=subprocess.DEVNULL)
            while not any(folder.glob("output/e_*/checkpoint-*")):
                assert sweep.poll() is None
                time.sleep(0.01)
            for process in [sweep, *sweep.children(recursive=True)]:
                process.kill()
            assert sweep.wait() == -signal.SIGKILL
            assert not [*folder.rglob("perplexity.csv")]
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
        found = [
            path for end in ("model.safetensors", "perplexity.csv") for path in folder.rglob(end)
        ]
        results.append({path.relative_to(folder): path.read_bytes() for path in found})
    assert len(results[0]) >= 2 and results[0] == results[1]
