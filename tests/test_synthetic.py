"""Synthetic problems: every generator against a literal oracle, splits, determinism, refusals."""

import doctest
import itertools

import numpy as np
import pytest

from tape.tasks.generated import NO_LABEL
from tape.tasks.synthetic import generators
from tape.tasks.synthetic.generators import NAMES, PAD, TASKS, Draws
from tape.tasks.synthetic.problems import EVALUATION, HELD_OUT, TRAINING, Synthetic, held_out


def product(points, even):
    """The labels of a group word, one element after another applied to the points."""
    elements = list(itertools.permutations(range(points)))
    if even:
        cycles = [len(orbits(each)) for each in elements]
        elements = [e for e, n in zip(elements, cycles, strict=True) if (points - n) % 2 == 0]

    def oracle(words, length):
        state, labels = tuple(range(points)), {}
        assert len(words) == length + 1 and words[-1] == NAMES[PAD]
        for t, word in enumerate(words[:-1]):
            g = elements[int(word[1:])]
            state = tuple(g[x] for x in state)
            labels[t + 1] = f"s{elements.index(state)}"
        return labels

    return oracle


def orbits(permutation):
    found = set()
    for x in range(len(permutation)):
        orbit = [x]
        while permutation[orbit[-1]] not in orbit:
            orbit.append(permutation[orbit[-1]])
        found.add(frozenset(orbit))
    return found


def after_equals(answer):
    """Labels of a prompt, '=' and an answer."""

    def oracle(words, length):
        at = words.index("=")
        assert at == length
        return dict(enumerate(answer(words[:at]), start=at + 1))

    return oracle


def count(words):
    n = 0
    for word in words:
        n = 0 if word == "|" else n + (word == "a")
    return [str(n % 10)]


def flip_flop(words, length):
    labels, memory = {}, None
    assert len(words) == 2 * length and words[0] == "w" and words[-2] == "r"
    for t in range(0, len(words), 2):
        if words[t] == "w":
            memory = words[t + 1]
        elif words[t] == "r":
            labels[t + 1] = memory
        else:
            assert words[t] == "i"
    return labels


