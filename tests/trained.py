"""What trained runs leave: weights, losses and checkpoints."""

import torch
from transformers import AutoModelForCausalLM

from tape.runs.metrics import read_metrics


def weights(folder):
    return AutoModelForCausalLM.from_pretrained(folder).state_dict()


def assert_same_weights(one, other):
    for name, value in one.items():
        assert torch.equal(value, other[name]), name


def losses(folder):
    rows = read_metrics(folder / "metrics.jsonl")
    return [(row["step"], row["loss"]) for row in rows if "loss" in row]


def checkpoint_names(folder):
    return sorted(path.name for path in folder.glob("checkpoint-*"))
