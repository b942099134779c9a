"""All encodings on all tasks: one table and one heat map per encoding."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy.stats import fisher_exact

from tape.core import provenance
from tape.core.files import write_text
from tape.core.statistics import exchange_p, holm, of_share, table
from tape.encodings import canonical
from tape.evaluation.figures import heat, write_figure
from tape.evaluation.tables import markdown_table
from tape.evaluation.view import select
from tape.results.rows import FREE, check_alike, groups_of
from tape.results.runs import Run, end, missing_note, read_all, write_runs
from tape.tasks.synthetic.problems import TASKS
from tape.tasks.synthetic.synthetic_task import FOLDER, learned, longest_solved

NAMES = ["task", "encoding"]
ARGUMENTS = rf"position\.(?!(.*\.)?({'|'.join(FREE)})$).*"
PAGE = Path(__file__).with_name("suite.md")
PREDICTED = """\
Prediction: the first encoding solves longer problems than the second. A run that failed counts as
0, also if it solves the trained lengths (second table), so a difference can be one of learning. p:
permutation test of the difference in mean ranks, two-sided, so it does not say which is ahead;
least: the smallest that so many runs can give; corrected: for all predictions (Holm)."""


def rows_of(runs: Sequence[Run]) -> pd.DataFrame:
    """Returns the accuracies of runs in long form, with the task, the `encoding` (the label of the
    row), the `times` of the trained length (rounded to half octaves), and of each run whether it
    `learned` the task and the longest length that it `solved`. Raises a ValueError if a label would
    stand for other arguments of an encoding in another task."""
    tables, first = [], {}
    for task in TASKS:
        own = [run for run in runs if run.asked[FOLDER]["task"] == task]
        groups = groups_of(own).get(FOLDER, {})
        for label, run in ((label, run) for label, group in groups.items() for run in group):
            check_alike(label, first.setdefault(label, run), run, ARGUMENTS)
            rows, trained = select(run.of(FOLDER), "accuracy"), run.asked[FOLDER]["trained"]
            times = 2 ** ((2 * np.log2(rows["length"] / trained)).round() / 2)
            rows = rows.assign(task=task, encoding=label, run=str(run.folder), seed=run.seed)
            rows = rows.assign(trained=trained, times=times.map("{:.2g}".format).astype(float))
            tables.append(rows.assign(learned=learned(rows).all(), solved=longest_solved(rows)))
    return pd.concat(tables, ignore_index=True)


def cells_of(rows: pd.DataFrame) -> pd.DataFrame:
    """Returns a line per encoding on a task: how many of its `runs` have `learned` it, the `median`
    and the `best` of the lengths that these solved, and their mean accuracy at `twice` the trained
    length; of all runs, the median `solved` and the `lengths`, 0 for those that failed. Within a
    task, what was learned most often comes first, then what solves the longest problems."""
    runs = rows.drop_duplicates(["run", *NAMES])
    runs = runs.assign(length=runs["solved"] * runs["learned"])
    cells = runs.groupby(NAMES, sort=False).agg(
        runs=("run", "size"),
        learned=("learned", "sum"),
        solved=("solved", "median"),
        lengths=("length", list),
        trained=("trained", "first"),
    )
    reached = runs[runs["learned"]].groupby(NAMES)["solved"]
    twice = rows[rows["learned"] & (rows["length"] == 2 * rows["trained"])]
    cells = cells.assign(median=reached.median(), best=reached.max())
    cells["twice"] = table(twice, NAMES)["mean"]
    cells["place"] = [[*TASKS].index(task) for task, _ in cells.index]
    order = ["place", "learned", "median", "encoding"]
    return cells.sort_values(order, ascending=[True, False, False, True])


def texts_of(cells: pd.DataFrame) -> pd.DataFrame:
    """Returns the columns of suite.csv after `NAMES`, as text."""
    counts = [*zip(cells["learned"], cells["runs"], strict=True)]
    intervals = [of_share(*each, "exact") for each in counts]
    columns = {
        "learned": [f"{learned} of {runs}" for learned, runs in counts],
        "95 %": [f"{low:.2f} to {high:.2f}" for low, high in intervals],
        "longest: median": cells["median"].map("{:g}".format, na_action="ignore"),
        "best": cells["best"].map("{:g}".format, na_action="ignore"),
        "at twice, %": (100 * cells["twice"]).map("{:.1f}".format, na_action="ignore"),
    }
    return pd.DataFrame(columns, index=cells.index).fillna("-")


def matrix(shown: pd.Series) -> str:
    """Returns a row per encoding and a column per task, in the order of their first cells."""
    tasks, encodings = (shown.index.unique(name) for name in NAMES)
    found = shown.unstack("task").reindex(index=encodings, columns=tasks).fillna("not run")
    return markdown_table([["encoding", *tasks], *found.reset_index().values])


def contrast(given: str) -> list[str]:
    """Splits a prediction `task:first:second`, with names in full as rows have them."""
    task, *labels = given.split(":")
    pairs = (label.partition(" ") for label in labels)
    labels = [canonical(name)[0] + space + more for name, space, more in pairs]
    if len(labels) != 2 or task not in TASKS or labels[0] == labels[1]:
        raise ValueError(f"--contrasts {given}: give task:encoding:encoding")
    return [task, *labels]


def predicted(lengths: Mapping[tuple[str, str], list[int]], contrasts: Sequence[list[str]]) -> str:
    """Tabulates tests of predictions, also of those that were not run: p-values are corrected for
    all of them. `lengths` has the largest solved length of each run, by task and encoding."""
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


def draw(rows: pd.DataFrame, encodings: Sequence[str]) -> Figure:
    """Returns a panel for each of the encodings: exact match by task and length, as multiples of
    the trained one, of the runs that learned the task. What was not tested is grey."""
    rows = rows.set_index("encoding").loc[encodings].reset_index()
    shown = rows.assign(task=pd.Categorical(rows["task"], [*TASKS]))
    shown[["value", "n"]] = shown[["value", "n"]].where(shown["learned"])
    trained = dict.fromkeys(rows["encoding"], (None, 1))
    labels = "", "length / trained length"
    return heat(shown, "task", "times", "encoding", trained, labels, empty="not learned")


def suite(
    folders: Sequence[Path],
    out: Path,
    contrasts: Sequence[str] = (),
    failed: Sequence[Path] = (),
) -> tuple[str, dict[Path, str]]:
    """Writes suite.md, suite.csv, heatmap and the results in long form; returns the table and, by
    folder (of a run or of saved results), why runs could not be read."""
    predictions = [*map(contrast, contrasts)]
    runs, missing = read_all(folders, FOLDER, failed=failed)
    if others := [run.folder for run in runs if FOLDER not in run.asked]:
        raise ValueError(f"{others[0]} was not evaluated on a synthetic task: leave it out")
    rows = rows_of(runs)
    cells = cells_of(rows)
    texts, most = texts_of(cells), cells["runs"].max()
    median, best = texts["longest: median"], texts["best"]
    trained = cells["trained"].groupby(level="task", sort=False).first()
    solved = median.where(median == "-", median + " (" + best + ")")
    text = PAGE.read_text("utf-8").format(
        table=matrix(solved + ", " + texts["learned"]),
        trained=", ".join(f"{task} {length}" for task, length in trained.items()),
        every=matrix(cells["solved"].map("{:g}".format) + cells["runs"].map(" ({})".format)),
        runs=most,
        p=fisher_exact([[most, 0], [0, most]]).pvalue,
    )
    text = text.rstrip("\n") + predicted(cells["lengths"], predictions)
    write_runs(out, runs)
    write_text(out / "suite.md", text + missing_note(missing) + "\n")
    write_text(out / "suite.csv", texts.to_csv(lineterminator="\n"))
    write_figure(draw(rows, cells.index.unique("encoding")), out / "heatmap")
    provenance.record(out)
    return text, missing


def main(arguments: argparse.Namespace) -> None:
    text, missing = suite(**vars(arguments))
    text += missing_note(missing)
    end(arguments, text, "with heatmap.png, suite.csv and all rows", missing)
