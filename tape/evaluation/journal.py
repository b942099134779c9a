"""Journals of evaluations in batches, which may be divided into shards.

A shard has a folder with a journal, parts.jsonl. Its first line, the header, holds the model's hash
and the settings; then comes one line per batch, on disk before the next batch begins. A kill leaves
it usable.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any, NamedTuple

from tape.files import reading, write_text
from tape.runs.folder import differences
from tape.validation import check_name

FILE = "parts.jsonl"
MOST = 10**7  # batches
# Files and folders of the run itself, in its folder.
OF_THE_RUN = re.compile(
    r"report|perplexity|checkpoint-\d+|.*\.(json|jsonl|safetensors|model|csv|png|md|txt)",
    re.IGNORECASE,  # as the file systems of some machines
)


def place_of(run: Path, setting: str, name: object) -> Path:
    """Returns the folder of an evaluation within that of a run.

    Raises:
        ValueError: for an invalid name, or the name of something else there.
    """
    place = run / check_name(setting, name)
    if OF_THE_RUN.fullmatch(place.name) or (place.exists() and not place.is_dir()):
        raise ValueError(f"{setting}={name!r} is used by {run} itself; choose another")
    return place


class Incomplete(ValueError):
    """Batches of an evaluation have not been answered yet."""


class Shard(NamedTuple):
    """The index-th of `count` shards, from 1."""

    index: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Raises a ValueError for anything but i/n with 1 <= i <= n."""
        numbers = re.fullmatch(r"(\d+)/(\d+)", text)
        shard = cls(*map(int, numbers.groups())) if numbers else None
        if shard is None or not 1 <= shard.index <= shard.count:
            raise ValueError(
                f"shard={text!r} must be i/n with 1 <= i <= n, such as 1/4: the first of four"
            )
        return shard

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    def folder(self, results: Path) -> Path:
        """Returns the folder of its journal."""
        return results / f"shard-{self.index}-of-{self.count}"

    def numbers(self, batches: int) -> range:
        """Returns the numbers of its batches. Batches are ordered by cost, so the costs of two
        shards differ by at most that of the costliest batch."""
        return range(self.index - 1, batches, self.count)


def read(path: Path) -> tuple[dict[str, Any] | None, list[dict[str, Any]], int]:
    """Returns the header of a journal (None if it is empty), its batches, and the bytes of both
    without an unfinished last line.

    Raises:
        ValueError: for a damaged line before the last.
    """
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    with reading(path):
        header, *rows = [json.loads(line) for line in whole.splitlines()] or [None]
        if header is not None:
            own = Shard.parse(header["shard"]).numbers(header["batches"])
            numbers = {row["batch"] for row in rows}
            if len(own) > MOST or len(numbers) < len(rows) or not all(n in own for n in numbers):
                raise ValueError("batches are duplicated or belong to another shard: remove it")
    return header, rows, len(whole)


class Journal:
    """The finished batches of a shard; others are appended to its file.

    Args:
        results: the folder of all shards.
        header: the model, the settings, and the number of `batches`.

    Raises:
        ValueError: if the folder holds an evaluation of another model or with other settings;
            names every difference.
    """

    def __init__(self, results: Path, shard: Shard, header: dict[str, Any]):
        self.path = shard.folder(results) / FILE
        self.rows: list[dict[str, Any]] = []
        header = header | {"shard": str(shard)}
        headers = {path: begun for path, (begun, _) in journals(results).items()}
        if self.path.exists():
            _, self.rows, size = read(self.path)
            os.truncate(self.path, size)
        if not self.rows:  # nothing has been answered yet
            headers[self.path] = header
        _owners(headers, header)
        if not self.rows:
            write_text(self.path, json.dumps(header) + "\n")

    def append(self, row: dict[str, Any]) -> None:
        """Adds a batch; `batch` is its number."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self.rows.append(row)


def journals(results: Path) -> dict[Path, tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Returns headers and batches of the journals in a folder, by file."""
    found = {path: read(path) for path in sorted(results.glob(f"shard-*/{FILE}"))}
    return {path: (header, rows) for path, (header, rows, _) in found.items() if header is not None}


def join(results: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Returns the header of the evaluation in a folder, and the batches of all shards. Of a batch
    that two shards have answered, as those of 1/1 and 2/4, the first answer counts.

    Raises:
        Incomplete: if batches are missing.
        ValueError: if the shards there are not those of one evaluation.
    """
    found = journals(results)
    if not found:
        raise ValueError(f"{results} contains no evaluation")
    headers = {path: header for path, (header, _) in found.items()}
    first = next(iter(headers.values()))
    owners = _owners(headers, first)
    rows: dict[int, dict[str, Any]] = {}
    for _, answered in found.values():
        rows = {row["batch"]: row for row in answered} | rows
    if missing := set(range(first["batches"])) - rows.keys():
        where = sorted({str(owners.get(number, "a shard not started")) for number in missing})
        raise Incomplete(
            f"{len(missing)} of {first['batches']} batches are missing: run the evaluation of "
            f"{', '.join(where)} to its end"
        )
    return {key: value for key, value in first.items() if key != "shard"}, [*rows.values()]


def _owners(headers: dict[Path, dict[str, Any]], expected: dict[str, Any]) -> dict[int, Path]:
    """Returns the first journal of each batch.

    Raises:
        ValueError: if a journal is not of the `expected` evaluation.
    """
    found: dict[int, Path] = {}
    for path, header in headers.items():
        before, now = header | {"shard": expected["shard"]}, expected
        if "config" not in before.keys() & now.keys():  # earlier versions have no hash of it
            before, now = ({**each, "config": None} for each in (before, now))
        if changes := differences(before, now):
            raise ValueError(
                f"{path} holds another evaluation ({'; '.join(changes)}): give this one another "
                f"name=... or folder, or remove {path.parents[1]} and the files created from it"
            )
        numbers = Shard.parse(header["shard"]).numbers(header["batches"])
        found = dict.fromkeys(numbers, path) | found
    return found
