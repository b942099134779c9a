"""Token indices from masks, position_ids, packed documents and caches: what is right, and what is
refused."""

import copy

import numpy as np
import pytest
import torch
from conftest import CACHE_EDITS, CACHES, in_pieces, make_cache, make_model, random_tokens, refuses
from transformers import DataCollatorWithFlattening

from tape.data.blocks import as_example
from tape.encodings import ENCODINGS
from tape.model.indices import number_documents
from tape.model.inputs import PACKED
from tape.training.text import separate

pytestmark = pytest.mark.usefixtures("without_gradients")
EXACT = {"atol": 1e-5, "rtol": 1e-5}


def left_padded_mask():
    mask = torch.ones(2, 9, dtype=torch.long)
    mask[1, :3] = 0
    return mask


@pytest.mark.parametrize(
    "change",
    [
        lambda mask: mask * torch.tensor([1, 1, 1, 1, 1, 2, 2, 2, 2]),  # documents
        lambda mask: mask.float().log(),  # additive
        lambda mask: torch.where(mask == 0, torch.nan, 1.0),
    ],
)
def test_a_mask_of_other_values_than_0_and_1_is_refused(change):
    """With a static cache transformers makes a 4-D mask of it before the model sees it."""
    model, tokens = make_model("rope"), random_tokens(2, 9)
    mask = change(left_padded_mask())
    settings = {"max_new_tokens": 2, "pad_token_id": 0, "cache_implementation": "static"}
    for call in (
        lambda: model(tokens, attention_mask=mask, labels=tokens),
        lambda: model.train()(tokens, attention_mask=mask, labels=tokens),
        lambda: model.eval().generate(tokens, attention_mask=mask, **settings),
    ):
        refuses(r"attention_mask .* 0 at padding and 1 at tokens", call)


# Gaps that differ from row to row: before the first token, then between the calls below.
GAPS = torch.tensor([[0, 1, 2, 3, 4, 8, 9, 12, 15], [3, 4, 5, 6, 7, 8, 9, 11, 14]])


def started(model, tokens, count, kind, position_ids=None):
    """A cache of the first tokens."""
    given = {} if position_ids is None else {"position_ids": position_ids[:, :count]}
    cache = make_cache(model, kind)
    return model(tokens[:, :count], past_key_values=cache, use_cache=True, **given).past_key_values


def given_away(cache):
    copied = copy.deepcopy(cache)
    cache.reset()
    return copied


CHANGES = CACHE_EDITS | {"copy": given_away}
ROWS = {"reorder": [1, 0], "select": [1], "repeat": [0, 0, 1, 1]}  # of two, after the change


@pytest.mark.parametrize("position", ["alibi", "fire", "alibi_subset", "mixed_read"])
@pytest.mark.parametrize("kind", ["growing", "dynamic", "of_layers"])
@pytest.mark.parametrize("change", CHANGES)
def test_indices_follow_what_is_done_to_a_cache(position, kind, change):
    model, tokens = make_model(position), random_tokens(2, 9)
    cache = started(model, tokens, 6, kind, GAPS)
    cache = CHANGES[change](cache) or cache
    start, rows = cache.get_seq_length(), ROWS.get(change, slice(None))
    tokens, where = tokens[rows], GAPS[rows]
    full = model(tokens, position_ids=where, use_cache=False).logits
    pieces = in_pieces(model, tokens[:, start:], 1, cache, position_ids=where[:, start:])
    torch.testing.assert_close(pieces, full[:, start:], **EXACT)


@pytest.mark.parametrize("position", ["rope", "fire"])
@pytest.mark.parametrize("kind", CACHES)
@pytest.mark.parametrize(("given", "ahead"), [([0], 4), ([0], 0), ([1, 2, 3], 0), ([1], 0)])
def test_calls_with_and_without_position_ids_follow_each_other(position, kind, given, ahead):
    """Behind padding too, on either side of what is cached. What is given first may begin at 4."""
    model, tokens = make_model(position), random_tokens(2, 9)
    mask = left_padded_mask()
    mask[0, 4] = 0
    where = (mask.cumsum(-1) - 1).clamp(min=0) + ahead
    full = model(tokens, attention_mask=mask, position_ids=where, use_cache=False).logits
    cache, pieces, start = make_cache(model, kind), [], 0
    for call, stop in enumerate((5, 6, 8, 9)):
        known = {"position_ids": where[:, start:stop]} if call in given else {}
        known |= {"attention_mask": mask[:, :stop], "past_key_values": cache, "use_cache": True}
        output = model(tokens[:, start:stop], **known)
        cache, start = output.past_key_values, stop
        pieces.append(output.logits)
    real = mask.bool()
    torch.testing.assert_close(torch.cat(pieces, dim=1)[real], full[real], **EXACT)


RESTART = r"position_ids must increase .* one document per row"
COUNTED = torch.arange(9)[None]


@pytest.mark.parametrize("position", [name for name, kind in ENCODINGS.items() if kind.ordered])
def test_a_restart_of_position_ids_is_refused(position):
    model, tokens = make_model(position), random_tokens(2, 6)
    for row in ([0, 1, 2, 0, 1, 2], [0, 0, 1, 2, 3, 4], [4, 5, 6, 7, 8, 8], [-1, 0, 1, 2, 3, 4]):
        for training in (False, True):
            given = {"position_ids": torch.tensor([[*range(6)], row]), "use_cache": False}
            refuses(RESTART, model.train(training), tokens, **given)


