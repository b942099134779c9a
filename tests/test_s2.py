"""Shifted sparse attention: against a mask, with padding, in the decoder, and what it refuses."""

import pytest
import torch
from conftest import left_padded, make_model, random_tokens, refuses
from test_attention import flash_attn  # noqa: F401

from tape.attention.backends import KERNELS, eager
from tape.attention.payload import Request, Values
from tape.attention.shifted_sparse import SUPPORTED_BACKENDS, shifted_groups

GROUP = 4


# Lengths: less than half a group, half, one, several, and some left over.
@pytest.mark.parametrize("length", [1, 2, 4, 11, 15])
@pytest.mark.parametrize(
    ("batch", "key_heads", "padded"), [(1, 1, False), (3, 2, True), (3, 6, True)]
)
def test_it_equals_attention_with_a_mask(length, batch, key_heads, padded):
    """Averages and log-sum-exp of full attention whose mask separates the groups."""
    torch.manual_seed(0)
    shapes = [(batch, 6, length, 8), *[(batch, key_heads, length, 8)] * 2]
    inputs = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    # The first layer's state is one for all sequences and heads.
    payload = (1, 1, length, 6) if key_heads == 2 else (batch, key_heads, length, 6)
    inputs.append(torch.randn(payload, dtype=torch.float64, requires_grad=True))
    mask = torch.ones(batch, length, dtype=torch.bool)
    if padded:
        mask[0, : length // 2] = False
        mask[-1, length - length // 3 :] = False
    real = mask[:, None, :, None]
    count, heads = mask.cumsum(-1)[:, None] - 1, torch.arange(6)[:, None]
    group = (count + GROUP // 2 * (heads >= 3)) // GROUP  # (B, H, T), of real tokens
    seen = (group[..., :, None] == group[..., None, :]).tril() & mask[:, None, None]
    given = Request(*inputs[:2], Values(*inputs[2:]), seen, None, 0.3, 0.0, needs_lse=True)
    full = eager(given)
    expected = [x * real for x in (full.values, full.payload, full.lse[..., None])]
    weights = [torch.randn_like(x) * real for x in expected]

    def gradients_of(outputs):
        total = sum((x * w).sum() for x, w in zip(outputs, weights, strict=False))
        return torch.autograd.grad(total, inputs, retain_graph=True)

    shown = mask if padded else None
    for needs_lse in (False, True):
        asked = given._replace(mask=shown, needs_lse=needs_lse)
        found = shifted_groups(KERNELS["sdpa"], GROUP, asked)
        outputs = [found.values, found.payload, *([found.lse[..., None]] if needs_lse else [])]
        theirs = expected[: len(outputs)]
        torch.testing.assert_close([x * real for x in outputs], theirs, atol=1e-9, rtol=0)
        torch.testing.assert_close(gradients_of(outputs), gradients_of(theirs), atol=1e-9, rtol=0)


def test_flash_attention_within_groups(flash_attn):  # noqa: F811
    q, k, v = torch.randn(2, 4, 11, 8), *torch.randn(2, 2, 2, 11, 8)
    mask = torch.ones(2, 11, dtype=torch.bool)
    mask[0, :3] = False
    given = Request(q, k, Values(v, v), mask, None, 0.3, 0.0)
    by_flash, by_sdpa = (
        shifted_groups(KERNELS[name], GROUP, given) for name in SUPPORTED_BACKENDS[::-1]
    )
    torch.testing.assert_close(by_flash[:2], by_sdpa[:2], atol=1e-5, rtol=1e-5)


def in_groups(position="rope", group=GROUP, **changes):
    model = make_model(position, **changes).train()
    model.set_shifted_attention(group)
    return model


@torch.no_grad()
def test_evaluation_and_caches_are_full_attention(tmp_path):
    model, full = in_groups(), make_model("rope")
    tokens, mask = left_padded()
    assert not torch.allclose(model(tokens).logits, full(tokens).logits, atol=1e-2)
    logits = model(tokens, attention_mask=mask).logits
    for row, real in enumerate(mask.bool()):
        alone = model(tokens[row : row + 1, real], use_cache=False).logits[0]
        torch.testing.assert_close(logits[row, real], alone, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(model(tokens, use_cache=True).logits, full(tokens).logits)
    assert torch.equal(model.eval()(tokens).logits, full(tokens).logits)
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path).train()
    assert again.model.s2_group_size is None  # it belonged to a training run
    model.train().set_shifted_attention(None)
    torch.testing.assert_close(model(tokens).logits, full(tokens).logits)


@pytest.mark.parametrize(
    ("changes", "group", "message"),
    [
        ({}, 5, "groups of 5 tokens: it must be an even integer"),
        ({}, 0, "groups of 0 tokens: it must be an even integer"),
        ({"position": "alibi"}, 4, "with position 'alibi'.*allowed: nope, .*rope"),
        ({"position": {"name": "mixed", "pattern": ["alibi", "nope"]}}, 4, "with position 'mixed'"),
        *(({"position": name}, 4, f"'{name}', which adds a") for name in ("fox", "path")),
        ({"sliding_window": 3}, 4, "groups of 4 tokens with windows of 3 tokens"),
        ({"scalable_softmax": True}, 4, "scalable_softmax, which counts the keys"),
        ({"kernel": "eager"}, 4, "attn_implementation='eager'; allowed: sdpa, flash_attention_2"),
        ({"hidden_size": 24, "num_attention_heads": 3}, 4, "num_attention_heads=3 is odd"),
    ],
)
def test_what_it_cannot_do_is_refused(changes, group, message):
    refuses(message, in_groups, **{"position": "rope"} | changes, group=group)


def test_calls_that_groups_cannot_have_are_refused():
    model, tokens = in_groups(), random_tokens(1, 6)
    with pytest.raises(ValueError, match="attention_mask of 4 dimensions"):
        model(tokens, attention_mask=torch.ones(1, 1, 6, 6, dtype=torch.bool))
