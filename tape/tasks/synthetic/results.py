"""The results of an evaluation: accuracy by length, in synthetic.csv.

`accuracy` is the share of problems whose whole answer is right, and `tokens` that of the answers'
tokens. The condition `reached` is 1 if the training reached its criterion, else 0: comparisons
average accuracies of the former only, and count the latter as failed.
"""

from __future__ import annotations

from itertools import takewhile

import pandas as pd

from tape.evaluation.accuracy import Accuracy, Measure, ratio
from tape.evaluation.view import PERCENT, Asked, Column, HeatMap, Panel, View, select

SOLVED = 0.9  # exact match at a length that counts as solved
FOLDER = "synthetic"  # of an evaluation, in that of the run


def accuracies(rows: pd.DataFrame) -> dict[int, float]:
    """Returns the exact match by length."""
    by_length = select(rows, "accuracy").groupby("length")
    return {int(length): ratio(group) for length, group in by_length}


def longest_solved(rows: pd.DataFrame) -> int:
    """Returns the largest length up to which each has at least 90 % exact match; 0 if even the
    shortest has less."""
    solved = takewhile(lambda item: item[1] >= SOLVED, sorted(accuracies(rows).items()))
    return max((length for length, _ in solved), default=0)


def has_reached(rows: pd.DataFrame) -> bool:
    return bool(rows["reached"].max() == 1)


def reached(rows: pd.DataFrame) -> pd.Series:
    """Takes the rows that comparisons average."""
    return rows["reached"] == 1


def _columns(asked: list[Asked], rows: pd.DataFrame) -> list[Column]:
    end = asked[0]["trained"]

    def trained(rows: pd.DataFrame) -> pd.Series:
        return (rows["length"] <= end) & reached(rows)

    def twice(rows: pd.DataFrame) -> pd.Series:
        return (rows["length"] == 2 * end) & reached(rows)

    return [
        Column("trained lengths, %", "accuracy", PERCENT, trained),
        Column("twice, %", "accuracy", PERCENT, twice, "twice"),
        Column("all lengths, %", "accuracy", PERCENT, reached),
    ]


VIEW = View(
    keys=("task", "trained", "max_length", "samples", "seed"),
    columns=_columns,
    best=lambda asked: reached,
    panels=(
        Panel(
            lambda rows: select(rows, "accuracy", reached),
            "length",
            ("length of the problem", "exact match"),
            log="x",
        ),
    ),
    heatmap=HeatMap(
        down="reached",
        across="length",
        labels=("criterion reached", "length of the problem"),
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
