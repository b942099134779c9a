"""Encodings of which others are special cases."""

import math

import pytest
import torch
from conftest import make_model, random_tokens

from tape.positions.fox import ForgetBias
from tape.positions.grape_ap import PathIntegral

pytestmark = pytest.mark.usefixtures("without_gradients")
TIGHT = {"atol": 1e-10, "rtol": 1e-10}


def same_weights(position, other, **changes):
    """A model and one of another encoding, with the same weights but those of the encoding, and
    tokens."""
    ours, theirs = (make_model(name, dtype=torch.float64, **changes) for name in (position, other))
    shared = {name: x for name, x in ours.state_dict().items() if ".context." not in name}
    theirs.load_state_dict(shared, strict=False)
    return ours, theirs, random_tokens(2, 15)


def test_grape_ap_without_probes_is_alibi_with_slopes_times_ln_2():
    ours, alibi, tokens = same_weights("grape_ap", "alibi")
    for layer in ours.model.layers:
        layer.context.probe.weight.zero_()
    alibi.model.position.slopes.mul_(math.log(2))
    torch.testing.assert_close(ours(tokens).logits, alibi(tokens).logits, atol=1e-6, rtol=0)


def test_grape_ap_of_products_that_depend_on_the_token_alone_is_fox():
    gates, slots = torch.randn(2, 4, 17, dtype=torch.float64), torch.arange(17)
    query = torch.tensor([1.0, 0.0]).double().expand(2, 4, 17, 2)
    key = torch.stack((gates, torch.randn_like(gates)), dim=-1)
    bias = PathIntegral(query, key, torch.ones(4), slots, None).dense(torch.float64)
    sums = torch.nn.functional.logsigmoid(gates).cumsum(-1)
    expected = ForgetBias(sums, sums).dense(torch.float64)
    torch.testing.assert_close(bias.tril(), expected.tril(), **TIGHT)


def test_repo_at_token_indices_is_rope():
    ours, rope, tokens = same_weights("repo", {"name": "rope", "theta": 50.0})
    different = ours(tokens).logits - rope(tokens).logits
    assert different.abs().max() > 1e-3
    for layer in ours.model.layers[1:]:
        layer.context.places = lambda tokens: tokens.positions.query[:, None].double()
    torch.testing.assert_close(ours(tokens).logits, rope(tokens).logits, atol=1e-5, rtol=0)


def test_wall_with_open_channels_and_a_scalar_gate_is_fox():
    ours, fox, tokens = same_weights("wall_scalar", "fox")
    for layer, other in zip(ours.model.layers, fox.model.layers, strict=True):
        layer.context.inner.gate.bias.fill_(1e4)
        other.context.load_state_dict(layer.context.forget.state_dict())
    expected = fox(tokens).logits
    torch.testing.assert_close(ours(tokens).logits, expected, **TIGHT)


def test_path_with_a_gate_is_path_without_decay_and_fox_without_maps():
    ours, path, tokens = same_weights("path_gate", {"name": "path", "rank": 3})
    _, fox, _ = same_weights("path_gate", "fox")
    for layer, other in zip(ours.model.layers, path.model.layers, strict=True):
        other.context.load_state_dict(layer.context.inner.state_dict())
    kept = [layer.context.forget.gate.bias.clone() for layer in ours.model.layers]
    for layer in ours.model.layers:
        layer.context.forget.gate.bias.fill_(1e4)
    torch.testing.assert_close(ours(tokens).logits, path(tokens).logits, **TIGHT)
    for layer, other, bias in zip(ours.model.layers, fox.model.layers, kept, strict=True):
        layer.context.forget.gate.bias.copy_(bias)
        layer.context.inner.gate.bias.fill_(-1e4)
        other.context.load_state_dict(layer.context.forget.state_dict())
    torch.testing.assert_close(ours(tokens).logits, fox(tokens).logits, **TIGHT)


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