@pytest.mark.parametrize("kind", CACHES)
@pytest.mark.parametrize("given", [False, True])
def test_a_step_back_behind_a_cache_is_refused(kind, given):
    model, tokens = make_model("alibi"), random_tokens(2, 9)
    cache = started(model, tokens, 5, kind, COUNTED if given else None)
    for where in ([[0]], [[4]], [[5], [2]], [[0, 1, 2]], [[5, 6, 6]]):
        part = tokens[:, 5 : 5 + len(where[0])]
        inputs = {"position_ids": torch.tensor(where), "past_key_values": copy.deepcopy(cache)}
        refuses(RESTART, model, part, **inputs)
    if kind != "static":
        cache.crop(-2)
        model(tokens[:, 3:5], position_ids=COUNTED[:, 3:5], past_key_values=cache)


@pytest.mark.parametrize("kind", CACHES)
def test_only_real_tokens_are_judged(kind):
    """What stands at padding, on either side, in a call or between two, is nobody's index."""
    model, tokens = make_model("alibi"), random_tokens(2, 9)
    mask = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0, 1, 1, 0]])
    where = torch.tensor([[1, 1, 1, 0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 9, 0, 4, 5, 0]])
    full = model(tokens, attention_mask=mask, use_cache=False).logits
    real = mask.bool()
    for sizes in ([9], [2, 2, 1, 1, 3], [5, 1, 1, 1, 1]):
        pieces = in_pieces(model, tokens, sizes, make_cache(model, kind), mask, position_ids=where)
        torch.testing.assert_close(pieces[real], full[real], **EXACT)
    restarts = where.clone()
    restarts[1, 6] = 3
    refuses(RESTART, model, tokens, attention_mask=mask, position_ids=restarts)


def test_learned_rows_stand_for_anything_that_has_one():
    """As the places of digits, which begin again with each number."""
    model, tokens = make_model({"name": "learned", "length": 8}), random_tokens(1, 9)
    where = torch.tensor([[1, 2, 0, 1, 2, 3, 0, 1, 1]])
    full = model(tokens, position_ids=where, use_cache=False).logits
    for kind in CACHES:
        pieces = in_pieces(model, tokens, [4, 1, 3, 1], make_cache(model, kind), position_ids=where)
        torch.testing.assert_close(pieces, full, **EXACT)
    for lost in (-1, 8):
        with pytest.raises(ValueError, match=f"position {lost} is beyond the learned table"):
            model(tokens, position_ids=where.masked_fill(where == 3, lost))


@pytest.mark.parametrize("kind", CACHES)
def test_what_was_refused_leaves_nothing_in_a_cache(kind):
    model, tokens = make_model("alibi_subset"), random_tokens(2, 9)
    full = model(tokens, position_ids=GAPS, use_cache=False).logits
    cache = started(model, tokens, 5, kind, GAPS)
    for where, message in ((GAPS[:, :1], RESTART), (GAPS[:, 5:6] + 9, "eval_length=16")):
        refuses(message, model, tokens[:, 5:6], position_ids=where, past_key_values=cache)
    pieces = in_pieces(model, tokens[:, 5:], [1, 3], cache, position_ids=GAPS[:, 5:])
    torch.testing.assert_close(pieces, full[:, 5:], **EXACT)


@pytest.mark.parametrize("position", ["learned", "abacus"])
def test_packed_documents_are_refused_where_indices_may_repeat(position):
    rows = [{"input_ids": [5, 6, 7], "labels": [5, 6, 7]}] * 2
    batch, model = DataCollatorWithFlattening()(rows), make_model(position)
    refuses(r"begin again with 0: .* give document_ids", model, **batch, use_cache=False)
    # A bias would round those of keys down, and not those of queries.
    with pytest.raises(ValueError, match=r"position_ids of torch\.float32: allowed: integers"):
        model(random_tokens(1, 9), position_ids=COUNTED * 1.0)


@pytest.mark.parametrize("position", ["rope", "learned", "nope"])
def test_position_ids_of_other_shapes_are_refused(position):
    model, tokens, ids = make_model(position).train(), random_tokens(2, 9), torch.arange(9)[None]
    for wrong in (ids[0], ids[:, :1], ids[:, :8], torch.arange(10)[None], ids.expand(3, -1)):
        refuses(r"shape .*: allowed: \(2, 9\) or \(1, 9\)", model, tokens, position_ids=wrong)
    refuses(r"shape \(9,\): allowed: \(1, 9\), one", model, tokens[:1], position_ids=ids[0])
    expected = model(tokens, position_ids=ids).logits
    for kind in (torch.uint8, torch.int16):
        assert torch.equal(model(tokens, position_ids=ids.to(kind)).logits, expected)


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


def test_values_of_a_4d_mask_that_neither_show_nor_hide_are_refused():
    for value in (1.0, -100.0, torch.nan, torch.inf):
        mask = torch.zeros(3, 1, 12, 12).masked_fill(~torch.ones(12, 12).bool().tril(), -torch.inf)
        mask[2, 0, 3, 1] = value
        with pytest.raises(ValueError, match=r"4-D attention_mask .* 0 .* -1000 or less .* bool"):
            make_model("rope").train()(random_tokens(3, 12), attention_mask=mask)


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
