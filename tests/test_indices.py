"""Token indices from masks, position_ids and caches: what is right, and what is refused."""

import pytest
import torch
from conftest import make_model, random_tokens

EXACT = {"atol": 1e-5, "rtol": 1e-5}


def left_padded_mask():
    mask = torch.ones(2, 9, dtype=torch.long)
    mask[1, :3] = 0
    return mask


@torch.no_grad()
@pytest.mark.parametrize("position", ["rope", "alibi"])
@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.int32, torch.float32])
def test_a_mask_may_be_of_any_dtype(position, dtype):
    model, tokens, mask = make_model(position), random_tokens(2, 9), left_padded_mask()
    logits = model(tokens, attention_mask=mask.to(dtype)).logits
    alone = model(tokens[1:, 3:]).logits
    torch.testing.assert_close(logits[1:, 3:], alone, **EXACT)


REFUSED = {
    "documents": lambda mask: mask * torch.tensor([1, 1, 1, 1, 1, 2, 2, 2, 2]),
    "negative": lambda mask: -mask,
    "additive": lambda mask: (1.0 - mask) * torch.finfo(torch.float32).min,
    "infinite": lambda mask: mask.float().log(),
    "half": lambda mask: mask / 2,
    "nan": lambda mask: torch.where(mask == 0, torch.nan, 1.0),
}


@torch.no_grad()
@pytest.mark.parametrize("values", REFUSED)
def test_a_mask_of_other_values_than_0_and_1_is_refused(values):
    model, tokens = make_model("rope"), random_tokens(2, 9)
    mask = REFUSED[values](left_padded_mask())
    with pytest.raises(ValueError, match=r"attention_mask .* 0 at padding and 1 at tokens"):
        model(tokens, attention_mask=mask)
    model.train()
    with pytest.raises(ValueError, match=r"attention_mask .* 0 at padding and 1 at tokens"):
        model(tokens, attention_mask=mask, labels=tokens)


@torch.no_grad()
@pytest.mark.parametrize("cache", [None, "static"])
def test_generate_refuses_such_a_mask_too(cache):
    """With a static cache the library makes the mask before the model sees it."""
    model = make_model("rope")
    settings = {"max_new_tokens": 2, "pad_token_id": 0, "cache_implementation": cache}
    mask = REFUSED["documents"](left_padded_mask())
    with pytest.raises(ValueError, match=r"attention_mask .* 0 at padding and 1 at tokens"):
        model.generate(random_tokens(2, 9), attention_mask=mask, **settings)


@torch.no_grad()
def test_a_mask_has_two_dimensions_or_four():
    model, tokens = make_model("rope"), random_tokens(2, 9)
    for shape in ((9,), (2, 9, 9)):
        with pytest.raises(ValueError, match="attention_mask of shape"):
            model(tokens, attention_mask=torch.ones(shape, dtype=torch.long))
