"""What a section of the page is made of, and tables of markdown as such blocks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Paragraph:
    text: str


@dataclass(frozen=True)
class Code:
    """Text as it is, in letters of one width."""

    text: str


@dataclass(frozen=True)
class Heading:
    text: str


@dataclass(frozen=True)
class Link:
    """A cell that leads to a place on the page."""

    text: str
    to: str


@dataclass(frozen=True)
class Table:
    head: Sequence[str]
    rows: Sequence[Sequence[str | Link]]
    caption: str = ""


@dataclass(frozen=True)
class Pictures:
    """Files side by side, each with its name below."""

    paths: Sequence[Path]


@dataclass(frozen=True)
class Details:
    """What is shown when its title is clicked."""

    title: str
    blocks: Sequence[Block] = field(default_factory=tuple)


Block = Paragraph | Code | Heading | Table | Pictures | Details


def number(value: Any) -> str:
    """Whole numbers in groups of three, others with four digits or more; "" of nothing."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.1f}" if abs(value) >= 1000 else f"{value:#.4g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def records(rows: Iterable[dict[str, str]], caption: str = "") -> Table:
    """A table with a column for every key, in the order in which they come."""
    rows = list(rows)
    head = list(dict.fromkeys(key for row in rows for key in row))
    return Table(head, [[row.get(key, "") for key in head] for row in rows], caption)


def from_markdown(text: str) -> list[Block]:
    """The tables, headings, paragraphs, lists and indented lines of a text of the project."""
    blocks: list[Block] = []
    for part in re.split(r"\n\s*\n", text.strip("\n")):
        lines = part.splitlines()
        if part.startswith("    "):
            before = blocks.pop().text + "\n\n" if blocks and isinstance(blocks[-1], Code) else ""
            blocks.append(Code(before + "\n".join(line[4:] for line in lines)))
        elif len(lines) > 1 and part.startswith("|") and set(lines[1]) <= set("|-: "):
            head, _, *rows = (cells(line) for line in lines)
            blocks.append(Table(head, rows))
        elif part.startswith("* "):
            blocks += [Paragraph(line) for line in lines]
        elif part.startswith("#"):
            blocks.append(Heading(part.lstrip("# ")))
        elif part.strip():
            blocks.append(Paragraph(" ".join(lines)))
    return blocks


def cells(line: str) -> list[str]:
    """Of a line | of | a | table |, in which \\| is no border."""
    inside = line.strip().removeprefix("|").removesuffix("|")
    return [part.strip().replace("\\|", "|") for part in re.split(r"(?<!\\)\|", inside)]
