"""Compare encodings over seeds: a table and a picture of runs that were evaluated.

    python -m arithmetic.compare output/add_*_[0-9]

What makes a row, and what it is called, is in tape/evaluation/compare.py.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from statistics import mean

import numpy as np

from arithmetic.grid import Grid, read_grid
from arithmetic.heatmap import draw
from arithmetic.problems import Problems
from tape import origin
from tape.command import expected_errors, parser_of_runs
from tape.evaluation import compare as comparison
from tape.evaluation.compare import Measure, Row, Run, markdown
from tape.evaluation.journal import read_evaluated
from tape.evaluation.tables import csv_table
from tape.files import write_text

# What makes the questions and the parts of the grid: it has to be the same for all.
COMPARABILITY_KEYS = (
    *("max_length", "samples", "seed"),
    *(
        f"problems.{field.name}"
        for field in fields(Problems)
        if field.name not in ("spaces", "abacus_offset")
    ),
)


def share_of(region: str) -> Measure[Grid]:
    """The accuracy in a part of the grid."""

    def measure(grid: Grid) -> float | None:
        share = grid.summary()[region]
        return None if share is None else share["accuracy"]

    return measure


REGIONS = {"inside": "trained lengths", "outside": "beyond them", "all": "whole grid"}
COLUMNS = {title: share_of(region) for region, title in REGIONS.items()}


def read_run(folder: Path, name: str) -> Run[Grid]:
    """A run and its evaluation in the folder `name`.

    Raises:
        ValueError: if it was not trained to its end, or not evaluated since.
    """
    grid = read_grid(folder / name)
    return Run.read(folder, name, read_evaluated(folder / name), grid)


def rows_of(runs: list[Run[Grid]]) -> list[Row[Grid]]:
    """One row for all runs with the same settings, the best beyond the trained lengths first.

    Raises:
        ValueError: if they were not asked the same questions, or a seed occurs twice.
    """
    outside, everywhere = share_of("outside"), share_of("all")
    return sorted(
        comparison.rows_of(runs, COMPARABILITY_KEYS),
        key=lambda row: -mean(row.shares(outside) or row.shares(everywhere)),
    )


def grid_of(row: Row[Grid]) -> Grid:
    """Of all seeds together."""
    correct, total = (
        np.sum([getattr(run.results, name) for run in row.runs], axis=0)
        for name in ("correct", "total")
    )
    return Grid(correct, total, row.runs[0].results.trained)


def table(rows: list[Row[Grid]]) -> str:
    """A line per run and part of the grid: label, seed, region, accuracy, correct, total."""
    lines = [["encoding", "seed", "region", "accuracy", "correct", "total"]]
    for row in rows:
        for run in row.runs:
            summary = run.results.summary()
            for region in REGIONS:
                if share := summary[region]:
                    numbers = (share["accuracy"], share["correct"], share["total"])
                    lines.append([row.label, run.seed, region, *numbers])
    return csv_table(lines)


def compare(folders: list[Path], name: str, out: Path) -> str:
    """Write table.md, runs.csv and the picture of the mean grids; the table is returned."""
    rows = rows_of([read_run(folder, name) for folder in folders])
    text = markdown(rows, COLUMNS)
    write_text(out / "table.md", text + "\n")
    write_text(out / "runs.csv", table(rows))
    draw([(row.label, grid_of(row)) for row in rows], out / "heatmaps")
    origin.record(out)
    return text


@expected_errors()
def main() -> None:
    arguments = parser_of_runs(
        "arithmetic.compare", "Compare arithmetic over seeds.", "grid", "output/comparison"
    ).parse_args()
    print(compare(arguments.runs, arguments.name, arguments.out))
    print(f"\nalso in {arguments.out}, with a line per run and the grids side by side")


if __name__ == "__main__":
    main()
