"""How the rows of one kind of evaluation are shown, as data: columns of a table, curves, heat map.

Rows are selected by functions and not by queries of pandas, which are code: what an evaluation was
asked comes from files of others.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import pandas as pd

from tape.evaluation.scoring import exp

Asked = dict[str, Any]
Limits = tuple[float | None, float | None]
Where = Callable[[pd.DataFrame], pd.Series]  # whether each row is taken


class Evaluation(NamedTuple):
    """A finished evaluation: its settings, with the hash of the weights as `model`, and rows in
    long form (tape/core/statistics.py) with columns `measure`, conditions (NaN if they do not
    apply) and `unit`."""

    asked: Asked
    rows: pd.DataFrame


class Scale(NamedTuple):
    """How values are shown."""

    of: Callable[[float], float]
    digits: int


PERCENT = Scale(lambda share: 100 * share, 1)
PERPLEXITY = Scale(exp, 2)
AS_IT_IS = Scale(float, 2)
WHOLE = Scale(float, 0)


def select(rows: pd.DataFrame, measure: str, where: Where | None = None) -> pd.DataFrame:
    """Returns the rows of a measure, those that `where` takes if it is given."""
    rows = rows[rows["measure"] == measure]
    return rows if where is None or rows.empty else rows[where(rows)]


class Column(NamedTuple):
    """A column of the table: the mean of some rows of a run, weighted by their `n`."""

    title: str
    measure: str
    scale: Scale = AS_IT_IS
    where: Where | None = None  # None: all rows of the measure
    compared: str = ""  # name in the table of differences (unscaled) to a baseline, if it is there
    cost: bool = False  # rather than a result
    effective: bool = False  # the median effective length of runs instead (tables.py)

    def of(self, rows: pd.DataFrame) -> pd.DataFrame:
        return select(rows, self.measure, self.where)


class Panel(NamedTuple):
    """Curves of all rows of the table, with bands over seeds. A line marks the end of the trained
    length, except over steps."""

    of: Callable[[pd.DataFrame], pd.DataFrame]  # the rows that are drawn
    x: str  # the condition on the horizontal axis
    labels: tuple[str, str]
    log: str = ""  # "x" or "xy": axes that are logarithmic
    share: bool = False  # whether the values are from 0 to 1
    levels: tuple[str, ...] = ()  # measures whose means over all runs are horizontal lines
    title: Callable[[Asked, pd.DataFrame], str] | None = None  # from what a run was asked, and rows


class HeatMap(NamedTuple):
    """Accuracy over two conditions, ascending `down` and `across`. `trained` gives the last trained
    value of each from the settings of an evaluation; None if training did not limit it, by default
    only `across`."""

    down: str
    across: str
    labels: tuple[str, str]
    trained: Callable[[Asked], Limits] = lambda asked: (None, asked["trained"])

    def within(self, asked: Asked, rows: pd.DataFrame) -> pd.Series:
        """Returns whether each row is of trained conditions."""
        found = pd.Series(True, rows.index)
        for condition, last in zip((self.down, self.across), self.trained(asked), strict=True):
            if last is not None:
                found &= rows[condition] <= last
        return found


class View(NamedTuple):
    """How the results of one kind of evaluation are shown.

    Attributes:
        keys: settings of the evaluation that must be equal in all runs.
        columns: makes the columns of the table from the settings `keys` of each run and all rows.
        best: makes a filter of rows from the settings of a run. The table is ordered by the mean of
            the `measure` over the rows that pass it, or over all rows if none pass. A lower loss is
            better, and so is a higher value of any other measure.
        note: makes the text below the table from the settings of a run and all rows.
    """

    keys: tuple[str, ...]
    columns: Callable[[list[Asked], pd.DataFrame], list[Column]]
    best: Callable[[Asked], Where]
    measure: str = "accuracy"
    panels: tuple[Panel, ...] = ()
    heatmap: HeatMap | None = None
    note: Callable[[Asked, pd.DataFrame], str] | None = None
