"""Every step from the literal TAPE to this package's computes the same."""

import re

import pytest
import torch

from tape import TapeConfig
from tape.analysis import optimisations
from tape.analysis.optimisations import inputs, run, variants

STEPS = [name for name in variants() if name != "rope"]


@pytest.mark.parametrize("name", STEPS[1:])
def test_a_step_changes_nothing(name):
    config = TapeConfig(
        vocab_size=8,
        hidden_size=24,
        intermediate_size=8,
        num_hidden_layers=2,
        num_attention_heads=3,
        position={"name": "tape", "width": 7},
    )
    update, given = inputs(config, 2, 70)
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


def test_all_are_timed_and_what_cannot_be_is_refused(monkeypatch, capsys):
    arguments = ["--batch", "1", "--length", "8", "--hidden", "16", "--heads", "2", "--rounds", "7"]
    monkeypatch.setattr("sys.argv", ["optimisations", *arguments])
    optimisations.main()
    printed = capsys.readouterr().out
    for name in variants():
        row = re.search(rf"^\| {re.escape(name)} \| [\d.]+ \| ([\d.]+) \|", printed, re.MULTILINE)
        assert row and (float(row[1]) == 1) == (name == "rope")
    with pytest.raises(ValueError, match=r"--rounds=6 must be an integer in 7\.\."):
        run(1, 8, 16, 2, 6)
