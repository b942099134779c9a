"""Perplexity by length, of any model on any text."""

from __future__ import annotations

from pathlib import Path

from tape.evaluation.curves import ABOUT, COLUMNS, read_curves
from tape.evaluation.tables import Row
from tape.report.blocks import Block, Details, Pictures, Table
from tape.report.experiment import Experiment, Kind, Read
from tape.report.finding import Folder
from tape.report.written import columns_of, has_columns, rows_of

NAME = "perplexity.csv"
SERIES = tuple(column for column in ABOUT if column != "length")  # a row of the page
HASHES = ("model_hash", "data_hash")


def tables_in(folder: Folder) -> list[Path]:
    """The tables of perplexity in a folder, whatever they are called; one that has the usual name
    and other columns is among them, for its reader to refuse."""
    paths = (folder.path / name for name in sorted(folder.files) if name.endswith(".csv"))
    return [path for path in paths if path.name == NAME or _is_table(path)]


def _is_table(path: Path) -> bool:
    return has_columns(path, COLUMNS) and columns_of(path) == COLUMNS


def read(folder: Folder) -> list[Row]:
    rows = []
    for path in tables_in(folder):
        rows_of(path)
        rows += [{"table": str(path), **row} for row in read_curves(path)[0]]
    return rows


def show(found: Read[list[Row]]) -> list[Block]:
    """A row for each model, text and convention, and a column for each length."""
    rows = [row for _, each in found for row in each]
    lengths = sorted({int(row["length"]) for row in rows})
    of_table: dict[tuple[str, str], set[str]] = {}
    for row in rows:
        for name in HASHES:
            of_table.setdefault((row["table"], name), set()).add(row[name])
    several = {name for (_, name), found in of_table.items() if len(found) > 1}
    hidden = set(HASHES) - several  # a row of other weights or another text says so
    shown = [name for name in SERIES if name not in hidden and any(row[name] for row in rows)]
    series: dict[tuple[str, ...], dict[int, Row]] = {}
    for row in rows:
        key = tuple(row[name] for name in ("table", *SERIES))
        series.setdefault(key, {})[int(row["length"])] = row
    cells = []
    for by_length in series.values():
        first = next(iter(by_length.values()))
        values = [by_length.get(length) for length in lengths]
        tokens = sorted({int(row["tokens"]) for row in by_length.values()})
        perplexities = (f"{float(row['perplexity']):.3f}" if row else "-" for row in values)
        scored = " to ".join(f"{n:,}" for n in dict.fromkeys((tokens[0], tokens[-1])))
        cells.append([first["table"], *(first[name] for name in shown), scored, *perplexities])
    head = ["table", *shown, "scored tokens", *(str(length) for length in lengths)]
    drawn = [path.with_suffix(".png") for folder, _ in found for path in tables_in(folder)]
    pictures = Pictures([path for path in drawn if path.is_file()])
    return [
        Table(head, cells, "Perplexity by length in tokens"),
        Details("By length, and the loss by position", [pictures]),
    ]


EXPERIMENT = Experiment(
    name="perplexity",
    title="Perplexity by length",
    about="Models on texts in windows of several lengths. Rows compare where the text, the "
    "convention and the type of numbers are the same. The paper's Table 2 is above, with context "
    "extension.",
    kinds=[
        Kind(
            title="tables",
            command="python -m tape.evaluation.perplexity --model output/adape_c4 --data local "
            "--lengths 256 512 1024",
            holds=lambda folder: bool(tables_in(folder)),
            read=read,
            show=show,
        )
    ],
)
