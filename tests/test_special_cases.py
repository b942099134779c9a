"""Encodings against others of which they are special cases, and against other people's code:
transformers' Phi and x-transformers."""

import math

import pytest
import torch
from conftest import make_config, make_model, random_tokens
from transformers.models.phi.modeling_phi import PhiConfig, PhiRotaryEmbedding, apply_rotary_pos_emb
from x_transformers import x_transformers

from tape import TapeForCausalLM
from tape.encodings.grape_ap import PathIntegral
from tape.positions.base import Positions, Tokens
from tape.positions.rotary import apply_rotary

pytestmark = pytest.mark.usefixtures("without_gradients")
EXACT = {"atol": 1e-12, "rtol": 0}


def test_grape_ap_without_probes_is_alibi_with_slopes_times_ln_2():
    ours, alibi = (make_model(name, dtype=torch.float64) for name in ("grape_ap", "alibi"))
    shared = {name: x for name, x in ours.state_dict().items() if ".context." not in name}
    alibi.load_state_dict(shared, strict=False)
    tokens = random_tokens(2, 15)
    for layer in ours.model.layers:
        layer.context.probe.weight.zero_()
    alibi.model.position.exponents.add_(math.log2(math.log(2)))
    torch.testing.assert_close(ours(tokens).logits, alibi(tokens).logits, atol=1e-6, rtol=0)


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


def test_partial_rope_is_phis_in_another_order_of_channels():
    """transformers rotates the first r D channels, the first half of them with the second; here
    pair f is (f, f + D/2) for every share."""
    share, D, T = 0.5, 16, 9
    scaling = {"rope_type": "default", "partial_rotary_factor": share}
    config = make_config({"name": "rope", "scaling": scaling}, head_dim=D)
    shape = {"hidden_size": 4 * D, "num_attention_heads": 4}
    phi = PhiRotaryEmbedding(PhiConfig(**shape, rope_parameters=config.rope_parameters))
    r, x, index = int(share * D), torch.randn(1, 4, T, D), torch.arange(T)[None]
    turned, _ = apply_rotary_pos_emb(x[..., :r], x[..., :r], *phi(x, index))
    theirs = torch.cat((turned, x[..., r:]), dim=-1)
    rest = [*range(r, D)]
    order = [*range(r // 2), *rest[: D // 4], *range(r // 2, r), *rest[D // 4 :]]
    e = TapeForCausalLM(config).model.position.state(Positions(index, index), torch.float32)
    ours = apply_rotary(x[..., order], e)
    torch.testing.assert_close(ours, theirs[..., order], atol=1e-6, rtol=0)


def test_foxs_bias_is_data_dependent_alibi_of_x_transformers():
    layer, slots = make_model("fox", dtype=torch.float64).model.layers[0].context, torch.arange(17)
    theirs = x_transformers.DataDependentAlibi(32, heads=4).double()
    theirs.to_forget_gates[0].load_state_dict(layer.gate.state_dict())
    x, q = (torch.randn(shape, dtype=torch.float64) for shape in ((2, 17, 32), (2, 4, 17, 8)))
    tokens = Tokens(Positions(slots[None], slots[None]), None, None, slots, x=x)
    _, k, extras = layer.prepare(q, q, tokens)
    ours = layer.bias(q, k, extras, tokens).dense(torch.float64)
    torch.testing.assert_close(ours, theirs(x), **EXACT)


def test_grape_aps_sums_are_those_of_x_transformers():
    """Those are over the tokens from the key's to that before the query's."""
    q, k = torch.randn(2, 2, 4, 17, 8, dtype=torch.float64)
    theirs = x_transformers.PerRowDataDependentAlibi(32, heads=4, dim_head=8)
    theirs.to_forget_gates.register_forward_hook(lambda *_: (q, k.roll(-1, dims=2)))
    expected = theirs(torch.zeros(2, 17, 32))
    slots = torch.arange(17)
    bias = PathIntegral(q * theirs.scale, k, torch.ones(4), slots, None).dense(torch.float64)
    torch.testing.assert_close(bias.tril(), expected.tril(), **EXACT)
