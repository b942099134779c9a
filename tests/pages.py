"""The pages of the documentation, and what is written in them."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results"
DOCS = sorted([*ROOT.glob("docs/*.md"), *ROOT.glob("docs/lab_notebook/*.md")])
PAGES = sorted([*ROOT.glob("*.md"), *DOCS, *ROOT.glob("[a-z]*/README.md")])


def page(name):
    return (ROOT / "docs" / f"{name}.md").read_text()


def said(name):
    """A page as one line."""
    return " ".join(page(name).split())


def check_shown(name, *numbers):
    """Each number stands on a page, and is not a part of a longer one."""
    for number in numbers:
        assert re.search(rf"(?<![\d.]){re.escape(number)}(?!\.?\d)", said(name)), (name, number)


def blocks(page, language):
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)


def table_of(name, head):
    """The rows of a page's table whose first cell is `head`."""
    (table,) = re.findall(rf"^\| {head} \|.*\n(?:\|.*\n)+", page(name), re.MULTILINE)
    return rows_of(table)


def rows_of(table):
    return [re.split(r" *\| *", row)[1:-1] for row in table.splitlines() if row.startswith("|")]
