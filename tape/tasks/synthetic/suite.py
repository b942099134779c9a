"""All encodings on all tasks: one table and one heat map per encoding.

python -m tape.tasks.synthetic.suite output/suite_* --beside docs/results/suite \\
    --out output/compare_suite
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import compress
from operator import attrgetter
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from scipy.stats import fisher_exact

from tape import provenance
from tape.command import Parser, expected_errors, folder_name, result_folder
from tape.evaluation.figures import write_figure
from tape.evaluation.tables import csv_table, markdown_table
from tape.files import write_text
from tape.model.configuration import TapeConfig
from tape.results.rows import rows_of
from tape.results.runs import Run, is_saved, read_all, write_runs
from tape.statistics import clopper_pearson, exchange_p, holm
from tape.tasks.synthetic.generators import TASKS
from tape.tasks.synthetic.results import FOLDER, accuracies, has_reached, longest_solved

KIND = "synthetic"
HEAD = ("task", "encoding", "learned", "95 %", "longest: median", "best", "at twice, %")
NOTE = """\
Each cell: median (best) of the longest solved length over the runs that reached the criterion in
the trained lengths, then how many of all runs did. The longest solved length is the largest up to
which every length has at least 90 % exact match; 0 if the shortest has less. Trained on lengths up
to: {trained}.

{every}

Median over all runs, failed ones included (number of runs). This is descriptive: no test uses it.

