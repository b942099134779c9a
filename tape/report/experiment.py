"""What an experiment leaves behind, and how it is shown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from tape.evaluation.journal import Incomplete
from tape.report.blocks import Block
from tape.report.finding import Fault, Folder

Result = TypeVar("Result")
Read = list[tuple[Folder, Result]]


@dataclass(frozen=True)
class Kind(Generic[Result]):
    """Results of one form.

    Attributes:
        title: what they are, in the plural.
        command: what makes them.
        holds: whether a folder has some.
        read: what is in such a folder. Whatever it raises makes the folder a broken one.
        show: what was read, of all folders together.
        unfinished: what is still to be done in a folder, or None.
    """

    title: str
    command: str
    holds: Callable[[Folder], bool]
    read: Callable[[Folder], Result]
    show: Callable[[Read[Result]], Iterable[Block]]
    unfinished: Callable[[Result], str | None] = lambda result: None


@dataclass(frozen=True)
class Experiment:
    """A section of the page.

    Attributes:
        name: of its place on the page.
        about: what it asks.
        kinds: its results, the summaries first.
        paper: the tables of the paper that they are compared with, where they do not hold them.
    """

    name: str
    title: str
    about: str
    kinds: Sequence[Kind]
    paper: Sequence[Block] = ()


@dataclass
class Section:
    """What was found of an experiment.

    Attributes:
        found: how many results of each kind.
        missing: the kinds of which there are none.
    """

    experiment: Experiment
    found: dict[str, int] = field(default_factory=dict)
    missing: list[Kind] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)


def gather(experiment: Experiment, folders: Sequence[Folder]) -> Section:
    """Read and show all results of an experiment. What cannot be read is a fault, and no more."""
    section = Section(experiment)
    for kind in experiment.kinds:
        results = []
        for folder in filter(kind.holds, folders):
            fault, result = attempt(kind, folder)
            if fault is not None:
                section.faults.append(fault)
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


def attempt(kind: Kind[Result], folder: Folder) -> tuple[Fault | None, Result | None]:
    """What is wrong in a folder, if anything is, and its results, if there are any to show."""
    try:
        result = kind.read(folder)
        left = kind.unfinished(result)
        list(kind.show([(folder, result)]))  # alone, or one folder could break all others
    except Incomplete as error:
        return Fault(folder.path, "unfinished", str(error)), None
    except (OSError, ValueError) as error:
        return Fault(folder.path, "broken", str(error)), None
    except Exception as error:  # a damaged file may hold anything, and readers trip over all of it
        message = f"{kind.title} cannot be read: {type(error).__name__}: {error}"
        return Fault(folder.path, "broken", message), None
    return (None if left is None else Fault(folder.path, "unfinished", left)), result
