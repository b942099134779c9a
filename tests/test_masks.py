"""Windows: every encoding and backend against loops, padding, caches and transformers' Mistral."""

import itertools

import pytest
import test_contract
import torch
from conftest import in_modes, make_config, make_model, random_tokens, with_flash, with_flex
from test_attention import EXACT, assert_equals_eager, flash_attn, flex, pytestmark  # noqa: F401
from test_contract import check_against_loops, loops_of
from transformers import MistralConfig, MistralForCausalLM

from tape import TapeForCausalLM
from tape.export.llama import require_llama
from tape.positions import ENCODINGS

WINDOW = {"sliding_window": 3}


@pytest.mark.parametrize("position", ENCODINGS)
def test_equals_the_loops(position):
    loops = loops_of(make_model(position, **WINDOW), 8)
    for kernel in ("eager", "sdpa"):
        model = make_model(position, kernel=kernel, dtype=torch.float64, **WINDOW)
        check_against_loops(model, loops, {"atol": 1e-9, "rtol": 1e-9})


@torch.no_grad()
@with_flex
def test_flex_equals_eager(position, flex):  # noqa: F811
    assert_equals_eager(flex, position, static=True, **WINDOW)


@torch.no_grad()
@with_flash
def test_flash_equals_eager(position, flash_attn):  # noqa: F811
    assert_equals_eager(flash_attn, position, **WINDOW)


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
    shared = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "head_dim")
    shared += ("num_attention_heads", "num_key_value_heads", "rms_norm_eps", "rope_parameters")
    shared += ("max_position_embeddings", "sliding_window", "bos_token_id", "eos_token_id")
    config = MistralConfig(**{name: getattr(model.config, name) for name in shared})
    config._attn_implementation = kernel
    mistral = MistralForCausalLM(config).eval()
    mistral.load_state_dict(model.state_dict())
    tokens, mask, _ = test_contract.left_padded()
    real = mask.bool()
    logits = model(tokens, attention_mask=mask).logits
    torch.testing.assert_close(
        logits[real], mistral(tokens, attention_mask=mask).logits[real], **EXACT
    )
    settings = {"attention_mask": mask, "max_new_tokens": 8, "pad_token_id": 0, "do_sample": False}
    expected = mistral.generate(tokens, **settings)
    assert torch.equal(model.generate(tokens, **settings), expected)
    for how in ({}, {"prefill_chunk_size": 4}):
        for cache in ("static", "dynamic"):
            found = model.generate(tokens, cache_implementation=cache, **settings, **how)
            assert torch.equal(found, expected)
    assert torch.equal(model.generate(tokens, use_cache=False, **settings), expected)


@torch.no_grad()
@pytest.mark.parametrize("kernel", ["eager", "sdpa", "flex_attention"])
def test_masks_that_the_caller_made_are_narrowed(kernel, flex):  # noqa: F811
    model, tokens = make_model("tape", **WINDOW), random_tokens(2, 9)
    expected = model(tokens).logits
    model.set_attn_implementation(kernel)
    causal = torch.ones(1, 1, 9, 9, dtype=torch.bool).tril()
    additive = torch.zeros(causal.shape).masked_fill(~causal, torch.finfo(torch.float32).min)
    for mask in (causal, additive):
        torch.testing.assert_close(model(tokens, attention_mask=mask).logits, expected, **EXACT)


@torch.no_grad()
@in_modes
def test_a_cached_token_that_any_new_one_sees_is_real(position):
    """In pieces as long as a window that the caller's mask makes."""
    model, tokens = make_model(position, dtype=torch.float64), random_tokens(2, 12)
    place = torch.arange(12)
    far = place[:, None] - place
    mask = ((far >= 0) & (far < 6))[None, None].expand(2, 1, 12, 12)
    cache = test_contract.make_cache(model, "dynamic")
    pieces = [
        model(tokens[:, part], attention_mask=mask[:, :, part, : part.stop], past_key_values=cache)
        for part in (slice(0, 6), slice(6, 12))
    ]
    logits = torch.cat([piece.logits for piece in pieces], dim=1)
    torch.testing.assert_close(logits, model(tokens, attention_mask=mask).logits, **EXACT)


def test_what_has_no_window_is_refused():
    model = make_model("rope", **WINDOW)
    with pytest.raises(ValueError, match=r"groups of 4 tokens with windows of 3 tokens"):
        model.set_shifted_attention(4)
    with pytest.raises(ValueError, match="attends to all tokens, not within a window"):
        require_llama(model)
    for window in (0, -1, 2.5, True):
        with pytest.raises(ValueError, match="sliding_window"):
            TapeForCausalLM(make_config("rope", sliding_window=window))


def hiding_values():
    """The smallest number of each dtype, and what else stands for minus infinity in practice."""
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        for value in (-torch.inf, torch.finfo(dtype).min, -1e4, -1e9):
            if value >= torch.finfo(dtype).min or value == -torch.inf:
                yield dtype, value


def padded_anywhere():
    """Tokens with padding on the left, on the right and between, as a mask of each kind."""
    tokens, real = random_tokens(3, 12), torch.ones(3, 12, dtype=torch.bool)
    real[0, :4] = real[1, 9:] = real[2, 5:8] = False
    seen = real[:, None, None] & torch.ones(12, 12, dtype=torch.bool).tril()
    return tokens, real, seen


@torch.no_grad()
@in_modes
def test_what_a_4d_mask_hides_does_not_depend_on_its_values(position):
    tokens, real, seen = padded_anywhere()
    given = {"position_ids": (real.cumsum(-1) - 1).clamp(min=0), "use_cache": False}
    for kernel, window in itertools.product(("sdpa", "eager"), (4, None)):
        model = make_model(position, kernel=kernel, sliding_window=window)
        expected = model(tokens, attention_mask=real, use_cache=False).logits[real]
        logits = model(tokens, attention_mask=seen, **given).logits[real]
        torch.testing.assert_close(logits, expected, **EXACT)
        for dtype, value in hiding_values():
            mask = torch.zeros(seen.shape, dtype=dtype).masked_fill(~seen, value)
            found = model(tokens, attention_mask=mask, **given).logits[real]
            assert torch.equal(found, logits), (dtype, value)


@torch.no_grad()
@pytest.mark.parametrize("value", [1.0, -1.0, -100.0, torch.nan, torch.inf])
@pytest.mark.parametrize("training", [False, True])
def test_values_of_a_4d_mask_that_neither_show_nor_hide_are_refused(value, training):
    model = make_model("rope").train(training)
    tokens, _, seen = padded_anywhere()
    mask = torch.zeros(seen.shape).masked_fill(~seen, -torch.inf)
    mask[2, 0, 3, 1] = value
    with pytest.raises(ValueError, match=r"4-D attention_mask .* 0 .* -1000 or less .* boolean"):
        model(tokens, attention_mask=mask)


@torch.no_grad()
@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
def test_a_mask_need_not_have_the_dtype_of_the_model(kernel):
    model = make_model("rope", kernel=kernel, dtype=torch.float64)
    tokens, real, seen = padded_anywhere()
    expected = model(tokens, attention_mask=seen).logits[real]
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        mask = torch.zeros(seen.shape, dtype=dtype).masked_fill(~seen, torch.finfo(dtype).min)
        logits = model(tokens, attention_mask=mask).logits[real]
        torch.testing.assert_close(logits, expected, **EXACT)
