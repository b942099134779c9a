"""Statistics of comparisons: intervals of shares and means, tests over seeds, and their power.

All intervals are 95 % intervals; p-values are two-sided.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist, mean, stdev
from typing import NamedTuple

import numpy as np
from scipy.stats import binomtest, nct, permutation_test, studentized_range, t, ttest_1samp

CONFIDENCE = 0.95
Z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)


def wilson(correct: int, total: int) -> tuple[float, float]:
    """Returns the interval of a share (Wilson 1927). Unlike the normal interval, it has
    a positive width even if all are correct, or none."""
    share, z2 = correct / total, Z * Z / total
    middle = share + z2 / 2
    spread = Z * ((share * (1 - share) + z2 / 4) / total) ** 0.5
    return max(0.0, (middle - spread) / (1 + z2)), min(1.0, (middle + spread) / (1 + z2))


def clopper_pearson(correct: int, total: int) -> tuple[float, float]:
    """Returns the exact interval of a share (Clopper and Pearson 1934)."""
    return tuple(map(float, binomtest(correct, total).proportion_ci(CONFIDENCE)))


def with_interval(correct: int, total: int) -> dict[str, float] | None:
    """Returns a share with its Wilson interval and counts; None if the total is 0."""
    if not total:
        return None
    low, high = wilson(correct, total)
    return {
        "accuracy": correct / total,
        "low": low,
        "high": high,
        "correct": correct,
        "total": total,
    }


def student(values: Sequence[float]) -> float:
    """Returns half the width of the interval of the mean of two or more values (Student 1908);
    infinity if one of them is not finite."""
    if not all(map(math.isfinite, values)):
        return math.inf
    return float(t.ppf((1 + CONFIDENCE) / 2, len(values) - 1)) * stdev(values) / len(values) ** 0.5


class Difference(NamedTuple):
    """The mean difference of pairs.

    Attributes:
        half_width: of its interval (Student).
        p: of the paired t-test.
        exact_p: of the exact test that flips the signs of pairs; at least 2 / 2 ** n.
        detectable: the smallest difference that the t-test detects with a power of 80 %, given the
            standard deviation of these pairs.
    """

    mean: float
    half_width: float
    p: float
    exact_p: float
    detectable: float


def paired(differences: Sequence[float]) -> Difference:
    """Compares two or more pairs, given as their differences."""
    n = len(differences)
    if len(set(differences)) > 1:
        p = float(ttest_1samp(differences, 0).pvalue)
    else:
        p = float(differences[0] == 0)
    return Difference(
        mean(differences),
        student(differences),
        p,
        sign_flip_p(differences),
        smallest_detectable(stdev(differences), n),
    )


def sign_flip_p(differences: Sequence[float]) -> float:
    """Returns the exact p-value of no difference: the share of all choices of signs whose mean is
    at least as far from 0. Beyond 13 pairs, random choices are used instead of all of them."""
    found = permutation_test(
        (np.asarray(differences, dtype=float),),
        np.mean,
        permutation_type="samples",
        n_resamples=9999,
        vectorized=True,
        rng=np.random.default_rng(0),
    )
    return min(1.0, float(found.pvalue))


def holm(p_values: Sequence[float]) -> list[float]:
    """Returns the p-values adjusted for their number (Holm 1979), in the given order."""
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(np.argsort(p_values, kind="stable")):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = largest
    return adjusted


def tukey(groups: Sequence[Sequence[float]]) -> float:
    """Returns the half-width of simultaneous intervals of all differences between the means of
    groups, with their pooled error (Tukey 1953, Kramer 1956 for unequal sizes: the widest)."""
    error, free = pooled_error(groups)
    quantile = float(studentized_range.ppf(CONFIDENCE, len(groups), free))
    smallest, second = sorted(map(len, groups))[:2]
    return quantile * error * ((1 / smallest + 1 / second) / 2) ** 0.5


def pooled_error(groups: Sequence[Sequence[float]]) -> tuple[float, int]:
    """Returns the standard deviation within groups, and its degrees of freedom."""
    free = sum(len(group) - 1 for group in groups)
    squares = sum(sum((x - mean(group)) ** 2 for x in group) for group in groups)
    return (squares / free) ** 0.5, free


def smallest_detectable(deviation: float, n: int, power: float = 0.8) -> float:
    """Returns the smallest mean of n pairs that the two-sided t-test detects with this power.

    Args:
        deviation: the standard deviation of the pairs.
    """
    critical, low, high = float(t.ppf((1 + CONFIDENCE) / 2, n - 1)), 0.0, 1e3
    for _ in range(60):  # bisection over the noncentrality
        middle = (low + high) / 2
        if nct.sf(critical, n - 1, middle) < power:
            low = middle
        else:
            high = middle
    return high * deviation / n**0.5
