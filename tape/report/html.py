"""Pages of HTML from the templates beside this file, which need nothing but themselves.

Jinja2 escapes whatever is put into them. A page runs no script but its own: a policy in its head
allows these only.
"""

from __future__ import annotations

import base64
import hashlib
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from tape.report.blocks import PARSER, Markdown
from tape.training.report import printable

LARGEST = 2 * 2**20  # bytes of a picture
ALBUM = 24 * 2**20  # of all pictures: a page that a browser opens at once
BEGIN, END = b"\x89PNG\r\n\x1a\n", b"IEND\xaeB`\x82"
NUMBER = re.compile(r"[-+\N{MINUS SIGN}]?[\d,]*\.?\d[\s\S]*|-|")
TEMPLATES = Path(__file__).with_name("templates")
STYLE, SCRIPT = ((TEMPLATES / name).read_text() for name in ("page.css", "page.js"))


class Album:
    """The pictures of a page, within a limit for each and for all."""

    def __init__(self, largest: int = LARGEST, limit: int = ALBUM):
        self.largest, self.left = largest, limit

    def data(self, path: Path) -> str:
        """Returns a picture as an address that holds it.

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
        """Returns the address of a picture, or why it is left out."""
        try:
            return self.data(path), ""
        except (OSError, ValueError) as error:
            return "", str(error)


def mark(program: str) -> str:
    """Returns what a page of this program is known by."""
    return f'<meta name="generator" content="{program}">'


def page(template: Path, program: str, title: str, **given: Any) -> str:
    """Returns a page.

    Args:
        template: extends base.html.
        program: that makes the page.
        given: what it shows.
    """
    return (
        _environment(template.parent)
        .get_template(template.name)
        .render(
            program=program,
            mark=mark,
            title=title,
            album=Album(),
            style=STYLE,
            script=SCRIPT,
            digest=_digest,
            **given,
        )
    )


def _environment(folder: Path) -> Environment:
    environment = Environment(
        loader=FileSystemLoader([folder, TEMPLATES]),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
        finalize=lambda value: value if isinstance(value, Markup) else printable(str(value)),
    )
    environment.filters |= {"rendered": _rendered, "breakable": _breakable}
    environment.tests["number_like"] = is_number
    return environment


def _digest(source: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}"


def is_number(cell: str) -> bool:
    """Whether a cell of a table is set as a number."""
    return NUMBER.fullmatch(cell) is not None and len(cell) < 24


def _breakable(text: str) -> Markup:
    """A text that may break behind a slash, as a path has them."""
    return escape(printable(text)).replace("/", Markup("/<wbr>"))


def _rendered(block: Markdown) -> Markup:
    tokens = PARSER.parse(printable(block.text))
    for token, following in pairwise(tokens):
        if token.type == "td_open" and is_number(following.content):
            token.attrSet("class", "number")
    return Markup(PARSER.renderer.render(tokens, PARSER.options, {}))
