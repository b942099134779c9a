"""The layers applied several times: the promises of the plain decoder hold, slot by slot."""

import pytest
import test_contract
import torch
from conftest import all_positions, in_modes, make_config, make_model, random_tokens, with_flex
from test_contract import check_against_loops, loops_of
from transformers import AutoModelForCausalLM, DynamicCache

from tape.export.llama import require_llama
from tape.positions.tape import TapeLayer

SHAPE = {"num_hidden_layers": 2, "num_recurrences": 3}


@pytest.fixture
def model(position):
    return make_model(position, **SHAPE)


@all_positions
def test_equals_the_loops(model, position):
    loops = loops_of(model, 8)
    for kernel in ("eager", "sdpa"):
        model = make_model(position, kernel=kernel, dtype=torch.float64, **SHAPE)
        check_against_loops(model, loops, {"atol": 1e-9, "rtol": 1e-9})


@torch.no_grad()
@in_modes
@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_cached(model, kind):
    test_contract.test_cached(model, kind, [1, 4, 7, 3])
    test_contract.test_left_padded_and_cached(model, kind)
    assert len(test_contract.make_cache(model, kind).layers) == 6


@in_modes
def test_checkpointed(model):
    test_contract.test_checkpointed(model.double(), reentrant=True)


@with_flex
def test_flex_equals_eager(position):
    models = [make_model(position, kernel=name, **SHAPE) for name in ("eager", "flex_attention")]
    tokens = random_tokens(2, 12)
    with torch.no_grad():
        eager, flex = (model(tokens).logits for model in models)
    torch.testing.assert_close(flex, eager, atol=1e-5, rtol=1e-5)


def test_saved_and_reloaded(tmp_path):
    model = make_model("tape", **SHAPE)
    model.save_pretrained(tmp_path)
    reloaded = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    tokens = random_tokens(1, 9)
    assert torch.equal(reloaded(tokens).logits, model(tokens).logits)
    assert reloaded.config.num_recurrences == 3 and reloaded.config.num_hidden_layers == 2


def test_every_layer_but_the_final_step_moves_the_state():
    """The parameters are there in the last layer, and the last step does not cache a payload."""
    model = make_model("tape", **SHAPE)
    assert all(isinstance(layer.context, TapeLayer) for layer in model.model.layers)
    cache = DynamicCache(config=model.config)
    model(random_tokens(1, 5), past_key_values=cache)
    widths = [layer.values.shape[-1] for layer in cache.layers]
    assert widths == [16] * 5 + [8]


def test_hidden_states_of_every_recurrence():
    model = make_model("rope", **SHAPE)
    states = model(random_tokens(1, 5), output_hidden_states=True).hidden_states
    assert len(states) == 2 * 3 + 1


def test_what_is_refused():
    with pytest.raises(ValueError, match="num_recurrences=0 must be an integer >= 1"):
        make_config("rope", num_recurrences=0)
    with pytest.raises(ValueError, match="not num_recurrences=3 times"):
        require_llama(make_model("rope", **SHAPE))
