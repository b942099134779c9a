"""TAPE without the average of its state is RoPE with a gain per token and head."""

import pytest
import torch
from conftest import make_model, random_tokens


@torch.no_grad()
@pytest.mark.parametrize("recurrences", [1, 2])
@pytest.mark.parametrize("heads", [4, 2])
def test_without_its_average_the_state_is_ropes_times_a_real_gain(heads, recurrences):
    """The same for all frequencies, in every layer and recurrence; weights are random."""
    changes = {"num_hidden_layers": 4, "num_key_value_heads": heads, "dtype": torch.float64}
    tape = make_model({"name": "tape", "attention": False}, num_recurrences=recurrences, **changes)
    rope, tokens = make_model("rope", num_recurrences=recurrences, **changes), random_tokens(2, 13)
    shared = {name: x for name, x in tape.state_dict().items() if ".context." not in name}
    rope.load_state_dict(shared)
    states = []
    for layer in tape.model.layers:
        layer.register_forward_pre_hook(lambda _, given: states.append(given[1]))
    expected = tape(tokens).logits
    first = torch.view_as_complex(states[0].mT.contiguous())
    gains = [torch.view_as_complex(e.mT.contiguous()) / first for e in states]  # (B, K, T, F)
    assert len(gains) == 4 * recurrences
    for gain in gains:
        assert gain.imag.abs().max() < 1e-13 * gain.abs().max()
        torch.testing.assert_close(gain, gain[..., :1].expand_as(gain), atol=0, rtol=1e-12)
    assert all((gain.real - 1).abs().max() > 0.01 for gain in gains[1:])
    left = iter(gains)
    for layer in rope.model.layers:

        def scaled(q, k, tokens, prepare=layer.context.prepare):
            return prepare(q, k, tokens._replace(e=tokens.e * next(left).real[..., None, :]))

        layer.context.prepare = scaled
    torch.testing.assert_close(rope(tokens).logits, expected, atol=1e-12, rtol=1e-12)
