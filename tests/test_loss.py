"""Hand-written gradients, against plain operations: of the loss in training, of the head a few
tokens at a time; of rotations."""

import pytest
import torch
from conftest import all_options, make_model, random_tokens, refuses
from conftest import gradients as gradients_of_model
from every_encoding import POSITIONS

from tape.attention.blockwise import attend
from tape.attention.payload import Request, Values
from tape.model import loss as module
from tape.model.loss import IGNORED, Head, predicted_positions
from tape.positions.rotary import apply_rotary


def setting(dtype=torch.float64, kept=0.7):
    torch.manual_seed(0)
    head, x = Head(8, 37).to(dtype), torch.randn(3, 11, 8, dtype=dtype, requires_grad=True)
    labels = torch.randint(37, (3, 11))
    return head, x, labels.masked_fill(torch.rand(3, 11) > kept, IGNORED)


def plain(head, x, labels, num_items=None):
    logits = torch.nn.functional.linear(x, head.weight)[:, :-1].float().to(x.dtype)
    total = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED, reduction="sum"
    )
    return total / (num_items or (labels[:, 1:] != IGNORED).sum())


def gradients(loss, *inputs):
    return torch.autograd.grad(3.0 * loss, inputs)


@pytest.mark.parametrize(("at_once", "num_items"), [(1, None), (37 * 4, 5), (10**6, None)])
@pytest.mark.parametrize(("kept", "given"), [(1.0, False), (0.3, False), (0.3, True), (0.0, True)])
def test_loss_and_gradients_are_those_of_all_logits(at_once, num_items, kept, given, monkeypatch):
    monkeypatch.setitem(module.CHUNK_LOGITS, "cpu", at_once)
    head, x, labels = setting(kept=kept)
    labels[0, 4] = 3
    positions = predicted_positions(labels) if given else None
    expected, found = plain(head, x, labels, num_items), head(x, labels, num_items, positions)
    torch.testing.assert_close(found, expected, atol=0, rtol=1e-6)
    both = [gradients(loss, x, head.weight) for loss in (found, expected)]
    torch.testing.assert_close(*both, atol=1e-6, rtol=1e-6)
    head.weight.requires_grad_(False)  # as of a base model
    frozen = gradients(head(x, labels, num_items, positions), x)
    torch.testing.assert_close(frozen, both[1][:1], atol=1e-6, rtol=1e-6)


def test_predicted_positions_are_those_of_the_labels_to_predict():
    labels = torch.tensor([[5, IGNORED, 6, 7], [8, IGNORED, IGNORED, 9]])
    assert predicted_positions(labels).tolist() == [[2, 3], [3, -1]]
    assert predicted_positions(torch.tensor([[IGNORED, 1, 2], [3, 4, 5]])) is None
    assert predicted_positions(torch.full((2, 3), IGNORED)).shape == (2, 0)


def test_autocast_takes_products_in_its_dtype_and_adds_up_in_float32():
    head, x, labels = setting(torch.float32)
    rounded, narrow, _ = setting(torch.float32)
    exact = plain(rounded.bfloat16().float(), narrow.bfloat16().float(), labels)
    with torch.autocast("cpu", torch.bfloat16):
        found = head(x, labels)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, exact, atol=0, rtol=2e-3)
    expected = gradients(plain(head, x, labels), x, head.weight)
    for one, other in zip(gradients(found, x, head.weight), expected, strict=True):
        assert one.dtype == torch.float32
        torch.testing.assert_close(one, other, atol=2e-2 * other.abs().max().item(), rtol=0)


@pytest.mark.parametrize("tied", [False, True])
def test_a_model_trains_as_by_its_logits(tied, monkeypatch):
    monkeypatch.setitem(module.CHUNK_LOGITS, "cpu", 300)
    model = make_model("tape", tie_word_embeddings=tied, dtype=torch.float64)
    tokens = random_tokens(2, 15)
    labels = tokens.where(tokens % 3 > 0, IGNORED)
    shown, expected = model(tokens, labels=labels), gradients_of_model(model, tokens, labels=labels)
    trained = model.train()(tokens, labels=labels, skip_logits=True)
    assert trained.logits is None and shown.logits is not None
    torch.testing.assert_close(trained.loss, shown.loss.to(trained.loss.dtype), rtol=1e-6, atol=0)
    found = gradients_of_model(model, tokens, labels=labels, skip_logits=True)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)
    refuses("skip_logits=True without labels", model, tokens, skip_logits=True)
    for keep in (1, torch.tensor([2, 3])):
        refuses("labels with logits_to_keep", model, tokens, labels=labels, logits_to_keep=keep)


