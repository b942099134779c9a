"""Folders of results, and experiments that recognise, read and show them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from os.path import realpath
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from tape.evaluation.journal import Incomplete
from tape.results.html import Block

Result = TypeVar("Result")
# Checkpoints of runs and journals of evaluations: their results are beside them.
INTERNAL_FOLDERS = re.compile(r"\..*|checkpoint-\d+|shard-\d+-of-\d+|__pycache__")


@dataclass(frozen=True)
class Folder:
    """A folder and the names in it, without hidden files."""

    path: Path
    files: frozenset[str]
    folders: frozenset[str]

    def has(self, *names: str) -> bool:
        """Returns whether all of these files exist."""
        return self.files.issuperset(names)

    @property
    def pictures(self) -> list[Path]:
        return [self.path / name for name in sorted(self.files, key=natural) if is_png(name)]


Read = list[tuple[Folder, Result]]


class Fault(NamedTuple):
    """A folder with results that cannot be shown, and why."""

    path: Path
    state: Literal["unfinished", "broken"]
    message: str


def is_png(name: str) -> bool:
    return name.lower().endswith(".png")


def natural(name: str) -> list[tuple[int, str]]:
    """A sort key that orders numbers by value: run_2 before run_10."""
    parts = re.split(r"(\d+)", name)
    return [(int(part), "") if n % 2 else (-1, part) for n, part in enumerate(parts)]


def walk(root: Path, leave_out: Path, faults: list[Fault]) -> Iterator[Folder]:
    """Yields `root` and all folders under it, in natural order.

    Args:
        leave_out: a folder to skip.
        faults: gets the folders that cannot be read.
    """

    def refused(error: OSError) -> None:
        faults.append(Fault(Path(error.filename), "broken", error.strerror or str(error)))

    seen = {realpath(leave_out), realpath(root)}  # links may lead in circles
    for name, folders, files in os.walk(root, onerror=refused, followlinks=True):
        path = Path(name)
        shown = (file for file in files if not file.startswith("."))
        yield Folder(path, frozenset(shown), frozenset(folders))
        inside = sorted(
            (each for each in folders if not INTERNAL_FOLDERS.fullmatch(each)), key=natural
        )
        folders.clear()
        for folder in sorted(inside, key=lambda each: (path / each).is_symlink()):
            if (target := realpath(path / folder)) not in seen:
                seen.add(target)
                folders.append(folder)


@dataclass(frozen=True)
class Kind:
    """Results of one form.

    Attributes:
        title: plural noun for these results.
        command: makes such results.
        holds: returns whether a folder has some.
        read: returns the results in such a folder, or None for nothing to show. Any exception
            marks the folder as broken.
        show: formats the results of all folders.
        unfinished: returns the work that is left in a folder, or None.
    """

    title: str
    command: str
    holds: Callable[[Folder], bool]
    read: Callable[[Folder], Any]
    show: Callable[[Read], Iterable[Block]]
    unfinished: Callable[[Any], str | None] = lambda result: None


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


def gather(experiment: Experiment, folders: Sequence[Folder]) -> Section:
    """Reads and formats all results of an experiment. Unreadable results become faults."""
    section = Section(experiment)
    for kind in experiment.kinds:
        results = []
        for folder in filter(kind.holds, folders):
            try:
                result = kind.read(folder)
                left = kind.unfinished(result)
                list(kind.show([(folder, result)]))  # alone, or one folder could break all others
            except Incomplete as error:
                section.faults.append(Fault(folder.path, "unfinished", str(error)))
            except (OSError, ValueError) as error:
                section.faults.append(Fault(folder.path, "broken", str(error)))
            except Exception as error:  # damaged files can raise anything in a reader
                why = f"{kind.title} cannot be read: {type(error).__name__}: {error}"
                section.faults.append(Fault(folder.path, "broken", why))
            else:
                if left is not None:
                    section.faults.append(Fault(folder.path, "unfinished", left))
                if result is not None:
                    results.append((folder, result))
        if results:
            section.found[kind.title] = len(results)
            section.blocks += kind.show(results)
        else:
            section.missing.append(kind)
        if kind is experiment.kinds[0]:  # the paper's numbers stand next to the summaries
            section.blocks += experiment.paper
    return section
