"""Statistics against scipy, tables, enumeration and simulation."""

from itertools import product
from statistics import mean

import numpy as np
import pytest
from scipy.stats import f_oneway, ttest_1samp, ttest_rel, tukey_hsd

from tape.statistics import (
    clopper_pearson,
    holm,
    paired,
    pooled_error,
    sign_flip_p,
    smallest_detectable,
    tukey,
    wilson,
)


def test_shares():
    """Newcombe 1998, Table I: 81 of 263 and 0 of 20."""
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert wilson(0, 20) == pytest.approx((0, 0.1611), abs=5e-5)
    assert clopper_pearson(81, 263) == pytest.approx((0.2527, 0.3676), abs=5e-5)
    assert clopper_pearson(0, 20) == pytest.approx((0, 0.1684), abs=5e-5)


def test_pairs_are_those_of_the_paired_test():
    ours, theirs = np.array([0.9, 1.05, 1.2, 1.0]), np.array([1.0, 1.1, 1.4, 1.3])
    found, expected = paired(list(ours - theirs)), ttest_rel(ours, theirs)
    low, high = expected.confidence_interval(0.95)
    assert found.mean == pytest.approx((ours - theirs).mean())
    assert found.p == pytest.approx(expected.pvalue)
    assert found.half_width == pytest.approx((high - low) / 2)
    assert paired([0.5, 0.5]).p == 0 and paired([0.0, 0.0]).p == 1


def test_the_exact_test_counts_all_signs():
    pairs = [0.3, -0.1, 0.4, 0.2, 0.25]
    every = product((1, -1), repeat=5)
    means = [abs(mean(s * x for s, x in zip(signs, pairs, strict=True))) for signs in every]
    expected = mean(each >= abs(mean(pairs)) - 1e-12 for each in means)
    assert sign_flip_p(pairs) == pytest.approx(expected)
    assert sign_flip_p([1.0, 2.0, 3.0]) == 0.25  # the smallest for three pairs


def test_holm_is_stepwise():
    """By hand: .01 x 4, .02 x 3, .03 x 2 rises to the .06 before it, .5."""
    assert holm([0.03, 0.01, 0.5, 0.02]) == pytest.approx([0.06, 0.04, 0.5, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0] and holm([]) == []


def test_pooled_errors_and_simultaneous_intervals():
    groups = [[1.0, 2.0, 4.0], [2.0, 3.0, 3.5], [5.0, 4.0, 4.5]]
    interval = tukey_hsd(*groups).confidence_interval(0.95)
    assert tukey(groups) == pytest.approx((interval.high[0, 1] - interval.low[0, 1]) / 2)
    error, free = pooled_error(groups)
    between = 3 * np.var([mean(group) for group in groups], ddof=1)
    assert f_oneway(*groups).statistic == pytest.approx(between / error**2) and free == 6


@pytest.mark.parametrize("n", [3, 6])
def test_what_is_detectable_is_detected_in_four_of_five(n):
    shift, rng = smallest_detectable(2.0, n), np.random.default_rng(0)
    samples = rng.normal(shift, 2.0, size=(20_000, n))
    seen = ttest_1samp(samples, 0, axis=1).pvalue < 0.05
    assert seen.mean() == pytest.approx(0.8, abs=0.01)
