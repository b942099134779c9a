"""Options of the decoder: attention as in other models, and layers applied several times."""

import pytest
import torch
from conftest import (
    VOCABULARY,
    fields_of_llama,
    left_padded,
    make_config,
    make_model,
    random_tokens,
)
from transformers import Qwen3Config, Qwen3ForCausalLM
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


@pytest.mark.parametrize("changes", [RECURRENT, *({name: value} for name, value in ALL.items())])
def test_a_llama_has_none(changes):
    with pytest.raises(ValueError, match=r"a Llama has no|not num_recurrences=3 times"):
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


def test_every_layer_but_the_final_step_moves_the_state():
    """The parameters are there in the last layer, and the last step does not cache a payload."""
    model = make_model("tape", **RECURRENT)
    assert all(isinstance(layer.context, TapeLayer) for layer in model.model.layers)
    output = model(random_tokens(1, 5), output_hidden_states=True)
    widths = [layer.values.shape[-1] for layer in output.past_key_values.layers]
    assert widths == [16] * 5 + [8]
    assert len(output.hidden_states) == 2 * 3 + 1