GIVEN = {
    "right": {},
    "left": {"attention_mask": (torch.arange(12) >= torch.tensor([[0], [4], [2]])).long()},
    "documents": {"document_ids": (torch.arange(12) >= torch.tensor([[5], [6], [9]])).long()},
}


@pytest.mark.parametrize(
    ("position", "given", "changes"),
    [
        *((position, "right", {}) for position in POSITIONS),
        *(("tape", given, {"num_recurrences": 2}) for given in GIVEN),
        ("fox", "left", all_options("fox")),
    ],
)
def test_tokens_that_no_prediction_depends_on_are_spared_the_mlps(position, given, changes):
    model = make_model(position, dtype=torch.float64, **changes).train()
    tokens, rows = random_tokens(3, 12), []
    labels = torch.full_like(tokens, IGNORED)
    for row, column in ((0, 11), (0, 4), (1, 5), (2, 1), (2, 9)):
        labels[row, column] = tokens[row, column]
    inputs = GIVEN[given] | {"labels": labels, "skip_logits": True}
    torch.manual_seed(3)  # of drawn positions
    expected = gradients_of_model(model, tokens, **inputs)
    for layer in model.model.layers:
        layer.mlp.up_proj.register_forward_hook(lambda linear, x, out: rows.append(len(out)))
    positions = predicted_positions(labels)
    torch.manual_seed(3)
    found = gradients_of_model(model, tokens, predicted_positions=positions, **inputs)
    torch.testing.assert_close(found, expected, atol=1e-9, rtol=1e-6)
    assert rows == (len(rows) - 1) * [11 + 5 + 9] + [5]


def test_a_mask_that_shows_later_tokens_spares_none():
    model, tokens = make_model("rope", dtype=torch.float64), random_tokens(1, 6)
    labels = tokens.where(torch.arange(6) == 2, IGNORED)
    mask = torch.ones(1, 1, 6, 6, dtype=torch.bool)
    inputs = {"labels": labels, "attention_mask": mask, "skip_logits": True}
    expected = gradients_of_model(model, tokens, **inputs)
    inputs["predicted_positions"] = predicted_positions(labels)
    torch.testing.assert_close(gradients_of_model(model, tokens, **inputs), expected)


@torch.no_grad()
def test_a_cache_keeps_all_tokens():
    model, tokens = make_model("rope", num_hidden_layers=2), random_tokens(1, 6)
    positions = predicted_positions(tokens.where(torch.arange(6) == 2, IGNORED))
    caches = (model.model(tokens, predicted_positions=x).past_key_values for x in (None, positions))
    whole, spared = (model(tokens[:, :1], past_key_values=cache).logits for cache in caches)
    assert torch.equal(whole, spared)


def test_a_head_that_was_replaced_makes_logits():
    model, tokens = make_model("tape").train(), random_tokens(1, 9)
    model.resize_token_embeddings(70)
    both, alone = (model(tokens, labels=tokens, skip_logits=skip) for skip in (False, True))
    assert both.logits.shape == (1, 9, 70) and alone.logits is None
    torch.testing.assert_close(alone.loss, both.loss)


def test_second_derivatives_are_refused():
    """Hand-written gradients have no graph: terms would be missing without a word."""
    head, x, labels = setting()
    q = torch.randn(1, 2, 5, 8, requires_grad=True)
    k = q.detach()
    attended = attend(Request(q, k, Values(k, k), None, None, 0.3, 0.0))
    for output, given in ((head(x, labels), x), (attended.values, q)):
        (slope,) = torch.autograd.grad(output.square().sum(), given, create_graph=True)
        with pytest.raises(RuntimeError, match="once_differentiable"):
            slope.sum().backward()


@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("shared", [(1, 1), (2, 1), (2, 2)])  # by sequences and heads
def test_rotations_have_first_and_second_derivatives(shared, learned):
    x = torch.randn(2, 2, 5, 4, dtype=torch.float64, requires_grad=True)
    e = torch.randn(*shared, 5, 2, 2, dtype=torch.float64, requires_grad=learned)
    assert torch.autograd.gradcheck(apply_rotary, (x, e))
    assert torch.autograd.gradgradcheck(apply_rotary, (x, e))
    e = e[:1]
    rows = torch.func.vmap(torch.func.grad(lambda x: apply_rotary(x[None], e).square().sum()))(x)
    (whole,) = torch.autograd.grad(apply_rotary(x, e).square().sum(), x)
    torch.testing.assert_close(rows, whole)
