"""Faults of the original code: each is what it is said to be, and nothing is left of it."""

import csv

import pytest
import torch
from conftest import COUNTED, make_model, random_tokens
from test_stability import make_folder, options

from tape.analysis import faults
from tape.analysis.faults import at_once, changed_positions, decoded, faults_of, in_bfloat16

ENCODINGS = ("rope", "tape", "alibi", "fire", "xpos", "sincos", "nope")


def test_how_many_positions_are_left_in_bfloat16():
    """The numbers of the module's docstring."""
    assert len(in_bfloat16(torch.arange(1024.0)).unique()) == 513
    assert len(in_bfloat16(torch.arange(1024.0) + 2000).unique()) == 68
    assert torch.equal(in_bfloat16(torch.arange(257)), torch.arange(257))


@pytest.mark.parametrize("name", ENCODINGS)
def test_without_a_fault_all_ways_give_the_models_loss(name):
    model, ids = make_model(name), random_tokens(2, 20)
    logits = model(ids).logits[:, 9:-1].log_softmax(-1)
    expected = -logits.gather(-1, ids[:, 10:, None])[..., 0]
    for found in (at_once(model, ids), decoded(model, ids, rerotated=False)):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", ENCODINGS)
def test_changed_positions_reach_the_encoding_and_nothing_is_left_of_them(name):
    model, ids = make_model(name), random_tokens(2, 20)
    before = at_once(model, ids)
    with changed_positions(model, lambda p: p.flip(-1) * 7):
        changed = at_once(model, ids)
    assert torch.equal(changed, before) == (name == "nope")
    assert torch.equal(at_once(model, ids), before)
    with changed_positions(model, lambda p: p + 50):
        moved = at_once(model, ids)
    assert torch.allclose(moved, before, atol=1e-4) == (name not in ("fire", "sincos"))


# Their positions follow from position_ids: the others draw them, or read them from the tokens.
OTHERS = ("randpe", "alibi_subset", "tape_subset")
GIVEN = [name for name in COUNTED if name not in OTHERS]


@torch.no_grad()
@pytest.mark.parametrize("name", GIVEN)
def test_changed_positions_are_those_of_position_ids(name):
    """In every place where they are used, that of a query's temperature too."""
    model = make_model(name, query_temperature={"scale": 2.0, "length": 6})
    ids, where = random_tokens(2, 20), 3 * torch.arange(20)[None]
    with changed_positions(model, lambda p: 3 * p):
        found = model(ids, use_cache=False).logits
    expected = model(ids, position_ids=where, use_cache=False).logits
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(found, model(ids).logits, atol=1e-3)


def test_keys_that_are_rerotated_have_no_distances():
    """In one layer, keys and values come from the tokens alone: it is NoPE from the first decoded
    token on. The prompt's own loss is right."""
    rope, nope = (make_model(name, num_hidden_layers=1) for name in ("rope", "nope"))
    nope.load_state_dict(rope.state_dict())
    ids = random_tokens(2, 16)
    found = decoded(rope, ids, rerotated=True)
    torch.testing.assert_close(found[:, 1:], at_once(nope, ids)[:, 1:])
    right = decoded(rope, ids, rerotated=False)
    torch.testing.assert_close(found[:, 0], right[:, 0])
    assert (found[:, 1:] - right[:, 1:]).abs().max() > 1e-3
    torch.testing.assert_close(decoded(rope, ids, rerotated=False), right)


def test_only_plain_rope_is_given_the_faulty_cache():
    for name in ENCODINGS:
        found = faults_of(make_model(name), 20)
        assert ("decoded, cached keys turned anew" in found) == (name == "rope")
    for other in ("yarn", {"name": "rope", "sampler": "subset"}):
        assert "decoded, cached keys turned anew" not in faults_of(make_model(other), 20)


def test_no_positions_are_asked_for_that_a_model_does_not_have():
    found = faults_of(make_model({"name": "learned", "length": 64}), 20)
    assert list(found) == ["none", "positions in bfloat16", "none, decoded"]


def test_the_table_of_two_models(tmp_path, text_file):
    models = [make_folder(tmp_path / name, name) for name in ("rope", "alibi")]
    out = tmp_path / "out"
    given = ("--lengths", "8", "300", "--windows", "2")
    printed = options(faults, models, text_file, out, *given)
    assert (out / "faults.md").read_text() == printed + "\n"
    rows = list(csv.DictReader((out / "faults.csv").open(newline="")))
    assert len(rows) == (6 + 5) * 2
    nll = {(r["model"], r["fault"], int(r["length"])): float(r["nll"]) for r in rows}
    for name in ("rope", "alibi"):
        right = nll[name, "none", 300]
        for same in ("none, positions from 2,000", "none, decoded"):
            assert nll[name, same, 300] == pytest.approx(right, abs=1e-4)
        assert nll[name, "positions in bfloat16", 8] == nll[name, "none", 8]
        assert nll[name, "positions in bfloat16 from 2,000", 300] != pytest.approx(right, abs=1e-4)
    assert {int(row["tokens"]) for row in rows} == {2 * 4, 2 * 150}
    with pytest.raises(ValueError, match="windows of 500 tokens: the text has 400"):
        options(faults, models[:1], text_file, out, "--lengths", "500")
