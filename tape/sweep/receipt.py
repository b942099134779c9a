"""A run of a sweep, and the receipt by which it is not performed again."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tape.files import write_text
from tape.settings.groups import CONFIG, options


@dataclass(frozen=True)
class Run:
    """A training run and its evaluation.

    Attributes:
        row: the varied values, `rope` or `rope_learning_rate_0.001`; runs of a row differ by seed.
        folder, log: where it writes.
        commands: of `tape`: the one that trains it, and those that evaluate it.
        is_base: whether others start from it.
    """

    row: str
    folder: Path
    log: Path
    commands: tuple[tuple[str, ...], ...]
    is_base: bool = False

    @property
    def name(self) -> str:
        return str(self.folder).removeprefix("output/")

    @property
    def receipt(self) -> Path:
        return self.log.with_suffix(".finished")

    def request(self) -> dict[str, Any]:
        """Returns what determines the results of the run: its commands, Python (its library is the
        text of data=local), and the state of the settings' and of all files that it reads."""
        values = {read_by(word) for _, *words in self.commands for word in words}
        named = {name.strip("[]' ") for value in values for name in value.split(",")}
        read = [Path(name) for name in sorted(named - {""})]
        return {
            "commands": [[*words] for words in self.commands],
            "python": sys.version,
            "config": state_of(CONFIG),
            "read": [state_of(path) for path in read if not path.is_relative_to(self.folder)],
        }

    def write_receipt(self, request: dict[str, Any]) -> None:
        """Records that the run has finished, with which request and which files."""
        record = {"request": request, "files": state_of(self.folder)}
        write_text(self.receipt, json.dumps(record) + "\n")

    def finished(self) -> bool:
        """Returns whether the request and the files of the run are those of its receipt."""
        try:
            found = json.loads(self.receipt.read_text())
        except (OSError, ValueError):
            return False
        return found == {"request": self.request(), "files": state_of(self.folder)}


def read_by(word: str) -> str:
    """Returns the value of a setting or a flag, which may name a file; "" for an entry of a group
    of settings: position=tape is not the folder tape."""
    name, given, value = word.partition("=")
    if not given:
        return word
    return "" if value in options(name) else value


def state_of(path: Path) -> dict[str, list[int]]:
    """Returns size in bytes and time of the last change in ns of a file, or of the files in a
    folder, by path; without checkpoints, bytecode and locks."""
    files = [file for file in (path, *path.rglob("*")) if file.is_file()] if path.exists() else []
    return {
        str(file): [file.stat().st_size, file.stat().st_mtime_ns]
        for file in sorted(files)
        if not re.search(r"/(\.|__pycache__/|checkpoint-)", str(file.relative_to(path.parent)))
    }
