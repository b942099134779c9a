"""Compare encodings over seeds: a table and pictures of runs that were evaluated.

    python -m retrieval.compare output/passkey_*_[0-9]

What makes a row, and what it is called, is in tape/evaluation/compare.py.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import mean

import numpy as np
from matplotlib.figure import Figure

from retrieval.heatmap import end_of_training, figure_of
from retrieval.results import Retrieval, read_results
from tape import origin
from tape.command import expected_errors, parser_of_runs
from tape.evaluation import compare as comparison
from tape.evaluation.compare import Measure, Row, Run, markdown
from tape.evaluation.figures import write_figure
from tape.evaluation.intervals import student
from tape.evaluation.tables import csv_table
from tape.files import write_text

# What makes the questions and where the training ends: it has to be the same for all.
COMPARABILITY_KEYS = (
    *("trained", "max_tokens", "interval", "num_tests", "depths", "seed"),
    *("keys", "values", "plain", "original"),
)
TIMES = (2, 4, 8)  # the trained length: columns of the table


def within(results: Retrieval) -> float | None:
    """The accuracy in the trained lengths."""
    share = results.within()
    return None if share is None else share["accuracy"]


def at(times: int) -> Measure[Retrieval]:
    """The accuracy at so many times the trained length."""

    def measure(results: Retrieval) -> float | None:
        share = results.at(times * results.evaluated["trained"])
        return None if share is None else share["accuracy"]

    return measure


def beyond(results: Retrieval) -> float:
    """The mean accuracy of all lengths that were not trained; of all, if there are no others."""
    longer = np.array(results.lengths) > results.evaluated["trained"]
    return float(results.accuracy[longer if longer.any() else ...].mean())


def rows_of(runs: list[Run[Retrieval]]) -> list[Row[Retrieval]]:
    """One row for all runs with the same settings, the best beyond the trained lengths first.

    Raises:
        ValueError: if they were not asked the same questions, or a seed occurs twice.
    """
    return sorted(
        comparison.rows_of(runs, COMPARABILITY_KEYS), key=lambda row: -mean(row.shares(beyond))
    )


def read_run(folder: Path, name: str) -> Run[Retrieval]:
    """A run and its evaluation in the folder `name`.

    Raises:
        ValueError: if it was not trained to its end, or not evaluated since.
    """
    results = read_results(folder / name)
    return Run.read(folder, name, results.evaluated, results)


def results_of(row: Row[Retrieval]) -> Retrieval:
    """Of all seeds together."""
    counts = {
        name: np.sum([getattr(run.results, name) for run in row.runs], axis=0)
        for name in ("prompts", "right", "found", "tokens")
    }
    return replace(row.runs[0].results, **counts)


def table(rows: list[Row[Retrieval]]) -> str:
    """A line per run and length: label, seed, length, accuracy, correct, total."""
    lines = [["encoding", "seed", "length", "accuracy", "correct", "total"]]
    for row in rows:
        for run in row.runs:
            for length in run.results.lengths:
                share = run.results.at(length)
                numbers = (share["accuracy"], share["correct"], share["total"])
                lines.append([row.label, run.seed, length, *numbers])
    return csv_table(lines)


def curves(rows: list[Row[Retrieval]]) -> Figure:
    """Accuracy over length: the mean over seeds, and its 95 % interval as a band."""
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for row in rows:
        lengths = row.runs[0].results.lengths
        shares = [[run.results.at(length)["accuracy"] for run in row.runs] for length in lengths]
        middle = np.array([mean(of) for of in shares])
        (line,) = axes.plot(lengths, middle, "o-", markersize=3, label=row.label)
        if len(row.runs) > 1:
            spread = np.array([student(of) for of in shares])
            low, high = (np.clip(middle + sign * spread, 0, 1) for sign in (-1, 1))
            axes.fill_between(lengths, low, high, color=line.get_color(), alpha=0.15, linewidth=0)
    end_of_training(axes, rows[0].runs[0].results.evaluated["trained"])
    return figure


def compare(folders: list[Path], name: str, out: Path) -> str:
    """Write table.md, runs.csv, the curves and the mean heatmaps; the table is returned."""
    rows = rows_of([read_run(folder, name) for folder in folders])
    trained = rows[0].runs[0].results.evaluated["trained"]
    columns = {f"up to {trained} tokens": within}
    columns |= {f"{times * trained} ({times}x)": at(times) for times in TIMES}
    text = markdown(rows, columns)
    write_text(out / "table.md", text + "\n")
    write_text(out / "runs.csv", table(rows))
    write_figure(curves(rows), out / "lengths")
    write_figure(figure_of([(row.label, results_of(row)) for row in rows]), out / "heatmaps")
    origin.record(out)
    return text


@expected_errors()
def main() -> None:
    arguments = parser_of_runs(
        "retrieval.compare",
        "Compare passkey retrieval over seeds.",
        "passkey",
        "output/compare_passkey",
    ).parse_args()
    print(compare(arguments.runs, arguments.name, arguments.out))
    print(f"\nalso in {arguments.out}, with a line per run and length, and the pictures")


if __name__ == "__main__":
    main()
