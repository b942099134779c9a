"""Options of the decoder: attention as in other models, and layers applied several times."""

import copy

import pytest
import references
import torch
from conftest import fields_of_llama, left_padded, make_config, make_model, random_tokens, refuses
from peft import LoraConfig, get_peft_model
from transformers import Qwen3NextConfig, Qwen3NextForCausalLM

from tape.export.family import family_config

EXACT = {"atol": 1e-5, "rtol": 1e-5}
TEMPERATURE = {"query_temperature": {"scale": 0.5, "length": 3}}
RECURRENT = {"num_hidden_layers": 2, "num_recurrences": 3}
ALL = {"qk_norm": True, "attention_sink": True, "gated_attention": True, **TEMPERATURE}


@torch.no_grad()
def test_normalised_and_gated_as_in_a_qwen3_next_with_the_same_weights():
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


@torch.no_grad()
@pytest.mark.parametrize("position", ["tape", "fire"])
def test_scalable_softmax_with_a_length_equals_the_loops(position):
    """All options, with learned factors, are compared in tests/test_contract.py."""
    model = make_model(position, dtype=torch.float64, scalable_softmax={"length": 4})
    tokens = random_tokens(1, 9)
    expected = references.decoder(model.state_dict(), model.config, tokens[0].tolist())
    torch.testing.assert_close(model(tokens).logits[0], expected, atol=1e-9, rtol=1e-9)


WRONG = [
    ("scalable_softmax", 3, "scalable_softmax"),
    ("scalable_softmax", {"length": 4, "base": 2}, "must be true, false or have a length"),
    ("scalable_softmax", {"length": 1}, r"scalable_softmax.length=1 must be an integer >= 2"),
    ("scalable_softmax", {"length": True}, r"scalable_softmax.length=True must be an integer"),
    ("query_temperature", 3, "query_temperature=3 must have a scale and a length"),
    ("query_temperature", {"scale": 1.0}, "must have a scale and a length"),
    ("query_temperature", {"scale": float("nan"), "length": 4}, "scale=nan must be a finite"),
    ("query_temperature", {"scale": -1.0, "length": 4}, r"scale=-1\.0 must be a finite"),
    ("query_temperature", {"scale": 1.0, "length": 0}, "query_temperature.length=0"),
    ("qk_norm", 1, "qk_norm=1 must be true or false"),
    ("num_recurrences", 0, "num_recurrences=0 must be an integer >= 1"),
    *(("sliding_window", window, "sliding_window") for window in (0, -1, 2.5, True)),
]


def test_wrong_options_are_refused():
    for option, value, message in WRONG:
        refuses(message, make_config, "rope", **{option: value})
    refuses("query_temperature with position 'abacus'", make_config, "abacus", **TEMPERATURE)
    mixture = {"name": "mixed", "pattern": ["stick_breaking"]}
    for option in ("attention_sink", "scalable_softmax"):
        for position in ("stick_breaking", mixture):
            with pytest.raises(ValueError, match=f"{option} with position stick_breaking"):
                make_config(position, **{option: True})


@pytest.mark.parametrize(
    "changes",
    [RECURRENT, {"scalable_softmax": True}, {"sliding_window": 3}, *({k: ALL[k]} for k in ALL)],
)
def test_a_llama_has_none(changes):
    refuses(
        "a Llama computes another function", family_config, make_model("rope", **changes), "llama"
    )


@pytest.mark.parametrize("group", [4, 64])
def test_training_in_shifted_groups(group):
    """One group of all tokens is full attention."""
    model, tokens = make_model("tape", **ALL).train(), random_tokens(2, 12)
    expected = model(tokens).logits
    model.set_shifted_attention(group)
    found = model(tokens).logits
    assert torch.allclose(found, expected, atol=1e-5) == (group == 64)


def replicated(model, *pieces):
    get_peft_model(model, LoraConfig(layer_replication=pieces, target_modules=["q_proj"]))


LAYERS_CHANGED = {
    "fewer": lambda model: model.model.layers.__delitem__(slice(2, 4)),
    "copies": lambda model: model.model.layers.extend(copy.deepcopy(model.model.layers)),
    "replicated": lambda model: replicated(model, (0, 4), (0, 4)),
    "another number": lambda model: setattr(model.config, "num_hidden_layers", 2),
    "another order": lambda model: model.model.layers.insert(0, model.model.layers.pop(3)),
    "replicated in another order": lambda model: replicated(model, (0, 2), (3, 4), (2, 3)),
}


@pytest.mark.parametrize("change", LAYERS_CHANGED)
@pytest.mark.parametrize("recurrences", [1, 2])
def test_layers_are_neither_added_nor_removed_nor_reordered(recurrences, change):
    model = make_model("tape", num_hidden_layers=4, num_recurrences=recurrences)
    LAYERS_CHANGED[change](model)
    message = (
        rf"^layers [\d, ]+, .*num_hidden_layers=\d, .*made for {4 * recurrences}, .*: .*peft's "
    )
    refuses(message, model, random_tokens(1, 2))
