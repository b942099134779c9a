"""The record of a task, by which commands and tables of results find it."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import Any


@dataclass(frozen=True)
class TaskRecord:
    """What `tape evaluate --task NAME` asks of a model. A package registers it as an entry point of
    the group `tape.tasks` in its pyproject.toml. Its module imports nothing that takes seconds.

    Attributes:
        name: on the command line.
        load: imports and returns the `GeneratedTask`; or what is called with the arguments, if
            `arguments` is given.
        options: adds the task's own options to the parser of `tape evaluate`.
        batches: the option for the size of batches, an argument of `Questions.plan`, and its
            default.
        evaluation: its name in results.csv; empty if runs are not compared by it.
        file: in the folder of an evaluation; it shows that this task was asked.
        folder: the usual name of that folder, in the run's.
        arguments: parses all words, of a task that is not a generated one.
    """

    name: str
    load: Callable[[], Any]
    options: Callable[[argparse.ArgumentParser], None] | None = None
    batches: tuple[str, int] = ("batch_tokens", 16_384)
    evaluation: str = ""
    file: str = ""
    folder: str = ""
    arguments: Callable[[list[str]], argparse.Namespace] | None = None


@cache
def tasks_by_name() -> dict[str, TaskRecord]:
    """Returns the tasks of all installed packages, in the order of their names."""
    tasks = {}
    for entry in sorted(entry_points(group="tape.tasks"), key=lambda entry: entry.name):
        task = entry.load()
        if task.name in tasks:
            raise ValueError(f"two packages have a task {task.name!r}: uninstall one of them")
        tasks[task.name] = task
    if not tasks:
        raise ValueError("no task is installed: install this version, `pip install -e .`")
    return tasks
