"""Chooses the learning rate of each encoding or method: that of the lowest validation loss.

The seeds of these runs are for the choice only; a comparison takes others.
"""

import argparse
import math
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import yaml
from matplotlib.figure import Figure

from tape.core import provenance, statistics
from tape.core.files import reading, write_text
from tape.core.metrics import metric_rows
from tape.core.provenance import TRAINED, origins
from tape.core.run_folder import read_configuration
from tape.evaluation.figures import STYLES, curve, write_figure
from tape.evaluation.tables import markdown_table
from tape.evaluation.view import select
from tape.results.rows import METHOD, RATE, by_settings, check_given, kind_of, labels_of
from tape.results.runs import Run, end, missing_note, read_all, settings_of, write_runs

LOSS, BLOCKS = "validation loss", "eval_blocks"
HEAD = """\
# @package learning_rates
# Learning rate by encoding, as chosen by tape rates.
"""
NOTE = """\
Validation loss in nats per token at the end of training, mean over {} seed(s); -: not all of these
runs finished. The lowest is chosen. *: the lowest or highest rate with a finished run, or one that
finished runs of another rate are better than, so a better one may lie beyond it."""


class Choices(NamedTuple):
    """The losses of encodings or methods by learning rate."""

    kind: str  # "encoding" or "method" (of adaptation)
    names: dict[str, str]  # by label of a row, the name of its encoding or method
    rows: pd.DataFrame  # a row per run: row (the label), rate, seed and value, the loss
    means: pd.DataFrame  # by label and rate, ascending; NaN unless there is a run of every seed
    rates: dict[str, float]  # the chosen one by label, where a rate has a run of every seed
    at_boundary: set[str]  # labels that may have a better rate, those of a * in NOTE


def read_finished(folder: Path, name: str) -> Run:
    """Reads a run whose row is the validation loss at its last step; the name has no meaning.
    Raises a ValueError or an OSError if it did not finish or was not evaluated at the end."""
    seed, settings = settings_of(folder)
    last = settings["trainer.max_steps"]
    blocks = read_configuration(folder, TRAINED).get(BLOCKS)
    if blocks is not None:  # of the validation
        settings[BLOCKS] = blocks
    metrics = metric_rows(folder, last)
    rows = [row for row in metrics if (row["measure"], row.get("step")) == (LOSS, last)]
    if not rows:
        why = f"no validation loss at its last step, {last}"
        raise ValueError(f"{folder} has {why}: trainer.eval_steps must divide trainer.max_steps")
    table = pd.DataFrame(rows[:1]).assign(evaluation="training")
    return Run(folder, seed, settings, rows=table, origin=origins(folder))


def choices(runs: Sequence[Run]) -> Choices:
    """Chooses a learning rate for each encoding or method, by the mean validation loss over seeds.

    Raises:
        ValueError: if runs differ in other settings than encoding or method, learning rate and
            seed, or if a run is given twice.
    """
    check_given(runs)
    groups = by_settings(runs, [RATE])
    names: dict[str, str] = {}
    tables = []
    for label, (settings, group) in zip(labels_of([x for x, _ in groups]), groups, strict=True):
        names[label] = settings.get(METHOD, settings["position.name"])
        for run in group:
            about = {"row": label, "rate": run.settings[RATE], "seed": run.seed}
            tables.append(select(run.rows, LOSS).assign(**about, n=1, folder=run.folder))
    rows = pd.concat(tables, ignore_index=True)
    for folder in rows["folder"][rows.duplicated(["row", "rate", "seed"])]:
        raise ValueError(f"{folder} is given twice, or is as another run; give one of them")
    found = statistics.table(rows, ["row", "rate"])
    means = found["mean"].where(found["n"] == rows["seed"].nunique()).unstack()
    means = means.sort_index(axis=1).reindex(names)
    rates, lowest = (
        table.dropna(how="all").idxmin(axis=1).astype(float).to_dict()
        for table in (means, found["mean"].unstack())
    )
    tried = rows.groupby("row")["rate"].agg(["min", "max"])
    at_boundary = {
        label
        for label, rate in rates.items()
        if rate in [*tried.loc[label]] or rate != lowest[label]
    }
    return Choices(kind_of(runs), names, rows, means, rates, at_boundary)


def table(found: Choices) -> str:
    """Returns the losses by encoding and rate, and the chosen rates, as markdown."""
    lines = [[found.kind, *(f"{rate:g}" for rate in found.means), "chosen"]]
    for label, losses in found.means.iterrows():
        cells = ["-" if math.isnan(loss) else f"{loss:.4f}" for loss in losses]
        chosen = f"{found.rates[label]:g}" if label in found.rates else "-"
        lines.append([label, *cells, chosen + " *" * (label in found.at_boundary)])
    return f"{markdown_table(lines)}\n\n{NOTE.format(found.rows['seed'].nunique())}"


def draw(found: Choices) -> Figure:
    """Draws the loss, in nats per token, against the learning rate, with a line per encoding.

    A star marks the chosen rate. It is hollow if a better rate may lie outside of the tried ones.
    The vertical axis ends above the two lowest losses of each encoding, because a diverged run
    would flatten all lines.
    """
    figure = Figure(figsize=(7.6, 4.8), layout="constrained")
    axes = figure.subplots()
    styles = dict(zip(found.names, cycle(STYLES), strict=False))
    curve(found.rows, "rate", axes=axes, styles=styles)
    figure.legend(loc="outside right upper")
    for line in axes.get_lines():
        if (rate := found.rates.get(line.get_label())) is not None:
            colour = line.get_color()
            face = "none" if line.get_label() in found.at_boundary else colour
            loss = found.means[rate][line.get_label()]
            axes.plot(rate, loss, "*", markersize=13, color=colour, markerfacecolor=face)
    axes.set_xscale("log", base=2)
    axes.set_xticks(found.means.columns, [f"{rate:g}" for rate in found.means])
    axes.set(xlabel="learning rate", ylabel="validation loss at the end, nats per token")
    losses = found.means.where(np.isfinite(found.means))
    low, high = losses.min(axis=None), losses.apply(lambda x: x.nsmallest(2).max(), axis=1).max()
    if low < high:
        axes.set_ylim(low - 0.1 * (high - low), high + 0.2 * (high - low))
    return figure


def with_choice(found: Choices, target: Path) -> str:
    """Returns the text of a YAML file of rates by name, with the chosen ones over those in it.
    Raises a ValueError if two rows have the same name, or the file holds something else."""
    if len({*found.names.values()}) < len(found.names):
        labels = ", ".join(found.names)
        raise ValueError(f"{target} has one learning rate per name: {labels}; leave some out")
    with reading(target):
        before = (yaml.safe_load(target.read_text()) if target.is_file() else None) or {}
    try:
        before = {name: float(rate) for name, rate in dict(before).items()}  # 1e-3 is read as text
    except (TypeError, ValueError):
        raise ValueError(f"--into {target} contains something else: give another file") from None
    chosen = {found.names[label]: rate for label, rate in found.rates.items()}
    return HEAD + yaml.safe_dump(before | chosen)


def main(arguments: argparse.Namespace) -> None:
    runs, missing = read_all(arguments.folders, "", read_finished, arguments.failed)
    found, out = choices(runs), arguments.out
    if target := arguments.into:
        write_text(target, with_choice(found, target))
    text = table(found) + missing_note(missing)
    write_runs(out, runs)
    write_text(out / "table.md", text + "\n")
    write_figure(draw(found), out / "rates")
    provenance.record(out)
    end(arguments, text, "with a picture and the rows of each run", missing)