With {runs} runs of each of two encodings, the most here, no difference in how many learned a task
has a p-value below {p:.2g} (Fisher's exact test, two-sided, before any correction)."""
PREDICTED = """\
Prediction: the first encoding solves longer problems than the second. A run that failed counts as
0, also if it solves the trained lengths (second table), so a difference can be one of learning. p:
permutation test of the difference in mean ranks, two-sided, so it does not say which is ahead;
least: the smallest that so many runs can give; corrected: for all predictions (Holm)."""


class Cell(NamedTuple):
    """The runs of one encoding on one task.

    Attributes:
        learned: whether each run reached the criterion.
        solved: the largest solved length of each run, whether it reached the criterion or not.
        accuracy: by length, the mean exact match of the runs that reached the criterion; empty if
            there is none.
        trained: the longest trained length.
    """

    task: str
    encoding: str
    learned: list[bool]
    solved: list[int]
    accuracy: dict[int, float]
    trained: int

    @property
    def longest(self) -> list[int]:
        """The largest solved lengths of the runs that reached the criterion."""
        return [*compress(self.solved, self.learned)]

    @property
    def lengths(self) -> list[int]:
        """The largest solved lengths of all runs, 0 for those that failed."""
        return [length * learned for length, learned in zip(self.solved, self.learned, strict=True)]

    @property
    def rank(self) -> tuple[int, float, str]:
        """Sorts first what was learned most often, then what solves the longest problems."""
        return -len(self.longest), -median(self.longest or [0]), self.encoding

    @property
    def count(self) -> str:
        return f"{len(self.longest)} of {len(self.solved)}"

    @property
    def short(self) -> str:
        """Median and best, and how many learned the task: `28 (40), 5 of 5`."""
        solved = f"{median(self.longest):g} ({max(self.longest)})" if self.longest else "-"
        return f"{solved}, {self.count}"

    @property
    def row(self) -> list[str]:
        low, high = clopper_pearson(len(self.longest), len(self.solved))
        twice = self.accuracy.get(2 * self.trained)
        return [
            self.task,
            self.encoding,
            self.count,
            f"{low:.2f} to {high:.2f}",
            f"{median(self.longest):g}" if self.longest else "-",
            str(max(self.longest)) if self.longest else "-",
            "-" if twice is None else f"{100 * twice:.1f}",
        ]


def encoding_name(settings: Mapping[str, Any]) -> str:
    """Returns the encoding with those of its arguments that are not the default ones, apart from
    ranges of positions: the same name whatever else was run."""
    given = {key: settings[key] for key in settings if key.startswith("position.")}
    given = {key.removeprefix("position."): value for key, value in given.items()}
    name = given.pop("name")
    shape = {key: value for key, value in settings.items() if key.startswith("model.")}
    shape = {key.removeprefix("model."): value for key, value in shape.items()}
    usual = TapeConfig(**shape, position={"name": name}).position
    sampler = usual.pop("sampler")["name"]
    given["sampler"] = given.get("sampler.name", given.get("sampler", sampler))
    usual |= {"sampler": sampler}
    for key in sorted(given.keys() - {"length", "seed"}):
        if "." not in key and given[key] != usual.get(key):
            name += f" {key}={given[key]}"
    factor = settings.get("optimizer.encoding_factor")
    return name if factor is None else f"{name} encoding_factor={factor}"


def cells_of(runs: Sequence[Run]) -> list[Cell]:
    """Returns the cells of all tasks, in the order of `TASKS`; within a task, those that learned it
    most often and solve the longest problems first."""
    found = []
    for task in TASKS:
        of_task = [run for run in runs if run.asked[KIND]["task"] == task]
        cells = []
        rows = rows_of(of_task)
        names = [encoding_name(row.runs[KIND][0].settings) for row in rows]
        for row, name in zip(rows, names, strict=True):
            group = row.runs[KIND]
            label = name if names.count(name) == 1 else row.label
            tables = [run.of(KIND) for run in group]
            learned = [has_reached(rows) for rows in tables]
            each = [accuracies(rows) for rows in compress(tables, learned)]
            shared = set.intersection(*map(set, each)) if each else set()
            accuracy = {n: mean(by_length[n] for by_length in each) for n in sorted(shared)}
            solved = [longest_solved(rows) for rows in tables]
            trained = group[0].asked[KIND]["trained"]
            cells.append(Cell(task, label, learned, solved, accuracy, trained))
        cells.sort(key=attrgetter("rank"))
        found += cells
    return found


def matrix(cells: Sequence[Cell], show: Callable[[Cell], str]) -> str:
    """Returns a row per encoding and a column per task, in the order of their first cells."""
    tasks, encodings = ([*dict.fromkeys(cell[n] for cell in cells)] for n in (0, 1))
    shown = {(cell.task, cell.encoding): show(cell) for cell in cells}
    rows = [[name, *(shown.get((task, name), "not run") for task in tasks)] for name in encodings]
    return markdown_table([["encoding", *tasks], *rows])


def contrast(given: str) -> list[str]:
    """Splits a prediction `task:first:second`.

    Raises:
        ValueError: if it is written differently.
    """
    if len(parts := given.split(":")) != 3 or parts[0] not in TASKS:
        raise ValueError(f"--contrasts {given}: give task:encoding:encoding")
    return parts


def predicted(cells: Sequence[Cell], contrasts: Sequence[list[str]]) -> str:
    """Tabulates tests of predictions, also of those that were not run: p-values are corrected for
    all of them."""
    found = {(cell.task, cell.encoding): cell.lengths for cell in cells}
    lines, p_values = [], []
    for task, *names in contrasts:
        pair = [found[task, name] for name in names if (task, name) in found]
        tested = len(pair) == 2
        p_values.append(exchange_p(*pair) if tested else 1.0)
        least = exchange_p(*([n] * len(each) for n, each in enumerate(pair))) if tested else None
        shown = [", ".join(map(str, sorted(each))) for each in pair]
        shown = " against ".join(shown) if tested else "not run"
        lines.append([task, *names, shown, p_values[-1] if tested else None, least])
    rows = [("task", "first", "second", "longest of the runs", "p", "least", "p, corrected")]
    for (*words, p, least), corrected in zip(lines, holm(p_values), strict=True):
        tested = p is not None
        rows.append((*words, *(f"{x:.2g}" if tested else "-" for x in (p, least, corrected))))
    return f"\n\n{markdown_table(rows)}\n\n{PREDICTED}" if contrasts else ""


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
        contrasts: predictions to test, as `contrast` splits them.

    Raises:
        ValueError: if no run can be read, or runs of one task cannot be compared.
    """
    predictions = [*map(contrast, contrasts)]
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
    most = max(len(cell.solved) for cell in cells)
    p = fisher_exact([[most, 0], [0, most]]).pvalue
    trained = ", ".join(f"{task} {n}" for task, n in {x.task: x.trained for x in cells}.items())
    every = matrix(cells, lambda cell: f"{median(cell.solved):g} ({len(cell.solved)})")
    note = NOTE.format(trained=trained, every=every, runs=most, p=p)
    text = f"{matrix(cells, lambda cell: cell.short)}\n\n{note}{predicted(cells, predictions)}"
    write_runs(out, runs)
    write_text(out / "suite.md", text + "\n")
    write_text(out / "suite.csv", csv_table(lines))
    write_figure(draw(cells), out / "heatmap")
    provenance.record(out)
    return text, missing


@expected_errors()
def main() -> None:
    parser = Parser(
        prog="python -m tape.tasks.synthetic.suite", description="All encodings on all tasks."
    )
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
