"""The experiments of experiments.yaml, and a last section for all other results."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

from tape.evaluation.journal import Incomplete, join
from tape.results import sections
from tape.results.experiment import Experiment, Folder, Kind
from tape.results.html import Block, Details, records
from tape.results.rows import is_method
from tape.results.run_section import is_run, read_run, runs, task_of
from tape.results.run_section import show as show_runs
from tape.results.runs import RESULTS
from tape.results.sections import TABLE, comparisons, read_comparison, rows_of, show

HERE = Path(__file__).parent
HELP = "python -m tape.results.report --help"


def experiments() -> list[Experiment]:
    """Returns the sections of the page. An entry with `module` is that module's EXPERIMENT, which
    builds on this package."""
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
    return [*found, other(found)]


def kind_of(command: str, title: str = "tables", methods: bool = False, **form: Any) -> Kind:
    """Returns the kind of results of an entry.

    Args:
        title: of written tables.
        methods: whether training runs may adapt another model.
        form: one name: `comparisons` of an evaluation or of methods, training `runs` of methods or
            by a pattern of the task, `evaluations` of single runs, `written` tables by the stem of
            the file, tables of `perplexity` or `zero_shot`.
    """
    ((name, of),) = form.items()
    if name == "comparisons" and of == "methods":
        return comparisons(lambda runs: any(map(is_method, runs)), command)
    if name == "comparisons":
        return comparisons(
            lambda runs: all(of in run.asked and not is_method(run) for run in runs), command
        )
    if name == "runs" and of == "methods":
        return runs(lambda run: "peft.name" in run, command)
    if name == "runs":
        return runs(
            lambda run: bool(re.search(of, task_of(run))) and (methods or "peft.name" not in run),
            command,
        )
    if name == "written":
        return sections.written(title, of, command)
    return getattr(sections, name)(of, command)


def other(found: Sequence[Experiment]) -> Experiment:
    """The last section: comparisons, runs and evaluations that belong to no other."""

    def left(title: str, holds: Callable[[Folder], bool]) -> Callable[[Folder], bool]:
        kinds = [kind for each in found for kind in each.kinds if kind.title == title]
        return lambda folder: holds(folder) and not any(kind.holds(folder) for kind in kinds)

    compared, trained = left("comparisons", is_comparison), left("runs", is_run)
    under_way = left("evaluations", has_journals)
    return Experiment(
        "other",
        "Other results",
        "What belongs to none of the experiments above.",
        [
            Kind("comparisons", HELP, compared, read_other_comparison, show),
            Kind("runs", HELP, trained, read_run, show_runs, lambda run: run.left),
            # `join` raises Incomplete. Complete journals have their results elsewhere.
            Kind("evaluations under way", HELP, under_way, lambda f: join(f.path) and None, list),
        ],
    )


def is_comparison(folder: Folder) -> bool:
    """Returns whether a folder has a comparison, or only the logs of its runs, as before all of
    them are evaluated. (Several comparisons of the same runs have a folder each within it.)"""
    if folder.has(TABLE, "table.csv"):  # of SCROLLS
        return False
    logs = all(name.endswith((".log", ".finished")) for name in folder.files)
    under_way = bool(folder.files) and logs and not folder.folders
    return under_way or not folder.files.isdisjoint((TABLE, RESULTS))


def read_other_comparison(folder: Folder) -> list[Block]:
    if folder.files.isdisjoint((TABLE, RESULTS)):
        raise Incomplete("only what runs printed: the comparison was not finished, or has failed")
    return read_comparison(folder)


def has_journals(folder: Folder) -> bool:
    return any(re.fullmatch(r"shard-\d+-of-\d+", name) for name in folder.folders)
