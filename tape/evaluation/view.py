"""How one kind of evaluation is compared: columns of the table, panels of the figure, heat map."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from tape.evaluation.scoring import exp

Points = tuple[list[float], list[float]]
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
AS_IT_IS = Scale(lambda value: value, 2)
WHOLE = Scale(lambda value: value, 0)


class Column(NamedTuple):
    """A column of the table: the mean of some rows of a run, weighted by their `n`.

    Attributes:
        where: selects rows of the measure; None takes all of them.
        compared: the condition, for the table of differences (of unscaled values) to a baseline;
            empty for none.
        cost: whether it is a cost of the run rather than a result.
    """

    title: str
    measure: str
    scale: Scale
    where: Callable[[pd.DataFrame], pd.Series] | None = None
    compared: str = ""
    cost: bool = False

    def counted(self, rows: pd.DataFrame) -> tuple[float, float] | None:
        """Returns the mean and the sum of `n`; None if the run has no such rows."""
        rows = rows[rows["measure"] == self.measure]
        if self.where is not None and len(rows):
            rows = rows[self.where(rows)]
        if rows.empty:
            return None
        if len(rows) == 1:
            return float(rows["value"].iloc[0]), float(rows["n"].iloc[0])
        return float(np.average(rows["value"], weights=rows["n"])), float(rows["n"].sum())

    def value(self, rows: pd.DataFrame) -> float | None:
        found = self.counted(rows)
        return None if found is None else found[0]


class Panel(NamedTuple):
    """Curves of all rows of the table, with bands over seeds.

    Attributes:
        points: of one run; an empty list if it has none.
        tokens: whether x is in tokens: a line marks the end of the trained length.
        levels: measures whose means over all runs are horizontal lines, where there are such rows.
    """

    points: Callable[[pd.DataFrame], Points]
    x: str
    y: str
    tokens: bool = False
    log_x: bool = False
    log_y: bool = False
    share: bool = False
    levels: tuple[str, ...] = ()


class HeatMap(NamedTuple):
    """Accuracy over two conditions.

    Attributes:
        down, across: the conditions, ascending.
        trained: from the settings of the evaluation, the last trained value of each condition;
            None if a condition was not limited in training.
    """

    down: str
    across: str
    down_label: str
    across_label: str
    trained: Callable[[Asked], tuple[float | None, float | None]]

    def within(self, asked: Asked, rows: pd.DataFrame) -> pd.Series:
        """Returns whether each row is of trained conditions."""
        found = pd.Series(True, rows.index)
        for condition, last in zip((self.down, self.across), self.trained(asked), strict=True):
            if last is not None:
                found &= rows[condition] <= last
        return found


@dataclass(frozen=True)
class View:
    """
    Attributes:
        keys: settings of the evaluation that must be equal for all runs.
        columns: of the table, from these settings of all runs and their rows.
        best: the column that orders the table, from the same.
        descending: whether larger values are better.
        about: facts of one evaluation, by title.
    """

    keys: tuple[str, ...]
    columns: Callable[[list[Asked], list[pd.DataFrame]], list[Column]]
    best: Callable[[list[Asked], list[pd.DataFrame]], Column]
    descending: bool = True
    about: Callable[[Asked], dict[str, str]] = lambda asked: {}
    panels: tuple[Panel, ...] = ()
    heatmap: HeatMap | None = None
