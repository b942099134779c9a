"""Statistics against scipy, tables, enumeration and simulation."""

import math
from itertools import product
from statistics import mean

import numpy as np
import pandas as pd
import pytest
from scipy.stats import mannwhitneyu, ttest_1samp, ttest_rel

from tape.core import statistics
from tape.core.statistics import differences, exchange_p, holm, sign_flip_p, smallest_detectable


def test_shares():
    """Newcombe 1998, Table I: 81 of 263 and 0 of 20."""
    assert statistics.of_share(81, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert statistics.of_share(0, 20) == pytest.approx((0, 0.1611), abs=5e-5)
    assert statistics.of_share(81, 263, "exact") == pytest.approx((0.2527, 0.3676), abs=5e-5)
    assert statistics.of_share(0, 20, "exact") == pytest.approx((0, 0.1684), abs=5e-5)


def compared(groups, baseline):
    """Of values by group and seed."""
    rows = [(name, seed, x, 1) for name, each in groups.items() for seed, x in each.items()]
    return differences(pd.DataFrame(rows, columns=["row", "seed", "value", "n"]), baseline)


def test_differences_are_paired():
    ours, theirs = np.array([0.9, 1.05, 1.2, 1.0]), np.array([1.0, 1.1, 1.4, 1.3])
    groups = {"ours": dict(enumerate(ours)), "theirs": dict(enumerate(theirs))}
    found, expected = compared(groups, "theirs").loc["ours"], ttest_rel(ours, theirs)
    low, high = expected.confidence_interval(0.95)
    assert found["mean"] == pytest.approx((ours - theirs).mean())
    assert found.p == pytest.approx(expected.pvalue) and found.n == 4
    assert found.half_width == pytest.approx((high - low) / 2)
    error = (ours - theirs).std(ddof=1) / 2
    assert found.detectable == pytest.approx(smallest_detectable(error, 3))


def test_pairs_are_the_seeds_in_common():
    """Another row changes the correction of p alone."""
    groups = {"a": {0: 1.0, 1: 2.0, 2: 2.5}, "b": {0: 1.5, 1: 2.1, 3: 9.0}, "c": {1: 1.0, 2: 2.0}}
    found = compared(groups | {"alone": {7: 1.0}, "inf": {0: np.inf, 1: 1.0}}, "a")
    assert list(found.index) == ["b", "c"] and list(found["n"]) == [2, 2]
    assert list(found["mean"]) == pytest.approx([0.3, -0.75])
    raw = [ttest_1samp(pairs, 0).pvalue for pairs in ([0.5, 0.1], [-1.0, -0.5])]
    assert list(found["p"]) == pytest.approx(holm(raw))


def test_differences_without_an_error():
    same = {"a": {0: 1.0, 1: 2.0}, "b": {0: 1.0, 1: 2.0}, "c": {0: 1.5, 1: 2.5}}
    found = compared(same, "a")
    assert [*found["p"]] == [1, 0] and found["half_width"]["c"] == 0
    for base, seed in (({0: 1.0}, 0), ({0: 1.0}, 1), ({}, 1)):
        assert compared({"a": base, "b": {seed: 2.0}}, "a").empty


def test_the_exact_test_counts_all_signs():
    pairs = [0.3, -0.1, 0.4, 0.2, 0.25]
    every = product((1, -1), repeat=5)
    means = [abs(mean(s * x for s, x in zip(signs, pairs, strict=True))) for signs in every]
    expected = mean(each >= abs(mean(pairs)) - 1e-12 for each in means)
    assert sign_flip_p(pairs) == pytest.approx(expected)
    assert sign_flip_p([1.0, 2.0, 3.0]) == 0.25  # the smallest for three pairs


def test_the_exact_test_of_two_groups_counts_all_divisions():
    assert exchange_p([5, 6, 7, 8, 9], [0, 1, 2, 3, 4]) == pytest.approx(2 / 252)
    assert exchange_p([1, 1], [1, 1]) == 1
    # Of the 6 divisions of ranks 1, 2.5, 2.5, 4, four have sums as far from 5: {1, 2.5}, {2.5, 4}.
    assert exchange_p([0, 7], [7, 9]) == pytest.approx(4 / 6)
    assert exchange_p([9, 9, 9], [0, 0, 0, 0, 5]) == pytest.approx(1 / 56)
    assert exchange_p([1], [0]) == 1 and exchange_p([1], [0, 0, 0]) == pytest.approx(1 / 4)
    first, second = range(0, 20, 2), range(5, 25, 2)  # 184,756 divisions
    expected = mannwhitneyu(first, second, method="exact").pvalue
    assert expected > 0.05 and exchange_p(first, second) == pytest.approx(expected, abs=0.005)


def test_holm_is_stepwise():
    """By hand: .01 x 4, .02 x 3, .03 x 2 rises to the .06 before it, .5."""
    assert holm([0.03, 0.01, 0.5, 0.02]) == pytest.approx([0.06, 0.04, 0.5, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0] and holm([]) == []


@pytest.mark.parametrize(("n", "tests"), [(3, 1), (6, 1), (5, 22)])
def test_what_is_detectable_is_detected_in_four_of_five(n, tests):
    """By Holm's correction for all tests, which needs p below 0.05 / tests at its first step."""
    shift, rng = smallest_detectable(2.0 / n**0.5, n - 1, tests), np.random.default_rng(0)
    samples = rng.normal(shift, 2.0, size=(20_000, n))
    p_values = ttest_1samp(samples, 0, axis=1).pvalue
    assert np.mean(p_values < 0.05 / tests) == pytest.approx(0.8, abs=0.01)


def test_what_is_detectable_is_so_after_the_correction():
    """Each row of several has the level of the first step, as many rows as there are."""
    rng = np.random.default_rng(0)
    groups = {name: dict(enumerate(rng.normal(size=5))) for name in "abcdef"}
    found = compared(groups, "a")
    errors = [(pd.Series(groups[x]) - pd.Series(groups["a"])).sem() for x in found.index]
    expected = [smallest_detectable(x, 4, tests=5) for x in errors]
    assert [*found["detectable"]] == pytest.approx(expected)
    alone = compared({name: groups[name] for name in "ab"}, "a")
    assert alone["detectable"]["b"] < 0.7 * found["detectable"]["b"]


def test_a_row_without_a_value_has_no_weight():
    rows = pd.DataFrame({"row": "a", "value": [math.nan, 0.5], "n": [10, 10]})
    assert statistics.weighted_mean(rows, ["row"])["a"] == 0.5
    assert math.isnan(statistics.weighted_mean(rows[:1], ["row"])["a"])
