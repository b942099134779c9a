"""What trained runs leave: weights, losses, checkpoints, and the lock of their folder."""

import signal
import subprocess
import sys
from contextlib import contextmanager
from unittest import mock

import torch
from transformers import AutoModelForCausalLM

from tape.core.metrics import read_metrics
from tape.training.callbacks import StopAndNaNCallback


def weights(folder):
    return AutoModelForCausalLM.from_pretrained(folder).state_dict()


def assert_same_weights(one, other):
    for name, value in one.items():
        assert torch.equal(value, other[name]), name


def losses(folder, name="loss"):
    """The steps and values of a measure."""
    rows = read_metrics(folder / "metrics.jsonl")
    return [(row["step"], row[name]) for row in rows if name in row]


def checkpoint_names(folder):
    return sorted(path.name for path in folder.glob("checkpoint-*"))


HOLD = """
import fcntl, sys
file = open(sys.argv[1], "w")
fcntl.lockf(file, fcntl.LOCK_EX)
print(flush=True)
input()
"""


@contextmanager
def locked(folder):
    """Another process works in a folder."""
    folder.mkdir(parents=True)
    words = [sys.executable, "-c", HOLD, folder / ".lock"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        yield
        other.communicate(b"\n")


def told_to_stop(step, how=signal.SIGTERM):
    """With this, a run gets a signal in a step, or raises an exception there."""

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == step - 1:
            if isinstance(how, BaseException):
                raise how
            signal.raise_signal(how)

    return mock.patch.object(StopAndNaNCallback, "on_step_begin", on_step_begin)
