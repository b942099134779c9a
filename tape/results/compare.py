"""Compares finished runs over seeds: table, statistics, curves and heat maps.

Runs with the same settings but the seed are one row. Results of an earlier comparison (its folder,
with results.csv and settings.json) count as the runs in it.
"""

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, StrictUndefined

from tape.core import provenance
from tape.core.files import write_text
from tape.core.provenance import place_of
from tape.core.statistics import differences, per_seed
from tape.evaluation.accuracy import effective_length
from tape.evaluation.curves import MIN_WINDOWS
from tape.evaluation.tables import markdown_table, median_length, over_seeds
from tape.evaluation.view import Column
from tape.results.figures import write_figures
from tape.results.rows import RATE, Comparison, kind_of, read
from tape.results.runs import end, missing_note, view_of, write_runs

TEXT = Path(__file__).with_name("table.md").read_text("utf-8")
WITH_GAIN = {"method", "context gain, nats"}  # tables with one of these titles need no note on it
PAGE = Environment(trim_blocks=True, undefined=StrictUndefined).from_string(TEXT)
ROUNDING = 1e-12  # differences of accuracies or losses below this are rounding errors
Cells = list[list[str]]


def tables_of(comparison: Comparison, baseline: str | None = None) -> list[Cells]:
    """Returns the tables: results of each evaluation, costs, differences to the row `baseline`. The
    first line of a table is its head."""
    tables: list[Cells] = []
    compared: Cells = []
    for kind, rows in comparison.rows.items():
        settings = [run.asked[kind] for runs in comparison.groups[kind].values() for run in runs]
        columns = view_of(kind).columns(settings, rows)
        for cost in (False, True):
            if chosen := [column for column in columns if column.cost == cost]:
                tables.append(_results(comparison, kind, chosen))
        for column in columns:
            if baseline is not None and column.compared:
                compared += _differences(column, rows, baseline)
    if compared:
        head = [kind_of(comparison.runs), "in", "Δ", "pairs", "p", "exact p", "detectable"]
        tables.append([head, *compared])
    return tables


def _results(comparison: Comparison, kind: str, columns: Sequence[Column]) -> Cells:
    groups, rows = comparison.groups[kind], comparison.rows[kind]
    lines = {label: [label, str(len(groups[label]))] for label in rows["row"].unique()}
    for column in columns:
        measured = column.of(rows)
        for label, line in lines.items():
            of_label = measured[measured["row"] == label]
            if column.effective:
                values = [effective_length(run) for _, run in of_label.groupby("seed")]
                cell = median_length(values, measured["length"].max())
            else:
                values = [*per_seed(of_label).map(column.scale.of)]
                cell = over_seeds(values, column.scale.digits)
            note = f" (n = {len(values)})" if 0 < len(values) < len(groups[label]) else ""
            line.append(cell + note)
    return [[kind_of(comparison.runs), "n", *(column.title for column in columns)], *lines.values()]


def _differences(column: Column, rows: pd.DataFrame, baseline: str) -> Cells:
    """Returns a line per row, without numbers if it has fewer than two pairs of finite values; no
    lines if all rows do."""
    statistics, lines = differences(column.of(rows), baseline), []
    others = [label for label in rows["row"].unique() if label != baseline]
    for label, row in statistics.reindex(others).iterrows():
        cells = ["-"] * 5
        if label in statistics.index:
            cells = [f"{row['mean']:+.4f} ± {row['half_width']:.4f}", f"{row['n']:.0f}"]
            cells += [f"{row[name]:.2g}" for name in ("p", "exact_p")]
            cells += [f"{row['detectable']:.2g}" if row["detectable"] > ROUNDING else "-"]
        lines.append([label, f"{column.measure}, {column.compared}", *cells])
    return lines if len(statistics) else []


def markdown(comparison: Comparison, baseline: str | None = None) -> str:
    """Returns the tables and what they mean, and the folders that are not in them."""
    tables = tables_of(comparison, baseline)
    titles = {title for cells in tables for title in cells[0]}
    text = PAGE.render(
        tables=[*map(markdown_table, tables)],
        baseline=baseline,
        compared="Δ" in titles,
        alike=any(line[-1] == "-" != line[2] for cells in tables for line in cells),
        effective="effective length" in titles,
        fewer=any("(n = " in cell for cells in tables for line in cells for cell in line),
        no_gain="perplexity" in comparison.groups and titles.isdisjoint(WITH_GAIN),
        windows=MIN_WINDOWS,
        rates=_own_rates(comparison),
        notes=_notes(comparison),
        places=_places(comparison),
    )
    return text.strip("\n") + missing_note(comparison.missing)


def _notes(comparison: Comparison) -> list[str]:
    """Returns what each evaluation measured its values on, for those that say it."""
    notes = []
    for kind, groups in comparison.groups.items():
        settings = next(iter(groups.values()))[0].asked[kind]
        if (note := view_of(kind).note) is not None:
            notes.append(note(settings, comparison.rows[kind]))
    return notes


def _places(comparison: Comparison) -> list[str]:
    """Returns machines, with threads and versions of torch, and the number of runs made on each."""
    counts = Counter(place_of(run.origin) or "unknown" for run in comparison.runs)
    return [f"{place} ({count} run{'s' * (count > 1)})" for place, count in counts.items()]


def _own_rates(comparison: Comparison) -> list[str]:
    """Returns the learning rates that labels do not name, with the evaluations if a row has several
    rates; nothing if all rows have one."""
    rates: dict[str, dict[float | None, list[str]]] = {label: {} for label in comparison.labels}
    for kind, groups in comparison.groups.items():
        for label, runs in groups.items():
            rates[label].setdefault(runs[0].settings.get(RATE), []).append(kind)
    lines = []
    for label, kinds in rates.items():
        several = len(kinds) > 1
        words = (f"{rate} ({', '.join(kinds[rate])})" if several else f"{rate}" for rate in kinds)
        lines += [] if RATE in label else [f"{label} {' '.join(words)}"]
    return lines if len(set().union(*rates.values())) > 1 else []


def compare(
    folders: Sequence[Path],
    out: Path,
    name: str | None = None,
    baseline: str | None = None,
    **chosen: Sequence[Any],
) -> tuple[str, Comparison]:
    """Writes table.md, the results in long form and the figures; returns the table. The baseline is
    a row, or the folder of one of its runs; `chosen` are the other arguments of `read`.
    """
    comparison = read(folders, name, **chosen)
    row = None if baseline is None else comparison.find(baseline)
    text = markdown(comparison, row)
    write_runs(out, comparison.runs)
    write_text(out / "table.md", text + "\n")
    write_figures(comparison, out)
    provenance.record(out)
    return text, comparison


def main(arguments: argparse.Namespace) -> None:
    text, comparison = compare(**vars(arguments))
    end(arguments, text, "with figures and the rows of each run", comparison.missing)
