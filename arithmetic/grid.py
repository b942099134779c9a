"""The results of an evaluation: what was right in each cell, and what that says.

grid.csv has a row n, m, correct, total per cell, n the length of the first operand and m that of
the second; summary.json holds the means, wrong.jsonl some of the wrong answers of each cell.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from arithmetic.problems import Problems
from tape.evaluation.journal import read_evaluated, some_of_each
from tape.evaluation.tables import csv_table, read_table
from tape.evaluation.view import PERCENT, Asked, Column, Evaluation, HeatMap, View
from tape.files import reading, write_text
from tape.statistics import with_interval

COLUMNS = ("n", "m", "correct", "total")


@dataclass(frozen=True)
class Grid:
    """How many answers were right in each cell, and out of how many.

    Args:
        correct, total: (N, N), with the cell (n, m) in row n - 1 and column m - 1.
        trained: the longest first and second operand in training.
    """

    correct: np.ndarray
    total: np.ndarray
    trained: tuple[int, int]

    @classmethod
    def of(cls, cells: list[list[int]], evaluated: dict[str, Any]) -> Grid:
        """From rows n, m, correct, total, which add up, and what was evaluated.

        Raises:
            ValueError: if they are not those of every pair of lengths.
        """
        size, found = evaluated["max_length"], {(n, m) for n, m, *_ in cells}
        if len(found) != size**2 or found != {*product(range(1, size + 1), repeat=2)}:
            raise ValueError(f"these are not all pairs of lengths up to {size}: evaluate again")
        counts = np.zeros((2, size, size), dtype=np.int64)
        for n, m, *count in cells:
            if not all(type(number) is int for number in count):
                raise ValueError(f"the cell of {n} x {m} digits holds {count}: evaluate again")
            counts[:, n - 1, m - 1] += count
        correct, total = counts
        if not ((correct >= 0) & (correct <= total) & (total > 0)).all():
            raise ValueError("these are not valid counts of correct answers: evaluate again")
        return cls(*counts, (evaluated["problems.max_first"], evaluated["problems.max_second"]))

    @property
    def accuracy(self) -> np.ndarray:
        return self.correct / self.total

    def share(self, chosen: Any = ...) -> dict[str, float] | None:
        """The accuracy in some cells together, by an index or a mask; None if there are none."""
        return with_interval(*(int(counts[chosen].sum()) for counts in (self.correct, self.total)))

    def summary(self) -> dict[str, Any]:
        inside = np.zeros_like(self.total, dtype=bool)
        inside[: self.trained[0], : self.trained[1]] = True
        return {
            "all": self.share(),
            "inside": self.share(inside),
            "outside": self.share(~inside),
            "diagonal": [{"n": n + 1, **self.share((n, n))} for n in range(len(self.total))],
        }


def write_grid(folder: Path, evaluated: dict[str, Any], rows: list[dict[str, Any]]) -> Grid:
    """Write the files above from all batches of an evaluation.

    Args:
        evaluated: the model and the settings that parts begin with.
        rows: the parts, in any order.
    """
    rows = sorted(rows, key=lambda row: row["batch"])
    with reading(folder):
        grid = Grid.of([cell for row in rows for cell in row["cells"]], evaluated)
        wrong = some_of_each(rows, evaluated["wrong"], lambda answer: (answer["n"], answer["m"]))
    counts = np.ndenumerate(grid.correct)
    cells = [[n + 1, m + 1, correct, grid.total[n, m]] for (n, m), correct in counts]
    write_text(folder / "grid.csv", csv_table([COLUMNS, *cells]))
    summary = {**grid.summary(), "evaluated": evaluated}
    write_text(folder / "summary.json", json.dumps(summary, indent=1) + "\n")
    write_text(folder / "wrong.jsonl", wrong)
    return grid


def read_grid(folder: Path) -> Grid:
    """What `write_grid` wrote.

    Raises:
        ValueError: if it has not, or the files are damaged.
    """
    path = folder / "grid.csv"
    if not path.is_file():
        raise ValueError(f"{folder} has no grid.csv: evaluate that run first, or merge its shards")
    evaluated = read_evaluated(folder, "max_length")
    rows = read_table(path, COLUMNS, whole=("n", "m", "total"), counts=("correct",))
    with reading(path):
        if len(rows) > evaluated["max_length"] ** 2:
            raise ValueError("a pair of lengths occurs twice: evaluate again")
        return Grid.of([[int(value) for value in row.values()] for row in rows], evaluated)


def read_evaluation(folder: Path) -> Evaluation:
    """The grid in long form: accuracy by the digits of both operands."""
    grid = read_grid(folder)
    rows = [
        {
            **{"measure": "accuracy", "first_digits": n + 1, "second_digits": m + 1},
            **{"value": accuracy, "n": int(grid.total[n, m]), "unit": "share"},
        }
        for (n, m), accuracy in np.ndenumerate(grid.accuracy)
    ]
    return Evaluation(read_evaluated(folder), rows)


def _columns(asked: list[Asked], tables: list[pd.DataFrame]) -> list[Column]:
    def inside(rows: pd.DataFrame) -> pd.Series:
        first, second = (asked[0][f"problems.max_{name}"] for name in ("first", "second"))
        return (rows["first_digits"] <= first) & (rows["second_digits"] <= second)

    return [
        Column("trained lengths, %", "accuracy", PERCENT, inside),
        Column("beyond them, %", "accuracy", PERCENT, lambda rows: ~inside(rows), "beyond"),
        Column("whole grid, %", "accuracy", PERCENT),
    ]


def _best(asked: list[Asked], tables: list[pd.DataFrame]) -> Column:
    _, beyond, everything = _columns(asked, tables)
    return everything if beyond.value(tables[0]) is None else beyond


VIEW = View(
    keys=(
        *("max_length", "samples", "seed"),
        *(
            f"problems.{field.name}"
            for field in fields(Problems)
            if field.name not in ("spaces", "abacus_offset")
        ),
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
