"""Coordinates: what samplers draw, when, and what they refuse; and places of digits in numbers."""

import pytest
import torch
import torch.nn.functional as F
from conftest import TRAIN_LENGTH, make_config, make_model, random_tokens, refuses
from transformers import DynamicCache

pytestmark = pytest.mark.usefixtures("without_gradients")


def drawn(position, tokens, count, **given):
    """The coordinates of a forward pass in evaluation, then of `count` in training."""
    model, seen = make_model(position), []
    model.model.position.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[1]))
    for n in range(1 + count):
        model.train(n > 0)(tokens, **given)
    assert all(torch.equal(p.key, p.query) for p in seen)  # or biases would see other distances
    return seen


def test_randpe_draws_anew_in_training_and_once_for_the_whole_batch():
    draws = [positions.query for positions in drawn("randpe", random_tokens(4, 12), 60)[1:]]
    assert all(draw.shape == (1, 12) and (draw.diff() > 0).all() for draw in draws)
    assert not torch.equal(draws[0], draws[1])
    assert set(torch.cat(draws, dim=1)[0].tolist()) == set(range(4 * TRAIN_LENGTH))


def test_randpe_refuses_what_it_was_not_drawn_for():
    model, too_long = make_model("randpe"), random_tokens(1, TRAIN_LENGTH + 1)
    with model.evaluation_length(TRAIN_LENGTH + 1):
        model(too_long)
    with pytest.raises(ValueError, match=r"17 tokens .* eval_length=16.*evaluation_length"):
        model(too_long)  # the context left nothing behind
    refuses("training input of 65 tokens", model.train(), random_tokens(1, 65))
    refuses(r"eval_length=65 must lie in 1\.\.64", model.evaluation_length(65).__enter__)
    for given in ({"eval_length": 100, "length": 50}, {"eval_length": 0}):
        with pytest.raises(ValueError, match=r"eval_length=\d+ must (lie|be an integer) in 1\.\."):
            make_config({"name": "randpe", **given})
    with pytest.raises(ValueError, match=r"randpe.*sampler='shift'.*'subset'"):
        make_config({"name": "randpe", "sampler": "shift"})


@pytest.mark.parametrize("position", ["randpe", "alibi_subset"])
@pytest.mark.parametrize("how", [{}, {"cache_implementation": "static"}, {"use_cache": False}])
def test_what_is_generated_depends_on_the_prompt_alone(position, how):
    """Not on padding, on others in the batch or on how much more is asked for."""
    model, prompts = make_model(position), random_tokens(2, 6)

    def logits(rows, padding, new):
        ids, mask = (F.pad(x, (padding, 0)) for x in (rows, torch.ones_like(rows)))
        settings = {"output_logits": True, "return_dict_in_generate": True, "pad_token_id": 0}
        settings |= {"attention_mask": mask, "max_new_tokens": new}
        return torch.stack(model.generate(ids, **settings, **how).logits, dim=1)[0, :5]

    alone = logits(prompts[:1], 0, 5)
    for rows, padding, new in ((prompts[:1], 9, 5), (prompts, 20, 5), (prompts, 0, 10)):
        torch.testing.assert_close(logits(rows, padding, new), alone, atol=1e-5, rtol=1e-5)
    with pytest.raises(ValueError, match=r"17 tokens .* eval_length=16.*evaluation_length"):
        logits(prompts, 20, 12)  # padding does not count, and the last token is not read
    with model.evaluation_length(40):
        assert not torch.allclose(logits(prompts[:1], 0, 5), alone, atol=1e-3)


def test_a_cache_belongs_to_one_draw():
    model = make_model("randpe")
    tokens = random_tokens(1, 20)
    cache = model(tokens[:, :10]).past_key_values
    with model.evaluation_length(30), pytest.raises(ValueError, match=r"eval_length=16.*for 30"):
        model(tokens[:, 10:], past_key_values=cache)


def test_shift_moves_the_origin_in_training_only():
    seen = drawn("tape_shift", random_tokens(3, 8), 200)
    origins = [int(positions.query[0, 0]) for positions in seen]
    assert origins[0] == min(origins) == 0 and max(origins) <= 2 * TRAIN_LENGTH
    assert len({*origins}) > 20
    assert all(torch.equal(p.query - p.query[:, :1], torch.arange(8)[None]) for p in seen)


