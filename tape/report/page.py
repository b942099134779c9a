"""The page: an overview of what was found and what was not, then a section for each experiment."""

from __future__ import annotations

from collections.abc import Sequence

from tape.report import html
from tape.report.blocks import Block, Heading, Link, Table
from tape.report.experiment import Section
from tape.report.finding import Fault

PROGRAM = "tape.report"


def page(title: str, about: Sequence[str], sections: Sequence[Section], others: list[Fault]) -> str:
    """Returns the whole page.

    Args:
        about: lines below the title.
        others: faults of no experiment.
    """
    overview = summary(sections, others)
    given = {"about": about, "overview": overview, "sections": sections}
    return html.page(html.TEMPLATES / "page.html", PROGRAM, title, **given)


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
