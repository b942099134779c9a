"""Validated rows of the official files, and their questions by id."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from scrolls.sources import Source, lines_of
from scrolls.tasks import HARD, Split, Task
from tape.validation import encodable


class Row(NamedTuple):
    """One gold answer (None where the test split hides it) to a question about a document."""

    id: str
    pid: str
    question: str  # including the blank line after it; empty if there is only a document
    document: str
    output: str | None


@dataclass
class Question:
    """A question and its gold answers in row order."""

    id: str
    question: str
    outputs: list[str] = field(default_factory=list)


def read_rows(source: Source, task: Task, split: Split, with_inputs: bool = True) -> Iterator[Row]:
    """Yields the rows of a file, which may be larger than memory.

    Args:
        with_inputs: whether rows need more than an id and an answer. Without inputs, question and
            document are empty, and a row may have no pid.

    Raises:
        ValueError: for the first invalid row; names file, line and id.
    """
    pids: set[str] = set()
    any_rows = False
    for number, line in enumerate(lines_of(source), start=1):
        if not line.strip():
            continue
        row: dict[str, Any] = {}
        try:
            row = {"output": None} | _object(line)
            if not with_inputs:
                row = {"pid": f"line {number}"} | row | {"input": ""}
            for name in ("id", "pid", "input", "output"):
                if name != "output" or split != "test" or row[name] is not None:
                    _check_text(name, row.get(name))
            if row["pid"] in pids:
                raise ValueError(f"duplicate pid {row['pid']!r}")
            pids.add(row["pid"])
            if task.name == HARD and row.get("is_hard") is not True:
                continue
            start = task.document_start(row["input"]) if with_inputs else 0
        except ValueError as error:
            named = f", id {row['id']!r}" if isinstance(row.get("id"), str) else ""
            raise ValueError(f"{source}, line {number}{named}: {error}") from error
        text = row["input"]
        yield Row(row["id"], row["pid"], text[:start], text[start:], row["output"])
        any_rows = True
    if not pids:
        raise ValueError(f"{source} has no rows: fetch it again")
    if not any_rows:
        raise ValueError(f"{source} has no question with is_hard: use quality instead")


def _object(line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON ({error})") from error
    if not isinstance(row, dict):
        raise ValueError("not a JSON object")
    return row


def _check_text(name: str, value: object) -> None:
    if not isinstance(value, str):
        shown = "missing" if value is None else f"{value!r}, which is not text"
        raise ValueError(f"field {name!r} is {shown}")
    if not encodable(value):
        raise ValueError(f"field {name!r} holds a lone surrogate")


def questions_of(rows: Iterator[Row]) -> dict[str, Question]:
    """Returns the questions by id, in the order of their first rows, without documents."""
    found: dict[str, Question] = {}
    for row in rows:
        asked = found.setdefault(row.id, Question(row.id, row.question))
        if row.output is not None:
            asked.outputs.append(row.output)
    return found
