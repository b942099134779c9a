"""Statistics of comparisons: intervals of shares and means, tests over seeds, and their power.

All intervals are 95 % intervals; p-values are two-sided.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from statistics import NormalDist, stdev
from typing import NamedTuple

import numpy as np
from scipy.special import nctdtrinc
from scipy.stats import binomtest, permutation_test, rankdata, t

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
    found = {"accuracy": correct / total, "low": low, "high": high}
    return found | {"correct": correct, "total": total}


def student(values: Sequence[float]) -> float:
    """Returns half the width of the interval of the mean of two or more values (Student 1908);
    infinity if one of them is not finite."""
    if not all(map(math.isfinite, values)):
        return math.inf
    return float(t.ppf((1 + CONFIDENCE) / 2, len(values) - 1)) * stdev(values) / len(values) ** 0.5


class Pairs(NamedTuple):
    """What pairs say without the other groups.

    Attributes:
        half_width: of the interval of their mean (Student).
        p: of the exact test that flips signs; at least 2 / 2 ** n for n pairs.
    """

    half_width: float
    p: float


class Difference(NamedTuple):
    """The mean difference of a group to a baseline.

    Attributes:
        half_width: of its interval.
        p: of the t-test.
        detectable: the smallest difference that the t-test detects with a power of 80 %.
        pairs: None if there are fewer than two.
    """

    mean: float
    half_width: float
    p: float
    detectable: float
    pairs: Pairs | None


def differences(groups: Mapping[str, Mapping[int, float]], baseline: str) -> dict[str, Difference]:
    """Compares groups of values by seed with one of them, in a randomized block design.

    The model is value = group + seed + error, with errors of one variance in all groups, fitted by
    least squares. For two groups with the same seeds it is the paired t-test.

    Returns:
        Differences by name, without the baseline, groups whose values are not all finite, and
        groups that no seed connects with the baseline; none if no error can be estimated.
    """
    finite = {
        name: values for name, values in groups.items() if all(map(math.isfinite, values.values()))
    }
    cells = [(name, seed) for name, values in finite.items() for seed in values]
    if baseline not in finite or not cells:
        return {}
    names, seeds = [*finite], sorted({seed for _, seed in cells})
    design = np.array(
        [[*(name == n for n in names), *(seed == s for s in seeds)] for name, seed in cells],
        dtype=float,
    )
    values = np.array([finite[name][seed] for name, seed in cells])
    inverse = np.linalg.pinv(design)
    free = len(cells) - int(np.linalg.matrix_rank(design))
    if not free:
        return {}
    error = float(np.sum((values - design @ inverse @ values) ** 2) / free) ** 0.5
    rounding = 1e-12 * float(np.abs(values).max())
    found = {}
    for name in finite.keys() - {baseline}:
        contrast = np.zeros(design.shape[1])
        contrast[[names.index(name), names.index(baseline)]] = 1, -1
        weights = contrast @ inverse  # of the values
        if not np.allclose(weights @ design, contrast):
            continue
        middle = float(weights @ values)
        deviation = error * float(weights @ weights) ** 0.5 if error > rounding else 0.0
        p = 2 * t.sf(abs(middle) / deviation, free) if deviation else abs(middle) <= rounding
        both = sorted(finite[name].keys() & finite[baseline].keys())
        pairs = [finite[name][seed] - finite[baseline][seed] for seed in both]
        found[name] = Difference(
            middle,
            float(t.ppf((1 + CONFIDENCE) / 2, free)) * deviation,
            float(p),
            smallest_detectable(deviation, free),
            Pairs(student(pairs), sign_flip_p(pairs)) if len(pairs) > 1 else None,
        )
    return {name: found[name] for name in groups if name in found}


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


def exchange_p(first: Sequence[float], second: Sequence[float]) -> float:
    """Returns the p-value of no difference between two groups: the share of all ways to divide the
    values between them whose mean ranks differ by at least as much. It is exact, unless there are
    more than 100,000 ways, of which as many are then drawn."""
    ranks, size = rankdata([*first, *second]), len(first)
    if math.comb(len(ranks), size) <= 100_000:
        sums = ranks[[*combinations(range(len(ranks)), size)]].sum(axis=1)
    else:
        rng = np.random.default_rng(0)
        drawn = [rng.permutation(ranks)[:size].sum() for _ in range(100_000)]
        sums = np.array([ranks[:size].sum(), *drawn])
    far = abs(sums - size * (len(ranks) + 1) / 2)  # from its mean
    return float(np.mean(far >= abs(ranks[:size].sum() - size * (len(ranks) + 1) / 2) - 1e-9))


def holm(p_values: Sequence[float]) -> list[float]:
    """Returns the p-values adjusted for their number (Holm 1979), in the given order."""
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(np.argsort(p_values, kind="stable")):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = largest
    return adjusted


def smallest_detectable(error: float, free: int, power: float = 0.8) -> float:
    """Returns the smallest difference that the two-sided t-test detects with this power.

    Args:
        error: the standard error of the difference, with `free` degrees of freedom.
    """
    critical = t.ppf((1 + CONFIDENCE) / 2, free)
    return float(nctdtrinc(free, 1 - power, critical)) * error  # the noncentrality
