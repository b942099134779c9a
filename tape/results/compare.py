"""Compares finished runs over seeds: table, statistics, curves and heat maps.

    python -m tape.results.compare output/encodings_*_[0-9] --baseline rope
    python -m tape.results.compare docs/results/encodings output/encodings_mine_[0-9] \\
        --out output/mine

Runs with the same settings but the seed are one row. Results of an earlier comparison (its folder,
with results.csv and settings.json) count as the runs in it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import mean

from tape import provenance
from tape.command import Parser, expected_errors, folder_name, result_folder
from tape.files import write_text
from tape.results.figures import write_figures
from tape.results.rows import BASE, Row, rows_of
from tape.results.runs import Run, names_of, read_all, view_of, write_runs
from tape.results.table import latex, markdown


@dataclass(frozen=True)
class Comparison:
    """
    Attributes:
        rows: the best first, after the base of methods.
        missing: folders that could not be read, and why.
    """

    rows: list[Row]
    missing: dict[Path, str]

    def row(self, name: str) -> Row | None:
        """Returns a row by its label or by the folder of one of its runs; None if there is none."""
        for row in self.rows:
            folders = [run.folder for runs in row.runs.values() for run in runs]
            if name == row.label or Path(name) in folders:
                return row
        return None

    def text(self, baseline: str | None = None) -> str:
        parts = [markdown(self.rows, None if baseline is None else self.row(baseline))]
        if self.missing:
            parts.append("Not in the table:")
            parts.append("\n".join(f"* {folder}: {why}" for folder, why in self.missing.items()))
        return "\n\n".join(parts)


def read(
    folders: Sequence[Path],
    name: str | None = None,
    across: Sequence[str] = (),
    only: Sequence[str] = ("*",),
    within: Sequence[str] = (),
) -> Comparison:
    """Groups runs into rows.

    Args:
        folders: of runs, or of results that were saved.
        name: see `read_all`.
        across, within: see `rows_of`.
        only: patterns of the names of runs to take, or of evaluations given alone.

    Raises:
        ValueError: if no run can be read, or runs cannot be compared.
    """
    found, missing = read_all(folders, name)
    runs = [
        run
        for run in found
        if any(fnmatchcase(name, each) for name in names_of(run.folder) for each in only)
    ]
    if found and not runs:
        names = ", ".join("/".join(names_of(run.folder)) for run in found)
        raise ValueError(f"--only {' '.join(only)} matches none of the runs: {names}")
    if not runs:
        raise ValueError("; ".join(missing.values()) or "no runs were given")
    return Comparison(ranked(runs, across, within), missing)


def ranked(
    runs: Sequence[Run], across: Sequence[str] = (), within: Sequence[str] = ()
) -> list[Row]:
    """Groups runs into rows (`rows_of`), the best first, after the base of methods."""
    return sorted(rows_of(runs, across, within), key=_order)


def _order(row: Row) -> tuple[bool, float]:
    kind, runs = next(iter(row.runs.items()))
    view = view_of(kind)
    best = view.best([run.asked[kind] for run in runs], [run.of(kind) for run in runs])
    values = row.values(kind, best).values()
    value = mean(values) if values else float("-inf" if view.descending else "inf")
    return row.label != BASE, -value if view.descending else value


def compare(
    folders: Sequence[Path],
    out: Path,
    name: str | None = None,
    baseline: str | None = None,
    **chosen: Sequence[str],
) -> tuple[str, Comparison]:
    """Writes table.md, table.tex, the results in long form and the figures; returns the table.

    Args:
        chosen: `across`, `only` and `within` of `read`.

    Raises:
        ValueError: as `read`; if `baseline` is not a row.
    """
    found = read(folders, name, **chosen)
    row = None if baseline is None else found.row(baseline)
    if baseline is not None and row is None:
        labels = ", ".join(row.label for row in found.rows)
        raise ValueError(f"--baseline {baseline!r} is not a row; choose one of {labels}")
    text = found.text(baseline)
    runs = {id(run): run for row in found.rows for runs in row.runs.values() for run in runs}
    write_runs(out, list(runs.values()))
    write_text(out / "table.md", text + "\n")
    write_text(out / "table.tex", latex(found.rows, row) + "\n")
    write_figures(found.rows, out)
    provenance.record(out)
    return text, found


@expected_errors()
def main(given: list[str] | None = None) -> None:
    parser = Parser(
        prog="python -m tape.results.compare", description="Compare finished runs over seeds."
    )
    add = parser.add_argument
    add(
        "folders",
        metavar="runs",
        type=Path,
        nargs="+",
        help="folders of runs, evaluations, or saved results",
    )
    add("--name", type=folder_name, help="their evaluation (default: the one that all have)")
    add("--baseline", help="the row, or one of its runs, that the others are compared with")
    add("--across", nargs="+", default=[], help="settings that may differ, such as 'model.*'")
    add("--within", nargs="+", default=[], help="settings that may differ in a row: 'base_*'")
    add("--only", nargs="+", default=["*"], help="names of runs to take, such as 'add_rope_*'")
    add("--out", type=result_folder, default="output/comparison", help="for the results")
    arguments = parser.parse_args(given)
    text, found = compare(**vars(arguments))
    print(text)
    print(f"\nalso in {arguments.out}, with LaTeX, figures and the rows of each run")
    if found.missing:
        sys.exit(f"error: {len(found.missing)} of {len(arguments.folders)} are not in the table")


if __name__ == "__main__":
    main()
