"""Compare encodings, or ablations of one, over seeds: tables and pictures of trained runs.

    python -m pretraining.compare output/encodings_*_[0-9]

A row is a configuration over its seeds (tape/evaluation/compare.py). Runs that were given another
length, text or number of steps are refused; runs that did not finish are named below the table.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pretraining.figures import figure_of
from pretraining.rows import Compared, compared
from pretraining.tables import latex, lines_of, markdown
from tape import origin
from tape.command import expected_errors, parser_of_runs
from tape.evaluation.figures import write_figure
from tape.files import write_text


def compare(folders: list[Path], name: str, baseline: str, out: Path) -> tuple[str, Compared]:
    """Write table.md, table.tex, runs.csv and the picture; the table is returned."""
    found = compared(folders, name)
    text = markdown(found, baseline)
    write_text(out / "table.md", text + "\n")
    write_text(out / "table.tex", latex(found, baseline) + "\n")
    write_text(out / "runs.csv", lines_of(found))
    write_figure(figure_of(found), out / "comparison")
    origin.record(out)
    return text, found


@expected_errors()
def main() -> None:
    parser = parser_of_runs(
        "pretraining.compare",
        "Compare trained runs over seeds.",
        "compare",
        "output/compare_encodings",
    )
    parser.add_argument(
        "--baseline",
        help="the row that others are compared with, or one of its runs (default: rope)",
    )
    arguments = parser.parse_args()
    given = arguments.baseline
    baseline = "rope" if given is None else given
    text, found = compare(arguments.runs, arguments.name, baseline, arguments.out)
    print(text)
    print(f"\nalso in {arguments.out}, with a line per run and length, LaTeX, and the picture")
    if found.missing:
        sys.exit(f"error: {len(found.missing)} of {len(arguments.runs)} runs are not in the table")
    if given is not None and found.row(given) is None:
        labels = ", ".join(row.label for row in found.rows)
        sys.exit(f"error: --baseline {given!r} is none of the rows: {labels}")


if __name__ == "__main__":
    main()
