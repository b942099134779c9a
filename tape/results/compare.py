"""Compares finished runs over seeds: table, statistics, curves and heat maps.

Runs with the same settings but the seed are one row. Results of an earlier comparison (its folder,
with results.csv and settings.json) count as the runs in it.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from tape import provenance
from tape.files import write_text
from tape.results.figures import write_figures
from tape.results.rows import Comparison, read
from tape.results.runs import end, write_runs
from tape.results.typesetting import markdown


def compare(
    folders: Sequence[Path],
    out: Path,
    name: str | None = None,
    baseline: str | None = None,
    **chosen: Sequence[str],
) -> tuple[str, Comparison]:
    """Writes table.md, the results in long form and the figures; returns the table. The baseline is
    a row, or the folder of one of its runs; `chosen` are `across`, `only` and `within` of `read`.
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
    print(text)
    print(f"\nalso in {arguments.out}, with figures and the rows of each run")
    end(arguments.folders, found.missing)
