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
WITH_GAIN = {"method", "context gain, nats"}  # titles of tables that need no word about it
PAGE = Environment(trim_blocks=True, undefined=StrictUndefined).from_string(TEXT)
ROUNDING = 1e-12  # of differences of values such as accuracies and losses
Cells = list[list[str]]


def tables_of(found: Comparison, baseline: str | None = None) -> list[Cells]:
    """Returns the tables: results of each evaluation, costs, differences to the row `baseline`. The
    first line of a table is its head."""
    tables: list[Cells] = []
    compared: Cells = []
    for kind in found.groups:
        rows = found.rows[kind]
        asked = [run.asked[kind] for runs in found.groups[kind].values() for run in runs]
        columns = view_of(kind).columns(asked, rows)
        for cost in (False, True):
            if chosen := [column for column in columns if column.cost == cost]:
                tables.append(_results(found, kind, chosen))
        if baseline is not None:
            for column in columns:
                compared += _differences(column, rows, baseline) if column.compared else []
    if compared:
        head = [kind_of(found.runs), "in", "Δ", "pairs", "p", "exact p", "detectable"]
        tables.append([head, *compared])
    return tables


def _results(found: Comparison, kind: str, columns: Sequence[Column]) -> Cells:
    groups, rows = found.groups[kind], found.rows[kind]
    lines = {label: [label, str(len(groups[label]))] for label in rows["row"].unique()}
    for column in columns:
        taken = column.of(rows)
        for label, line in lines.items():
            own = taken[taken["row"] == label]
            if column.effective:
                each = [effective_length(run) for _, run in own.groupby("seed")]
                shown = median_length(each, taken["length"].max())
            else:
                each = [*per_seed(own).map(column.scale.of)]
                shown = over_seeds(each, column.scale.digits)
            note = f" (n = {len(each)})" if 0 < len(each) < len(groups[label]) else ""
            line.append(shown + note)
    return [[kind_of(found.runs), "n", *(column.title for column in columns)], *lines.values()]


def _differences(column: Column, rows: pd.DataFrame, baseline: str) -> Cells:
    """Returns a line per row, without numbers where there are no two pairs of finite values; none
    if that is so everywhere."""
    found, lines = differences(column.of(rows), baseline), []
    others = [label for label in rows["row"].unique() if label != baseline]
    for label, each in found.reindex(others).iterrows():
        shown = ["-"] * 5
        if label in found.index:
            shown = [f"{each['mean']:+.4f} ± {each['half_width']:.4f}", f"{each['n']:.0f}"]
            shown += [f"{each[name]:.2g}" for name in ("p", "exact_p")]
            shown += [f"{each['detectable']:.2g}" if each["detectable"] > ROUNDING else "-"]
        lines.append([label, f"{column.measure}, {column.compared}", *shown])
    return lines if len(found) else []


def markdown(found: Comparison, baseline: str | None = None) -> str:
    """Returns the tables and what they mean, and the folders that are not in them."""
    tables = tables_of(found, baseline)
    titles = {title for cells in tables for title in cells[0]}
    text = PAGE.render(
        tables=[*map(markdown_table, tables)],
        baseline=baseline,
        compared="Δ" in titles,
        alike=any(line[-1] == "-" != line[2] for cells in tables for line in cells),
        effective="effective length" in titles,
        fewer=any("(n = " in cell for cells in tables for line in cells for cell in line),
        no_gain="perplexity" in found.groups and titles.isdisjoint(WITH_GAIN),
        windows=MIN_WINDOWS,
        rates=_own_rates(found),
        notes=_notes(found),
        places=_places(found),
    )
    return text.strip("\n") + missing_note(found.missing)


def _notes(found: Comparison) -> list[str]:
    """What the values of each evaluation are of."""
    notes = []
    for kind, groups in found.groups.items():
        asked = next(iter(groups.values()))[0].asked[kind]
        if (note := view_of(kind).note) is not None:
            notes.append(note(asked, found.rows[kind]))
    return notes


def _places(found: Comparison) -> list[str]:
    """On which machines, with how many threads and which torch the runs were made, and how many."""
    counts = Counter(place_of(run.origin) or "unknown" for run in found.runs)
    return [f"{place} ({count} run{'s' * (count > 1)})" for place, count in counts.items()]


def _own_rates(found: Comparison) -> list[str]:
    """The learning rates that labels do not name, if rows, or evaluations of a row, have different
    ones."""
    rates: dict[str, dict[float | None, list[str]]] = {label: {} for label in found.labels}
    for kind, groups in found.groups.items():
        for label, runs in groups.items():
            rates[label].setdefault(runs[0].settings.get(RATE), []).append(kind)
    lines = []
    for label, own in rates.items():
        told = (f"{x} ({', '.join(kinds)})" if len(own) > 1 else f"{x}" for x, kinds in own.items())
        lines += [] if RATE in label else [f"{label} {' '.join(told)}"]
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
    found = read(folders, name, **chosen)
    row = None if baseline is None else found.find(baseline)
    text = markdown(found, row)
    write_runs(out, found.runs)
    write_text(out / "table.md", text + "\n")
    write_figures(found, out)
    provenance.record(out)
    return text, found


def main(arguments: argparse.Namespace) -> None:
    text, found = compare(**vars(arguments))
    end(arguments, text, "with figures and the rows of each run", found.missing)
