"""Every result under some folders on one page: tape report output/ scrolls/ --out report/

experiments.yaml lists the sections of the page and the kinds of results in them (kinds.py).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from importlib import import_module
from os.path import realpath
from pathlib import Path
from typing import Literal, NamedTuple

import yaml
from tqdm import tqdm

from tape.command import Parser, expected_errors
from tape.evaluation.journal import Incomplete, join
from tape.files import write_text
from tape.provenance import commit, machine
from tape.results import html
from tape.results.html import Block, Details, records, table
from tape.results.kinds import (
    TABLE,
    Found,
    Kind,
    has,
    is_run,
    kind_of,
    natural,
    read_comparison,
    read_run,
    rows_of,
)
from tape.results.runs import RESULTS

PROGRAM = "tape.results.report"
INDEX = "index.html"
HERE = Path(__file__).parent
OTHER = "other"  # the section of what belongs to no experiment
HELP = "python -m tape.results.report --help"
# Checkpoints of runs and journals of evaluations: their results are beside them.
INTERNAL_FOLDERS = re.compile(r"\..*|checkpoint-\d+|shard-\d+-of-\d+|__pycache__")


class Experiment(NamedTuple):
    """A section of the page.

    Attributes:
        name: anchor of the section.
        about: the question of the experiment.
        kinds: its results, summaries first.
        paper: tables of the paper that the results do not contain.
    """

    name: str
    title: str
    about: str
    kinds: Sequence[Kind]
    paper: Sequence[Block] = ()


class Fault(NamedTuple):
    """A folder with results that cannot be shown, and why."""

    path: Path
    state: Literal["unfinished", "broken"]
    message: str


@dataclass
class Section:
    """The results of an experiment.

    Attributes:
        found: number of results by title of their kind.
        missing: kinds without results.
    """

    experiment: Experiment
    found: dict[str, int] = field(default_factory=dict)
    missing: list[Kind] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)


def experiments() -> list[Experiment]:
    """Returns the sections of the page: the experiments of experiments.yaml, and one of all other
    results. An entry with `module` is that module's EXPERIMENT, which builds on this package."""
    found = []
    for entry in yaml.safe_load((HERE / "experiments.yaml").read_text(encoding="utf-8")):
        if "module" in entry:
            found.append(import_module(entry["module"]).EXPERIMENT)
            continue
        tables = {HERE / "paper" / f"{name}.csv": t for name, t in entry.get("paper", {}).items()}
        paper = [records(rows_of(path), caption) for path, caption in tables.items()]
        if "folded" in entry:
            paper = [Details(entry["folded"], paper)]
        kinds = [kind_of(**kind) for kind in entry["kinds"]]
        found.append(Experiment(entry["name"], entry["title"], entry["about"], kinds, paper))
    about = "What belongs to none of the experiments above."
    kinds = [
        Kind("comparisons", HELP, is_comparison, read_other),
        Kind("runs", HELP, is_run, read_run),
        # `join` raises Incomplete. Complete journals have their results elsewhere.
        Kind("evaluations", HELP, has_journals, lambda folder: join(folder) and None),
    ]
    return [*found, Experiment(OTHER, "Other results", about, kinds)]


def read_other(folder: Path) -> Found:
    if not (has(TABLE, folder) or has(RESULTS, folder)):
        raise Incomplete("only what runs printed: the comparison was not finished, or has failed")
    return read_comparison(folder)


def is_comparison(folder: Path) -> bool:
    """Returns whether a folder has a comparison, or only the logs of its runs, as before all of
    them are evaluated. (Several comparisons of the same runs have a folder each within it.)"""
    names = [path.name for path in folder.iterdir() if not path.name.startswith(".")]
    under_way = bool(names) and all(name.endswith((".log", ".finished")) for name in names)
    of_scrolls = {TABLE, "table.csv"} <= {*names}
    return under_way or (not of_scrolls and not {TABLE, RESULTS}.isdisjoint(names))


def has_journals(folder: Path) -> bool:
    return any(folder.glob("shard-*-of-*"))


