"""Encodings and layers against other people's code: transformers' Phi, Inkling and Llama 4, and
x-transformers."""

import torch
from conftest import fields_of_llama, make_config, make_model, random_tokens
from transformers import Llama4ForCausalLM, Llama4TextConfig
from transformers.models.inkling.modeling_inkling import InklingRelativeLogits
from transformers.models.phi.modeling_phi import (
    PhiConfig,
    PhiRotaryEmbedding,
    apply_rotary_pos_emb,
)
from x_transformers import x_transformers

from tape import TapeForCausalLM
from tape.positions import Positions, Tokens
from tape.positions.grape_ap import PathIntegral
from tape.positions.rotary import apply_rotary

TIGHT = {"atol": 1e-12, "rtol": 0}
TEMPERATURE = {"query_temperature": {"scale": 0.5, "length": 3}}


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


def layer_of(position, length=17):
    """A layer's encoding with random weights, and its tokens."""
    layer = make_model(position, dtype=torch.float64).model.layers[0].context
    index = torch.arange(length)
    return layer, Tokens(Positions(index[None], index[None]), None, None, index)


@torch.no_grad()
def test_foxs_bias_is_data_dependent_alibi_of_x_transformers():
    layer, tokens = layer_of("fox")
    theirs = x_transformers.DataDependentAlibi(32, heads=4).double()
    theirs.to_forget_gates[0].load_state_dict(layer.gate.state_dict())
    x, q = (torch.randn(shape, dtype=torch.float64) for shape in ((2, 17, 32), (2, 4, 17, 8)))
    _, k, extras = layer.prepare(q, q, tokens._replace(x=x))
    ours = layer.bias(q, k, extras, tokens).dense(torch.float64)
    torch.testing.assert_close(ours, theirs(x), **TIGHT)


@torch.no_grad()
def test_copes_bias_is_that_of_x_transformers():
    layer, tokens = layer_of("cope")
    D, count = layer.table.shape
    theirs = x_transformers.CoPE(dim=D, heads=4, max_pos=count).double()
    theirs.pos_emb.copy_(layer.table.mT)
    q, k = torch.randn(2, 2, 4, 17, D, dtype=torch.float64)
    later = torch.ones(17, 17).triu(1).bool()
    expected = theirs(q * D**-0.5, ((q @ k.mT) * D**-0.5).masked_fill(later, -1e300))
    ours = layer.bias(q, k, None, tokens).dense(torch.float64)
    torch.testing.assert_close(ours.tril(), expected.tril(), **TIGHT)


@torch.no_grad()
def test_the_querys_profile_is_inklings():
    layer, tokens = layer_of("relative")
    dimension, extent = layer.profiles.shape
    x = torch.randn(2, 17, 32, dtype=torch.float64)
    ours = layer.bias(None, None, None, tokens._replace(x=x)).dense(torch.float64).tril()
    profiles = InklingRelativeLogits(dimension, extent).double()
    profiles.proj.copy_(layer.profiles)
    read = layer.reader(x).unflatten(-1, (4, dimension))
    slots = torch.arange(17)
    torch.testing.assert_close(ours, profiles(read, slots, slots), **TIGHT)


@torch.no_grad()
def test_popes_scores_are_those_of_x_transformers():
    model = make_model("pope", dtype=torch.float64)
    layer, index = model.model.layers[0].context, torch.arange(17)
    layer.shift.copy_(-layer.shift.abs())  # theirs are clamped to [-2 pi, 0]
    positions = Positions(index[None], index[None])
    q, k = torch.randn(2, 2, 4, 17, 8, dtype=torch.float64)
    state = model.model.position.state(positions, torch.float64)
    ours, keys, _ = layer.prepare(q, k, Tokens(positions, None, None, index, e=state))
    theirs = x_transformers.PolarEmbedding(8, 4, base=model.config.position["base"]).double()
    theirs.learned_bias.copy_(layer.shift)
    phases, shift = theirs(index)
    polar = x_transformers.apply_polar_pos_emb
    expected = polar(q, phases) @ polar(k, phases + shift).mT
    torch.testing.assert_close(ours @ keys.mT, expected, atol=1e-4, rtol=1e-5)


@torch.no_grad()
def test_grape_aps_sums_are_those_of_x_transformers():
    """Those are over the tokens from the key's to that before the query's."""
    q, k = torch.randn(2, 2, 4, 17, 8, dtype=torch.float64)
    theirs = x_transformers.PerRowDataDependentAlibi(32, heads=4, dim_head=8)
    theirs.to_forget_gates.register_forward_hook(lambda *_: (q, k.roll(-1, dims=2)))
    expected = theirs(torch.zeros(2, 17, 32))
    slots = torch.arange(17)
    bias = PathIntegral(q * theirs.scale, k, torch.ones(4), slots, None).dense(torch.float64)
    torch.testing.assert_close(bias.tril(), expected.tril(), **TIGHT)


@torch.no_grad()
def test_temperatures_of_queries_are_llama_4s():
    """Its text model without experts and rotations: where it rotates, it scales no queries."""
    model = make_model("nope", num_hidden_layers=4, num_key_value_heads=2, **TEMPERATURE)
    config = Llama4TextConfig(
        **fields_of_llama(model.config),
        intermediate_size_mlp=model.config.intermediate_size,
        moe_layers=[],
        no_rope_layers=[0] * 4,
        attn_temperature_tuning=True,
        attn_scale=TEMPERATURE["query_temperature"]["scale"],
        floor_scale=TEMPERATURE["query_temperature"]["length"],
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        attention_chunk_size=64,
        tie_word_embeddings=False,
    )
    llama, weights = Llama4ForCausalLM(config).eval(), model.state_dict()
    llama.load_state_dict({n.replace("mlp.", "feed_forward."): w for n, w in weights.items()})
    tokens = random_tokens(2, 12)
    found, expected = model(tokens).logits, llama(tokens).logits
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
