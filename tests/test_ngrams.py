"""Counting models against a literal loop and a case worked by hand."""

from collections import Counter
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from tape.data import TokenBlocks, TrainingOrder
from tape.data.blocks import TokenStream
from tape.data.ngrams import NGrams
from tape.evaluation.windows import Window
from tape.training.report import counted

V = 4


def count(blocks, k):
    return Counter(tuple(b[i : i + k]) for b in blocks for i in range(len(b) - k + 1))


def literal(blocks, gram, order, k=None):
    k = order if k is None else k
    if k == 0:
        return Fraction(1, V)
    gram = tuple(gram)[len(gram) - k :]
    counts = count(blocks, k)
    if k < order:
        counts = Counter(longer[1:] for longer in count(blocks, k + 1))
    once, twice = ([*counts.values()].count(n) for n in (1, 2))
    discount = Fraction(once, once + 2 * twice) if once else Fraction(1, 2)
    same = [n for other, n in counts.items() if other[:-1] == gram[:-1]]
    lower = literal(blocks, gram, order, k - 1)
    if not same:
        return lower
    kept = max(counts[gram] - discount, 0)
    return (kept + discount * len(same) * lower) / sum(same)


@pytest.mark.parametrize("order", [2, 3, 5])
def test_it_equals_the_definition(order):
    blocks = np.random.default_rng(0).choice(V - 1, (3, 11), p=[0.6, 0.3, 0.1]).astype(np.uint16)
    model = NGrams(blocks, V)
    contexts = [*product(range(V), repeat=order - 1)][:: 1 if order < 5 else 5]
    grams = np.array([[*context, token] for context in contexts for token in range(V)])
    found = model.probabilities(grams, order)
    expected = [float(literal(blocks.tolist(), gram.tolist(), order)) for gram in grams]
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    np.testing.assert_allclose(found.reshape(-1, V).sum(1), 1, rtol=1e-12)


def test_the_report_counts_the_blocks_that_the_run_saw_and_scores_what_the_windows_score():
    text = np.random.default_rng(0).integers(0, V, 70).astype(np.uint16)
    stream = TokenStream(text, 1, 70, "")
    order = TrainingOrder(TokenBlocks(stream, 7), 4, seed=0)
    seen = order.seen(1000)
    drawn = [order[n]["input_ids"].tolist() for n in range(4)]
    assert sorted(seen.tolist()) == sorted(drawn)
    assert order.seen(15).tolist() == sorted(drawn[:2], key=seen.tolist().index)
    assert len(TrainingOrder(TokenBlocks(stream, 7), 99, seed=0).seen(1000)) == 10

    windows = [Window(0, 3, 7), Window(20, 23, 27)]
    found = counted(seen, V, stream, windows)
    assert [*found] == ["bigram", "trigram"]  # 3 tokens of context are too few for the 5-gram
    for name, order in (("bigram", 2), ("trigram", 3)):
        grams = [text[n - order + 1 : n + 1].tolist() for n in (*range(3, 7), *range(23, 27))]
        each = [float(literal(seen.tolist(), gram, order)) for gram in grams]
        assert found[name].nll == pytest.approx(-np.log(each).mean(), abs=1e-12)
        assert found[name].tokens == 8
