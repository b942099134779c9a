"""FlexAttention and FlashAttention against eager attention, as far as a CPU goes: flex in torch's
unfused form, and what is ours around flash-attn with its functions by their documentation; and
shifted sparse attention against a mask, with padding and in the decoder."""

import flash_reference
import pytest
import torch
from cases import Case, check
from conftest import (
    FLASH,
    FLEX,
    all_options,
    gradients,
    in_pieces,
    left_padded,
    make_cache,
    make_config,
    make_model,
    random_tokens,
    refuses,
)
from every_encoding import represented
from torch.nn.attention import flex_attention
from transformers import StaticCache, masking_utils

from tape import TapeForCausalLM
from tape.attention import backends as attention
from tape.attention import flash
from tape.attention.backends import KERNELS, eager
from tape.attention.payload import Request, Values
from tape.attention.shifted_sparse import SUPPORTED_BACKENDS, shifted_groups

LENGTH = 15
EXACT = {"atol": 1e-5, "rtol": 1e-5}
pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")


@pytest.fixture
def flex(monkeypatch):
    """Switch a model to FlexAttention, whose masks transformers would compile for many seconds."""

    def uncompiled(*arguments, _compile, **settings):
        return flex_attention.create_block_mask(*arguments, **settings)

    monkeypatch.setattr(masking_utils, "create_block_mask", uncompiled)
    return lambda model: model.set_attn_implementation("flex_attention")


@pytest.fixture
def flash_attn(monkeypatch):
    """Switch a model to FlashAttention by the reference, which takes float32 as well."""
    functions = flash_reference.flash_attn_func, flash_reference.flash_attn_varlen_func
    monkeypatch.setattr(flash, "functions", lambda: functions)
    monkeypatch.setattr(flash, "DTYPES", (torch.float32, torch.float64))
    return lambda model: setattr(model.config, "_attn_implementation", "flash_attention_2")


def outputs(model, static=False):
    """Logits at real tokens: plain, padded left and right, in documents, and padded in chunks."""
    tokens, mask = left_padded()
    real, right = mask.bool(), mask.flip(1)
    yield model(tokens, use_cache=False).logits
    yield model(tokens, attention_mask=mask, use_cache=False).logits[real]
    yield model(tokens, attention_mask=right, use_cache=False).logits[right.bool()]
    documents = (torch.arange(LENGTH) > 11).long().expand(3, -1)  # one begins behind padding
    yield model(tokens, attention_mask=mask, document_ids=documents).logits[real]
    yield model(tokens, document_ids=documents).logits
    for kind in ("of_layers", "static") if static else ("of_layers",):
        yield in_pieces(model, tokens, [10, 1, 4], make_cache(model, kind), mask)[real]


def assert_equals_eager(switch, position, static=False, **changes):
    changes = {"num_hidden_layers": 2, "dtype": torch.float64} | changes
    model = make_model(position, kernel="eager", **changes)
    expected = [*outputs(model, static)]
    switch(model)
    torch.testing.assert_close([*outputs(model, static)], expected, **EXACT)


@torch.no_grad()
@pytest.mark.parametrize("position", represented(FLEX))
def test_flex_equals_eager(position, flex):
    assert_equals_eager(flex, position, static=True, **all_options(position))
    if position in ("alibi", "tape"):
        assert_equals_eager(flex, position)


@torch.no_grad()
@pytest.mark.parametrize("position", represented(FLASH))
def test_flash_equals_eager(position, flash_attn):
    changes = all_options(position)
    if position == "alibi":
        changes["scalable_softmax"] = False  # flash takes slopes that are the same for all queries
    assert_equals_eager(flash_attn, position, **changes)
    if position in ("alibi", "tape"):
        assert_equals_eager(flash_attn, position)


@pytest.fixture
def flex_gradients(flex, monkeypatch):
    """torch refuses gradients of flex on a CPU, although its unfused form has them: the terms on
    the scores are tested by taking the refusals away."""
    monkeypatch.setattr(flex_attention, "_validate_device", lambda *tensors: None)
    return flex


@pytest.mark.parametrize(
    ("kernel", "position"), represented(FLEX, "flex_gradients") + represented(FLASH, "flash_attn")
)
def test_gradients_equal_those_of_eager(kernel, position, request):
    # flash-attn has no gradients of the log-sum-exp that a sink needs.
    flash = kernel == "flash_attn"
    options = {"num_hidden_layers": 2, "attention_sink": not flash, "gated_attention": True}
    options["scalable_softmax"] = not (flash and position == "alibi")
    model = make_model(position, kernel="eager", **options)
    tokens, mask = left_padded()
    seen = mask.roll(1, 1).bool() & mask.bool()  # not the first: padding would predict it
    inputs = {"attention_mask": mask, "labels": tokens.where(seen, -100)}
    expected = gradients(model, tokens, **inputs)
    request.getfixturevalue(kernel)(model)
    found = gradients(model, tokens, **inputs)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-4)
    assert found.keys() == dict(model.named_parameters()).keys()
    assert all(gradient.abs().max() > 0 for gradient in found.values())


