"""python -m tape.results.report output/ scrolls/ --out report/"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from os.path import realpath
from pathlib import Path

from tqdm import tqdm

from tape.command import Parser, expected_errors
from tape.files import write_text
from tape.provenance import commit, machine
from tape.results import html
from tape.results.experiment import Fault, Section, gather, walk
from tape.results.experiments import experiments
from tape.results.html import Block, Heading, Link, Table

PROGRAM = "tape.results.report"
INDEX = "index.html"


def run(folders: Sequence[Path], out: Path) -> str:
    """Writes out/index.html; returns a line that counts its results.

    Raises:
        ValueError, OSError: if there are no results, or `out` holds anything but a report.
    """
    check_out(out)
    for folder in folders:
        if not folder.is_dir():
            raise ValueError(
                f"{folder} is not a folder: give folders with results, such as output/"
            )
    faults: list[Fault] = []
    found = {realpath(each.path): each for root in folders for each in walk(root, out, faults)}
    sections = [
        gather(experiment, list(found.values())) for experiment in tqdm(experiments(), disable=None)
    ]
    faults[:0] = [fault for section in sections for fault in section.faults]
    count = sum(sum(section.found.values()) for section in sections)
    names = ", ".join(map(str, folders))
    if not count and not faults:
        command = sections[0].missing[-1].command
        raise ValueError(f"no results in {names}: to create the first, run {command}")
    now = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
    about = [
        f"Made {now} at commit {commit() or 'unknown'} on {machine()}.",
        "A click on the title of a column sorts by it.",
    ]
    given = {"about": about, "overview": overview(sections, faults), "sections": sections}
    text = html.page(html.TEMPLATES / "page.html", PROGRAM, f"Results in {names}", **given)
    write_text(out / INDEX, text)
    unfinished = sum(fault.state == "unfinished" for fault in faults)
    return (
        f"{out / INDEX}: {count} results, {unfinished} unfinished, {len(faults) - unfinished} "
        f"broken, {len(text.encode()) / 2**20:.1f} MiB"
    )


def overview(sections: Sequence[Section], faults: Sequence[Fault]) -> list[Block]:
    """Tables of results, faults, and commands for missing results."""
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
    blocks: list[Block] = [Table(["experiment", "found", "unfinished", "broken"], rows)]
    if faults:
        cells = [[str(fault.path), fault.state, fault.message] for fault in faults]
        blocks += [Heading("Unfinished and broken"), Table(["place", "state", "why"], cells)]
    if missing:
        head = ["experiment", "nothing found of", "what makes it"]
        blocks += [Heading("Missing"), Table(head, missing)]
    return blocks


def check_out(out: Path) -> None:
    """Raises a ValueError for a folder that holds anything but a report."""
    if not out.exists():
        return
    files = {path.name for path in out.iterdir()} if out.is_dir() else {out.name}
    if out.is_dir() and not files:
        return
    if out.is_dir() and files == {INDEX}:
        with (out / INDEX).open(encoding="utf-8", errors="replace") as file:
            if html.mark(PROGRAM) in file.read(1000):
                return
    raise ValueError(
        f"--out {out} is neither empty nor a report "
        f"({', '.join(sorted(files)[:3])}): give a new or empty folder"
    )


@expected_errors()
def main(given: list[str] | None = None) -> None:
    parser = Parser(
        prog="python -m tape.results.report",
        description="Every result under some folders on one page of html.",
    )
    add = parser.add_argument
    add("folders", type=Path, nargs="+", help="with results: output, scrolls")
    add("--out", type=Path, default=Path("report"), help="a folder (default: report)")
    arguments = parser.parse_args(given)
    print(run(arguments.folders, arguments.out))


if __name__ == "__main__":
    main()
