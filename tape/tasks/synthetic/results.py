"""The results of an evaluation: accuracy by length, in synthetic.csv.

`accuracy` is the share of problems whose whole answer is right, and `tokens` that of the answers'
tokens. The condition `reached` is 1 if the training reached its criterion, else 0: comparisons
average accuracies of the former only, and count the latter as failed.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from tape.evaluation.accuracy import Accuracy, Measure, ratio
from tape.evaluation.view import PERCENT, Asked, Column, HeatMap, Panel, Points, View

SOLVED = 0.9  # exact match at a length that counts as solved
FOLDER = "synthetic"  # of an evaluation, in that of the run


def accuracies(rows: pd.DataFrame) -> dict[int, float]:
    """Returns the exact match by length."""
    rows = rows[rows["measure"] == "accuracy"]
    return {int(length): ratio(group) for length, group in rows.groupby("length")}


def longest_solved(rows: pd.DataFrame) -> int:
    """Returns the largest length up to which each has at least 90 % exact match; 0 if even the
    shortest has less."""
    found = 0
    for length, accuracy in sorted(accuracies(rows).items()):
        if accuracy < SOLVED:
            break
        found = length
    return found


def has_reached(rows: pd.DataFrame) -> bool:
    return bool(rows["reached"].max() == 1)


def _columns(asked: list[Asked], tables: list[pd.DataFrame]) -> list[Column]:
    trained = max(each["trained"] for each in asked)

    def at(title: str, chosen: Any, compared: str = "") -> Column:
        where = lambda rows: chosen(rows["length"]) & (rows["reached"] == 1)  # noqa: E731
        return Column(title, "accuracy", PERCENT, where, compared)

    return [
        at("trained lengths, %", lambda length: length <= trained),
        at("twice, %", lambda length: length == 2 * trained, "twice"),
        at("all lengths, %", lambda length: length > 0),
    ]


def _points(rows: pd.DataFrame) -> Points:
    found = accuracies(rows) if has_reached(rows) else {}
    return [*found], [*found.values()]


VIEW = View(
    keys=("task", "trained", "max_length", "samples", "seed"),
    columns=_columns,
    best=lambda asked, tables: _columns(asked, tables)[-1],
    about=lambda asked: {"task": asked["task"], "trained length": str(asked["trained"])},
    panels=(Panel(_points, "length of the problem", "exact match", log_x=True),),
    heatmap=HeatMap(
        down="reached",
        across="length",
        down_label="criterion reached",
        across_label="length of the problem",
        trained=lambda asked: (None, asked["trained"]),
    ),
)
SYNTHETIC = Accuracy(
    file="synthetic.csv",
    cell={"length": "length", "reached": "reached"},
    counts=("problems", "right", "asked", "right_tokens"),
    measures={
        "accuracy": Measure("right", "problems"),
        "tokens": Measure("right_tokens", "asked"),
    },
    view=VIEW,
    listing="lengths",
    listed=lambda rows: rows["length"],
    line="length {length}",
)
read_evaluation = SYNTHETIC.read
