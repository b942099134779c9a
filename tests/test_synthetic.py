"""Synthetic problems: the documented examples, splits, refusals; test_streams has their hashes."""

import doctest

import numpy as np
import pytest

from tape.tasks.generated import is_held_out
from tape.tasks.synthetic import problems
from tape.tasks.synthetic.problems import (
    EVALUATION,
    HELD_OUT,
    TASKS,
    TRAINING,
    Draws,
    Synthetic,
)


def test_the_examples_are_right():
    """One of each generator, worked by hand."""
    results = doctest.testmod(problems)
    assert results.attempted >= 9 and not results.failed


@pytest.mark.parametrize("task", TASKS)
def test_what_is_evaluated_is_never_trained_on(task):
    source = Synthetic(task, TASKS[task].shortest, TASKS[task].trained)
    for seed in (0, 1):
        for stream in (TRAINING, HELD_OUT, EVALUATION):
            tokens, _ = source.draw(seed, stream, np.arange(300), source.max_length)
            places = np.arange(tokens.shape[1])
            assert (is_held_out(tokens, places) == (stream != TRAINING)).all()


def test_draws_are_splitmix64():
    """Its published outputs for the seed 1234567; test_streams.py has hashes of the problems."""
    first = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert Draws(np.array([1234567], dtype=np.uint64)).bits(3).tolist() == [first]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"task": "party"}, r"unknown data\.task 'party'; did you mean 'parity'"),
        ({"max_length": 10**6}, r"data\.max_length=1000000 must be an integer in 10\.\.100000"),
        ({"task": "needle", "min_length": 4}, r"data\.min_length=4 must be an integer in 5\.\."),
        ({"min_length": 21}, r"data\.max_length=20 must be an integer in 21\.\."),
        ({"min_length": True}, r"min_length=True "),
    ],
)
def test_impossible_problems_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Synthetic(**{"min_length": 10} | settings)
