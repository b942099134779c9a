"""Tables of results: as text, and as csv files to which several processes may add rows."""

import csv
import fcntl
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import mean, median_low
from typing import Any

import pandas as pd

from tape.core.files import reading, write_text
from tape.core.statistics import student


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


def read_table(path: Path, columns: Sequence[str], numbers: Sequence[str] = ()) -> pd.DataFrame:
    """Returns a table, without rows if there is no file; all columns but `numbers` are text. Raises
    a ValueError if the file is damaged or has other columns."""
    if not path.exists():
        return pd.DataFrame(columns=columns, dtype=str)
    with reading(path), path.open(encoding="utf-8", newline="") as file:
        head, *lines = [*csv.reader(file)] or [[]]
        if head != [*columns]:
            what = f"its columns are {', '.join(head)} instead of {', '.join(columns)}"
            raise ValueError(f"{what}; remove it, or create it again")
        for number, line in enumerate(lines, 2):
            if len(line) != len(head):  # pandas would fill it up
                raise ValueError(f"line {number}: the number of values differs from the columns'")
        rows = pd.DataFrame(lines, columns=head, dtype=str)
        rows[[*numbers]] = rows[[*numbers]].apply(pd.to_numeric)
    return rows


def add_rows(path: Path, columns: tuple[str, ...], key: int, added: list[dict[str, Any]]) -> None:
    """Adds all rows to a table or none. A row replaces one with the same values in the first `key`
    columns; with a `key` of 0, these rows replace the table."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f".{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # until the file is closed
        rows = pd.DataFrame([map(str, map(row.get, columns)) for row in added], columns=columns)
        if key:
            rows = pd.concat([read_table(path, columns), rows])
            rows = rows.groupby([*columns[:key]], sort=False).last().reset_index()
        write_rows(path, rows)
