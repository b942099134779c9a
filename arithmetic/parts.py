"""The finished batches of one share of an evaluation, in a file that a kill leaves usable.

parts.jsonl begins with what the evaluation is of and how it was done; then comes one line per
batch, on the disk before the next batch begins.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from tape.files import write_text
from tape.training.runs import differences

FILE = "parts.jsonl"


def read(path: Path) -> tuple[dict[str, Any] | None, list[dict[str, Any]], int]:
    """What a file begins with (None if it holds nothing), its batches, and how many of its bytes
    they are: a last line that was not finished does not count.

    Raises:
        ValueError: for a damaged line before the last.
    """
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    try:
        rows = [json.loads(line) for line in whole.splitlines()]
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}): remove it, and start again") from error
    return (rows[0] if rows else None), rows[1:], len(whole)


class Parts:
    """The batches that are done, and the file to which others are appended.

    Raises:
        ValueError: if the file is that of another model or other settings; names every difference.
    """

    def __init__(self, folder: Path, header: dict[str, Any]):
        self.path = folder / FILE
        self.rows: list[dict[str, Any]] = []
        found = None
        if self.path.exists():
            found, self.rows, size = read(self.path)
            os.truncate(self.path, size)
        if found is None or not self.rows:  # nothing has been answered yet
            write_text(self.path, json.dumps(header) + "\n")
        elif changes := differences(found, header):
            raise ValueError(
                f"{self.path} holds another evaluation ({'; '.join(changes)}); give this one "
                f"another name=..., or remove that file"
            )

    def append(self, row: dict[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self.rows.append(row)
