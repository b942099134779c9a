"""A page of HTML that needs nothing but itself, from page.html.

Jinja2 and markdown-it escape all values. A policy in the head of the page allows no script.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markdown_it import MarkdownIt
from markupsafe import Markup

from tape.training.report import printable

# Identifies the pages of this program.
MARK = '<meta name="generator" content="tape.results.report">'
BEGIN, END = b"\x89PNG\r\n\x1a\n", b"IEND\xaeB`\x82"
# Tables, headings, lists and indented code; within a line, text is text and nothing else.
PARSER = MarkdownIt("zero").enable(["table", "heading", "list", "code"])


def page(**given: Any) -> str:
    """Renders the template, of which `given` are the variables."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: value if isinstance(value, Markup) else printable(str(value)),
    )
    environment.filters["rendered"] = lambda text: Markup(PARSER.render(printable(text)))
    return environment.get_template("page.html").render(mark=Markup(MARK), **given)


def embedded(path: Path) -> str:
    """Returns a PNG file as a data URL.

    Raises:
        ValueError: if it is not complete.
    """
    content = path.read_bytes()
    if not (content.startswith(BEGIN) and content.endswith(END)):
        raise ValueError(f"{path} is not a complete PNG file: draw it again")
    return f"data:image/png;base64,{base64.b64encode(content).decode()}"
