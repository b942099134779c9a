"""Runs that end early: signals, kills, and losses that are not finite."""

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress

import pytest
import torch
from commands import ROOT
from trained import assert_same_weights, checkpoint_names, losses, weights

from tape.commands.train import STOPPED
from tape.runs.metrics import read_metrics
from tape.training.callbacks import Console, NonFiniteLoss, StopAndNaNCallback, Stopped

KILLS = int(os.environ.get("KILLS", 1))
TIMED = {"tokens_per_second", "peak_memory_gib", "eval_runtime"}
TIMED |= {"eval_samples_per_second", "eval_steps_per_second"}


def rows_of(folder):
    rows = read_metrics(folder / "metrics.jsonl")
    return [{key: row[key] for key in row.keys() - TIMED} for row in rows]


@contextmanager
def told_to_stop(step):
    """Runs get SIGTERM within a step."""
    begin = Console.on_step_begin

    def on_step_begin(self, args, state, control, **kwargs):
        begin(self, args, state, control, **kwargs)
        if state.global_step == step - 1:
            signal.raise_signal(signal.SIGTERM)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Console, "on_step_begin", on_step_begin)
        yield


def test_a_run_told_to_stop_saves_and_says_so(start, tmp_path):
    """SIGTERM within a step: the run saves after it, exits, and continues to the same end; also
    where a validation is due. In the last step it just ends."""
    settings = ["position=randpe", "trainer.logging_steps=5"]
    whole = start(*settings, folder=tmp_path / "whole")
    for step in (3, 4, 8):
        folder = tmp_path / str(step)
        with told_to_stop(step), suppress(Stopped) if step == 8 else pytest.raises(Stopped):
            start(*settings, folder=folder)
        assert checkpoint_names(folder)[-1] == f"checkpoint-{step}"
        assert (folder / "model.safetensors").exists() == (step == 8)
        start(*settings, folder=folder)
        assert_same_weights(weights(whole), weights(folder))
        assert rows_of(folder) == rows_of(whole)


TERMINATED = """
import signal
from tape.commands import train
train.settings_of = lambda cfg: signal.raise_signal(signal.SIGTERM)
train.main()
"""


def test_sigterm_before_the_first_step_has_the_same_status(tmp_path):
    command = [sys.executable, "-c", TERMINATED, f"output_dir={tmp_path / 'run'}"]
    environment = os.environ | {"TAPE_STATUS": str(told := tmp_path / "status")}
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert ended.returncode == 75 and told.read_text() == "75", ended.stderr
    assert ended.stderr == "stopped outside of its steps: the same command continues\n"


@pytest.mark.slow
def test_kills_at_random_moments_change_nothing(start, text, cache, tmp_path, monkeypatch):
    """SIGKILL and SIGTERM in turn, as many as KILLS."""
    monkeypatch.setenv("OMP_NUM_THREADS", str(torch.get_num_threads()))
    steps = ["trainer.max_steps=16", "trainer.save_steps=1", "trainer.logging_steps=1"]
    whole, killed = start(*steps), tmp_path / "killed"
    settings = ["experiment=quick", "data=text", f"data.files={text}", f"cache_dir={cache}"]
    settings += ["vocab_size=300", "trainer.eval_steps=4", *steps, f"output_dir={killed}"]
    signals = [(signal.SIGKILL, signal.SIGTERM)[n % 2] for n in range(KILLS)]
    for wanted in (*signals, None):
        command, how = [sys.executable, "train.py", *settings], {"stderr": subprocess.STDOUT}
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, **how)
        said = ""
        for line in process.stdout:
            said += line
            if wanted and line.startswith(("continuing from", "position")):
                time.sleep(random.uniform(0.1, 0.8))
                process.send_signal(wanted)
        ended = (0,) if wanted is None else (-signal.SIGKILL, STOPPED, 0)
        assert process.wait() in ended, said
    assert_same_weights(weights(whole), weights(killed))
    assert losses(whole) == losses(killed)


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
