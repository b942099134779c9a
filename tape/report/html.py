"""Blocks as html. Whatever was read from a file is escaped here, and nowhere else."""

from __future__ import annotations

import base64
import html
import re
from pathlib import Path

from tape.report.blocks import (
    Block,
    Code,
    Details,
    Heading,
    Link,
    Paragraph,
    Pictures,
    Table,
)
from tape.training.report import printable

LARGEST = 2 * 2**20  # bytes of a picture
ALBUM = 24 * 2**20  # of all pictures: a page that a browser opens at once
BEGIN, END = b"\x89PNG\r\n\x1a\n", b"IEND\xaeB`\x82"
NUMBER = re.compile(r"[-+\N{MINUS SIGN}]?[\d,]*\.?\d[\s\S]*|-|")


def text(value: str) -> str:
    """Escaped, with a sign in place of what no page may hold: control characters, and bytes of file
    names that are no UTF-8."""
    return html.escape(printable(value))


class Album:
    """The pictures of a page, within a limit for each and for all."""

    def __init__(self, largest: int = LARGEST, limit: int = ALBUM):
        self.largest, self.left = largest, limit

    def data(self, path: Path) -> str:
        """A picture as an address that holds it.

        Raises:
            OSError, ValueError: if it cannot be read, is not whole, or is too large.
        """
        if (size := path.stat().st_size) > self.largest:
            raise ValueError(f"left out: {size / 2**20:.1f} MiB are too many for this page")
        content = path.read_bytes()
        if not (content.startswith(BEGIN) and content.endswith(END)):
            raise ValueError("broken: not a whole png file")
        if len(content) > self.left:
            raise ValueError("left out: the pictures before it are as many as this page may hold")
        self.left -= len(content)
        return f"data:image/png;base64,{base64.b64encode(content).decode()}"


def render(blocks: list[Block] | tuple[Block, ...], album: Album) -> str:
    """Blocks one after the other."""
    return "".join(_render(block, album) for block in blocks)


def _render(block: Block, album: Album) -> str:
    match block:
        case Paragraph():
            return f"<p>{text(block.text)}</p>\n"
        case Code():
            return f"<pre>{text(block.text)}</pre>\n"
        case Heading():
            return f"<h3>{text(block.text)}</h3>\n"
        case Table():
            return table(block)
        case Pictures():
            figures = "".join(picture(path, album) for path in block.paths)
            return f'<div class="pictures">\n{figures}</div>\n' if figures else ""
        case Details():
            inside = render(block.blocks, album)
            return f"<details><summary>{text(block.title)}</summary>\n{inside}</details>\n"


def table(block: Table) -> str:
    """Every title is a button that sorts; what is wider than the page scrolls by itself."""
    head = "".join(
        f'<th scope="col"><button type="button">{text(title) or "&nbsp;"}</button></th>'
        for title in block.head
    )
    rows = "".join(f"<tr>{''.join(map(_cell, row))}</tr>\n" for row in block.rows)
    caption = f'<p class="faint">{text(block.caption)}</p>\n' if block.caption else ""
    return (
        f'{caption}<div class="wide" tabindex="0">\n<table><thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{rows}</tbody></table>\n</div>\n"
    )


def _cell(value: str | Link) -> str:
    if isinstance(value, Link):
        return f'<td><a href="#{text(value.to)}">{text(value.text)}</a></td>'
    kind = ' class="number"' if NUMBER.fullmatch(value) and len(value) < 24 else ""
    return f"<td{kind}>{text(value).replace('/', '/<wbr>')}</td>"  # where a path may break


def picture(path: Path, album: Album) -> str:
    name = text(str(path))
    try:
        shown = f'<img alt="{name}" src="{album.data(path)}" decoding="async">'
    except (OSError, ValueError) as error:
        shown = f'<p class="fault">{text(str(error))}</p>'
    return f"<figure>{shown}<figcaption>{name}</figcaption></figure>\n"
