"""Windows, as in transformers' Mistral, and masks of four dimensions."""

import pytest
import torch
from conftest import fields_of_llama, left_padded, make_config, make_model, random_tokens
from test_attention import EXACT, flash_attn, flex, pytestmark  # noqa: F401
from transformers import MistralConfig, MistralForCausalLM

from tape import TapeForCausalLM
from tape.export.llama import require_llama

WINDOW = {"sliding_window": 3}


@torch.no_grad()
def test_each_layer_has_its_own(flex, flash_attn):  # noqa: F811
    """The reach of a token is the sum of windows; a layer's own precedes the configuration's."""

    def reach(model):
        tokens = random_tokens(1, 12)
        other = tokens.clone()
        other[:, 0] = (other[:, 0] + 1) % 61
        logits = [model(x, use_cache=False).logits for x in (tokens, other)]
        return (logits[0] - logits[1]).abs().amax((0, 2)).gt(1e-6).sum().item()

    for switch in (lambda model: None, flex, flash_attn):
        model = make_model("rope", **WINDOW)
        switch(model)
        assert reach(model) == 1 + 3 * 2
        model.model.layers[0].context.window = 2
        model.model.layers[2].context.window = 5
        assert reach(model) == 1 + 1 + 2 + 4
        model.config.sliding_window = None
        assert reach(model) == 12
        model.model.layers[1].context.window = 1
        assert reach(model) == 1 + 1 + 0 + 4


@torch.no_grad()
@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
def test_equals_a_mistral_with_the_same_weights(kernel):
    model = make_model("rope", kernel=kernel, num_key_value_heads=2, sliding_window=4)
    fields = fields_of_llama(model.config, "rope_parameters", "sliding_window")
    config = MistralConfig(**fields)
    config._attn_implementation = kernel
    mistral = MistralForCausalLM(config).eval()
    mistral.load_state_dict(model.state_dict())
    tokens, mask = left_padded()
    real = mask.bool()
    logits = model(tokens, attention_mask=mask).logits
    torch.testing.assert_close(
        logits[real], mistral(tokens, attention_mask=mask).logits[real], **EXACT
    )


def test_what_has_no_window_is_refused():
    model = make_model("rope", **WINDOW)
    with pytest.raises(ValueError, match=r"groups of 4 tokens with windows of 3 tokens"):
        model.set_shifted_attention(4)
    with pytest.raises(ValueError, match="a Llama computes another function"):
        require_llama(model)
    for window in (0, -1, 2.5, True):
        with pytest.raises(ValueError, match="sliding_window"):
            TapeForCausalLM(make_config("rope", sliding_window=window))


@torch.no_grad()
@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
def test_what_a_4d_mask_hides_does_not_depend_on_its_values(kernel):
    """The smallest number of each dtype, and what else stands for minus infinity in practice."""
    tokens, seen = random_tokens(1, 12), torch.ones(1, 1, 12, 12, dtype=torch.bool).tril()
    seen[..., 5:8] = False
    model, real = make_model("fire", kernel=kernel, sliding_window=4), seen[0, 0, -1]
    expected = model(tokens, attention_mask=seen).logits[:, real]
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        least = torch.finfo(dtype).min
        for value in {-torch.inf, least, -1000.0, max(-1e9, least)}:
            mask = torch.zeros(seen.shape, dtype=dtype).masked_fill(~seen, value)
            found = model(tokens, attention_mask=mask).logits[:, real]
            assert torch.equal(found, expected), (dtype, value)


@torch.no_grad()
def test_values_of_a_4d_mask_that_neither_show_nor_hide_are_refused():
    for value in (1.0, -100.0, torch.nan, torch.inf):
        mask = torch.zeros(3, 1, 12, 12).masked_fill(~torch.ones(12, 12).bool().tril(), -torch.inf)
        mask[2, 0, 3, 1] = value
        with pytest.raises(ValueError, match=r"4-D attention_mask .* 0 .* -1000 or less .* bool"):
            make_model("rope").train()(random_tokens(3, 12), attention_mask=mask)
