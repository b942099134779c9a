"""Statistics of comparisons: intervals of shares and means, tests over seeds, and their power.

All intervals are 95 % intervals; p-values are two-sided. Rows in long form have the columns
`value`, `n` (the number of observations that the value is the mean of), `seed`, and any others that
they are grouped by, such as `row`, `task` or `length`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import combinations
from statistics import mean, stdev

import numpy as np
import pandas as pd
from scipy.special import nctdtrinc
from scipy.stats import binomtest, permutation_test, rankdata, t

CONFIDENCE = 0.95


def wilson(correct: int, total: int) -> tuple[float, float]:
    """Returns the interval of a share (Wilson 1927), whose width is never 0."""
    return tuple(map(float, binomtest(correct, total).proportion_ci(CONFIDENCE, "wilson")))


def clopper_pearson(correct: int, total: int) -> tuple[float, float]:
    """Returns the exact interval of a share (Clopper and Pearson 1934)."""
    return tuple(map(float, binomtest(correct, total).proportion_ci(CONFIDENCE)))


def student(values: Sequence[float]) -> float:
    """Returns half the width of the interval of the mean of two or more values (Student 1908);
    infinity if one of them is not finite."""
    if not all(map(math.isfinite, values)):
        return math.inf
    return float(t.ppf((1 + CONFIDENCE) / 2, len(values) - 1)) * stdev(values) / len(values) ** 0.5


def weighted_mean(rows: pd.DataFrame, by: Sequence[str]) -> pd.Series:
    """Returns the mean of each group, weighted by `n`; NaN if the group has no value."""
    n = rows["n"].where(rows["value"].notna())
    groups = rows.assign(value=rows["value"] * n, n=n).groupby(by, sort=False)
    return groups["value"].sum(min_count=1) / groups["n"].sum(min_count=1)


def per_seed(rows: pd.DataFrame, by: str | Sequence[str] = "row", over: str = "seed") -> pd.Series:
    """Returns a value for each group and seed, indexed by both."""
    return weighted_mean(rows, [*([by] if isinstance(by, str) else by), over])


def table(
    rows: pd.DataFrame,
    by: str | Sequence[str] = "row",
    over: str = "seed",
    scale: Callable[[float], float] = float,
) -> pd.DataFrame:
    """Returns the columns mean (over seeds), half_width (of the interval; NaN for one seed) and n
    (seeds) of each group. `scale` maps the value of a seed, as `math.exp` does a loss."""
    groups = per_seed(rows, by, over).map(scale).groupby(level=by, sort=False)
    half_width = groups.agg(lambda x: student(x) if len(x) > 1 else math.nan)
    return pd.DataFrame({"mean": groups.agg(mean), "half_width": half_width, "n": groups.size()})


def differences(rows: pd.DataFrame, baseline: str) -> pd.DataFrame:
    """Compares rows with one of them by seed, in a randomized block design.

    The model is value = row + seed + error, with errors of one variance in all rows, fitted by
    least squares. For two rows with the same seeds it is the paired t-test.

    Returns:
        Columns mean, half_width (of its interval), p (of the t-test, corrected for the number of
        rows), detectable (the smallest difference that the test detects with a power of 80 %);
        of the pairs without the other rows, pairs_half_width (Student) and exact_p (of flipping
        signs, uncorrected; at least 2 / 2 ** n for n pairs), NaN for fewer than two. Left out are
        the baseline, rows whose values are not all finite, and those that no seed connects with
        the baseline; all rows if no error can be estimated.
    """
    values = per_seed(rows)
    values = values.groupby(level="row", sort=False).filter(lambda each: np.isfinite(each).all())
    names = values.index.unique("row")
    table = pd.get_dummies(values.index.to_frame().astype(str), dtype=float)
    design, given = table.to_numpy(), values.to_numpy()
    free = len(values) - int(np.linalg.matrix_rank(design)) if len(values) else 0
    lines: dict[str, dict[str, float]] = {}
    if baseline in names and free:
        inverse = np.linalg.pinv(design)
        error = float(np.sum((given - design @ inverse @ given) ** 2) / free) ** 0.5
        rounding = 1e-12 * float(np.abs(given).max())
        for name in names.drop(baseline):
            contrast = 1.0 * (table.columns == f"row_{name}") - (table.columns == f"row_{baseline}")
            weights = contrast @ inverse  # of the values
            if not np.allclose(weights @ design, contrast):
                continue
            middle = float(weights @ given)
            deviation = error * float(weights @ weights) ** 0.5 if error > rounding else 0.0
            p = 2 * t.sf(abs(middle) / deviation, free) if deviation else abs(middle) <= rounding
            pairs = (values[name] - values[baseline]).dropna()
            lines[name] = {
                "mean": middle,
                "half_width": float(t.ppf((1 + CONFIDENCE) / 2, free)) * deviation,
                "p": float(p),
                "detectable": smallest_detectable(deviation, free),
                "pairs_half_width": student(pairs) if len(pairs) > 1 else math.nan,
                "exact_p": sign_flip_p(pairs) if len(pairs) > 1 else math.nan,
            }
    columns = ["mean", "half_width", "p", "detectable", "pairs_half_width", "exact_p"]
    found = pd.DataFrame.from_dict(lines, orient="index", columns=columns)
    return found.assign(p=holm([*found["p"]])).rename_axis("row")


def sign_flip_p(differences: Sequence[float]) -> float:
    """Returns the exact p-value of no difference: the share of all choices of signs whose mean is
    at least as far from 0. Beyond 13 pairs, random choices are used instead of all of them."""
    samples, rng = (np.asarray(differences, dtype=float),), np.random.default_rng(0)
    found = permutation_test(samples, np.mean, permutation_type="samples", rng=rng)
    return min(1.0, float(found.pvalue))


def exchange_p(first: Sequence[float], second: Sequence[float]) -> float:
    """Returns the p-value of no difference between two groups: the share of all ways to divide the
    values between them (or of 100,000 ways, if there are more) whose mean ranks differ by at least
    as much."""
    ranks, size = rankdata([*first, *second]), len(first)
    if math.comb(len(ranks), size) <= 100_000:
        sums = ranks[[*combinations(range(len(ranks)), size)]].sum(axis=1)
    else:
        rng = np.random.default_rng(0)
        drawn = [rng.permutation(ranks)[:size].sum() for _ in range(100_000)]
        sums = np.array([ranks[:size].sum(), *drawn])
    middle = size * (len(ranks) + 1) / 2
    return float(np.mean(abs(sums - middle) >= abs(ranks[:size].sum() - middle) - 1e-9))


def holm(p_values: Sequence[float]) -> list[float]:
    """Returns the p-values adjusted for their number (Holm 1979), in the given order."""
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(np.argsort(p_values, kind="stable")):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = largest
    return adjusted


def smallest_detectable(error: float, free: int, power: float = 0.8) -> float:
    """Returns the smallest difference that the two-sided t-test detects with this power, from the
    standard error of the difference, with `free` degrees of freedom."""
    critical = t.ppf((1 + CONFIDENCE) / 2, free)
    return float(nctdtrinc(free, 1 - power, critical)) * error  # the noncentrality
