"""The rows of a comparison as a table: markdown and LaTeX."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pandas as pd

from tape.evaluation.curves import MIN_WINDOWS, context_gain
from tape.evaluation.tables import markdown_table, over_seeds
from tape.evaluation.view import Column
from tape.results.rows import RATE, Row, kind_of, kinds_of
from tape.results.runs import view_of
from tape.statistics import differences, holm

NOTE = "Mean and 95 % interval (Student) over seeds."
FEWER = """\
(n = ...): the mean of fewer runs than the row has; the others have no value, as they did not reach
the criterion of their training."""
COMPARED = """\
Δ is the difference to {}.
Its 95 % interval, p (corrected for the number of rows, Holm) and the smallest detectable difference
(power of 80 %) come from the model row + seed + error, with one error for all rows. For comparison:
the half-width of the interval from the pairs alone (Student), and the exact p of flipping their
signs (uncorrected)."""
NO_GAIN = f"""\
No context gain: it needs a trained length of at least 16 tokens, and {MIN_WINDOWS} windows that
score both its beginning and its last half (--convention paper or disjoint, and enough text)."""
NOT_COMPARED = "No differences to {}: they need two rows with two seeds in common."
# What pandas does not escape.
LATEX = {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "±": r"$\pm$"}
LATEX |= {"Δ": r"$\Delta$"}
Cells = list[list[str]]


def columns_of(rows: Sequence[Row]) -> list[tuple[str, Column]]:
    """Returns the columns of all evaluations, with the name of the evaluation."""
    found = []
    for kind in kinds_of(rows):
        runs = [run for row in rows for run in row.runs.get(kind, [])]
        given = [run.asked[kind] for run in runs], [run.of(kind) for run in runs]
        found += [(kind, column) for column in view_of(kind).columns(*given)]
    return found


def tables_of(rows: Sequence[Row], baseline: Row | None = None) -> list[Cells]:
    """Returns the tables: results of each evaluation, costs, differences. The first line of a table
    is its head."""
    columns = columns_of(rows)
    groups: dict[tuple[str, bool], list[Column]] = {}
    for kind, column in columns:
        groups.setdefault((kind, column.cost), []).append(column)
    tables = [_results(rows, kind, group) for (kind, _), group in groups.items()]
    if baseline is not None:
        compared = [(kind, column) for kind, column in columns if column.compared]
        if (found := _differences(rows, baseline, compared))[1:]:
            tables.append(found)
    return tables


def _first(rows: Sequence[Row]) -> str:
    return kind_of(run for row in rows for found in row.runs.values() for run in found)


def _results(rows: Sequence[Row], kind: str, columns: Sequence[Column]) -> Cells:
    lines = [[_first(rows), "n", *(column.title for column in columns)]]
    for row in rows:
        if kind not in row.runs:
            continue
        line = [row.label, str(len(row.runs[kind]))]
        for column in columns:
            values = [*map(column.scale.of, row.values(kind, column).values())]
            fewer = 0 < len(values) < len(row.runs[kind])
            note = f" (n = {len(values)})" if fewer else ""
            line.append(over_seeds(values, column.scale.digits) + note)
        lines.append(line)
    return lines


def _differences(
    rows: Sequence[Row], baseline: Row, compared: Sequence[tuple[str, Column]]
) -> Cells:
    lines = [[_first(rows), "in", "Δ", "pairs alone", "p", "exact p", "detectable"]]
    for kind, column in compared:
        found = differences({row.label: row.values(kind, column) for row in rows}, baseline.label)
        corrected = holm([each.p for each in found.values()])
        for (label, each), p in zip(found.items(), corrected, strict=True):
            alone = ("-", "-")
            if each.pairs is not None:
                alone = f"± {each.pairs.half_width:.4f}", f"{each.pairs.p:.2g}"
            line = [label, f"{column.measure}, {column.compared}"]
            line += [f"{each.mean:+.4f} ± {each.half_width:.4f}", alone[0], f"{p:.2g}", alone[1]]
            lines.append([*line, f"{each.detectable:.2g}"])
    return lines


def markdown(rows: Sequence[Row], baseline: Row | None = None) -> str:
    tables, notes = tables_of(rows, baseline), NOTE
    if baseline is not None:
        note = COMPARED if "Δ" in tables[-1][0] else NOT_COMPARED
        notes += "\n" + note.format(baseline.label)
    if any("(n = " in cell for cells in tables for line in cells for cell in line):
        notes += "\n" + FEWER
    if _lacks_gain(rows):
        notes += "\n" + NO_GAIN
    notes += _own_rates(rows)
    return "\n\n".join([*map(markdown_table, tables), notes])


def _lacks_gain(rows: Sequence[Row]) -> bool:
    """Whether runs have too few windows for the context gain, which is not defined for runs of
    methods, whose bases have other trained lengths."""
    runs = [run for row in rows for run in row.runs.get("perplexity", [])]
    return kind_of(runs) == "encoding" and not all(
        context_gain(run.of("perplexity"), run.settings["length"]) for run in runs
    )


def _own_rates(rows: Sequence[Row]) -> str:
    """A note of the learning rates that labels do not name, if rows have different ones."""
    found = {row.label: next(iter(row.runs.values()))[0].settings.get(RATE) for row in rows}
    unnamed = [f"{label} {rate}" for label, rate in found.items() if RATE not in label]
    if len({*found.values()}) == 1 or not unnamed:
        return ""
    return f"\nLearning rates: {', '.join(unnamed)}."


def latex(rows: Sequence[Row], baseline: Row | None = None) -> str:
    """Returns a tabular with the rules of booktabs for each table, in ASCII; a character without a
    command is its code point, as in U+00F6."""
    tables = []
    for head, *lines in tables_of(rows, baseline):
        table = pd.DataFrame(lines, columns=head).map(
            lambda cell: re.sub(r"[^ -~±Δ]", lambda found: f"U+{ord(found[0]):04X}", cell)
        )
        alignment = "l" + "r" * (len(head) - 1)
        tables.append(table.to_latex(index=False, escape=True, column_format=alignment))
    return "\n".join(tables).translate(str.maketrans(LATEX)).rstrip("\n")
