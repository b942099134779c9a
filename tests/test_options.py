"""Options of the decoder: attention as in other models, and layers applied several times."""

import copy
import math

import pytest
import torch
from cases import Case, check
from conftest import (
    CACHES,
    VOCABULARY,
    WITHOUT_SOFTMAX,
    fields_of_llama,
    left_padded,
    make_config,
    make_model,
    random_tokens,
)
from every_encoding import POSITIONS, represented
from peft import LoraConfig, get_peft_model
from transformers import (
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
)
from transformers.models.gpt_oss import modeling_gpt_oss

from tape.attention.backends import eager
from tape.attention.payload import Values
from tape.export.llama import require_llama
from tape.model.options import AttentionSink
from tape.positions.tape import TapeLayer

EXACT = {"atol": 1e-5, "rtol": 1e-5}
TEMPERATURE = {"query_temperature": {"scale": 0.5, "length": 3}}
RECURRENT = {"num_hidden_layers": 2, "num_recurrences": 3}
ALL = {"qk_norm": True, "attention_sink": True, "gated_attention": True, **TEMPERATURE}
with_softmax = pytest.mark.parametrize(
    "position", represented([name for name in POSITIONS if name not in WITHOUT_SOFTMAX])
)
SCALABLE = {"learned": True, "fixed": {"length": 4}}


@torch.no_grad()
def test_normalised_as_in_a_qwen3_with_the_same_weights():
    model = make_model("rope", num_key_value_heads=2, qk_norm=True)
    qwen = Qwen3ForCausalLM(Qwen3Config(**fields_of_llama(model.config, "rope_parameters")))
    qwen.eval().load_state_dict(model.state_dict())
    tokens, mask = left_padded()
    logits, expected = (m(tokens, attention_mask=mask).logits for m in (model, qwen))
    torch.testing.assert_close(logits[mask.bool()], expected[mask.bool()], **EXACT)


@torch.no_grad()
def test_the_sink_is_that_of_gpt_oss():
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 4, 7, 8), torch.randn(2, 2, 7, 8), torch.randn(2, 2, 7, 8)
    sink = AttentionSink(4)
    torch.nn.init.normal_(sink.s)
    seen = torch.ones(7, 7, dtype=torch.bool).tril()
    module = torch.nn.Module()
    module.sinks, module.num_key_value_groups = sink.s, 2
    additive = torch.zeros(7, 7).masked_fill(~seen, torch.finfo(torch.float32).min)
    expected, weights = modeling_gpt_oss.eager_attention_forward(module, q, k, v, additive, 0.3)
    found = eager(q, k, Values(v, None), seen, None, 0.3, 0.0, needs_lse=True)
    averages = sink(found.values, found.lse)
    torch.testing.assert_close(averages.transpose(1, 2), expected)
    torch.testing.assert_close(sink(found.weights, found.lse), weights)


@torch.no_grad()
def test_gated_as_in_a_qwen3_next_with_the_same_weights():
    """Its layers with full attention and a plain MLP. It projects queries and gates of a head with
    one matrix, and its norms multiply by 1 + w."""
    model = make_model("rope", num_key_value_heads=2, qk_norm=True, gated_attention=True)
    layers = model.config.num_hidden_layers
    config = Qwen3NextConfig(
        **fields_of_llama(model.config, "intermediate_size"),
        layer_types=["full_attention"] * layers,
        mlp_only_layers=[*range(layers)],
        rope_parameters=model.config.rope_parameters | {"partial_rotary_factor": 1.0},
    )
    qwen = Qwen3NextForCausalLM(config).eval()
    weights = model.state_dict()
    for name in [name for name in weights if "output_gate" in name]:
        queries = name.replace("output_gate", "q_proj")
        heads = [weights[each].unflatten(0, (4, -1)) for each in (queries, name)]
        weights[queries] = torch.cat(heads, dim=1).flatten(0, 1)
        del weights[name]
    qwen.load_state_dict({name: w - 1 if "norm" in name else w for name, w in weights.items()})
    tokens, mask = left_padded()
    logits, expected = (m(tokens, attention_mask=mask).logits for m in (model, qwen))
    torch.testing.assert_close(logits[mask.bool()], expected[mask.bool()], **EXACT)


class Open(torch.nn.Module):
    def forward(self, x):
        return torch.full_like(x, 1e4)  # whose sigmoid is 1


@torch.no_grad()
@with_softmax
def test_open_gates_and_factors_of_one_change_nothing(position, monkeypatch):
    tokens = random_tokens(2, 12)
    plain = make_model(position)
    weights, expected = plain.state_dict(), plain(tokens).logits
    gated = make_model(position, gated_attention=True)
    gated.load_state_dict(weights, strict=False)
    assert not torch.allclose(gated(tokens).logits, expected, **EXACT)
    for layer in gated.model.layers:
        layer.self_attn.output_gate = Open()
    assert torch.equal(gated(tokens).logits, expected)
    scaled = make_model(position, scalable_softmax={"length": 12})
    scaled.load_state_dict(weights)
    torch.testing.assert_close(scaled(tokens).logits, expected, **EXACT)
    scaled = make_model(position, scalable_softmax=True)
    scaled.load_state_dict(weights, strict=False)
    for layer in scaled.model.layers:
        layer.self_attn.softmax.s.fill_(0.5)
    assert not torch.allclose(scaled(tokens).logits, expected, **EXACT)
    monkeypatch.setattr(
        "tape.model.inputs.visible_keys", lambda *given: torch.tensor([[math.exp(2)]])
    )
    torch.testing.assert_close(scaled(tokens).logits, expected, **EXACT)