def recall(words, length):
    labels, values, asked = {}, {}, []
    assert len(words) == length // 2 * 2
    for t in range(0, len(words), 2):
        if words[t] == ".":
            assert words[t + 1] == "."
        elif t < 2 * max(1, length // 16):
            assert words[t] not in values
            values[words[t]] = words[t + 1]
        else:
            labels[t + 1] = values[words[t]]
            asked.append(words[t])
    assert sorted(asked) == sorted(values)
    return labels


def induction(words, length):
    before, (equals, prefix, _) = words[:length], words[length:]
    assert equals == "="
    return {length + 2: [b for a, b in itertools.pairwise(before) if a == prefix][-1]}


def indirect(words, length):
    before, (equals, name, k, _) = words[:length], words[length:]
    assert equals == "=" and before.count(name) == 1 and 1 <= int(k) <= 9
    return {length + 3: before[before.index(name) + int(k)]}


def add(words, length):
    prompt, answer = words[: 2 * length + 1], words[2 * length + 2 :]
    first, second = (int("".join(reversed(x))) for x in (prompt[:length], prompt[length + 1 :]))
    assert prompt[length] == "|" and words[2 * length + 1] == "=" and len(answer) == length + 1
    expected = reversed(str(first + second).zfill(length + 1))
    return dict(enumerate(expected, start=2 * length + 2))


def needle(words):
    digits = [n for n, word in enumerate(words) if word.isdigit()]
    assert len(digits) == 5 and digits[-1] - digits[0] == 4
    return [words[n] for n in digits]


ORACLES = {
    "sort": after_equals(lambda word: [*sorted(word), NAMES[1]]),
    "add": add,
    "needle": after_equals(needle),
    "copy": after_equals(lambda word: [*word, NAMES[1]]),
    "reverse": after_equals(lambda word: [*reversed(word), NAMES[1]]),
    "parity": after_equals(lambda word: ["01"[word.count("1") % 2]]),
    "modular_sum": after_equals(lambda word: [str(sum(map(int, word)))[-1]]),
    "counting": after_equals(count),
    "s3": product(3, even=False),
    "s5": product(5, even=False),
    "a5": product(5, even=True),
    **dict.fromkeys(("flip_flop", "flip_flop_sparse", "flip_flop_dense"), flip_flop),
    "recall": recall,
    "selective_copy": after_equals(lambda word: [each for each in word if each != "."]),
    "induction": induction,
    "indirect": indirect,
}


@pytest.mark.parametrize("task", TASKS)
def test_problems_are_those_of_the_oracle(task):
    source = Synthetic(task, TASKS[task].shortest, TASKS[task].trained)
    for length in {source.min_length, source.min_length + 1, 19, source.max_length}:
        tokens, labels = source.evaluation(length, 40, seed=1)
        assert tokens.shape == labels.shape == (40, source.positions(length))
        for problem, label in zip(tokens, labels, strict=True):
            expected = ORACLES[task]([NAMES[n] for n in problem], length)
            found = {t: NAMES[n] for t, n in enumerate(label) if n != NO_LABEL}
            assert found == expected
            # Answers follow as tokens, except for products, which are read off.
            if task not in ("s3", "s5", "a5"):
                assert all(label[t] == problem[t] for t in found)


def test_the_examples_are_right():
    results = doctest.testmod(generators)
    assert results.attempted >= 11 and not results.failed


def test_groups_are_groups():
    """S5 and A5 are not solvable: commutators of A5 generate all of it."""
    for points, even, order in ((3, False, 6), (5, False, 120), (5, True, 60)):
        table = generators.products(points, even)
        assert table.shape == (order, order)
        assert (np.sort(table, axis=0) == np.arange(order)[:, None]).all()
        assert (table[0] == np.arange(order)).all()
    inverse = np.argmin(table, axis=1)
    commutators = table[table, table[np.ix_(inverse, inverse)]]
    assert set(commutators.flat) == set(range(60))


@pytest.mark.parametrize("task", TASKS)
def test_what_is_evaluated_is_never_trained_on(task):
    source = Synthetic(task, TASKS[task].shortest, TASKS[task].trained)
    numbers = np.arange(300)
    length = source.max_length
    for seed in (0, 1):
        for stream in (TRAINING, HELD_OUT, EVALUATION):
            tokens, _ = source.draw(seed, stream, numbers, length)
            assert (held_out(tokens) == (stream != TRAINING)).all()


def test_small_lengths_are_not_split():
    tokens, _ = Synthetic("parity").evaluation(3, 200, seed=0)
    assert len(np.unique(tokens, axis=0)) == 8


def test_draws_are_splitmix64():
    """Its published outputs for the seed 1234567; test_streams.py has hashes of the problems."""
    first = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert Draws(np.array([1234567], dtype=np.uint64)).bits(3).tolist() == [first]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"task": "party"}, r"unknown data\.task 'party'; did you mean 'parity'"),
        ({"max_length": 10**6}, r"data\.max_length=1000000: .* parity have lengths in 1\.\.100000"),
        ({"task": "recall", "max_length": 1040}, r"max_length=1040: .* lengths in 4\.\.1039"),
        ({"task": "indirect", "min_length": 9}, r"min_length=9: .* lengths in 10\.\."),
        ({"task": "selective_copy", "min_length": 3}, r"min_length=3: .* lengths in 4\.\."),
        ({"min_length": 21}, r"data\.min_length=21 must be at most data\.max_length=20"),
        ({"min_length": True}, r"min_length=True: "),
    ],
)
def test_impossible_problems_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Synthetic(**{"min_length": 10} | settings)


def test_lengths_in_training_are_all_trained_ones():
    tokens, _ = Synthetic("parity", 2, 20).chunk(0, 500, seed=3, held_out=False)
    assert {int(n) - 2 for n in (tokens != PAD).sum(axis=1)} == set(range(2, 21))
