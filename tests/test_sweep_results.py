"""A sweep from training to the comparison, with a tiny run and all processes."""

import re
import signal
import subprocess
import sys
import time

import psutil
import pytest
from commands import ROOT

TEXT = ["vocab_size=300", "length=32", "trainer.max_steps=8", "trainer.save_steps=2"]
TEXT += ["model.hidden_size=32", "model.intermediate_size=64", "model.num_hidden_layers=2"]
TEXT += ["eval_blocks=8", "report.tokens=512", "trainer.eval_steps=1000", "data=text"]


@pytest.mark.slow
def test_a_killed_sweep_ends_as_an_undisturbed_one(tmp_path, text):
    """SIGKILL to the sweep and all its processes when a run has saved: only processes show it."""
    words = ["sweep=encodings", "name=e", "recipe=quick", "seeds=[0]", "vary.position=[alibi]"]
    words += ["evaluation='--max_tokens 3000 --processes 1'", "--", *TEXT, f"data.files={text}"]
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
        done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
        table = (folder / "output" / "compare_e" / "table.md").read_text()
        assert "| alibi | 1 | " in table and table in done.stdout
        found = [*folder.rglob("model.safetensors"), *folder.rglob("perplexity.csv")]
        results.append({path.relative_to(folder): path.read_bytes() for path in found})
    assert len(results[0]) >= 2 and results[0] == results[1]
    again = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout
    assert not re.search(r": run . of \d begins", again) and table in again
    recorded = (folder / "output" / "e_alibi_0" / "run.json").read_text()
    assert "evaluate" not in recorded  # it has no influence on the weights
