"""Pages of HTML from the templates beside this file, which need nothing but themselves.

Jinja2 and markdown-it escape all values. A policy in the head of a page allows no script but the
page's own.
"""

from __future__ import annotations

import base64
import hashlib
import re
import textwrap
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markdown_it import MarkdownIt
from markdown_it.common.utils import escapeHtml
from markupsafe import Markup

from tape.evaluation.tables import markdown_table
from tape.training.report import printable

LARGEST = 2 * 2**20  # bytes of a picture
BEGIN, END = b"\x89PNG\r\n\x1a\n", b"IEND\xaeB`\x82"
NUMBER = re.compile(r"[-+\N{MINUS SIGN}]?[\d,]*\.?\d[\s\S]{,20}|-|")
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


class Pictures(NamedTuple):
    """PNG files side by side, each with its name below."""

    paths: Sequence[Path]


class Details(NamedTuple):
    """Blocks that a click on the title shows."""

    title: str
    blocks: Sequence[Block]


Block = str | Pictures | Details  # a string is markdown


def code(text: str) -> str:
    """Returns text as it is, as a block of markdown."""
    return textwrap.indent(text, "    ", lambda line: True)


def has_table(text: str) -> bool:
    return any(token.type == "table_open" for token in PARSER.parse(text))


def number(value: Any) -> str:
    """Formats integers in groups of three and floats with at least four digits; None as ""."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.1f}" if abs(value) >= 1000 else f"{value:#.4g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def table(lines: Iterable[Iterable[object]], caption: str = "") -> str:
    """Returns lines of cells as a table of markdown; the first is its head."""
    shown = [[" ".join(str(cell).split()).replace("|", r"\|") for cell in line] for line in lines]
    return f"{caption}\n\n" * bool(caption) + markdown_table(shown)


def records(rows: Iterable[dict[Any, Any]], caption: str = "") -> str:
    """Returns a table with a column for every key, in the order of their first occurrence; integers
    are last and ascend."""
    rows = list(rows)
    keys = list(dict.fromkeys(key for row in rows for key in row))
    keys.sort(key=lambda key: key if isinstance(key, int) else -1)
    return table([keys, *([row.get(key, "") for key in keys] for row in rows)], caption)


def picture(path: Path) -> tuple[str, str]:
    """Returns a picture as a data URL, or "" and the reason why it is left out."""
    try:
        content = path.read_bytes()
    except OSError as error:
        return "", str(error)
    if len(content) > LARGEST:
        return "", f"left out: {len(content) / 2**20:.1f} MiB is too large for this page"
    if not (content.startswith(BEGIN) and content.endswith(END)):
        return "", "broken: not a complete PNG file"
    return f"data:image/png;base64,{base64.b64encode(content).decode()}", ""


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
    environment.filters["rendered"] = rendered
    fixed = {"mark": mark, "digest": _digest, "style": STYLE, "script": SCRIPT, "picture": picture}
    found = environment.get_template(template.name)
    return found.render(program=program, title=title, **fixed, **given)


def _digest(source: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}"


def rendered(text: str) -> Markup:
    """Returns markdown as HTML; cells with numbers have a class of their own."""
    tokens = PARSER.parse(printable(text))
    for token, following in pairwise(tokens):
        if token.type == "td_open" and NUMBER.fullmatch(following.content):
            token.attrSet("class", "number")
    return Markup(PARSER.renderer.render(tokens, PARSER.options, {}))
