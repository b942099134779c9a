"""Pages of HTML that need nothing but themselves, from page.html and templates that extend it.

Jinja2 and markdown-it escape all values. A policy in the head of a page allows no script.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markdown_it import MarkdownIt
from markupsafe import Markup

from tape.training.report import printable

TEMPLATE = Path(__file__).with_name("page.html")
BEGIN, END = b"\x89PNG\r\n\x1a\n", b"IEND\xaeB`\x82"
# Tables, headings, lists and indented code; within a line, text is text and nothing else.
PARSER = MarkdownIt("zero").enable(["table", "heading", "list", "code"])


def mark(program: str) -> str:
    """Returns the tag that identifies the pages of a program."""
    return f'<meta name="generator" content="{program}">'


def page(template: Path, program: str, title: str, **given: Any) -> str:
    """Renders page.html or a template that extends it.

    Args:
        program: name of the generating program.
        given: variables of the template.
    """
    environment = Environment(
        loader=FileSystemLoader([template.parent, TEMPLATE.parent]),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: value if isinstance(value, Markup) else printable(str(value)),
    )
    environment.filters["rendered"] = lambda text: Markup(PARSER.render(printable(text)))
    found = environment.get_template(template.name)
    return found.render(program=program, title=title, mark=mark, **given)


def embedded(path: Path) -> str:
    """Returns a PNG file as a data URL.

    Raises:
        ValueError: if it is not complete.
    """
    content = path.read_bytes()
    if not (content.startswith(BEGIN) and content.endswith(END)):
        raise ValueError(f"{path} is not a complete PNG file: draw it again")
    return f"data:image/png;base64,{base64.b64encode(content).decode()}"
