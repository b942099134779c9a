"""The blocks that a section of the page is made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from markdown_it import MarkdownIt
from markdown_it.common.utils import escapeHtml

# Tables, headings, lists and indented code; within a line, text is text and nothing else.
PARSER = MarkdownIt("zero").enable(["table", "heading", "list", "code"])
PARSER.renderer.rules |= {
    "text": lambda tokens, n, options, env: escapeHtml(tokens[n].content).replace("/", "/<wbr>"),
    "table_open": lambda *_: '<div class="wide" tabindex="0">\n<table>\n',
    "table_close": lambda *_: "</table>\n</div>\n",
    "th_open": lambda *_: '<th scope="col"><button type="button">',
    "th_close": lambda *_: "</button></th>\n",
}


@dataclass(frozen=True)
class Paragraph:
    kind: ClassVar = "paragraph"
    text: str


@dataclass(frozen=True)
class Code:
    """Text as it is, in letters of one width."""

    kind: ClassVar = "code"
    text: str


@dataclass(frozen=True)
class Markdown:
    """A text of the project with tables."""

    kind: ClassVar = "markdown"
    text: str

    @property
    def has_table(self) -> bool:
        return any(token.type == "table_open" for token in PARSER.parse(self.text))


@dataclass(frozen=True)
class Heading:
    kind: ClassVar = "heading"
    text: str


@dataclass(frozen=True)
class Link:
    """A cell that leads to a place on the page."""

    text: str
    to: str


@dataclass(frozen=True)
class Table:
    kind: ClassVar = "table"
    head: Sequence[str]
    rows: Sequence[Sequence[str | Link]]
    caption: str = ""


@dataclass(frozen=True)
class Pictures:
    """Files side by side, each with its name below."""

    kind: ClassVar = "pictures"
    paths: Sequence[Path]


@dataclass(frozen=True)
class Details:
    """What is shown when its title is clicked."""

    kind: ClassVar = "details"
    title: str
    blocks: Sequence[Block] = field(default_factory=tuple)


Block = Paragraph | Code | Markdown | Heading | Table | Pictures | Details


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
