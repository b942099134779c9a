"""Summaries of rows in long form: means over seeds, and differences to a baseline.

Rows have the columns `value`, `n` (the number of observations that the value is the mean of),
`seed`, and any others that they are grouped by, such as `row`, `task` or `length`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import mean

import numpy as np
import pandas as pd

from tape import statistics
from tape.statistics import student


def weighted_mean(rows: pd.DataFrame, by: Sequence[str]) -> pd.Series:
    """Returns the mean of each group, weighted by `n`; NaN if the group has no value."""
    sums = rows.assign(value=rows["value"] * rows["n"]).groupby(by, sort=False)[["value", "n"]]
    sums = sums.sum(min_count=1)
    return sums["value"] / sums["n"]


def per_seed(rows: pd.DataFrame, by: str | Sequence[str] = "row", over: str = "seed") -> pd.Series:
    """Returns a value for each group and seed, indexed by both."""
    return weighted_mean(rows, [*([by] if isinstance(by, str) else by), over])


def table(
    rows: pd.DataFrame,
    by: str | Sequence[str] = "row",
    over: str = "seed",
    scale: Callable[[float], float] = float,
) -> pd.DataFrame:
    """Returns the mean over seeds of each group.

    Args:
        by: columns to group by.
        scale: of the value of a seed, such as `math.exp` of a loss.

    Returns:
        Columns mean, half_width (of the 95 % interval; NaN for one seed) and n (seeds).
    """
    groups = per_seed(rows, by, over).map(scale).groupby(level=by, sort=False)
    return pd.DataFrame(
        {
            "mean": groups.agg(lambda values: mean(values)),
            "half_width": groups.agg(lambda x: student(x) if len(x) > 1 else np.nan),
            "n": groups.size(),
        }
    )


def differences(
    rows: pd.DataFrame, baseline: str, by: str = "row", over: str = "seed"
) -> pd.DataFrame:
    """Returns the differences of all groups to one of them, paired by seed, as
    `tape.statistics.differences`: columns mean, half_width, p, detectable, pairs_half_width and
    exact_p."""
    return statistics.differences(per_seed(rows, by, over), baseline).rename_axis(by)