def walk(root: Path, leave_out: Path, faults: list[Fault]) -> Iterator[Path]:
    """Yields `root` and all folders under it, in natural order.

    Args:
        leave_out: a folder to skip.
        faults: gets the folders that cannot be read.
    """

    def refused(error: OSError) -> None:
        faults.append(Fault(Path(error.filename), "broken", error.strerror or str(error)))

    seen = {realpath(leave_out), realpath(root)}  # links may lead in circles
    for name, folders, _ in os.walk(root, onerror=refused, followlinks=True):
        path = Path(name)
        if os.access(path, os.R_OK | os.X_OK):
            yield path
        inside = sorted(
            (each for each in folders if not INTERNAL_FOLDERS.fullmatch(each)), key=natural
        )
        folders.clear()
        for folder in sorted(inside, key=lambda each: (path / each).is_symlink()):
            if (target := realpath(path / folder)) not in seen:
                seen.add(target)
                folders.append(folder)


def gather(
    experiment: Experiment, folders: Sequence[Path], taken: set[tuple[str, Path]]
) -> Section:
    """Reads and formats all results of an experiment. Unreadable results become faults.

    Args:
        taken: titles of kinds and folders of earlier experiments, which the last one leaves out;
            those of this one are added.
    """
    section = Section(experiment)
    for kind in experiment.kinds:
        results = []
        held = [folder for folder in folders if kind.holds(folder)]
        if experiment.name == OTHER:
            held = [folder for folder in held if (kind.title, folder) not in taken]
        taken.update((kind.title, folder) for folder in held)
        for folder in held:
            try:
                found = kind.read(folder)
            except Incomplete as error:
                section.faults.append(Fault(folder, "unfinished", str(error)))
            except (OSError, ValueError) as error:
                section.faults.append(Fault(folder, "broken", str(error)))
            except Exception as error:  # damaged files can raise anything in a reader
                why = f"{kind.title} cannot be read: {type(error).__name__}: {error}"
                section.faults.append(Fault(folder, "broken", why))
            else:
                results += [found] if found is not None else []
                if found is not None and found.left is not None:
                    section.faults.append(Fault(folder, "unfinished", found.left))
        if results:
            section.found[kind.title] = len(results)
            rows = [row for found in results for row in found.rows]
            section.blocks += [kind.table(rows)] if rows else []
            section.blocks += [block for found in results for block in found.blocks]
        else:
            section.missing.append(kind)
        if kind is experiment.kinds[0]:  # the paper's numbers stand next to the summaries
            section.blocks += experiment.paper
    return section


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
    found = {realpath(path): path for root in folders for path in walk(root, out, faults)}
    paths, taken = list(found.values()), set()
    sections = [gather(each, paths, taken) for each in tqdm(experiments(), disable=None)]
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


def overview(sections: Sequence[Section], faults: Sequence[Fault]) -> list[str]:
    """Tables of results, faults, and commands for missing results."""
    rows, missing = [["experiment", "found", "unfinished", "broken"]], []
    for section in sections:
        experiment = section.experiment
        found = ", ".join(f"{title}: {count}" for title, count in section.found.items())
        states = [fault.state for fault in section.faults]
        counts = [str(states.count(state) or "-") for state in ("unfinished", "broken")]
        if found or section.faults or experiment.name != OTHER:
            rows.append([experiment.title, found or "nothing", *counts])
        if experiment.name != OTHER:
            missing += [[experiment.title, kind.title, kind.command] for kind in section.missing]
    blocks = [table(rows)]
    if faults:
        blocks += ["### Unfinished and broken", table([["place", "state", "why"], *faults])]
    if missing:
        head = ["experiment", "nothing found of", "what makes it"]
        blocks += ["### Missing", table([head, *missing])]
    return blocks


def check_out(out: Path) -> None:
    """Raises a ValueError for a folder that holds anything but a report."""
    files = sorted(path.name for path in out.iterdir()) if out.is_dir() else []
    ours = files == [INDEX] and html.mark(PROGRAM) in (out / INDEX).read_text(errors="replace")
    if (out.exists() and not out.is_dir()) or (files and not ours):
        found = ", ".join(files[:3]) or out.name
        raise ValueError(
            f"--out {out} is neither empty nor a report ({found}): give a new or empty folder"
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
