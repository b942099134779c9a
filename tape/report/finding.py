"""What lies in a folder of results: its folders, by the names of their files."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from os.path import realpath
from pathlib import Path
from typing import Literal, NamedTuple

# States of a run and journals of evaluations: results are beside them.
INTERNAL_FOLDERS = re.compile(r"\..*|checkpoint-\d+|shard-\d+-of-\d+|__pycache__")


@dataclass(frozen=True)
class Folder:
    """A folder, and the names of what is in it but for hidden files."""

    path: Path
    files: frozenset[str]
    folders: frozenset[str]

    def has(self, *names: str) -> bool:
        """Whether all of these files are there."""
        return self.files.issuperset(names)

    @property
    def pictures(self) -> list[Path]:
        return [self.path / name for name in sorted(self.files, key=natural) if is_png(name)]


class Fault(NamedTuple):
    """Results that cannot be shown, and why."""

    path: Path
    state: Literal["unfinished", "broken"]
    message: str


def is_png(name: str) -> bool:
    return name.lower().endswith(".png")


def natural(name: str) -> list[tuple[int, str]]:
    """A key to sort by, with numbers in their order: run_2 before run_10."""
    parts = re.split(r"(\d+)", name)
    return [(int(part), "") if n % 2 else (-1, part) for n, part in enumerate(parts)]


def walk(root: Path, leave_out: Path, faults: list[Fault]) -> Iterator[Folder]:
    """All folders under `root`, itself first, in the order of their names.

    Args:
        leave_out: a folder that is not looked into.
        faults: folders that cannot be read are added to it.
    """

    def refused(error: OSError) -> None:
        faults.append(Fault(Path(error.filename), "broken", error.strerror or str(error)))

    left_out = {realpath(leave_out), realpath(root)}  # and what was seen: links may lead in circles
    for name, folders, files in os.walk(root, onerror=refused, followlinks=True):
        path = Path(name)
        yield Folder(
            path,
            frozenset(file for file in files if not file.startswith(".")),
            frozenset(folders),
        )
        inside = sorted(
            (each for each in folders if not INTERNAL_FOLDERS.fullmatch(each)), key=natural
        )
        folders.clear()
        for folder in sorted(inside, key=lambda each: (path / each).is_symlink()):
            if (target := realpath(path / folder)) not in left_out:
                left_out.add(target)
                folders.append(folder)