@pytest.mark.parametrize("given", ["4-D", "additive"])
def test_flex_takes_masks_that_the_caller_made(given, flex):
    case = {"cache": "of_layers", "given": (given,), "changes": {"sliding_window": 3}}
    check(Case("alibi", ("aaaaaabbbbbb", "aaabbbbccccc"), kernel="flex_attention", **case))


@torch.no_grad()
@pytest.mark.parametrize("kernel", ["flex", "flash_attn"])
def test_generates(kernel, request):
    model, (tokens, mask) = make_model("alibi"), left_padded()
    settings = {"attention_mask": mask, "max_new_tokens": 6, "pad_token_id": 0}
    expected = model.generate(tokens, **settings)
    request.getfixturevalue(kernel)(model)
    found = model.generate(tokens, **settings)
    assert torch.equal(found, expected)
    if kernel == "flex":
        found = model.generate(tokens, cache_implementation="static", **settings)
        assert torch.equal(found, expected)


@pytest.mark.parametrize("kernel", ["eager", "sdpa", "flash_attention_2"])
def test_dropout_drops_the_same_tokens_of_values_and_payload(kernel, flash_attn):
    q, k, v = torch.randn(3, 1, 2, 40, 8)
    attend = attention.KERNELS[kernel]
    request = Request(q, k, Values(v, v), None, None, 0.3, 0.5)
    values, payload, *_ = attend(request)
    torch.testing.assert_close(values, payload)
    assert not torch.allclose(values, attend(request._replace(dropout=0.0))[0])


@pytest.mark.parametrize(("width", "dropout"), [(3, 0.0), (13, 0.0), (13, 1e-12)])
def test_flash_takes_a_payload_of_any_width(width, dropout, flash_attn):
    q, k, v = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 9, 8), torch.randn(2, 2, 9, 8)
    payload, mask = torch.randn(1, 1, 9, width), torch.ones(5, 9).tril(4).bool()
    request = Request(q, k, Values(v, payload), None, None, 0.3, dropout)
    ours = flash.flash(request)
    expected = attention.eager(request._replace(mask=mask, dropout=0.0))
    torch.testing.assert_close(ours[:2], expected[:2], **EXACT)


def test_flash_refuses_what_it_cannot_do(monkeypatch, flash_attn):
    tokens, mask = left_padded()
    rope, alibi = make_model("rope"), make_model("alibi")
    where = torch.arange(LENGTH)[None]
    counts = (mask.cumsum(-1) - 1).clamp(min=0)
    for model in (rope, alibi):
        flash_attn(model)
    rope(tokens, position_ids=where * 2)
    alibi(tokens, attention_mask=mask, position_ids=counts + 7)
    cache = alibi(tokens[:, :5], position_ids=where[:, :5], use_cache=True).past_key_values
    alibi(tokens[:, 5:6], position_ids=where[:, 5:6], past_key_values=cache)
    wide = torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool)
    static = StaticCache(config=rope.config, max_cache_len=20)
    behind = {"position_ids": where[:, 7:8], "past_key_values": cache}
    uncounted = "position_ids that do not count the real tokens"
    for model, tokens_of, given, message in (
        (rope, tokens, {"past_key_values": static}, "static cache: it would attend to the free"),
        (rope, tokens, {"attention_mask": wide}, "attention_mask of 4 dimensions"),
        (alibi, tokens, {"position_ids": where * 2, "use_cache": False}, uncounted),
        (alibi, tokens, {"attention_mask": mask, "position_ids": where * (1 + mask)}, uncounted),
        (alibi, tokens[:, :1], behind, uncounted),
    ):
        refuses(message, model, tokens_of, **given)
    for position in ("t5", "fire", "alibi_subset"):
        model = make_model(position)
        flash_attn(model)
        refuses("other than ALiBi's at consecutive positions", model, tokens)
    sink = make_model("rope", attention_sink=True)
    flash_attn(sink)
    refuses("gradients of the log-sum-exp", sink, tokens)
    q = torch.randn(1, 1, 3, 144)
    with pytest.raises(ValueError, match="head_dim=144 with values of width 288: both must be <="):
        flash.flash(Request(q, q, Values(q, q), None, None, 1.0, 0.1))
    monkeypatch.undo()
    with pytest.raises(ValueError, match=r"torch.float32: it supports float16 and bfloat16"):
        flash.flash(Request(q, q, Values(q, q), None, None, 1.0, 0.0))


def test_flex_refuses_what_it_cannot_do():
    with pytest.raises(ValueError, match=r"'path': it computes .*; allowed .*eager, sdpa$"):
        make_model("path", kernel="flex_attention")
    message = r"'flex_attention' with .*: attention_dropout=0.1.*eager, sdpa or flash_attention_2"
    config = make_config("rope", attention_dropout=0.1, attn_implementation="flex_attention")
    refuses(message, TapeForCausalLM, config)
    model = make_model("rope", attention_dropout=0.1)
    refuses(message, model.set_attn_implementation, "flex_attention")


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


def test_flash_attention_within_groups(flash_attn):
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
