"""Results whose command wrote a text with tables, beside a csv file: comparisons and analyses."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from tape.compare.__main__ import read
from tape.compare.runs import RESULTS, SETTINGS, Run, read_settings
from tape.evaluation.tables import Row, read_table
from tape.report.blocks import Block, Heading, Markdown, Pictures, Table, records
from tape.report.experiment import Kind, Read
from tape.report.finding import Folder
from tape.report.training import origin

TABLE = "table.md"


def columns_of(path: Path) -> tuple[str, ...]:
    """The first line of a csv file; empty if there is none."""
    with path.open(newline="", encoding="utf-8") as file:
        return tuple(next(csv.reader(file), ()))


def rows_of(path: Path) -> list[Row]:
    """The rows of any csv file.

    Raises:
        OSError, ValueError: if there are none, or a row is not whole.
    """
    if not path.read_bytes().endswith(b"\n"):
        raise ValueError(f"{path} ends in the middle of a line: create it again")
    rows = read_table(path, columns_of(path))
    if not rows:
        raise ValueError(f"{path} has no rows")
    return rows


def paper_table(path: Path, caption: str) -> Table:
    """A table of the paper, from a csv file with its titles."""
    return records(rows_of(path), caption)


def has_columns(path: Path, columns: Iterable[str]) -> bool:
    """Whether this is a csv file with these columns among others."""
    try:
        return path.is_file() and set(columns_of(path)).issuperset(columns)
    except (OSError, ValueError, csv.Error):
        return False


def written(title: str, stem: str, command: str) -> Kind:
    """Folders with stem.md and stem.csv."""

    def read(folder: Folder) -> list[Block]:
        rows = rows_of(folder.path / f"{stem}.csv")
        if not folder.has(f"{stem}.md"):  # results that were put aside
            return [records(rows)]
        return blocks_of(folder.path / f"{stem}.md")

    return Kind(title, command, lambda folder: folder.has(f"{stem}.csv"), read, show)


def comparisons(holds: Callable[[Sequence[Run]], bool], command: str) -> Kind:
    """Saved results of `tape.compare` whose runs `holds` accepts."""

    def there(folder: Folder) -> bool:
        if not folder.has(RESULTS, SETTINGS):
            return False
        try:
            return holds(read_settings(folder.path))
        except (OSError, ValueError):
            return False

    return Kind("comparisons", command, there, read_comparison, show)


def read_comparison(folder: Folder) -> list[Block]:
    """The table of a comparison; made from its rows where it was not kept."""
    found = read([folder.path], across=["*"])
    if found.missing:
        raise ValueError(found.missing[folder.path])
    if folder.has(TABLE):
        return blocks_of(folder.path / TABLE)
    return [Markdown(found.text())]


def blocks_of(path: Path) -> list[Block]:
    text = Markdown(path.read_text(encoding="utf-8"))
    if not text.has_table:
        raise ValueError(f"{path} contains no table: create it again")
    return [text]


def show(found: Read[list[Block]]) -> list[Block]:
    """The texts as they were written, the pictures beside them, and where they come from."""
    blocks: list[Block] = []
    for folder, text in found:
        blocks += [Heading(str(folder.path)), *text, Pictures(folder.pictures)]
        blocks += origin(folder.path)
    return blocks