@pytest.mark.parametrize("chunks", [2, 3])
def test_pose_skips_between_chunks_in_training_only(chunks):
    """All places of a boundary and all skips up to the limit are drawn."""
    pose = {"name": "rope", "sampler": {"name": "pose", "length": 16, "chunks": chunks}}
    evaluated, *seen = drawn(pose, random_tokens(3, 8), 400)
    assert evaluated.query.tolist() == [[*range(8)]] and {p.extent for p in seen} == {16}
    skips = torch.cat([p.query for p in seen]) - evaluated.query
    assert (skips[:, 0] == 0).all() and (skips.diff() >= 0).all()
    assert {*skips[:, -1].tolist()} == {*range(9)}  # 16 - 8
    assert {*skips.diff().count_nonzero(1).tolist()} == {*range(chunks)}
    assert (skips.diff() > 0).any(0).all()  # at every place
    drawn(pose, random_tokens(1, 1), 1)
    padded = {"attention_mask": (torch.arange(16) < 8).long()[None]}
    documents = {"document_ids": torch.arange(16)[None] // 8}
    for given in (padded, documents):
        seen = drawn(pose, random_tokens(1, 16), 100, **given)[1:]
        skips = torch.stack([p.query[0, :8] for p in seen]) - torch.arange(8)
        assert {*skips[:, -1].tolist()} == {*range(9)}  # of 8 tokens, not of the row's 16
    with pytest.raises(ValueError, match=r"training input of 17 tokens .* length=16; raise"):
        drawn(pose, random_tokens(1, 17), 1)
    with pytest.raises(ValueError, match=r"sampler pose: chunks=1 must be an integer in 2\.\."):
        make_config({"name": "rope", "sampler": {"name": "pose", "chunks": 1}})


def test_samplers_have_their_numbers():
    config = make_config("randpe")
    drawn = {"length": 4 * TRAIN_LENGTH, "eval_length": TRAIN_LENGTH, "seed": 0}
    assert config.position["sampler"] == {"name": "subset", **drawn}
    tokens, reseeded = random_tokens(2, TRAIN_LENGTH), make_model({"name": "randpe", "seed": 1})
    assert not torch.equal(make_model("randpe")(tokens).logits, reseeded(tokens).logits)


def test_floats_fill_one_range_at_every_length():
    """Sorted draws of as many uniform numbers as the longest text has tokens, and in evaluation the
    middles of as many equal parts as `eval_length`, at least the trained length."""
    half = {"name": "rope", "sampler": {"name": "float", "length": 8}}
    evaluated, *seen = (positions.query for positions in drawn(half, random_tokens(3, 12), 300))
    assert evaluated.tolist() == [[n / 2 + 0.25 for n in range(12)]]
    draws = torch.cat(seen)
    assert draws.shape == (300, 12) and (draws.diff() > 0).all()
    # The k-th of n sorted numbers has the mean k / (n + 1).
    expected = 8 * torch.arange(1, 13, dtype=torch.float64) / 13
    torch.testing.assert_close(draws.mean(0), expected, atol=0.25, rtol=0)
    documents = {"document_ids": torch.arange(12)[None] // 4}
    for positions in drawn(half, random_tokens(1, 12), 20, **documents)[1:]:
        assert positions.query.unique().numel() == 4  # all documents have the draw of the longest
    model = make_model(half)
    seen.clear()
    model.model.position.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[1].query))
    with model.evaluation_length(32):
        model(random_tokens(1, 3))
    assert seen[-1].tolist() == [[0.125, 0.375, 0.625]]
    refuses(r"17 tokens .* eval_length=16.*evaluation_length", model, random_tokens(1, 17))


@pytest.mark.parametrize("position", ["t5", "learned", "extended", "mixed"])
def test_floats_are_refused_where_positions_are_integers(position):
    given = {"name": position, "sampler": "float"}
    if position == "mixed":
        given["pattern"] = ["rope", "relative"]
    refuses(
        r"position \w+: sampler='float' draws real numbers.*allowed: nope, ", make_config, given
    )


DIGITS = [1, 2, 3, 4, 5]


def make_abacus(**arguments):
    return make_model({"name": "abacus", "digits": DIGITS, "length": 9, **arguments})


def places_of(model, tokens, **how):
    """Rows of the table that are added."""
    seen = []
    hook = model.model.position.register_forward_pre_hook(lambda _, given: seen.append(given[1]))
    model(tokens, **how)
    hook.remove()
    return seen[0].query


def test_places_go_on_over_padding():
    real = torch.tensor([[slot not in (6, 7) for slot in range(12)]])
    tokens = torch.tensor([[9, 1, 2, 3, 7, 4, 0, 0, 5, 5, 8, 1]])
    places = places_of(make_abacus(), tokens, attention_mask=real.long())
    assert places[real].tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]


def test_a_cropped_cache_goes_on_from_the_token_that_is_left():
    model, cache = make_abacus(), DynamicCache()
    model(torch.tensor([[9, 1, 2, 3, 7]]), past_key_values=cache)
    cache.crop(-2)
    assert places_of(model, torch.tensor([[4, 4]]), past_key_values=cache).tolist() == [[3, 4]]


@pytest.mark.parametrize("name", ["abacus", "coupling"])
def test_training_moves_a_sequence_by_one_number(name):
    """Abacus the places of digits; coupling the ids of all tokens."""
    model, tokens = make_abacus(name=name, offset=3).train(), torch.tensor([[9, 1, 2, 7, 3]] * 64)
    rows = places_of(model, tokens, use_cache=False).tolist()
    places = [0, 1, 2, 0, 1]
    expected = [tuple(p + by * (p > 0 or name == "coupling") for p in places) for by in range(4)]
    assert sorted({tuple(row) for row in rows}) == sorted(expected)
    assert places_of(model.eval(), tokens).tolist() == [places] * 64
    with pytest.raises(ValueError, match=f"{name} reads token ids: inputs_embeds have none; give"):
        model(inputs_embeds=model.model.embed_tokens(tokens))


def test_what_has_no_places_is_refused():
    model = make_abacus()
    with pytest.raises(ValueError, match="position 9 is beyond the learned table of length=9"):
        model(torch.tensor([[*DIGITS, *DIGITS[1:]]]))
    refuses(r"digits=\[-1\] must be a list of token ids", make_abacus, digits=[-1])
    refuses("offset=9 must be an integer >= 0 and below length=9", make_abacus, offset=9)
    refuses("sampler='shift' would move the rows", make_abacus, sampler="shift")
