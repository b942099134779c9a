"""How the rows of one kind of evaluation are shown, as data: columns of a table, curves, heat map.

Rows are selected by functions and not by queries of pandas, which are code: what an evaluation was
asked comes from files of others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pandas as pd

from tape.evaluation.scoring import exp

Asked = dict[str, Any]
Where = Callable[[pd.DataFrame], pd.Series]  # whether each row is taken


class Evaluation(NamedTuple):
    """A finished evaluation in long form.

    Attributes:
        asked: its settings, with the hash of the weights as `model`.
        rows: columns `measure`, conditions (NaN where they do not apply), `value`, `n` (the number
            of observations that the value is the mean of) and `unit`.
    """

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
    """A column of the table: the mean of some rows of a run, weighted by their `n`.

    Attributes:
        where: takes rows of the measure; None: all of them.
        compared: the condition, for the table of differences (of unscaled values) to a baseline;
            empty for none.
        cost: whether it is a cost of the run rather than a result.
    """

    title: str
    measure: str
    scale: Scale
    where: Where | None = None
    compared: str = ""
    cost: bool = False

    def of(self, rows: pd.DataFrame) -> pd.DataFrame:
        return select(rows, self.measure, self.where)


class Panel(NamedTuple):
    """Curves of all rows of the table, with bands over seeds.

    Attributes:
        of: the rows that are drawn.
        x: the condition on the horizontal axis. A line marks the end of the trained length, except
            over steps.
        labels: of the axes.
        log: "", "x" or "xy": which axes are logarithmic.
        share: whether the values are from 0 to 1.
        levels: measures whose means over all runs are horizontal lines, where there are such rows.
    """

    of: Callable[[pd.DataFrame], pd.DataFrame]
    x: str
    labels: tuple[str, str]
    log: str = ""
    share: bool = False
    levels: tuple[str, ...] = ()


class HeatMap(NamedTuple):
    """Accuracy over two conditions.

    Attributes:
        down, across: the conditions, ascending.
        trained: from the settings of the evaluation, the last trained value of each condition; None
            if a condition was not limited in training. At least one was.
    """

    down: str
    across: str
    labels: tuple[str, str]
    trained: Callable[[Asked], tuple[float | None, float | None]]

    def within(self, asked: Asked, rows: pd.DataFrame) -> pd.Series:
        """Returns whether each row is of trained conditions."""
        found = pd.Series(True, rows.index)
        for condition, last in zip((self.down, self.across), self.trained(asked), strict=True):
            if last is not None:
                found &= rows[condition] <= last
        return found


class View(NamedTuple):
    """
    Attributes:
        keys: settings of the evaluation that must be equal for all runs.
        columns: of the table, from these settings of each run and the rows of all.
        best: from the settings of a run, what takes the rows whose mean orders the table; all rows
            of the measure if it takes none of any run.
        measure: which is of the best: a loss is better if it is lower.
    """

    keys: tuple[str, ...]
    columns: Callable[[list[Asked], pd.DataFrame], list[Column]]
    best: Callable[[Asked], Where]
    measure: str = "accuracy"
    panels: tuple[Panel, ...] = ()
    heatmap: HeatMap | None = None
