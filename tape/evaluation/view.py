"""How the rows of one kind of evaluation are shown, as data: columns of a table, curves, heat map.

Rows are selected by queries of pandas, such as "length == 256 and first.isna()".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd

from tape.evaluation.scoring import exp

Asked = dict[str, Any]


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


def select(rows: pd.DataFrame, measure: str, where: str = "") -> pd.DataFrame:
    """Returns the rows of a measure, of those a query takes if there is one."""
    rows = rows[rows["measure"] == measure]
    return rows.query(where, engine="python") if where and len(rows) else rows


class Column(NamedTuple):
    """A column of the table: the mean of some rows of a run, weighted by their `n`.

    Attributes:
        where: a query of rows of the measure; all of them if it is empty.
        compared: the condition, for the table of differences (of unscaled values) to a baseline;
            empty for none.
        cost: whether it is a cost of the run rather than a result.
    """

    title: str
    measure: str
    scale: Scale
    where: str = ""
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

    def inside(self, asked: Asked) -> str:
        """Returns a query of the trained conditions."""
        limits = zip((self.down, self.across), self.trained(asked), strict=True)
        return " and ".join(f"{name} <= {last}" for name, last in limits if last is not None)

    def within(self, asked: Asked, rows: pd.DataFrame) -> pd.Series:
        """Returns whether each row is of trained conditions."""
        return rows.eval(self.inside(asked), engine="python")

    def cells(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Returns the accuracies that are over both conditions; none if rows lack one."""
        if not {self.down, self.across} <= {*rows}:
            return rows[:0]
        return select(rows, "accuracy").dropna(subset=[self.down, self.across])


@dataclass(frozen=True)
class View:
    """
    Attributes:
        keys: settings of the evaluation that must be equal for all runs.
        columns: of the table, from these settings of each run and the rows of all.
        best: from the settings of a run, a query of the rows whose mean orders the table; all rows
            of the measure if it takes none of any run.
        measure: which is of the best: a loss is better if it is lower.
    """

    keys: tuple[str, ...]
    columns: Callable[[list[Asked], pd.DataFrame], list[Column]]
    best: Callable[[Asked], str]
    measure: str = "accuracy"
    panels: tuple[Panel, ...] = ()
    heatmap: HeatMap | None = None
