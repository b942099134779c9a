"""Tables of results: as text, and as csv files to which several processes may add rows."""

import csv
import fcntl
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import mean, median_low
from typing import Any

import pandas as pd

from tape.core.files import reading, write_text
from tape.core.statistics import student

Row = dict[str, str]
NUMBER = r"\d{1,17}(\.\d+)?(e[+-]?\d{1,3})?|inf"


def markdown_table(lines: Iterable[Iterable[object]]) -> str:
    """Returns lines of cells as a table of markdown; the first is its head."""
    head, *rows = ([*map(str, line)] for line in lines)
    shown = [f"| {' | '.join(line)} |" for line in (head, *rows)]
    return "\n".join([shown[0], "|" + "---|" * len(head), *shown[1:]])


def over_seeds(values: Sequence[float], digits: int) -> str:
    """Formats the mean of one value per seed and its 95 % interval; "-" of none."""
    if not values:
        return "-"
    spread = f" ± {student(values):.{digits}f}" if len(values) > 1 else ""
    return f"{mean(values):z.{digits}f}{spread}"


def median_length(lengths: Sequence[float], longest: float) -> str:
    """Formats the lower median of one effective length per run, "-" if that is 0 or of none; the
    longest length is a lower bound."""
    middle = median_low(lengths or [0])
    shown = f"{middle:,.0f}" if middle else "-"
    return f">= {shown}" if middle == longest else shown


def write_rows(path: Path, rows: pd.DataFrame, whole: Sequence[str] = ()) -> None:
    """Writes a table as csv, the columns `whole` as integers, also with gaps in them."""
    rows = rows.assign(**rows[[*whole]].convert_dtypes())
    write_text(path, rows.to_csv(index=False, lineterminator="\n"))


def read_table(
    path: Path, columns: tuple[str, ...], whole: Iterable[str] = (), real: Iterable[str] = ()
) -> list[Row]:
    """Returns the rows of a table; none if there is no file. Raises a ValueError if the file is
    damaged, or has other columns, or values that are no integers >= 1 (`whole`) or numbers >= 0
    (`real`)."""
    if not path.exists():
        return []
    with reading(path), path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        found = tuple(reader.fieldnames or ())
        rows = list(reader)
    if found != columns:
        what = f"its columns are {', '.join(found) or 'none'} instead of {', '.join(columns)}"
        kind = f"{path} is not a table of this kind"
        raise ValueError(f"{kind}: {what}; remove it, or create it again")
    numbers = dict.fromkeys(whole, r"[1-9]\d{0,14}") | dict.fromkeys(real, NUMBER)
    for n, row in enumerate(rows, start=2):
        where = f"{path}, line {n}"
        if None in row or None in row.values():
            raise ValueError(f"{where}: the number of values differs from the number of columns")
        for column, pattern in numbers.items():
            if not re.fullmatch(pattern, row[column], re.ASCII):
                raise ValueError(f"{where}: {column}={row[column]!r} is not a valid number")
    return rows


def add_rows(path: Path, columns: tuple[str, ...], key: int, added: list[dict[str, Any]]) -> None:
    """Adds all rows to a table or none. A row replaces one with the same values in the first `key`
    columns; with a `key` of 0, these rows replace the table."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f".{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # until the file is closed
        new = [{column: str(row[column]) for column in columns} for row in added]
        old = read_table(path, columns) if key else []
        rows = {tuple(row.values())[: key or None]: row for row in [*old, *new]}
        write_rows(path, pd.DataFrame([*rows.values()], columns=columns))
