"""What no experiment takes for its own: other comparisons, damaged runs, work that is under way."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from tape.compare.runs import RESULTS
from tape.evaluation.journal import Incomplete, join
from tape.report.blocks import Block
from tape.report.experiment import Experiment, Kind, Read
from tape.report.finding import Folder
from tape.report.training import is_run, read_run
from tape.report.training import show as show_runs
from tape.report.written import TABLE, read_comparison, show

COMMAND = "python -m tape.report --help"


def other(experiments: Sequence[Experiment]) -> Experiment:
    """The last section: what the others leave."""

    def left(title: str, holds: Callable[[Folder], bool]) -> Callable[[Folder], bool]:
        kinds = [kind for each in experiments for kind in each.kinds if kind.title == title]
        return lambda folder: holds(folder) and not any(kind.holds(folder) for kind in kinds)

    def of_another_kind(folder: Folder) -> bool:
        return folder.has(TABLE, "table.csv")

    return Experiment(
        name="other",
        title="Other results",
        about="What belongs to none of the experiments above.",
        kinds=[
            Kind(
                title="comparisons",
                command=COMMAND,
                holds=left("comparisons", lambda f: is_comparison(f) and not of_another_kind(f)),
                read=read_any_comparison,
                show=show,
            ),
            Kind("runs", COMMAND, left("runs", is_run), read_run, show_runs, lambda run: run.left),
            Kind(
                title="evaluations under way",
                command=COMMAND,
                holds=left("evaluations", has_journals),
                read=read_journals,
                show=nothing,
            ),
        ],
    )


def is_comparison(folder: Folder) -> bool:
    """Whether there is one, or part of one: until all runs are evaluated, what they print. (Where
    there are several of the same runs, each has a folder in that.)"""
    logs = all(name.endswith((".log", ".finished")) for name in folder.files)
    under_way = bool(folder.files) and logs and not folder.folders
    return under_way or not folder.files.isdisjoint((TABLE, RESULTS))


def read_any_comparison(folder: Folder) -> list[Block]:
    if folder.files.isdisjoint((TABLE, RESULTS)):
        raise Incomplete("only what runs printed: the comparison was not finished, or has failed")
    return read_comparison(folder)


def has_journals(folder: Folder) -> bool:
    return any(re.fullmatch(r"shard-\d+-of-\d+", name) for name in folder.folders)


def read_journals(folder: Folder) -> None:
    """Raises Incomplete while batches are missing. What is complete has its results elsewhere."""
    join(folder.path)


def nothing(found: Read[None]) -> list[Block]:
    return []