@torch.no_grad()
@with_softmax
def test_scalable_softmax_is_softmax_to_the_base_n_to_the_s(position):
    """In the first layer: n^(s z) / sum of n^(s z) for the scores z, biases included."""
    tokens, shape = random_tokens(2, 12), {"kernel": "eager", "num_hidden_layers": 2}
    plain, scaled = (make_model(position, **shape, scalable_softmax=x) for x in (False, True))
    plain.load_state_dict(scaled.state_dict(), strict=False)
    softmax, found = (m(tokens, output_attentions=True).attentions[0] for m in (plain, scaled))
    n = (softmax > 0).sum(-1, keepdim=True)
    s = scaled.model.layers[0].self_attn.softmax.s[:, None, None]
    powers = softmax ** (s * n.log()) * (softmax > 0)
    torch.testing.assert_close(found, powers / powers.sum(-1, keepdim=True), **EXACT)


@with_softmax
@pytest.mark.parametrize("form", SCALABLE)
@pytest.mark.parametrize("kind", CACHES)
def test_scalable_softmax_counts_cached_keys(position, kind, form):
    """Of those that are real and in the window."""
    for window in (None, 5):
        changes = {"scalable_softmax": SCALABLE[form], "sliding_window": window}
        rows = ("aaaaaaaaaaaaaaa", "....aaaaaaaaaaa")
        check(Case(position, rows, calls=(1, 4, 7, 3), cache=kind, changes=changes))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (3, "scalable_softmax"),
        ("learned", "scalable_softmax"),
        ({}, "must be true, false or have a length"),
        ({"length": 4, "base": 2}, "must be true, false or have a length"),
        ({"length": 1}, r"scalable_softmax.length=1 must be an integer >= 2"),
        ({"length": True}, r"scalable_softmax.length=True must be an integer >= 2"),
    ],
)
def test_wrong_scalable_softmaxes(wrong, message):
    with pytest.raises(ValueError, match=message):
        make_config("rope", scalable_softmax=wrong)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"query_temperature": 3}, "query_temperature=3 must have a scale and a length"),
        ({"query_temperature": {"scale": 1.0}}, "must have a scale and a length"),
        ({"query_temperature": {"scale": 1.0, "length": 4, "base": 2}}, "a scale and a length"),
        ({"query_temperature": {"scale": float("nan"), "length": 4}}, "scale=nan must be a finite"),
        ({"query_temperature": {"scale": -1.0, "length": 4}}, r"scale=-1\.0 must be a finite"),
        ({"query_temperature": {"scale": 1.0, "length": 0}}, "query_temperature.length=0"),
        (TEMPERATURE | {"position": "abacus"}, "query_temperature with position 'abacus'"),
        ({"qk_norm": 1}, "qk_norm=1 must be true or false"),
        ({"attention_sink": 1}, "attention_sink=1 must be true or false"),
        ({"num_recurrences": 0}, "num_recurrences=0 must be an integer >= 1"),
    ],
)
def test_wrong_options_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        make_config(**{"position": "rope"} | changes)


@pytest.mark.parametrize(
    "changes",
    [RECURRENT, {"scalable_softmax": True}, *({name: value} for name, value in ALL.items())],
)
def test_a_llama_has_none(changes):
    with pytest.raises(ValueError, match="a Llama computes another function"):
        require_llama(make_model("rope", **changes))


@pytest.mark.parametrize("group", [4, 64])
def test_training_in_shifted_groups(group):
    """One group of all tokens is full attention."""
    model, tokens = make_model("tape", **ALL).train(), random_tokens(2, 12)
    expected = model(tokens).logits
    model.set_shifted_attention(group)
    found = model(tokens).logits
    assert found.shape[-1] == VOCABULARY
    assert torch.allclose(found, expected, atol=1e-5) == (group == 64)


@pytest.mark.parametrize("option", ["attention_sink", "scalable_softmax"])
@pytest.mark.parametrize(
    "position", ["stick_breaking", {"name": "mixed", "pattern": ["stick_breaking"]}]
)
def test_options_of_softmax_without_one(position, option):
    with pytest.raises(ValueError, match=f"{option} with position stick_breaking"):
        make_config(position, **{option: True})


def test_scalable_softmax_counts_no_groups():
    with pytest.raises(ValueError, match="shifted groups of 4 tokens with scalable_softmax"):
        make_model("rope", scalable_softmax=True).set_shifted_attention(4)


def test_every_layer_but_the_final_step_moves_the_state():
    """The parameters are there in the last layer, and the last step does not cache a payload."""
    model = make_model("tape", **RECURRENT)
    assert all(isinstance(layer.context, TapeLayer) for layer in model.model.layers)
    output = model(random_tokens(1, 5), output_hidden_states=True)
    widths = [layer.values.shape[-1] for layer in output.past_key_values.layers]
    assert widths == [16] * 5 + [8]
    assert len(output.hidden_states) == 2 * 3 + 1


def without_the_last(model):
    model.model.layers = model.model.layers[:-2]


def with_copies(model):
    model.model.layers.extend(copy.deepcopy(model.model.layers))


def replicated(model):
    get_peft_model(model, LoraConfig(layer_replication=[(0, 4), (0, 4)], target_modules=["q_proj"]))


def with_another_number(model):
    model.config.num_hidden_layers = 2


@pytest.mark.parametrize("recurrences", [1, 2])
@pytest.mark.parametrize("change", [without_the_last, with_copies, replicated, with_another_number])
def test_layers_are_neither_added_nor_removed(change, recurrences):
    model = make_model("tape", num_hidden_layers=4, num_recurrences=recurrences)
    change(model)
    message = rf"\d layers, .*num_hidden_layers=\d .* made for {4 * recurrences} in all: .*peft's "
    with pytest.raises(ValueError, match=message):
        model(random_tokens(1, 2))
