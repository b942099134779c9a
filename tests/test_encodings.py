"""Every encoding against the loops of references.py, and against other people's code."""

import json

import pytest
import references
import torch
from conftest import (
    TRAIN_LENGTH,
    both_kernels,
    fields_of_llama,
    gradients,
    in_pieces,
    make_config,
    make_model,
    random_tokens,
)
from torch._subclasses import FakeTensorMode
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.inkling.modeling_inkling import InklingRelativeLogits
from transformers.models.phi.modeling_phi import (
    PhiConfig,
    PhiRotaryEmbedding,
    apply_rotary_pos_emb,
)
from transformers.models.t5.modeling_t5 import T5Attention
from x_transformers import x_transformers

from tape import TapeConfig, TapeForCausalLM
from tape.positions import Positions, Tokens
from tape.positions.bias import alibi_slopes, t5_bucket
from tape.positions.rotary import apply_rotary


def llama_and_ours(position="rope", **changes):
    ours = make_config(position, **changes)
    torch.manual_seed(0)
    llama = LlamaForCausalLM(LlamaConfig(**fields_of_llama(ours, "rope_parameters"))).eval()
    return llama, ours


@pytest.mark.parametrize("heads", [4, 2, 1])
@pytest.mark.parametrize("position", ["rope", "rope_linear", "rope_llama3", "yarn"])
def test_rope_is_the_librarys_llama(position, heads):
    llama, config = llama_and_ours(position, num_key_value_heads=heads)
    model = TapeForCausalLM(config).eval()
    assert list(model.state_dict()) == list(llama.state_dict())
    model.load_state_dict(llama.state_dict())
    tokens = random_tokens(2, 23)
    theirs, ours = llama(tokens, labels=tokens), model(tokens, labels=tokens)
    torch.testing.assert_close(ours.logits, theirs.logits, atol=1e-6, rtol=0)
    torch.testing.assert_close(ours.loss, theirs.loss, atol=1e-6, rtol=0)
    both = [gradients(each, tokens) for each in (model, llama)]
    torch.testing.assert_close(*both, atol=1e-6, rtol=1e-4)


