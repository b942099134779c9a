"""The page: what was found and what was not, then a section for each experiment.

It needs nothing but itself, and runs no script but its own: a policy in its head allows these only.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from pathlib import Path

from tape.report.blocks import Block, Heading, Link, Paragraph, Table
from tape.report.experiment import Section
from tape.report.finding import Fault
from tape.report.html import Album, render, text

GENERATOR = '<meta name="generator" content="tape.report">'
STYLE, SCRIPT = (Path(__file__).with_name(name).read_text() for name in ("page.css", "page.js"))


def page(title: str, about: Sequence[str], sections: Sequence[Section], others: list[Fault]) -> str:
    """The whole page.

    Args:
        about: lines below the title.
        others: faults of no experiment.
    """
    album = Album()
    lines = "".join(f'<p class="faint">{text(line)}</p>\n' for line in about)
    overview = render(summary(sections, others), album)
    parts = "".join(_section(section, album) for section in sections if section.found)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
{GENERATOR}
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; \
style-src '{_digest(STYLE)}'; script-src '{_digest(SCRIPT)}'">
<title>{text(title)}</title>
<style>{STYLE}</style>
</head>
<body>
<button id="theme" type="button">light / dark</button>
<h1>{text(title)}</h1>
{lines}{overview}{parts}<script>{SCRIPT}</script>
</body>
</html>
"""


def _digest(source: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}"


def summary(sections: Sequence[Section], others: list[Fault]) -> list[Block]:
    """What was found, what is not whole, and what is missing."""
    rows, missing = [], []
    for section in sections:
        experiment = section.experiment
        found = ", ".join(f"{title}: {count}" for title, count in section.found.items())
        name = Link(experiment.title, experiment.name) if found else experiment.title
        states = [fault.state for fault in section.faults]
        counts = [str(states.count(state) or "-") for state in ("unfinished", "broken")]
        if found or section.faults or experiment.name != "other":
            rows.append([name, found or "nothing", *counts])
        if experiment.name != "other":
            missing += [[experiment.title, kind.title, kind.command] for kind in section.missing]
    blocks: list[Block] = [
        Table(["experiment", "found", "unfinished", "broken"], rows),
    ]
    if faults := [*(fault for section in sections for fault in section.faults), *others]:
        cells = [[str(fault.path), fault.state, fault.message] for fault in faults]
        blocks += [Heading("Unfinished and broken"), Table(["place", "state", "why"], cells)]
    if missing:
        head = ["experiment", "nothing found of", "what makes it"]
        blocks += [Heading("Missing"), Table(head, missing)]
    return blocks


def _section(section: Section, album: Album) -> str:
    experiment = section.experiment
    inside = render([Paragraph(experiment.about), *section.blocks], album)
    title = f"<h2>{text(experiment.title)}</h2>"
    return f'<section id="{text(experiment.name)}">\n{title}\n{inside}</section>\n'
