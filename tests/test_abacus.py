"""Abacus: the places of digits in their numbers, from the token ids."""

import pytest
import torch
from conftest import make_model, refuses
from transformers import DynamicCache

pytestmark = pytest.mark.usefixtures("without_gradients")
DIGITS = [1, 2, 3, 4, 5]


def make_abacus(**arguments):
    return make_model({"name": "abacus", "digits": DIGITS, "length": 9, **arguments})


def places_of(model, tokens, **how):
    """Rows of the table that are added."""
    encoding, found = model.model.position, []

    def embed(x, positions):
        found.append(positions.query)
        return type(encoding).embed(encoding, x, positions)

    encoding.embed = embed
    model(tokens, **how)
    del encoding.embed
    return found[0]


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
