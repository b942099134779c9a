"""All encodings on all tasks: one table and one heat map per encoding.

tape suite output/suite_* --beside docs/results/suite \\
    --out output/compare_suite
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy.stats import fisher_exact

from tape import provenance
from tape.command import Parser, expected_errors, folder_name, result_folder
from tape.evaluation.figures import heat, write_figure
from tape.evaluation.tables import csv_table, markdown_table
from tape.evaluation.view import select
from tape.files import write_text
from tape.model.configuration import TapeConfig
from tape.results.rows import groups_of
from tape.results.runs import (
    Run,
    end,
    is_saved,
    missing_note,
    read_all,
    read_saved,
    write_runs,
)
from tape.statistics import clopper_pearson, exchange_p, holm, table
from tape.tasks.synthetic.generators import TASKS
from tape.tasks.synthetic.results import FOLDER, has_reached, longest_solved

KIND = "synthetic"
NAMES = ["task", "encoding"]
HEAD = (*NAMES, "learned", "95 %", "longest: median", "best", "at twice, %")
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


def encoding_name(settings: Mapping[str, Any]) -> str:
    """Returns the encoding with those of its arguments that are not the default ones, apart from
    ranges of positions: the same name whatever else was run."""
    given = {key: settings[key] for key in settings if key.startswith("position.")}
    given = {key.removeprefix("position."): value for key, value in given.items()}
    name = given.pop("name")
    shape = {key: value for key, value in settings.items() if key.startswith("model.")}
    shape = {key.removeprefix("model."): value for key, value in shape.items()}
    usual = TapeConfig(**shape, position={"name": name}).position
    usual["sampler"] = usual["sampler"]["name"]
    given["sampler"] = given.get("sampler.name", given.get("sampler", usual["sampler"]))
    for key in sorted(given.keys() - {"length", "seed"}):
        if "." not in key and given[key] != usual.get(key):
            name += f" {key}={given[key]}"
    factor = settings.get("optimizer.encoding_factor")
    return name if factor is None else f"{name} encoding_factor={factor}"


def rows_of(runs: Sequence[Run]) -> pd.DataFrame:
    """Returns the accuracies of runs in long form, with the task, the `encoding` (the name of the
    row), the `times` of the trained length (rounded to half octaves), and of each run whether it
    `learned` the task and the longest length that it `solved`.

    Raises:
        ValueError: if runs of one task cannot be compared.
    """
    tables = []
    for task in TASKS:
        groups = groups_of([run for run in runs if run.asked[KIND]["task"] == task]).get(KIND, {})
        names = {label: encoding_name(group[0].settings) for label, group in groups.items()}
        for label, group in groups.items():
            alone = [*names.values()].count(names[label]) == 1
            for run in group:
                rows = run.of(KIND)
                about = {"task": task, "encoding": names[label] if alone else label}
                about |= {"run": str(run.folder), "seed": run.seed}
                about |= {"learned": has_reached(rows), "solved": longest_solved(rows)}
                trained = run.asked[KIND]["trained"]
                times = 2 ** ((2 * np.log2(rows["length"] / trained)).round() / 2)
                about |= {"trained": trained, "times": times.round(2)}
                tables.append(select(rows.assign(**about), "accuracy"))
    return pd.concat(tables, ignore_index=True)


def cells_of(rows: pd.DataFrame) -> pd.DataFrame:
    """Returns a line per encoding on a task: `solved` and `longest`, the largest solved lengths of
    all runs and of those that learned it; `lengths`, where those that failed have 0; and `twice`,
    the mean accuracy of those that learned it at twice the trained length. Within a task, what was
    learned most often comes first, then what solves the longest problems."""
    runs = rows.drop_duplicates(["run", *NAMES])
    cells = runs.groupby(NAMES, sort=False)["solved"].agg(list).to_frame()
    reached = runs[runs["learned"]].groupby(NAMES)["solved"].agg(list)
    cells["longest"] = [reached.get(name, []) for name in cells.index]
    runs = runs.assign(solved=runs["solved"] * runs["learned"])
    cells["lengths"] = runs.groupby(NAMES)["solved"].agg(list)
    cells["trained"] = runs.groupby(NAMES)["trained"].first()
    twice = rows[rows["learned"] & (rows["length"] == 2 * rows["trained"])]
    cells["twice"] = table(twice, NAMES)["mean"]
    order = {task: n for n, task in enumerate(TASKS)}
    rank = [
        (order[task], -len(longest), -median(longest or [0]), encoding)
        for (task, encoding), longest in cells["longest"].items()
    ]
    return cells.iloc[sorted(range(len(rank)), key=rank.__getitem__)]


def count(cell: Any) -> str:
    return f"{len(cell.longest)} of {len(cell.solved)}"


def short(cell: Any) -> str:
    """Median and best, and how many learned the task: `28 (40), 5 of 5`."""
    solved = f"{median(cell.longest):g} ({max(cell.longest)})" if cell.longest else "-"
    return f"{solved}, {count(cell)}"


def line(cell: Any) -> list[str]:
    """The line of suite.csv."""
    low, high = clopper_pearson(len(cell.longest), len(cell.solved))
    return [
        *cell.Index,
        count(cell),
        f"{low:.2f} to {high:.2f}",
        f"{median(cell.longest):g}" if cell.longest else "-",
        str(max(cell.longest)) if cell.longest else "-",
        "-" if math.isnan(cell.twice) else f"{100 * cell.twice:.1f}",
    ]


def matrix(cells: pd.DataFrame, show: Callable[[Any], str]) -> str:
    """Returns a row per encoding and a column per task, in the order of their first cells."""
    shown = pd.Series([show(cell) for cell in cells.itertuples()], cells.index).unstack("task")
    tasks, encodings = (cells.index.unique(name) for name in NAMES)
    shown = shown.reindex(index=encodings, columns=tasks).fillna("not run")
    return markdown_table([["encoding", *tasks], *shown.reset_index().values])


def contrast(given: str) -> list[str]:
    """Splits a prediction `task:first:second`.

    Raises:
        ValueError: if it is written differently.
    """
    if len(parts := given.split(":")) != 3 or parts[0] not in TASKS:
        raise ValueError(f"--contrasts {given}: give task:encoding:encoding")
    return parts


def predicted(lengths: Mapping[tuple[str, str], list[int]], contrasts: Sequence[list[str]]) -> str:
    """Tabulates tests of predictions, also of those that were not run: p-values are corrected for
    all of them.

    Args:
        lengths: the largest solved length of each run, by task and encoding.
    """
    lines, p_values = [], []
    for task, *names in contrasts:
        pair = [lengths[task, name] for name in names if (task, name) in lengths]
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


def draw(rows: pd.DataFrame) -> Figure:
    """Returns a panel per encoding: exact match by task and length, as multiples of the trained
    one, of the runs that learned the task. What was not tested is grey."""
    shown = rows.assign(task=pd.Categorical(rows["task"], [*TASKS]))
    shown[["value", "n"]] = shown[["value", "n"]].where(shown["learned"])
    trained = dict.fromkeys(rows["encoding"], (None, 1))
    labels = "", "length / trained length"
    return heat(shown, "task", "times", "encoding", trained, labels, empty="not learned")


def suite(
    folders: Sequence[Path],
    beside: Path | None,
    name: str,
    out: Path,
    contrasts: Sequence[str] = (),
) -> tuple[str, dict[Path, str]]:
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
    if beside is not None and is_saved(beside):
        own = {(run.digest, run.seed) for run in runs}
        runs += [run for run in read_saved(beside) if (run.digest, run.seed) not in own]
    if others := [run.folder for run in runs if KIND not in run.asked]:
        raise ValueError(f"{others[0]} was not evaluated on a synthetic task: leave it out")
    rows = rows_of(runs)
    cells = cells_of(rows)
    most = max(map(len, cells["solved"]))
    trained = {task: n for (task, _), n in cells["trained"].items()}
    note = NOTE.format(
        trained=", ".join(f"{task} {n}" for task, n in trained.items()),
        every=matrix(cells, lambda cell: f"{median(cell.solved):g} ({len(cell.solved)})"),
        runs=most,
        p=fisher_exact([[most, 0], [0, most]]).pvalue,
    )
    text = f"{matrix(cells, short)}\n\n{note}{predicted(cells['lengths'], predictions)}"
    write_runs(out, runs)
    write_text(out / "suite.md", text + missing_note(missing) + "\n")
    write_text(out / "suite.csv", csv_table([HEAD, *map(line, cells.itertuples())]))
    write_figure(draw(rows), out / "heatmap")
    provenance.record(out)
    return text, missing


@expected_errors()
def main() -> None:
    parser = Parser(prog="tape suite", description="All encodings on all tasks.")
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
    print(f"{text}{missing_note(missing)}")
    print(f"\nalso in {arguments.out}, with heatmap.png, suite.csv and all rows")
    end(arguments.runs, missing)


if __name__ == "__main__":
    main()