LLAMA3 = {"rope_type": "llama3", "rope_theta": 500.0, "original_max_position_embeddings": 8}
LLAMA3 |= {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 2.0, "beta_fast": 4.0}
YARN |= {"beta_slow": 0.5, "mscale": 0.7, "mscale_all_dim": 1.0, "truncate": False}
LONGROPE = {"factor": 2.0, "original_max_position_embeddings": 8}
LONGROPE |= {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
FIXED = {"short_factor": [1.0, 1.0, 1.5, 2.0], "long_factor": [1.0, 1.0, 1.5, 2.0]}
# Fields of a Llama's config.json, also in the form before `rope_parameters`.
ROPES = {
    "theta": {"rope_theta": 500.0},
    "linear": {"rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0}},
    "linear, old": {"rope_theta": 500.0, "rope_scaling": {"type": "linear", "factor": 4.0}},
    "llama3": {"rope_parameters": LLAMA3},
    "yarn": {"rope_parameters": {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0}},
    "yarn, in full": {"original_max_position_embeddings": 8, "rope_parameters": YARN},
    "yarn, old": {
        "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4},
    },
    "proportional": {
        "partial_rotary_factor": 0.5,
        "rope_parameters": {"rope_type": "proportional"},
    },
    "longrope": {"rope_parameters": LONGROPE | {"rope_type": "longrope"} | FIXED},
    "partial": {"rope_theta": 500.0, "partial_rotary_factor": 0.5},
    "partial, default": {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
    "partial, old": {"rope_scaling": {"type": "default", "partial_rotary_factor": 0.5}},
}
OF_OTHERS = {  # fields that a Llama ignores, such as those of the Mistral that it was made from
    "window": {"sliding_window": 4},
    "recurrences": {"num_recurrences": 2},
    "temperature": {"query_temperature": {"scale": 1.0, "length": 2}},
    "norm": {"qk_norm": True},
    "sink": {"attention_sink": True},
}
VARYING = {"dynamic": {"factor": 4.0}, "longrope": LONGROPE}


def llama_folder(folder, rope):
    """The checkpoint of a Llama with such fields in its config.json."""
    llama, _ = llama_and_ours()
    llama.save_pretrained(folder)
    saved = json.loads((folder / "config.json").read_text())
    del saved["rope_parameters"]
    (folder / "config.json").write_text(json.dumps(saved | rope))
    return folder


@torch.no_grad()
@pytest.mark.parametrize("kind", [*ROPES, *OF_OTHERS])
def test_a_llama_computes_as_in_the_library(tmp_path, kind):
    folder, tokens = llama_folder(tmp_path, (ROPES | OF_OTHERS)[kind]), random_tokens(2, 23)
    expected = LlamaForCausalLM.from_pretrained(folder).eval()(tokens).logits
    scaled = ("yarn", "tape_yarn") if kind.startswith("yarn") else ()
    for position in ("rope", "tape", {"name": "mixed", "pattern": ["rope", "tape"]}, *scaled):
        model = TapeForCausalLM.from_pretrained(folder, position=position).eval()
        torch.testing.assert_close(model(tokens).logits, expected, atol=1e-6, rtol=0)
    rope = TapeConfig.from_pretrained(folder, position="rope").rope_parameters
    for position in scaled:  # few frequencies may hide a difference
        assert TapeConfig.from_pretrained(folder, position=position).rope_parameters == rope


@pytest.mark.parametrize("kind", VARYING)
def test_a_llama_whose_frequencies_depend_on_the_length_is_refused(tmp_path, kind):
    folder = llama_folder(tmp_path, {"rope_parameters": {"rope_type": kind} | VARYING[kind]})
    for position in ("rope", "tape"):
        with pytest.raises(ValueError, match=f"rope_type='{kind}': only schedules that are fixed"):
            TapeForCausalLM.from_pretrained(folder, position=position)


@pytest.mark.parametrize("position", ["yarn", "tape_yarn", {"name": "mixed", "pattern": ["yarn"]}])
@pytest.mark.parametrize("kind", ["linear", "linear, old", "llama3", "proportional", *VARYING])
def test_yarn_on_frequencies_that_are_scaled_is_refused(tmp_path, position, kind):
    rope = ROPES.get(kind) or {"rope_parameters": {"rope_type": kind} | VARYING[kind]}
    with pytest.raises(ValueError, match=r"position yarn on frequencies with rope_type='\w+'"):
        TapeForCausalLM.from_pretrained(llama_folder(tmp_path, rope), position=position)


@pytest.mark.parametrize("heads", [4, 2])
@pytest.mark.parametrize("position", ["tape", "tape_yarn", "adape"])
def test_tape_starts_as_the_llama_it_is_made_from(tmp_path, position, heads):
    base = "yarn" if position == "tape_yarn" else "rope_theta"
    llama, _ = llama_and_ours(base, num_key_value_heads=heads)
    llama.save_pretrained(tmp_path)
    model = TapeForCausalLM.from_pretrained(tmp_path, position=position).eval()
    tokens = random_tokens(2, 23)
    with torch.no_grad():
        assert torch.equal(model(tokens).logits, llama(tokens).logits)
    # With gradients, turning and averaging round in another order.
    torch.testing.assert_close(model(tokens).logits, llama(tokens).logits, atol=1e-5, rtol=1e-5)
    assert set(model.state_dict()) > set(llama.state_dict())


def test_a_llama_is_read_as_rope_and_others_are_refused(tmp_path):
    llama, _ = llama_and_ours("rope_theta")
    llama.save_pretrained(tmp_path)
    model = TapeForCausalLM.from_pretrained(tmp_path)
    assert model.config.position["name"] == "rope"
    assert model.config.rope_parameters["rope_theta"] == 500.0
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(ValueError, match=r"gpt2.*allowed: 'tape', 'llama'"):
        TapeForCausalLM.from_pretrained(tmp_path)


@pytest.mark.parametrize("heads", range(1, 33))
def test_alibi_slopes_are_blooms(heads):
    # Bloom's bias for one more token is slope * position.
    theirs = build_alibi_tensor(torch.ones(1, 2), heads, torch.float32)[:, 0, 1]
    torch.testing.assert_close(alibi_slopes(heads), theirs, atol=0, rtol=1e-6)
    literal = torch.tensor(references.press_slopes(heads))
    torch.testing.assert_close(alibi_slopes(heads), literal, atol=0, rtol=1e-6)


def test_t5_buckets_are_the_librarys():
    distance = torch.arange(0, 4096)
    theirs = T5Attention._relative_position_bucket(
        -distance, bidirectional=False, num_buckets=32, max_distance=128
    )
    assert torch.equal(t5_bucket(distance, 32, 128), theirs)


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


def test_ntk_aware_scaling_is_another_theta():
    """theta s^(D/(D-2)): the lowest frequency is divided by s, the highest stays."""
    plain, scaled = (
        TapeForCausalLM(make_config({"name": "rope", "scaling": scaling})).model
        for scaling in (None, {"rope_type": "ntk", "factor": 4.0})
    )
    ratio = plain.position.inv_freq / scaled.position.inv_freq
    torch.testing.assert_close(ratio[[0, -1]], torch.tensor([1.0, 4.0]))
    assert scaled.config.rope_parameters["rope_type"] == "default"
    again = TapeConfig(**scaled.config.to_dict())
    assert again.rope_parameters == scaled.config.rope_parameters


def relative_error(found, exact):
    return ((found.double() - exact).norm() / exact.norm()).item()


@torch.no_grad()
@both_kernels
@pytest.mark.parametrize(
    ("dtype", "centre", "positions", "tolerance"),
    [
        (torch.float16, None, range(12), 2e-3),
        (torch.float16, None, range(12_000, 12_012), 2e-3),
        (torch.float16, 12_000.0, range(0, 24_000, 2_000), 2e-3),
        (torch.bfloat16, None, range(12), 16e-3),
        (torch.bfloat16, None, range(139_000, 139_012), 16e-3),
    ],
)
def test_xpos_is_as_precise_far_away_as_at_its_centre(kernel, dtype, centre, positions, tolerance):
    tokens, position = random_tokens(2, 12), {"name": "xpos", "centre": centre}
    model, exact = (
        make_model(position, kernel=kernel, dtype=each) for each in (dtype, torch.double)
    )
    position_ids = torch.tensor([*positions])[None]
    expected = exact(tokens, position_ids=position_ids).logits
    logits = in_pieces(model, tokens, [9, 1, 1, 1], position_ids=position_ids)
    assert relative_error(logits, expected) < tolerance


@torch.no_grad()
@pytest.mark.parametrize(
    ("dtype", "centre", "first", "allowed"),
    [
        (torch.float16, None, 20_000, "12,472"),
        (torch.float16, 15_000.0, 0, "27,464"),
        (torch.bfloat16, None, 150_000, "139,"),
        (torch.float32, None, 150_000, "139,"),
    ],
)
def test_xpos_refuses_positions_that_its_scale_cannot_be_held_at(dtype, centre, first, allowed):
    model = make_model({"name": "xpos", "centre": centre}, dtype=dtype)
    centre = TRAIN_LENGTH / 2 if centre is None else centre
    message = rf"centre={centre} in {dtype} at positions 0 to {first + 4}: .* to {allowed}"
    where = torch.arange(first, first + 5)[None]
    inputs = {"input_ids": random_tokens(1, 5), "position_ids": where}
    with pytest.raises(ValueError, match=message):
        model(**inputs)
    autocast = torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32)
    with pytest.raises(ValueError, match=message), autocast:
        model.float()(**inputs)


def test_xpos_counts_slots_where_a_look_at_positions_would_wait():
    embed = make_model("xpos").model.position.embed
    with FakeTensorMode():  # a GPU's tensors, without values
        x, query = torch.empty(1, 4, 32, device="cuda"), torch.empty(1, 4, device="cuda")
        slots = Positions(query, torch.empty(1, 20_000, device="cuda"))
        embed(x, slots)
        with pytest.raises(ValueError, match=r"torch\.float16 at positions 0 to 19999"):
            embed(x.half(), slots)


def test_yarn_defaults():
    parameters = make_config("yarn").rope_parameters
    assert (parameters["factor"], parameters["beta_fast"], parameters["beta_slow"]) == (4, 32, 1)
    assert parameters["original_max_position_embeddings"] == TRAIN_LENGTH


def test_fire_stays_finite_at_its_extremes():
    model = make_model("fire")
    layer = model.model.position.layers[0]
    with torch.no_grad():
        layer.scale.zero_()
        layer.multiplier.zero_()
    index = torch.arange(9)[None]
    bias = layer(Positions(index, index))
    assert bias.isfinite().all()
    bias.sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in layer.parameters())


@pytest.mark.parametrize(
    ("position", "expected"),
    [("rope", 162_417_408), ("fire", 162_422_808), ("t5", 162_422_016), ("tape", 162_837_168)],
)
def test_parameter_counts_of_the_papers_model(position, expected):
    shape = {
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "vocab_size": 32_000,
    }
    with torch.device("meta"):
        model = TapeForCausalLM(TapeConfig(**shape, position=position))
    assert model.num_parameters() == expected


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
    _, k, extras = layer.prepare(x, q, q, None, tokens, None)
    ours = layer.bias(x, q, k, extras, tokens).dense(torch.float64)
    torch.testing.assert_close(ours, theirs(x), atol=1e-12, rtol=0)


@torch.no_grad()
def test_copes_bias_is_that_of_x_transformers():
    layer, tokens = layer_of("cope")
    D, count = layer.table.shape
    theirs = x_transformers.CoPE(dim=D, heads=4, max_pos=count).double()
    theirs.pos_emb.copy_(layer.table.mT)
    q, k = torch.randn(2, 2, 4, 17, D, dtype=torch.float64)
    later = torch.ones(17, 17).triu(1).bool()
    expected = theirs(q * D**-0.5, ((q @ k.mT) * D**-0.5).masked_fill(later, -1e300))
    ours = layer.bias(None, q, k, None, tokens).dense(torch.float64)
    torch.testing.assert_close(ours.tril(), expected.tril(), atol=1e-12, rtol=0)


@torch.no_grad()
def test_the_querys_profile_is_inklings_in_transformers_and_x_transformers():
    layer, tokens = layer_of("relative")
    dimension, extent = layer.profiles.shape
    x = torch.randn(2, 17, 32, dtype=torch.float64)
    ours = layer.bias(x, None, None, None, tokens).dense(torch.float64).tril()
    profiles = InklingRelativeLogits(dimension, extent).double()
    profiles.proj.copy_(layer.profiles)
    read = layer.reader(x).unflatten(-1, (4, dimension))
    slots = torch.arange(17)
    torch.testing.assert_close(ours, profiles(read, slots, slots), atol=1e-12, rtol=0)
    theirs = x_transformers.RelativeProjPositionalBias(32, 4, dimension, extent).double()
    theirs.to_distance_weights[0].weight.copy_(layer.reader.weight)
    theirs.to_distance_weights[0].bias.zero_()
    theirs.distance_bank.copy_(layer.profiles)
    torch.testing.assert_close(ours, theirs(x), atol=1e-12, rtol=0)


@torch.no_grad()
def test_popes_scores_are_those_of_x_transformers():
    model = make_model("pope", dtype=torch.float64)
    layer, index = model.model.layers[0].context, torch.arange(17)
    layer.shift.copy_(-layer.shift.abs())  # theirs are clamped to [-2 pi, 0]
    positions = Positions(index[None], index[None])
    q, k = torch.randn(2, 2, 4, 17, 8, dtype=torch.float64)
    state = model.model.position.state(positions, torch.float64)
    ours, keys, _ = layer.prepare(None, q, k, state, None, None)
    theirs = x_transformers.PolarEmbedding(8, 4, base=model.config.position["base"]).double()
    theirs.learned_bias.copy_(layer.shift)
    phases, shift = theirs(index)
    polar = x_transformers.apply_polar_pos_emb
    expected = polar(q, phases) @ polar(k, phases + shift).mT
    torch.testing.assert_close(ours @ keys.mT, expected, atol=1e-4, rtol=1e-5)
