"""Options of the decoder: attention as in other models, and layers applied several times."""

import copy

import pytest
import test_contract
import torch
from conftest import (
    VOCABULARY,
    fields_of_llama,
    in_modes,
    left_padded,
    make_cache,
    make_config,
    make_model,
    random_tokens,
)
from peft import LoraConfig, get_peft_model
from transformers import Llama4ForCausalLM, Llama4TextConfig, Qwen3Config, Qwen3ForCausalLM
from transformers.models.gpt_oss import modeling_gpt_oss

from tape.attention.backends import eager
from tape.attention.payload import Values
from tape.export.llama import require_llama
from tape.model.options import AttentionSink
from tape.positions.tape import TapeLayer

EXACT = {"atol": 1e-5, "rtol": 1e-5}
TEMPERATURE = {"query_temperature": {"scale": 0.5, "length": 3}}
RECURRENT = {"num_hidden_layers": 2, "num_recurrences": 3}
ALL = {"qk_norm": True, "attention_sink": True, **TEMPERATURE}


@torch.no_grad()
def test_normalised_as_in_a_qwen3_with_the_same_weights():
    model = make_model("rope", num_key_value_heads=2, qk_norm=True)
    qwen = Qwen3ForCausalLM(Qwen3Config(**fields_of_llama(model.config, "rope_parameters")))
    qwen.eval().load_state_dict(model.state_dict())
    tokens, mask = left_padded()
    logits, expected = (m(tokens, attention_mask=mask).logits for m in (model, qwen))
    torch.testing.assert_close(logits[mask.bool()], expected[mask.bool()], **EXACT)


def pairs_side_by_side(weight, heads):
    """Rows of a projection in the order of Llama 4, which rotates channels 2f and 2f + 1 together,
    not f and f + D/2."""
    return weight.view(heads, 2, -1, weight.shape[1]).transpose(1, 2).reshape(weight.shape)


@torch.no_grad()
@pytest.mark.parametrize(
    ("position", "rotates", "options"),
    [
        ("rope", [1, 1, 1, 1], {}),
        ("rope", [1, 1, 1, 1], {"qk_norm": True}),
        ("nope", [0, 0, 0, 0], TEMPERATURE),
        ({"name": "mixed", "pattern": ["rope", "rope", "rope", "nope"]}, [1, 1, 1, 0], {}),
    ],
)
def test_layers_as_in_a_llama_4_with_the_same_weights(position, rotates, options):
    """Its text model without experts. It normalises where it rotates, after the rotation, which
    does not change norms, and scales queries where it does not rotate."""
    changes = {"num_hidden_layers": 4, "num_key_value_heads": 2, "tie_word_embeddings": False}
    model = make_model(position, **changes, **options)
    for layer in model.model.layers if "qk_norm" in options else []:
        layer.self_attn.q_norm.weight.fill_(1)
        layer.self_attn.k_norm.weight.fill_(1)
    config = Llama4TextConfig(
        **fields_of_llama(model.config),
        intermediate_size_mlp=model.config.intermediate_size,
        moe_layers=[],
        no_rope_layers=rotates,
        use_qk_norm="qk_norm" in options,
        attn_temperature_tuning="query_temperature" in options,
        attn_scale=TEMPERATURE["query_temperature"]["scale"],
        floor_scale=TEMPERATURE["query_temperature"]["length"],
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        attention_chunk_size=64,
    )
    llama = Llama4ForCausalLM(config).eval()
    weights = {
        name.replace("mlp.", "feed_forward."): weight
        for name, weight in model.state_dict().items()
        if "_norm" not in name
    }
    for name in weights:
        for projection, heads in {"q_proj": 4, "k_proj": 2}.items():
            if projection in name:
                weights[name] = pairs_side_by_side(weights[name], heads)
    llama.load_state_dict(weights)
    tokens = random_tokens(2, 12)
    torch.testing.assert_close(model(tokens).logits, llama(tokens).logits, **EXACT)


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


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (3, "query_temperature=3 must have a scale and a length"),
        ({"scale": 1.0}, "must have a scale and a length"),
        ({"scale": 1.0, "length": 4, "base": 2}, "must have a scale and a length"),
        ({"scale": -1.0, "length": 4}, r"scale=-1\.0 must be a finite number >= 0"),
        ({"scale": float("nan"), "length": 4}, "scale=nan must be a finite number >= 0"),
        ({"scale": 1.0, "length": 0}, "query_temperature.length=0"),
        ({"scale": 1.0, "length": 2.5}, r"query_temperature.length=2\.5"),
    ],
)
def test_wrong_temperatures(wrong, message):
    with pytest.raises(ValueError, match=message):
        make_config("rope", query_temperature=wrong)


def test_wrong_switches_and_counts():
    for name in ("qk_norm", "attention_sink"):
        with pytest.raises(ValueError, match=f"{name}=1 must be true or false"):
            make_config("rope", **{name: 1})
    with pytest.raises(ValueError, match="num_recurrences=0 must be an integer >= 1"):
        make_config("rope", num_recurrences=0)


def test_a_temperature_needs_positions_that_count_tokens():
    with pytest.raises(ValueError, match="query_temperature with position 'abacus'"):
        make_config("abacus", **TEMPERATURE)


def test_a_llama_has_none():
    for name, value in ALL.items():
        with pytest.raises(ValueError, match=f"a Llama has no {name}"):
            require_llama(make_model("rope", **{name: value}))
    with pytest.raises(ValueError, match="not num_recurrences=3 times"):
        require_llama(make_model("rope", **RECURRENT))


@pytest.mark.parametrize("group", [4, 64])
def test_training_in_shifted_groups(group):
    """One group of all tokens is full attention."""
    model, tokens = make_model("tape", **ALL).train(), random_tokens(2, 12)
    expected = model(tokens).logits
    model.set_shifted_attention(group)
    found = model(tokens).logits
    assert found.shape[-1] == VOCABULARY
    assert torch.allclose(found, expected, atol=1e-5) == (group == 64)


@torch.no_grad()
@in_modes
@test_contract.of_kinds
def test_a_cache_of_recurrent_layers(position, kind):
    model = make_model(position, **RECURRENT)
    test_contract.test_cached(model, kind, [1, 4, 7, 3])
    assert len(make_cache(model, kind).layers) == 6


@in_modes
def test_checkpointed_recurrences(position):
    model = make_model(position, dtype=torch.float64, **RECURRENT)
    test_contract.test_checkpointed(model, reentrant=True)


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
