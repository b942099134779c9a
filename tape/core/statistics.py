"""Statistics of comparisons: intervals of shares and means, tests over seeds, and their power.

All intervals are 95 % intervals; p-values are two-sided. Rows in long form have the columns
`value`, `n` (the number of observations that the value is the mean of), `seed`, and any others that
they are grouped by, such as `row`, `task` or `length`.
"""

import math
from collections.abc import Sequence
from itertools import combinations
from statistics import mean, stdev

import numpy as np
import pandas as pd
from scipy.special import nctdtrinc
from scipy.stats import binomtest, permutation_test, rankdata, t

CONFIDENCE = 0.95


def of_share(correct: int, total: int, method: str = "wilson") -> tuple[float, float]:
    """Returns the interval of a share: by "wilson" (1927), whose width is never 0, or the "exact"
    one of Clopper and Pearson (1934)."""
    return tuple(map(float, binomtest(correct, total).proportion_ci(CONFIDENCE, method)))


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


def table(rows: pd.DataFrame, by: str | Sequence[str] = "row", over: str = "seed") -> pd.DataFrame:
    """Returns the columns mean (over seeds), half_width (of the interval; NaN for one seed) and n
    (seeds) of each group."""
    groups = per_seed(rows, by, over).groupby(level=by, sort=False)
    half_width = groups.agg(lambda x: student(x) if len(x) > 1 else math.nan)
    return pd.DataFrame({"mean": groups.agg(mean), "half_width": half_width, "n": groups.size()})


def differences(rows: pd.DataFrame, baseline: str) -> pd.DataFrame:
    """Compares rows with one of them, paired by seed.

    Returns:
        Columns mean, half_width (of its interval, Student), n (pairs), p (of the paired t-test,
        corrected for the number of rows), exact_p (of flipping signs, uncorrected; at least
        2 / 2 ** n) and detectable (the smallest difference that the corrected test detects with a
        power of 80 %, whatever the other rows show). Left out are the baseline, rows whose values
        are not all finite, and those with fewer than two pairs.
    """
    values = per_seed(rows)
    values = values.groupby(level="row", sort=False).filter(lambda each: np.isfinite(each).all())
    names = values.index.unique("row")
    lines: dict[str, dict[str, float]] = {}
    for name in names.drop(baseline) if baseline in names else ():
        pairs = (values[name] - values[baseline]).dropna()
        if len(pairs) < 2:
            continue
        middle, error, free = mean(pairs), stdev(pairs) / len(pairs) ** 0.5, len(pairs) - 1
        lines[name] = {
            "mean": middle,
            "half_width": student(pairs),
            "n": len(pairs),
            "p": 2 * float(t.sf(abs(middle) / error, free)) if error else float(middle == 0),
            "exact_p": sign_flip_p(pairs),
            "error": error,
        }
    columns = ["mean", "half_width", "n", "p", "exact_p", "error"]
    found = pd.DataFrame.from_dict(lines, orient="index", columns=columns).rename_axis("row")
    limits = [smallest_detectable(x.error, x.n - 1, len(found)) for x in found.itertuples()]
    return found.drop(columns="error").assign(p=holm([*found["p"]]), detectable=limits)


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


def smallest_detectable(error: float, free: int, tests: int = 1, power: float = 0.8) -> float:
    """Returns the smallest difference that the two-sided t-test detects with this power, from the
    standard error of the difference, with `free` degrees of freedom. The test is one of several:
    its level is that of the first step of Holm's correction, 0.05 / tests, at which a difference is
    detected whatever the other tests show."""
    critical = t.isf((1 - CONFIDENCE) / 2 / tests, free)
    return float(nctdtrinc(free, 1 - power, critical)) * error  # the noncentrality
