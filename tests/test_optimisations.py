"""Every step from the literal TAPE to this package's computes the same."""

import re

import pytest
import torch
from commands import run_command

from benchmarks.optimisations import inputs, variants

STEPS = [name for name in variants() if name != "rope"]


@pytest.mark.parametrize("name", STEPS[1:])
def test_a_step_changes_nothing(name):
    update, given = inputs({"hidden": 24, "heads": 3, "kv_heads": None}, 2, 70)
    update, given = update.double(), [x.detach().double().requires_grad_() for x in given]
    with torch.no_grad():
        for weight in update.parameters():
            weight.normal_()
    found = []
    for layer in (variants()[STEPS[0]], variants()[name]):
        outputs = layer(update, *given)
        torch.manual_seed(0)
        grads = [torch.randn(x.shape, dtype=x.dtype) for x in outputs]
        found.append(
            [*outputs, *torch.autograd.grad(outputs, (*given, *update.parameters()), grads)]
        )
    for expected, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected)
        assert expected.abs().max() > 0.01


def test_all_are_timed(tmp_path):
    arguments = ["--batch", "1", "--length", "8", "--hidden", "16", "--heads", "2", "--rounds", "7"]
    printed = run_command("benchmarks/optimisations.py", *arguments, folder=tmp_path).out
    for name in variants():
        row = re.search(rf"^\| {re.escape(name)} \| [\d.]+ \| ([\d.]+) \(", printed, re.MULTILINE)
        assert row and (float(row[1]) == 1) == (name == "rope")
