"""The rows of a comparison as a table: markdown and LaTeX."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tape.compare.rows import Row, is_method, kinds_of
from tape.compare.runs import view_of
from tape.evaluation.tables import markdown_table, over_seeds
from tape.evaluation.view import Column
from tape.statistics import holm, paired

NOTE = "Mean and 95 % interval (Student) over seeds."
COMPARED = """\
Δ is the difference to {}, of runs with the same seed: the mean with its 95 % interval, p of the
paired t-test corrected for the number of rows (Holm), and in brackets the smallest difference that
this test detects with a power of 80 %."""


def columns_of(rows: Sequence[Row]) -> list[tuple[str, Column]]:
    """Returns the columns of all evaluations, with the name of the evaluation."""
    found = []
    for kind in kinds_of(rows):
        runs = [run for row in rows for run in row.runs.get(kind, [])]
        given = [run.asked[kind] for run in runs], [run.of(kind) for run in runs]
        found += [(kind, column) for column in view_of(kind).columns(*given)]
    return found


def cells(rows: Sequence[Row], baseline: Row | None = None) -> list[list[str]]:
    """Returns the head of the table, then a line per row."""
    columns = columns_of(rows)
    runs = (run for row in rows for found in row.runs.values() for run in found)
    first = "method" if any(map(is_method, runs)) else "encoding"
    compared = [(kind, c) for kind, c in columns if c.compared and baseline is not None]
    lines = [[first, "n", *(column.title for _, column in columns)]]
    lines[0] += [f"Δ {c.measure}, {c.compared}" for _, c in compared]
    differences = [_differences(rows, baseline, kind, column) for kind, column in compared]
    for n, row in enumerate(rows):
        seeds = sorted({len(runs) for runs in row.runs.values()})
        line = [row.label, " or ".join(map(str, seeds))]
        for kind, column in columns:
            values = map(column.scale.of, row.values(kind, column).values())
            line.append(over_seeds(list(values), column.scale.digits))
        lines.append([*line, *(column[n] for column in differences)])
    return lines


def _differences(rows: Sequence[Row], baseline: Row, kind: str, column: Column) -> list[str]:
    """Returns a cell per row: its difference to the baseline over the seeds that both have."""
    theirs = baseline.values(kind, column)
    found = []
    for row in rows:
        ours = row.values(kind, column)
        pairs = [ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())]
        found.append(paired(pairs) if len(pairs) > 1 and row is not baseline else None)
    corrected = iter(holm([each.p for each in found if each is not None]))
    return [
        "-"
        if each is None
        else f"{each.mean:+.4f} ± {each.half_width:.4f} (p {next(corrected):.2g}) "
        f"[{each.detectable:.2g}]"
        for each in found
    ]


def markdown(rows: Sequence[Row], baseline: Row | None = None) -> str:
    notes = NOTE if baseline is None else f"{NOTE}\n{COMPARED.format(baseline.label)}"
    return f"{markdown_table(cells(rows, baseline))}\n\n{notes}"


def latex(rows: Sequence[Row], baseline: Row | None = None) -> str:
    """Returns a tabular with the rules of booktabs."""
    head, *lines = cells(rows, baseline)
    body = [" & ".join(map(_escaped, line)) + r" \\" for line in (head, *lines)]
    ends = [r"\toprule", r"\midrule", r"\bottomrule"]
    return "\n".join(
        [
            rf"\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}",
            ends[0],
            body[0],
            ends[1],
            *body[1:],
            ends[2],
            r"\end{tabular}",
        ]
    )


def _escaped(text: str) -> str:
    text = re.sub(r"([&%$#_{}])", r"\\\1", text)
    return text.replace("±", r"$\pm$").replace("~", r"\textasciitilde{}")
