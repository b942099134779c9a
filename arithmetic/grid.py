"""The results of an evaluation: accuracy by the digits of both operands, in grid.csv."""

from __future__ import annotations

from dataclasses import fields

import pandas as pd

from arithmetic.grid_plan import Batch
from arithmetic.problems import Problems
from tape.evaluation.accuracy import Accuracy, Marked, Measure
from tape.evaluation.view import PERCENT, Asked, Column, HeatMap, View
from tape.results.heatmap import draw


def mark(batch: Batch, given: list[str], end: str, keep: int) -> dict:
    """Returns the journal's record of a batch. An answer is right if it matches in full and is
    followed by `end`."""

    def marked(n: int, m: int, prompt: str, answer: str, text: str) -> Marked:
        right = text == answer + end
        shown = {"prompt": prompt, "expected": answer + end, "given": text}
        return Marked((n, m), (right, 1), None if right else shown)

    pairs = zip(batch.questions, given, strict=True)
    return GRID.record((marked(*question, text) for question, text in pairs), keep)


def _columns(asked: list[Asked], tables: list[pd.DataFrame]) -> list[Column]:
    def inside(rows: pd.DataFrame) -> pd.Series:
        return VIEW.heatmap.within(asked[0], rows)

    return [
        Column("trained lengths, %", "accuracy", PERCENT, inside),
        Column("beyond them, %", "accuracy", PERCENT, lambda rows: ~inside(rows), "beyond"),
        Column("whole grid, %", "accuracy", PERCENT),
    ]


def _best(asked: list[Asked], tables: list[pd.DataFrame]) -> Column:
    _, beyond, everything = _columns(asked, tables)
    return everything if beyond.value(tables[0]) is None else beyond


OF_TRAINING = ("spaces",)  # the questions are the same
VIEW = View(
    keys=(
        "max_length",
        "samples",
        "seed",
        *(f"problems.{field.name}" for field in fields(Problems) if field.name not in OF_TRAINING),
    ),
    columns=_columns,
    best=_best,
    about=lambda asked: {
        "trained to digits": f"{asked['problems.max_first']} x {asked['problems.max_second']}",
        "tested to digits": f"{asked['max_length']} x {asked['max_length']}",
    },
    heatmap=HeatMap(
        down="first_digits",
        across="second_digits",
        down_label="digits of the first operand",
        across_label="digits of the second operand",
        trained=lambda asked: (asked["problems.max_first"], asked["problems.max_second"]),
    ),
)


def _diagonal(rows: pd.DataFrame) -> pd.Series:
    first = rows["first_digits"]
    return first.where(first == rows["second_digits"]).rename("n")


GRID = Accuracy(
    file="grid.csv",
    cell={"n": "first_digits", "m": "second_digits"},
    counts=("correct", "total"),
    measures={"accuracy": Measure("correct", "total")},
    view=VIEW,
    listing="diagonal",
    listed=_diagonal,
    draw=lambda folder, name, _: draw(folder, name),
)
read_evaluation = GRID.read
