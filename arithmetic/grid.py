"""The results of an evaluation: what was right in each cell, and what that says.

grid.csv has a row n, m, correct, total per cell, n the length of the first operand and m that of
the second; summary.json holds the means, wrong.jsonl some of the wrong answers of each cell.
"""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tape.evaluation.intervals import with_interval
from tape.files import write_text


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
        """From rows n, m, correct, total, which add up, and what was evaluated."""
        size = evaluated["max_length"]
        counts = np.zeros((2, size, size), dtype=np.int64)
        for n, m, *count in cells:
            counts[:, n - 1, m - 1] += count
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
    grid = Grid.of([cell for row in rows for cell in row["cells"]], evaluated)
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(["n", "m", "correct", "total"])
    for (n, m), correct in np.ndenumerate(grid.correct):
        writer.writerow([n + 1, m + 1, correct, grid.total[n, m]])
    write_text(folder / "grid.csv", table.getvalue())
    summary = {**grid.summary(), "evaluated": evaluated}
    write_text(folder / "summary.json", json.dumps(summary, indent=1) + "\n")
    seen, lines = Counter(), []
    answers = (answer for row in rows for answer in row["wrong"])
    for answer in sorted(answers, key=lambda answer: (answer["n"], answer["m"])):
        cell = answer["n"], answer["m"]
        if seen[cell] < evaluated["wrong"]:  # batches that share a cell each have so many
            lines.append(json.dumps(answer) + "\n")
        seen[cell] += 1
    write_text(folder / "wrong.jsonl", "".join(lines))
    return grid


def read_grid(folder: Path) -> Grid:
    """What `write_grid` wrote.

    Raises:
        ValueError: if it has not.
    """
    if not (folder / "grid.csv").is_file():
        raise ValueError(f"{folder} has no grid.csv: evaluate that run first, or merge its shards")
    evaluated = read_evaluated(folder)
    with (folder / "grid.csv").open(newline="") as file:
        cells = [[int(value) for value in row.values()] for row in csv.DictReader(file)]
    return Grid.of(cells, evaluated)


def read_evaluated(folder: Path) -> dict[str, Any]:
    """The model and the settings that `write_grid` was given.

    Raises:
        ValueError: if the file is damaged.
    """
    try:
        return json.loads((folder / "summary.json").read_text())["evaluated"]
    except (ValueError, KeyError) as error:
        raise ValueError(f"{folder / 'summary.json'} is damaged: evaluate again") from error
