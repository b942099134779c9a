"""All encodings on all tasks: one table and one heat map per encoding.

python -m synthetic.suite output/suite_* --beside docs/results/suite --out output/compare_suite
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, median
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure
from scipy.stats import fisher_exact

from synthetic.generators import TASKS
from synthetic.results import FOLDER, accuracies, has_reached, longest_solved
from tape import origin
from tape.command import Parser, expected_errors, folder_name, result_folder
from tape.compare.rows import rows_of
from tape.compare.runs import Run, is_saved, read_all, write_runs
from tape.evaluation.figures import write_figure
from tape.evaluation.tables import csv_table, markdown_table
from tape.files import write_text
from tape.statistics import clopper_pearson, exchange_p, holm

KIND = "synthetic"
HEAD = ("task", "encoding", "learned", "95 %", "longest: median", "best", "at twice, %")
NOTE = """\
Median (best) of the largest length up to which at least 90 % of the answers match exactly, 0 if the
shortest has fewer, over the runs that reached the criterion in the trained lengths; their number of
all runs. Trained on lengths up to: {trained}.

Between two encodings of {runs} runs each, no difference in how many learned the task has a p-value
below {p:.2g} (Fisher's exact test, two-sided, before any correction for several comparisons)."""
PREDICTED = """\
Predicted: the first encoding solves longer problems than the second; 0 is a run that failed.
P: the exact p-value of exchanging their runs (two-sided, difference of mean ranks), which is at
least {least:.2g} with this many runs; corrected for the rows of the table (Holm)."""


class Cell(NamedTuple):
    """The runs of one encoding on one task.

    Attributes:
        longest: the largest solved length of each run that reached the criterion.
        accuracy: by length, the mean exact match of these runs; empty if there is none.
        trained: the longest trained length.
    """

    task: str
    encoding: str
    runs: int
    longest: list[int]
    accuracy: dict[int, float]
    trained: int

    @property
    def lengths(self) -> list[int]:
        """The largest solved lengths of all runs, 0 for those that failed."""
        return self.longest + [0] * (self.runs - len(self.longest))

    @property
    def short(self) -> str:
        """Median and best, and how many learned the task: `28 (40), 5 of 5`."""
        solved = f"{median(self.longest):g} ({max(self.longest)})" if self.longest else "-"
        return f"{solved}, {len(self.longest)} of {self.runs}"

    @property
    def row(self) -> list[str]:
        learned = len(self.longest)
        low, high = clopper_pearson(learned, self.runs)
        twice = self.accuracy.get(2 * self.trained)
        return [
            *(self.task, self.encoding, f"{learned} of {self.runs}", f"{low:.2f} to {high:.2f}"),
            *(f"{median(self.longest):g}" if learned else "-",),
            *(str(max(self.longest)) if learned else "-",),
            "-" if twice is None else f"{100 * twice:.1f}",
        ]


def cells_of(runs: Sequence[Run]) -> list[Cell]:
    """Returns the cells of all tasks, in the order of `TASKS`; within a task, those that learned it
    most often and solve the longest problems first."""
    found = []
    for task in TASKS:
        of_task = [run for run in runs if run.asked[KIND]["task"] == task]
        cells = []
        for row in rows_of(of_task):
            group = row.runs[KIND]
            tables = [run.of(KIND) for run in group]
            learned = [rows for rows in tables if has_reached(rows)]
            each = [accuracies(rows) for rows in learned]
            shared = set.intersection(*map(set, each)) if each else set()
            accuracy = {n: mean(by_length[n] for by_length in each) for n in sorted(shared)}
            longest = [longest_solved(rows) for rows in learned]
            trained = group[0].asked[KIND]["trained"]
            cells.append(Cell(task, row.label, len(group), longest, accuracy, trained))
        cells.sort(key=lambda x: (-len(x.longest), -median(x.longest or [0]), x.encoding))
        found += cells
    return found


def matrix(cells: Sequence[Cell]) -> str:
    """Returns a row per encoding and a column per task, in the order of their first cells."""
    tasks, encodings = ([*dict.fromkeys(cell[n] for cell in cells)] for n in (0, 1))
    shown = {(cell.task, cell.encoding): cell.short for cell in cells}
    rows = [[name, *(shown.get((task, name), "not run") for task in tasks)] for name in encodings]
    return markdown_table([["encoding", *tasks], *rows])


def predicted(cells: Sequence[Cell], contrasts: Sequence[str]) -> str:
    """Tabulates predictions `task:first:second`; those without runs are left out.

    Raises:
        ValueError: for one that is written differently.
    """
    found = {(cell.task, cell.encoding): cell for cell in cells}
    pairs = []
    for contrast in contrasts:
        if len(parts := contrast.split(":")) != 3 or parts[0] not in TASKS:
            raise ValueError(f"--contrasts {contrast}: give task:encoding:encoding")
        task, *names = parts
        if all((task, name) in found for name in names):
            pairs.append([found[task, name] for name in names])
    if not pairs:
        return ""
    p_values = [exchange_p(first.lengths, second.lengths) for first, second in pairs]
    lines = [("task", "first", "second", "longest of the runs", "p", "p, corrected")]
    for (first, second), p, corrected in zip(pairs, p_values, holm(p_values), strict=True):
        each = (", ".join(map(str, sorted(cell.lengths))) for cell in (first, second))
        names = (first.task, first.encoding, second.encoding)
        lines.append((*names, " against ".join(each), f"{p:.2g}", f"{corrected:.2g}"))
    fewest = min(cell.runs for pair in pairs for cell in pair)
    least = exchange_p([1] * fewest, [0] * fewest)
    return f"\n\n{markdown_table(lines)}\n\n{PREDICTED.format(least=least)}"


def draw(cells: Sequence[Cell]) -> Figure:
    """Returns a panel per encoding: exact match by task and length, as multiples of the trained
    one. Lengths that were not tested are grey."""
    tasks = [task for task in TASKS if any(cell.task == task for cell in cells)]
    encodings = list(dict.fromkeys(cell.encoding for cell in cells))

    def steps(length: int, cell: Cell) -> int:
        return round(2 * math.log2(length / cell.trained))

    places = sorted({steps(n, cell) for cell in cells for n in cell.accuracy}) or [0]
    across, down = min(3, len(encodings)), math.ceil(len(encodings) / 3)
    size = (3.4 * across + 1.6, (0.28 * len(tasks) + 1.3) * down)
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(down, across, squeeze=False, sharey=True)
    for axes, encoding in zip(panels.flat, encodings, strict=False):
        grid = np.full((len(tasks), len(places)), np.nan)
        for cell in (cell for cell in cells if cell.encoding == encoding):
            row = tasks.index(cell.task)
            for length, accuracy in cell.accuracy.items():
                grid[row, places.index(steps(length, cell))] = accuracy
            if not cell.longest:
                middle = (len(places) - 1) / 2
                axes.text(middle, row, "not learned", ha="center", va="center")
        image = axes.imshow(grid, cmap="viridis", vmin=0, vmax=1, aspect="auto")
        axes.set_facecolor("0.85")
        axes.axvline(sum(n <= 0 for n in places) - 0.5, color="tab:red", linewidth=2)
        whole = [n for n, place in enumerate(places) if place % 2 == 0]
        axes.set_xticks(whole, [f"{2 ** (places[n] / 2):g}x" for n in whole])
        axes.set_yticks(range(len(tasks)), tasks)
        axes.set(title=encoding, xlabel="length / trained length")
    for axes in panels.flat[len(encodings) :]:
        axes.remove()
    figure.colorbar(image, ax=list(panels.flat[: len(encodings)]), label="exact match")
    return figure


def suite(
    folders: Sequence[Path],
    beside: Path | None,
    name: str,
    out: Path,
    contrasts: Sequence[str] = (),
) -> tuple[str, dict]:
    """Writes suite.md, suite.csv, heatmap and the results in long form; returns the table and, by
    folder, why runs could not be read.

    Args:
        beside: saved results of other encodings; runs in `folders` replace theirs.
        contrasts: predictions to test (`predicted`).

    Raises:
        ValueError: if no run can be read, or runs of one task cannot be compared.
    """
    runs, missing = read_all(folders, name)
    if not runs:
        raise ValueError("; ".join(missing.values()) or "no runs were given")
    if beside is not None and is_saved(beside):
        own = {(run.digest, run.seed) for run in runs}
        saved, _ = read_all([beside], name)
        runs += [run for run in saved if (run.digest, run.seed) not in own]
    if others := [run.folder for run in runs if KIND not in run.asked]:
        raise ValueError(f"{others[0]} was not evaluated on a synthetic task: leave it out")
    cells = cells_of(runs)
    lines = [HEAD, *(cell.row for cell in cells)]
    fewest = min(cell.runs for cell in cells)
    p = fisher_exact([[fewest, 0], [0, fewest]]).pvalue
    trained = ", ".join(f"{task} {n}" for task, n in {x.task: x.trained for x in cells}.items())
    note = NOTE.format(trained=trained, runs=fewest, p=p)
    text = f"{matrix(cells)}\n\n{note}{predicted(cells, contrasts)}"
    write_runs(out, runs)
    write_text(out / "suite.md", text + "\n")
    write_text(out / "suite.csv", csv_table(lines))
    write_figure(draw(cells), out / "heatmap")
    origin.record(out)
    return text, missing


@expected_errors()
def main() -> None:
    parser = Parser(prog="python -m synthetic.suite", description="All encodings on all tasks.")
    add = parser.add_argument
    add("runs", type=Path, nargs="+", help="folders of runs, or of saved results")
    add("--beside", type=Path, help="saved results of other encodings; nothing if missing")
    add("--contrasts", nargs="*", default=[], help="predictions to test: task:longer:shorter")
    add("--name", type=folder_name, default=FOLDER, help="of the evaluation")
    add("--out", type=result_folder, default=Path("output/suite"), help="for the results")
    arguments = parser.parse_args()
    text, missing = suite(
        arguments.runs, arguments.beside, arguments.name, arguments.out, arguments.contrasts
    )
    print(f"{text}\n\nalso in {arguments.out}, with heatmap.png, suite.csv and all rows")
    if missing:
        sys.exit("error: " + "; ".join(missing.values()))


if __name__ == "__main__":
    main()
