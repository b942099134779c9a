"""Documents packed in a row: each as if it were a row by itself."""

import numpy as np
import pytest
import torch
from conftest import (
    FLASH,
    FLEX,
    POSITIONS,
    VOCABULARY,
    in_modes,
    make_model,
    random_tokens,
    represented,
)
from test_attention import EXACT, flash_attn, flex, flex_gradients, pytestmark  # noqa: F401

from tape.data.blocks import as_example
from tape.model.documents import number_documents
from tape.positions import ENCODINGS
from tape.training.text import separate

CUTS = [[4, 1, 6], [11], [2, 9]]  # lengths of the documents of each row
IDS = torch.tensor([[7] * 4 + [3] + [7] * 6, [0] * 11, [5] * 2 + [4] * 9])
PADS = [0, 3, 5, 6, 12]  # slots of padding: before the row, between tokens and after them


def packed(padded):
    """Tokens, their documents and their mask."""
    tokens = random_tokens(3, 11)
    if POSITIONS["abacus"]["digits"]:
        tokens[0, 2:6] = tokens[2, 1:4] = POSITIONS["abacus"]["digits"][3]  # over the borders
    if not padded:
        return tokens, IDS, None
    real = torch.ones(11 + len(PADS) + 1, dtype=torch.bool)
    real[[*PADS, -1]] = False
    wide = [torch.full((3, len(real)), 9), torch.full((3, len(real)), 6)]
    for whole, part in zip(wide, (tokens, IDS), strict=True):
        whole[:, real] = part
    return *wide, real.long().expand(3, -1)


def loss_of(logits):
    """Something that reads every logit, each in its own way."""
    return (logits.double() * torch.linspace(-1, 1, VOCABULARY)).sin().sum(-1)


def assert_as_alone(model, padded):
    tokens, ids, mask = packed(padded)
    real = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool()

    def gradients(logits):
        return torch.autograd.grad(loss_of(logits).sum(), [*model.parameters()])

    logits = model(tokens, attention_mask=mask, document_ids=ids).logits
    rows = [row[of].split(cuts) for row, of, cuts in zip(tokens, real, CUTS, strict=True)]
    alone = [model(part[None], use_cache=False).logits[0] for row in rows for part in row]
    torch.testing.assert_close(logits[real], torch.cat(alone), **EXACT)
    ours, expected = gradients(logits[real]), gradients(torch.cat(alone))
    torch.testing.assert_close(ours, expected, atol=1e-4, rtol=1e-4)


# Padding and a window, or neither.
with_padding = pytest.mark.parametrize(("padded", "window"), [(False, None), (True, 3)])


@in_modes
@with_padding
@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
def test_as_alone(position, kernel, padded, window):
    assert_as_alone(make_model(position, kernel=kernel, sliding_window=window), padded)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel", "position"),
    represented([name for name in FLEX if name in ENCODINGS], "flex_gradients")
    + represented([name for name in FLASH if name in ENCODINGS], "flash_attn"),
)
@with_padding
def test_as_alone_in_fused_kernels(kernel, position, padded, window, request):
    model = make_model(position, num_hidden_layers=2, sliding_window=window)
    request.getfixturevalue(kernel)(model)
    assert_as_alone(model, padded)


def test_documents_are_runs_of_equal_ids():
    """Padding has the document and the index of the token before it."""
    ids, real = torch.tensor([[4, 9, 4, 0, 4, 5, 4, 4]]), torch.tensor([[0, 1, 1, 0, 1, 1, 1, 1]])
    numbers, index = number_documents(ids, real.bool())
    assert numbers[0].diff().tolist() == [1, 1, 0, 0, 1, 1, 0]
    assert index.tolist() == [[0, 0, 0, 0, 1, 0, 0, 1]]
    assert number_documents(ids, None)[1].tolist() == [[0, 0, 0, 0, 0, 0, 0, 1]]


def test_what_documents_exclude_is_refused():
    model, tokens = make_model("rope"), random_tokens(3, 11)
    assert model(tokens, document_ids=IDS).past_key_values is None
    cache = model(tokens[:, :4]).past_key_values
    for given in ({"use_cache": True}, {"past_key_values": cache}):
        with pytest.raises(ValueError, match="document_ids with a cache"):
            model(tokens, document_ids=IDS, **given)
    with pytest.raises(ValueError, match="document_ids with position_ids"):
        model(tokens, document_ids=IDS, position_ids=torch.arange(11)[None])
    for wrong in (IDS[:1], IDS[:, :5], IDS.float()):
        with pytest.raises(ValueError, match=r"allowed: integers of shape \(3, 11\)"):
            model(tokens, document_ids=wrong)
    model.train().set_shifted_attention(4)
    with pytest.raises(ValueError, match="shifted groups with document_ids"):
        model(tokens, document_ids=IDS)


def test_a_training_step_equals_one_per_document():
    """Documents end with EOS, here 1, also where a block begins or ends within them."""
    blocks = np.array([[5, 6, 1, 1, 7, 8, 9, 1], [7, 1, 2, 3, 4, 5, 6, 7]])
    cuts = [[3, 1, 4], [2, 6]]
    model = make_model("tape").train()
    loss = model(**separate(1, [as_example(block) for block in blocks])).loss
    rows = [torch.tensor(row).split(parts) for row, parts in zip(blocks, cuts, strict=True)]
    alone = [part[None] for row in rows for part in row if len(part) > 1]
    count = sum(part.shape[1] - 1 for part in alone)
    losses = [model(part, labels=part, num_items_in_batch=count).loss for part in alone]
    torch.testing.assert_close(loss, sum(losses))
