"""All encodings on all tasks: one table and one heat map per encoding.

tape suite output/suite_* --beside docs/results/suite \\
    --out output/compare_suite
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy.stats import fisher_exact

from tape import parsers, provenance
from tape.command import expected_errors
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
from tape.tasks.synthetic.synthetic_task import FOLDER, learned, longest_solved

KIND = "synthetic"
NAMES = ["task", "encoding"]
HEAD = ["learned", "95 %", "longest: median", "best", "at twice, %"]
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

    def of(group: str) -> dict[str, Any]:
        return {key.removeprefix(group): settings[key] for key in settings if key.startswith(group)}

    given = of("position.")
    name = given.pop("name")
    usual = TapeConfig(**of("model."), position={"name": name}).position
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
                rows, trained = select(run.of(KIND), "accuracy"), run.asked[KIND]["trained"]
                about = {"task": task, "encoding": names[label] if alone else label}
                about |= {"run": str(run.folder), "seed": run.seed, "trained": trained}
                about |= {"learned": learned(rows).all(), "solved": longest_solved(rows)}
                times = 2 ** ((2 * np.log2(rows["length"] / trained)).round() / 2)
                tables.append(rows.assign(**about, times=times.round(2)))
    return pd.concat(tables, ignore_index=True)


def cells_of(rows: pd.DataFrame) -> pd.DataFrame:
    """Returns a line per encoding on a task: `solved` and `longest`, the largest solved lengths of
    all runs and of those that learned it; `lengths`, where those that failed have 0; and `twice`,
    the mean accuracy of those that learned it at twice the trained length. Within a task, what was
    learned most often comes first, then what solves the longest problems."""
    runs = rows.drop_duplicates(["run", *NAMES])
    runs = runs.assign(length=runs["solved"] * runs["learned"])
    groups = runs.groupby(NAMES, sort=False)
    cells = groups.agg(
        solved=("solved", list), lengths=("length", list), trained=("trained", "first")
    )
    reached = runs[runs["learned"]].groupby(NAMES)["solved"].agg(list)
    cells["longest"] = [reached.get(name, []) for name in cells.index]
    twice = rows[rows["learned"] & (rows["length"] == 2 * rows["trained"])]
    cells["twice"] = table(twice, NAMES)["mean"]
    rank = [
        ([*TASKS].index(task), -len(longest), -median(longest or [0]), encoding)
        for (task, encoding), longest in cells["longest"].items()
    ]
    return cells.iloc[sorted(range(len(rank)), key=rank.__getitem__)]


def texts_of(cells: pd.DataFrame) -> pd.DataFrame:
    """Returns the columns of suite.csv after `NAMES`, as text."""
    lines = []
    for cell in cells.itertuples():
        low, high = clopper_pearson(len(cell.longest), len(cell.solved))
        solved = (
            [f"{median(cell.longest):g}", str(max(cell.longest))] if cell.longest else ["-"] * 2
        )
        twice = "-" if math.isnan(cell.twice) else f"{100 * cell.twice:.1f}"
        count = f"{len(cell.longest)} of {len(cell.solved)}"
        lines.append([count, f"{low:.2f} to {high:.2f}", *solved, twice])
    return pd.DataFrame(lines, index=cells.index, columns=HEAD)


def matrix(shown: pd.Series) -> str:
    """Returns a row per encoding and a column per task, in the order of their first cells."""
    tasks, encodings = (shown.index.unique(name) for name in NAMES)
    found = shown.unstack("task").reindex(index=encodings, columns=tasks).fillna("not run")
    return markdown_table([["encoding", *tasks], *found.reset_index().values])


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
    pairs = [
        [lengths[task, name] for name in names if (task, name) in lengths]
        for task, *names in contrasts
    ]
    p_values = [exchange_p(*pair) if len(pair) == 2 else 1.0 for pair in pairs]
    rows = [("task", "first", "second", "longest of the runs", "p", "least", "p, corrected")]
    for words, pair, p, corrected in zip(contrasts, pairs, p_values, holm(p_values), strict=True):
        if len(pair) < 2:
            rows.append((*words, "not run", "-", "-", "-"))
            continue
        shown = " against ".join(", ".join(map(str, sorted(each))) for each in pair)
        least = exchange_p(*([n] * len(each) for n, each in enumerate(pair)))
        rows.append((*words, shown, *(f"{x:.2g}" for x in (p, least, corrected))))
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
    folders: Sequence[Path], beside: Path | None, out: Path, contrasts: Sequence[str] = ()
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
    runs, missing = read_all(folders, FOLDER)
    if beside is not None and is_saved(beside):
        own = {(run.digest, run.seed) for run in runs}
        runs += [run for run in read_saved(beside) if (run.digest, run.seed) not in own]
    if others := [run.folder for run in runs if KIND not in run.asked]:
        raise ValueError(f"{others[0]} was not evaluated on a synthetic task: leave it out")
    rows = rows_of(runs)
    cells = cells_of(rows)
    texts, most = texts_of(cells), cells["solved"].map(len).max()
    count, _, middle, best, _ = (texts[name] for name in HEAD)
    trained = {task: n for (task, _), n in cells["trained"].items()}
    note = NOTE.format(
        trained=", ".join(f"{task} {n}" for task, n in trained.items()),
        every=matrix(cells["solved"].map(lambda each: f"{median(each):g} ({len(each)})")),
        runs=most,
        p=fisher_exact([[most, 0], [0, most]]).pvalue,
    )
    learned_by = matrix(middle.where(middle == "-", middle + " (" + best + ")") + ", " + count)
    text = f"{learned_by}\n\n{note}{predicted(cells['lengths'], predictions)}"
    write_runs(out, runs)
    write_text(out / "suite.md", text + missing_note(missing) + "\n")
    write_text(out / "suite.csv", csv_table([(*NAMES, *HEAD), *texts.reset_index().values]))
    write_figure(draw(rows), out / "heatmap")
    provenance.record(out)
    return text, missing


@expected_errors()
def main() -> None:
    arguments = parsers.suite()
    text, missing = suite(arguments.folders, arguments.beside, arguments.out, arguments.contrasts)
    print(f"{text}{missing_note(missing)}")
    print(f"\nalso in {arguments.out}, with heatmap.png, suite.csv and all rows")
    end(arguments.folders, missing)


if __name__ == "__main__":
    main()
