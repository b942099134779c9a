"""Documents packed in a row: each as if it were a row by itself."""

import numpy as np
import pytest
import torch
from conftest import make_model, random_tokens, refuses
from transformers import DataCollatorWithFlattening

from tape.data.blocks import as_example
from tape.model.indices import number_documents
from tape.model.inputs import PACKED
from tape.training.text import separate

IDS = torch.tensor([[7] * 4 + [3] + [7] * 6, [0] * 11, [5] * 2 + [4] * 9])


def test_documents_are_runs_of_equal_ids():
    """Padding has the document and the index of the token before it."""
    ids, real = torch.tensor([[4, 9, 4, 0, 4, 5, 4, 4]]), torch.tensor([[0, 1, 1, 0, 1, 1, 1, 1]])
    numbers, index = number_documents(ids, real.bool())
    assert numbers[0].diff().tolist() == [1, 1, 0, 0, 1, 1, 0]
    assert index.tolist() == [[0, 0, 0, 0, 1, 0, 0, 1]]
    assert number_documents(ids, None)[1].tolist() == [[0, 0, 0, 0, 0, 0, 0, 1]]
    assert number_documents(ids == 4, None)[1].tolist() == [[0, 0, 0, 0, 0, 0, 0, 1]]


def test_what_documents_exclude_is_refused():
    model, tokens = make_model("rope"), random_tokens(3, 11)
    assert model(tokens, document_ids=IDS).past_key_values is None
    cache = model(tokens[:, :4]).past_key_values
    refuses("document_ids with a cache", model, tokens, document_ids=IDS, use_cache=True)
    refuses("document_ids with a cache", model, tokens, document_ids=IDS, past_key_values=cache)
    with pytest.raises(ValueError, match="document_ids with position_ids"):
        model(tokens, document_ids=IDS, position_ids=torch.arange(11)[None])
    for wrong in (IDS[:1], IDS[:, :5], IDS.float()):
        refuses(r"allowed: integers of shape \(3, 11\)", model, tokens, document_ids=wrong)
    model.train().set_shifted_attention(4)
    refuses("shifted groups with document_ids", model, tokens, document_ids=IDS)


@pytest.mark.parametrize("position", ["rope", "tape", "fox", "path", "abacus"])
def test_what_transformers_packs_are_documents(position):
    """Its collator, which TRL's equals."""
    rows = [{"input_ids": row.tolist()} for row in random_tokens(1, 11)[0].split([4, 1, 6])]
    told = {"return_flash_attn_kwargs": True, "return_seq_idx": True}
    batch, model = DataCollatorWithFlattening(**told)(rows), make_model(position).train()
    assert batch.keys() > PACKED
    tokens = {name: batch.pop(name) for name in ("input_ids", "labels")}
    expected = model(**tokens, document_ids=IDS[:1])
    for names in (batch.keys(), PACKED, {"seq_idx", "position_ids"}, {"cu_seq_lens_q"}):
        found = model(**tokens, **{name: batch[name] for name in names})
        assert torch.equal(found.logits, expected.logits) and found.loss == expected.loss
    for also, message in (
        ({"position_ids": batch["position_ids"] + 1}, "allowed: a count from 0 in each document"),
        ({"document_ids": IDS[:1]}, "document_ids with cu_seq_lens_q or seq_idx"),
    ):
        refuses(message, model, **tokens | batch | also)
    with pytest.raises(TypeError, match="unexpected keyword argument 'seq_ids'"):
        model(**tokens, seq_ids=batch["seq_idx"])


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
