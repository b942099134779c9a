"""Pages of HTML from the templates beside this file, which need nothing but themselves.

Jinja2 escapes all values. A policy in the head of a page allows no script but the page's own.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markdown_it import MarkdownIt
from markdown_it.common.utils import escapeHtml
from markupsafe import Markup, escape

from tape.training.report import printable

LARGEST = 2 * 2**20  # bytes of a picture
ALBUM = 24 * 2**20  # bytes of all pictures of a page
BEGIN, END = b"\x89PNG\r\n\x1a\n", b"IEND\xaeB`\x82"
NUMBER = re.compile(r"[-+\N{MINUS SIGN}]?[\d,]*\.?\d[\s\S]*|-|")
TEMPLATES = Path(__file__).with_name("templates")
STYLE, SCRIPT = ((TEMPLATES / name).read_text() for name in ("page.css", "page.js"))

# Tables, headings, lists and indented code; within a line, text is text and nothing else.
PARSER = MarkdownIt("zero").enable(["table", "heading", "list", "code"])
PARSER.renderer.rules |= {
    "text": lambda tokens, n, options, env: escapeHtml(tokens[n].content).replace("/", "/<wbr>"),
    "table_open": lambda *_: '<div class="wide" tabindex="0">\n<table>\n',
    "table_close": lambda *_: "</table>\n</div>\n",
    "th_open": lambda *_: '<th scope="col"><button type="button">',
    "th_close": lambda *_: "</button></th>\n",
}


# ---- blocks: the parts of a section, each with a macro of its name in blocks.html


class Paragraph(NamedTuple):
    text: str


class Code(NamedTuple):
    text: str


class Heading(NamedTuple):
    text: str


class Markdown(NamedTuple):
    text: str

    @property
    def has_table(self) -> bool:
        return any(token.type == "table_open" for token in PARSER.parse(self.text))


class Link(NamedTuple):
    """A cell that links to a section of the page."""

    text: str
    to: str


class Table(NamedTuple):
    head: Sequence[str]
    rows: Sequence[Sequence[str | Link]]
    caption: str = ""


class Pictures(NamedTuple):
    """PNG files side by side, each with its name below."""

    paths: Sequence[Path]


class Details(NamedTuple):
    """Blocks that a click on the title shows."""

    title: str
    blocks: Sequence[Block]


Block = Paragraph | Code | Markdown | Heading | Table | Pictures | Details


def number(value: Any) -> str:
    """Formats integers in groups of three and floats with at least four digits; None as ""."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.1f}" if abs(value) >= 1000 else f"{value:#.4g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def records(rows: Iterable[dict[str, Any]], caption: str = "", missing: str = "") -> Table:
    """Returns a table with a column for every key, in the order of their first occurrence."""
    rows = list(rows)
    head = list(dict.fromkeys(key for row in rows for key in row))
    return Table(head, [[row.get(key, missing) for key in head] for row in rows], caption)


# ---- pages


class Album:
    """The pictures of a page, with a limit for each and for all."""

    def __init__(self, largest: int = LARGEST, limit: int = ALBUM):
        self.largest, self.left = largest, limit

    def data(self, path: Path) -> str:
        """Returns a picture as a data URL.

        Raises:
            OSError, ValueError: if it cannot be read, is not whole, or is too large.
        """
        if (size := path.stat().st_size) > self.largest:
            raise ValueError(f"left out: {size / 2**20:.1f} MiB is too large for this page")
        content = path.read_bytes()
        if not (content.startswith(BEGIN) and content.endswith(END)):
            raise ValueError("broken: not a complete PNG file")
        if len(content) > self.left:
            raise ValueError("left out: the pictures before it fill the space allowed for pictures")
        self.left -= len(content)
        return f"data:image/png;base64,{base64.b64encode(content).decode()}"

    def picture(self, path: Path) -> tuple[str, str]:
        """Returns the data URL of a picture, or the reason why it is left out."""
        try:
            return self.data(path), ""
        except (OSError, ValueError) as error:
            return "", str(error)


def mark(program: str) -> str:
    """Returns the tag that identifies the pages of a program."""
    return f'<meta name="generator" content="{program}">'


def page(template: Path, program: str, title: str, **given: Any) -> str:
    """Renders a template that extends base.html.

    Args:
        program: name of the generating program.
        given: variables of the template.
    """
    environment = Environment(
        loader=FileSystemLoader([template.parent, TEMPLATES]),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
        finalize=lambda value: value if isinstance(value, Markup) else printable(str(value)),
    )
    environment.filters |= {"rendered": _rendered, "breakable": _breakable}
    environment.tests["number_like"] = is_number
    fixed = {"mark": mark, "digest": _digest, "style": STYLE, "script": SCRIPT, "album": Album()}
    found = environment.get_template(template.name)
    return found.render(program=program, title=title, **fixed, **given)


def _digest(source: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}"


def is_number(cell: str) -> bool:
    """Returns whether a cell of a table is set as a number."""
    return NUMBER.fullmatch(cell) is not None and len(cell) < 24


def _breakable(text: str) -> Markup:
    """Allows line breaks after slashes, as in paths."""
    return escape(printable(text)).replace("/", Markup("/<wbr>"))


def _rendered(block: Markdown) -> Markup:
    tokens = PARSER.parse(printable(block.text))
    for token, following in pairwise(tokens):
        if token.type == "td_open" and is_number(following.content):
            token.attrSet("class", "number")
    return Markup(PARSER.renderer.render(tokens, PARSER.options, {}))
