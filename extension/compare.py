"""Methods of context extension in one table: perplexity by length, and pass keys by length.

    python -m extension.compare output/rope_c4 output/passkey_rope_0 output/extend/*_[0-9]

A row is a method of config/peft over its seeds; a run that adapted nothing is the base itself.
"""

from __future__ import annotations

from pathlib import Path

from extension.figures import figure_of
from extension.measured import Measure
from extension.methods import Method, is_base, lengths_of, methods_of
from tape import origin
from tape.command import expected_errors, parser_of_runs
from tape.evaluation.compare import over_seeds
from tape.evaluation.figures import write_figure
from tape.evaluation.tables import csv_table, markdown_table
from tape.files import write_text

TITLES: dict[Measure, str] = {"perplexity": "perplexity", "passkey": "pass keys, %"}


def markdown(methods: list[Method]) -> str:
    """In the shape of the paper's Table 2: mean and 95 % interval over seeds."""
    columns = [(measure, n) for measure in TITLES for n in lengths_of(methods, measure)]
    titles = [f"{TITLES[measure]} {length:,}" for measure, length in columns]
    lines = [["method", "seeds", *titles]]
    for method in methods:
        seeds = sorted({len(row.runs) for row in method.rows.values()})
        cells = [method.label, " or ".join(map(str, seeds))]
        for measure, length in columns:
            values, share = method.values(measure, length), measure == "passkey"
            cells.append(over_seeds([100 * v if share else v for v in values], 1 if share else 2))
        lines.append(cells)
    return markdown_table(lines)


def table(methods: list[Method]) -> str:
    """A line per run and length: method, seed, learning rate, what was measured, and its value."""
    lines = [["method", "seed", "learning_rate", "measure", "length", "value"]]
    for method in methods:
        for measure, row in method.rows.items():
            for run in row.runs:
                rate = "" if is_base(run) else run.settings.get("trainer.learning_rate")
                for length, value in run.results.at.items():
                    lines.append([method.label, run.seed, rate, measure, length, value])
    return csv_table(lines)


def compare(folders: list[Path], name: str, out: Path) -> str:
    """Write table.md, runs.csv and the pictures; the table is returned."""
    methods = methods_of(folders, name)
    text = markdown(methods)
    write_text(out / "table.md", text + "\n")
    write_text(out / "runs.csv", table(methods))
    write_figure(figure_of(methods), out / "extension")
    origin.record(out)
    return text


@expected_errors()
def main() -> None:
    arguments = parser_of_runs(
        "extension.compare", "Compare methods of context extension.", "extend", "output/extend"
    ).parse_args()
    print(compare(arguments.runs, arguments.name, arguments.out))
    print(f"\nalso in {arguments.out}, with a line per run and length, and the picture")


if __name__ == "__main__":
    main()
