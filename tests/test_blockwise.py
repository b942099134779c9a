"""Attention by blocks of queries against attention over all pairs at once: outputs and gradients of
every encoding, masks, caches, 16-bit numbers; and no tensor of all pairs."""

import pytest
import torch
from conftest import all_options, gradients, in_pieces, left_padded, make_cache, make_model
from conftest import random_tokens as random
from every_encoding import POSITIONS, in_modes
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tape.attention import blockwise, masks
from tape.attention.backends import eager, sdpa
from tape.attention.payload import Request, Values
from tape.encodings import path
from tape.encodings.bias import SlopeBias
from tape.positions.base import Positions

LENGTH = 15
EXACT = {"atol": 1e-10, "rtol": 1e-10}
DOCUMENTS = (torch.arange(LENGTH) > 6).long().expand(3, -1)
HOLES = torch.ones(LENGTH, LENGTH).tril().bool()
HOLES[8:, :5] = False


@pytest.fixture
def small_blocks(monkeypatch):
    """Makes several blocks, tiles and chunks of short texts."""
    monkeypatch.setattr(masks, "SHORT", 2)
    monkeypatch.setattr(blockwise, "BLOCK", 6)
    monkeypatch.setattr(blockwise, "TILE", 4)
    monkeypatch.setattr(path, "CHUNK", 3)


def results(model):
    """Losses and gradients with all masks, and logits of real tokens from caches."""
    tokens, left = left_padded()
    for mask, documents in ((None, None), (left, None), (left.flip(1), DOCUMENTS)):
        labels = tokens
        if mask is not None:  # padding would predict a first token
            labels = tokens.where(mask.bool() & mask.roll(1, 1).bool(), -100)
        given = {"labels": labels, "attention_mask": mask, "document_ids": documents}
        yield gradients(model, tokens, use_cache=False, **given)
    yield gradients(model, tokens, labels=tokens, attention_mask=HOLES[None, None])
    with torch.no_grad():
        cache = make_cache(model, "static")
        yield in_pieces(model, tokens, [6, 9], cache, left)[left.bool()]
        yield in_pieces(model, tokens, [9, 6], make_cache(model, "growing"))


@in_modes
def test_equals_attention_over_all_pairs(position, small_blocks, monkeypatch):
    """With windows, sinks and grouped queries too."""
    calls, attend = [], blockwise.attend
    monkeypatch.setattr(blockwise, "attend", lambda request: calls.append(1) or attend(request))
    for options in ({}, all_options(position)):
        changes = {"num_hidden_layers": 2, "dtype": torch.float64} | options
        model = make_model(position, kernel="eager", **changes)
        expected = [*results(model)]
        assert not calls
        model.set_attn_implementation("sdpa")
        torch.testing.assert_close([*results(model)], expected, **EXACT)
        assert calls
        calls.clear()


class LargestTensor(TorchDispatchMode):
    """Records the largest tensor that operations return."""

    def __init__(self):
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        sizes = [x.numel() for x in tree_leaves(found) if isinstance(x, torch.Tensor)]
        self.numbers = max(self.numbers, *sizes, 0)
        return found


@in_modes
def test_no_tensor_is_of_all_pairs(position, monkeypatch):
    """In a step with padding and a window, and in a prompt; an extent is the training length, as by
    default."""
    monkeypatch.setattr(blockwise, "BLOCK", 8)
    T = masks.SHORT + 44
    encoding = {key: value for key, value in POSITIONS[position].items() if key != "extent"}
    model = make_model(encoding, num_hidden_layers=2, max_position_embeddings=T)
    tokens, mask = random(1, T), torch.ones(1, T, dtype=torch.long)
    mask[:, :9] = 0
    with model.evaluation_length(T), LargestTensor() as largest:
        with torch.no_grad():
            model(tokens, use_cache=True, logits_to_keep=1)
        model.config.sliding_window = 100
        model(tokens, attention_mask=mask, labels=tokens, skip_logits=True).loss.backward()
    assert largest.numbers < T * T


def request(length=37, width=8, dtype=torch.float64, **changes):
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 4, length, width, dtype=dtype)
    # As the decoder has them: heads next to tokens in memory.
    q, k, v = q, k[:, :2], v[:, :2].transpose(1, 2).contiguous().transpose(1, 2)
    payload = torch.randn(2, 2, length, 6, dtype=dtype)
    for x in (q, k, v, payload):
        x.requires_grad_()
    given = Request(q, k, Values(v, payload), None, None, 0.3, 0.0, needs_lse=True)
    return given._replace(**changes)


def with_gradients(attended, given):
    """Values, payload and log-sum-exp, and their gradients of queries, keys, values, payload."""
    outputs = [x for x in (attended.values, attended.payload, attended.lse) if x is not None]
    inputs = [given.q, given.k, *(x for x in given.values if x is not None)]
    torch.manual_seed(1)
    slopes = [torch.randn(x.shape, dtype=torch.float64).to(x.dtype) for x in outputs]
    learned = [x for x in inputs if x.requires_grad]
    return [x.detach() for x in outputs], torch.autograd.grad(outputs, learned, slopes)


@pytest.mark.parametrize("length", [2, 4, 5, 37])
@pytest.mark.parametrize("constant", [False, True])
def test_payload_and_log_sum_exp(length, constant, small_blocks):
    given = request(length)
    given.values.payload.requires_grad_(not constant)
    after = torch.ones(length, length, dtype=torch.bool).triu(1)
    expected = eager(given._replace(mask=~after))
    found = blockwise.attend(given)
    torch.testing.assert_close(*(with_gradients(x, given) for x in (found, expected)), **EXACT)


def test_a_query_that_sees_nothing_has_averages_and_gradients_of_zero(small_blocks):
    given = request(9)
    real = torch.arange(9).expand(2, -1) > 5
    mask = masks.Seen(torch.arange(9), None, 2, real)
    attended = blockwise.attend(given._replace(mask=mask))
    assert attended.values[:, :, :6].abs().max() == attended.payload[:, :, :6].abs().max() == 0
    assert attended.lse[:, :, :6].max() < -1e300 and attended.values[:, :, 6:].abs().min() > 0
    of_queries = torch.autograd.grad(attended.values.sum() + attended.payload.sum(), given.q)[0]
    assert of_queries[:, :, :6].abs().max() == 0 and of_queries.isfinite().all()


@pytest.mark.parametrize("biased", [False, True])
def test_bfloat16_is_no_further_from_float64_than_torch_is(biased):
    length = 300
    exact = request(length, 32, needs_lse=False)
    exact = exact._replace(values=Values(exact.values.v))
    slots = torch.arange(length)[None]
    bias = SlopeBias(torch.tensor([-1.0, -2.0, -3.0, -7.0]), Positions(slots, slots), True)
    if biased:
        exact = exact._replace(bias=bias)
    given = exact._replace(
        q=exact.q.detach().bfloat16().requires_grad_(),
        k=exact.k.detach().bfloat16().requires_grad_(),
        values=Values(exact.values.v.detach().bfloat16().requires_grad_()),
    )
    ours, reference = (blockwise.attend(x) for x in (given, exact))
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    theirs = sdpa(given._replace(mask=causal))
    both = ((ours, given), (theirs, given), (reference, exact))
    found = [[*outputs, *slopes] for outputs, slopes in (with_gradients(*pair) for pair in both)]
    for own, other, x in zip(*found, strict=True):
        assert (own.double() - x).norm() < 1.02 * (other.double() - x).norm()
