"""Runs that end early: signals, kills, and losses that are not finite."""

import os
import signal
import subprocess
import sys

import pytest
from commands import ROOT
from trained import assert_same_weights, checkpoint_names, weights
from transformers import TrainerCallback

from tape.runs.metrics import read_metrics
from tape.training.callbacks import NonFiniteLoss, StopAndNaNCallback, Stopped
from tape.training.trainer import LanguageModelTrainer


@pytest.mark.parametrize(("position", "step"), [("tape", 3), ("randpe", 4), ("tape", 8)])
def test_a_run_told_to_stop_saves_and_says_so(start, tmp_path, position, step):
    """SIGTERM within a step: the run saves after it, exits, and continues to the same end; also
    where a validation is due. In the last step it just ends."""
    settings = [f"position={position}", "trainer.logging_steps=5"]
    whole = start(*settings, folder=tmp_path / "whole")

    class Terminate(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            if state.global_step == step - 1:
                signal.raise_signal(signal.SIGTERM)

    def interrupted(self, *args, **kwargs):
        self.add_callback(Terminate())
        return original(self, *args, **kwargs)

    folder, original = tmp_path / "run", LanguageModelTrainer.train
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LanguageModelTrainer, "train", interrupted)
        if step < 8:
            with pytest.raises(Stopped, match=f"stopped after step {step}, which is saved"):
                start(*settings)
            assert checkpoint_names(folder) == [f"checkpoint-{step}"]
            assert not (folder / "model.safetensors").exists()
        else:
            start(*settings)
    start(*settings)
    assert_same_weights(weights(whole), weights(folder))
    timed = {"tokens_per_second", "peak_memory_gib", "data_share", "mfu"}

    def rows(folder):
        return [
            {key: row[key] for key in row if key not in timed and not key.startswith("eval_s")}
            for row in read_metrics(folder / "metrics.jsonl")
        ]

    for row in (ours := rows(folder)) + (theirs := rows(whole)):
        row.pop("eval_runtime", None)
    assert ours == theirs


TERMINATED = """
import signal
from tape.commands import train
train.settings_of = lambda cfg: signal.raise_signal(signal.SIGTERM)
train.main()
"""


def test_sigterm_before_the_first_step_has_the_same_status(tmp_path):
    command = [sys.executable, "-c", TERMINATED, f"output_dir={tmp_path / 'run'}"]
    told = tmp_path / "status"
    ended = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"TAPE_STATUS": str(told)},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 75 and told.read_text() == "75", ended.stderr
    assert ended.stderr == "stopped outside of its steps: the same command continues\n"


@pytest.mark.slow
def test_kills_at_random_moments_change_nothing(text, cache):
    """One SIGKILL and one SIGTERM; more by hand with `python tests/crash.py --kills 20`."""
    settings = ["data=text", f"data.files={text}", f"cache_dir={cache}", "vocab_size=300"]
    command = [sys.executable, "tests/crash.py", "--kills=2", "--steps=16", *settings]
    outcome = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    assert "SIGKILL -> status -9" in outcome.stdout
    assert outcome.stdout.rstrip().endswith("equal the uninterrupted run's")


@pytest.mark.parametrize("late", [False, True])
def test_a_loss_that_is_not_finite_ends_the_run(late, start, monkeypatch):
    """Or is read one step later, as on a GPU."""
    monkeypatch.setattr(
        "tape.training.trainer.StopAndNaNCallback", lambda **given: StopAndNaNCallback(late=late)
    )
    applied = "was found one step later" if late else "was not applied"
    with pytest.raises(NonFiniteLoss, match=rf"step 2, .*learning rate .*{applied}"):
        start("trainer.learning_rate=1e30", "trainer.max_grad_norm=0", "trainer.warmup_steps=0")


def test_weights_that_are_not_finite_are_never_saved(start, tmp_path):
    with pytest.raises(NonFiniteLoss, match=r"not finite after step 1: not saved"):
        start("trainer.learning_rate=1e38", "trainer.warmup_steps=0", "trainer.save_steps=1")
    assert checkpoint_names(tmp_path / "run") == []
