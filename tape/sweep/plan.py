"""The runs of a sweep, the commands that train, evaluate and compare them, and their receipts."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

PLACEHOLDER = re.compile(r"\{(\w+)(?:\*(\d+))?(?:/(\d+))?\}")
# Data that the settings of a run determine; others are read from files, which may change.
GENERATED = ("local", "bigrams")  # as names of data
FROM_SETTINGS = ("LocalCorpus", "Problems", "Passkeys", "Synthetic")


def duration(seconds: float) -> str:
    """Formats a duration in words.

    >>> duration(2520), duration(9000)
    ('42 minutes', '2.5 hours')
    """
    for unit, size, digits in (("day", 86400, 1), ("hour", 3600, 1), ("minute", 60, 0)):
        if seconds >= 2 * size:
            return f"{round(seconds / size, digits):g} {unit}s"
    whole = max(1, round(seconds))
    return f"{whole} second{'s' * (whole > 1)}"


def fill(command: str, **values: Any) -> list[str]:
    """Returns the words of a command with its placeholders filled in.

    `{run}` is the value of `run`; `{length*2}` and `{length/8}` are multiples and fractions of an
    integer; a word `{runs}` whose value is a list becomes as many words. The word `python` is this
    interpreter. Placeholders without a value stay.

    >>> fill("eval {run} --lengths {length} {length*2} {more}", run="a", length=64, more=["-v"])
    ['eval', 'a', '--lengths', '64', '128', '-v']
    """

    def value(match: re.Match) -> str:
        name, factor, divisor = match.groups()
        if name not in values:
            return match[0]
        found = values[name]
        return str(found * int(factor or 1) // int(divisor or 1) if factor or divisor else found)

    words = []
    for word in shlex.split(command):
        several = values.get(word[1:-1]) if PLACEHOLDER.fullmatch(word) else None
        words += map(str, several) if isinstance(several, list) else [PLACEHOLDER.sub(value, word)]
    return [sys.executable if word == "python" else word for word in words]


@dataclass(frozen=True)
class Run:
    """A training run and its evaluation.

    Attributes:
        row: the varied values, `rope` or `rope_learning_rate_0.001`; runs of a row differ by seed.
        folder, log: where it writes.
        train: the words of the command that trains it.
        evaluate: the commands that evaluate it, to `fill` with `run` and `length`.
        evaluation: further arguments of these, in place of `{evaluation}`.
        find, show: a regular expression for the lines of an evaluation, and the form in which
            they are shown.
        base: the run that it starts from.
        length: of a base model: the length in tokens that it must have been trained with.
    """

    row: str
    folder: Path
    log: Path
    train: tuple[str, ...]
    evaluate: tuple[str, ...] = ()
    evaluation: tuple[str, ...] = ()
    find: str = ""
    show: str = ""
    base: Run | None = None
    length: int | None = None

    @property
    def name(self) -> str:
        return str(self.folder).removeprefix("output/")

    @property
    def receipt(self) -> Path:
        return self.log.with_suffix(".finished")

    def trained_length(self) -> int:
        """Returns the length of the training sequences in tokens."""
        return json.loads((self.folder / "config.json").read_text())["max_position_embeddings"]

    def evaluations(self, **length: int) -> list[list[str]]:
        """Returns the words of the commands that evaluate the run, with `length` where given."""
        values = {"run": self.folder, "evaluation": [*self.evaluation], **length}
        return [fill(command, **values) for command in self.evaluate]

    def measures(self, printed: str) -> str:
        """Returns the measures in the output of the evaluation."""
        lines = re.finditer(self.find, printed, re.MULTILINE) if self.find else ()
        return ", ".join(line.expand(self.show) for line in lines) or "finished"

    def request(self, config: Path) -> dict[str, Any]:
        """Returns what determines the results of the run, except files of text or weights."""
        return {
            "train": [*self.train],
            "evaluate": self.evaluations(),
            "python": sys.version,  # its library is the text of data=local
            "config": digests(config),
            "base": digests(self.base.folder, "*") if self.base else None,
        }

    def reads_files(self) -> bool:
        """Returns whether the run, or its evaluation, depends on files that may change."""
        if any("/" in word for word in self.evaluation):
            return True
        for command in self.evaluations():
            for word, following in pairwise((*command, "")):
                flag, _, value = word.partition("=")
                if flag in ("--data", "--files") and (value or following) not in GENERATED:
                    return True
        trained = json.loads((self.folder / "trained.json").read_text())
        base = self.base and str(self.base.folder)
        return (
            trained["data"]["_target_"].rpartition(".")[2] not in FROM_SETTINGS
            or trained["base_model"] != base
            or trained["tokenizer"] is not None
        )

    def write_receipt(self, request: Mapping[str, Any], measures: str) -> None:
        """Records that the run has finished, and with which files."""
        found = {"request": request, "files": digests(self.folder), "measures": measures}
        work = self.receipt.with_suffix(".writing")
        work.write_text(json.dumps(found, indent=1) + "\n")
        work.replace(self.receipt)

    def finished(self, config: Path) -> str | None:
        """Returns the measures of the run if its request, its files and the configuration are those
        of its receipt; None otherwise."""
        try:
            found = json.loads(self.receipt.read_text())
            if self.log.is_file() and found["request"] == self.request(config):
                return found["measures"] if found["files"] == digests(self.folder) else None
        except (OSError, ValueError, TypeError, KeyError):
            pass
        return None


def digests(folder: Path, pattern: str = "**/*") -> dict[str, str]:
    """Returns the SHA-256 of the files in a folder by path, without checkpoints and bytecode."""
    found = {str(path.relative_to(folder)): path for path in sorted(folder.glob(pattern))}
    return {
        name: _digest(path, path.stat().st_mtime_ns)
        for name, path in found.items()
        if path.is_file() and not re.search(r"(^|/)(__pycache__|checkpoint-[^/]*)/", name)
    }


@cache
def _digest(path: Path, changed: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(frozen=True)
class Sweep:
    """Runs, how they are performed, and what compares them.

    Attributes:
        runs: in the order in which they begin.
        out: the folder of logs, receipts and the comparison.
        config: the folder of settings; where it changes, no run counts as finished.
        compare: the command that compares, to `fill` with `runs`, `out` and `baseline`; none: "".
        tables: name -> rows to compare in the folder of that name; empty: one table of all.
        baseline: a row, or what the command takes for one.
        partial: whether the rest is compared if runs failed.
        jobs: runs at a time.
        seconds: until runs are told to save, as by SIGTERM.
        cluster: an executor of submitit; None: the runs are processes of this machine.
    """

    runs: Sequence[Run]
    out: Path
    config: Path
    compare: str = ""
    tables: Mapping[str, Sequence[str]] = field(default_factory=dict)
    baseline: str | None = None
    partial: bool = False
    jobs: int = 2
    seconds: float | None = None
    cluster: Any = None

    def commands(self) -> Iterator[Sequence[str]]:
        """Yields the words of all commands; `{length}` stays, until the runs are trained."""
        for run in self.runs:
            yield run.train
            yield from run.evaluations()
        yield from self.comparisons([])

    def comparisons(self, failed: Sequence[Run]) -> Iterator[list[str]]:
        """Yields the words of the commands that compare the runs.

        A baseline that is a row of the sweep stands for the first of its runs that did not fail;
        there is none if all failed.
        """
        baseline = self.baseline
        if named := [run for run in self.runs if run.row == self.baseline]:
            baseline = next((str(run.folder) for run in named if run not in failed), None)
        tables = self.tables or {"": [run.row for run in self.runs]}
        for name, rows in tables.items() if self.compare else ():
            # The runs of a row follow one another.
            runs = [
                run.folder for row in dict.fromkeys(rows) for run in self.runs if run.row == row
            ]
            flag = ["--baseline", baseline] if baseline else []
            yield fill(self.compare, runs=runs, out=self.out / name, baseline=flag)
