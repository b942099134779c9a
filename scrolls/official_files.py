"""The rows of the official files, checked, from zips or folders, local or on the hub.

Run as a program, it prints the default task: `quality`, or `sample` if quality is not available:
python -m scrolls.official_files [data.data_dir=/path/to/zips] [data_dir=/path/to/zips]
"""

from __future__ import annotations

import json
import logging
import os
import sys
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from huggingface_hub import constants, hf_hub_download
from huggingface_hub.errors import LocalEntryNotFoundError

from scrolls.tasks import HARD, SAMPLE, TASKS, Split, Task
from tape.validation import encodable

HUB = "tau/scrolls"
SITE = "https://www.scrolls-benchmark.com"
VARIABLE, FOLDER = "SCROLLS_DIR", "data/scrolls"  # the default folder, and where it is without it
# Password-protected zips raise RuntimeError, unknown compression NotImplementedError.
UNREADABLE = (OSError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)
Source = Path | zipfile.Path  # the rows of a split: a .jsonl, or a member of a zip
log = logging.getLogger(__name__)


def default_folder() -> Path:
    return Path(os.environ.get(VARIABLE) or FOLDER)


def find(
    task: Task, split: Split, data_dir: Path | None, cache: Path, download: bool = True
) -> Source:
    """Finds the rows of a split in a folder with the official zips or their contents. Without
    `data_dir`, that is the default folder, then the hub's cache, then (with `download`) the hub.
    The rows of `sample` are written to the cache.

    Raises:
        FileNotFoundError: if they are in none of these.
        ValueError: for a damaged zip.
    """
    if task.name == SAMPLE:
        return _sample(split, data_dir, cache)
    folder = default_folder() if data_dir is None else data_dir
    rows = f"{task.folder}/{split}.jsonl"
    if (folder / rows).is_file():
        return folder / rows
    archive, cause, failure = folder / f"{task.folder}.zip", None, ""
    if data_dir is None and not archive.is_file():
        try:
            archive = _from_hub(task, archive.name, download)
        except Exception as error:  # the hub's client also raises errors of its HTTP clients
            cause, failure = error, f", and the hub cannot be used ({error})"
    if not archive.is_file():
        raise FileNotFoundError(
            f"{folder} has neither {archive.name} nor {rows}{failure}; put {archive.name} (about "
            f"{task.size:,} MB) there, from https://huggingface.co/datasets/{HUB} (see {SITE}). "
            f"The default folder is {FOLDER}, or the one that {VARIABLE} names"
        ) from cause
    with _reading(archive / rows):
        member = zipfile.Path(archive, rows)
        there = member.exists()
    if not there:
        raise FileNotFoundError(f"{archive} has no {rows}")
    return member


def _sample(split: Split, data_dir: Path | None, cache: Path) -> Path:
    if data_dir is not None:
        raise ValueError(
            f"{SAMPLE} is generated locally and not read from {data_dir}: leave out that folder"
        )
    from scrolls.sample import write_sample  # it has the local corpus behind it

    source = write_sample(cache) / f"{split}.jsonl"
    if not source.is_file():
        raise FileNotFoundError(f"{SAMPLE} has no {split} split")
    return source


def _from_hub(task: Task, name: str, download: bool) -> Path:
    with suppress(LocalEntryNotFoundError):
        return Path(hf_hub_download(HUB, name, repo_type="dataset", local_files_only=True))
    if constants.HF_HUB_OFFLINE:
        raise FileNotFoundError("HF_HUB_OFFLINE is set")
    if not download:
        raise FileNotFoundError("it is only downloaded if it is named")
    log.info("downloading %s of %s: about %s MB", name, HUB, f"{task.size:,}")
    return Path(hf_hub_download(HUB, name, repo_type="dataset"))


@contextmanager
def _reading(source: Source) -> Iterator[None]:
    try:
        yield
    except UNREADABLE as error:
        raise ValueError(f"{source} cannot be read ({error}): fetch it again") from error


def identity(source: Source) -> str:
    """Identifies its content by CRC-32, which a zip stores for its members, and size; it is the
    same inside and outside a zip."""
    with _reading(source):
        if isinstance(source, zipfile.Path):
            about = source.root.getinfo(source.at)
            return f"{about.CRC:08x} {about.file_size}"
        crc = 0
        with source.open("rb") as file:
            while chunk := file.read(2**20):
                crc = zlib.crc32(chunk, crc)
        return f"{crc:08x} {source.stat().st_size}"


def default_task(settings: list[str]) -> str:
    """Returns the default task; the command's settings may name a data folder.

    Raises:
        FileNotFoundError: if that folder does not contain `quality`.
    """
    pairs = (setting.partition("=") for setting in settings)
    named = [Path(value) for key, _, value in pairs if key in ("data_dir", "data.data_dir")]
    try:
        find(TASKS["quality"], "validation", named[-1] if named else None, Path("cache"))
    except FileNotFoundError as error:
        if named:
            raise
        print(
            f"no task is named, and {error}\nusing {SAMPLE!r}, which is not part of SCROLLS: "
            f"questions about Python's own library",
            file=sys.stderr,
        )
        return SAMPLE
    return "quality"


# ---- rows


class Row(NamedTuple):
    """One gold answer (None where the test split hides it) to a question about a document."""

    id: str
    question: str  # including the blank line after it; empty if there is only a document
    document: str
    output: str | None


@dataclass
class Question:
    """A question and its gold answers in row order."""

    id: str
    question: str
    outputs: list[str] = field(default_factory=list)


def read_rows(source: Source, task: Task, split: Split, with_inputs: bool = True) -> Iterator[Row]:
    """Yields the rows of a file, which may be larger than memory.

    Each line is parsed here: the JSON reader of `datasets` turns the number 5 into the text "5",
    and names the row within its block in place of the line.

    Args:
        with_inputs: whether rows need more than an id and an answer. Without inputs, question and
            document are empty, and a row may have no pid.

    Raises:
        ValueError: for the first invalid row; names file, line and id.
    """
    pids: set[str] = set()
    any_rows = False
    for number, line in enumerate(_lines(source), start=1):
        if not line.strip():
            continue
        row: dict[str, Any] = {}
        try:
            row = {"output": None} | _object(line)
            if not with_inputs:
                row = {"pid": f"line {number}"} | row | {"input": ""}
            for name in ("id", "pid", "input", "output"):
                if name != "output" or split != "test" or row[name] is not None:
                    _check_text(name, row.get(name))
            if row["pid"] in pids:
                raise ValueError(f"duplicate pid {row['pid']!r}")
            pids.add(row["pid"])
            if task.name == HARD and row.get("is_hard") is not True:
                continue
            start = task.document_start(row["input"]) if with_inputs else 0
        except ValueError as error:
            named = f", id {row['id']!r}" if isinstance(row.get("id"), str) else ""
            raise ValueError(f"{source}, line {number}{named}: {error}") from error
        yield Row(row["id"], row["input"][:start], row["input"][start:], row["output"])
        any_rows = True
    if not pids:
        raise ValueError(f"{source} has no rows: fetch it again")
    if not any_rows:
        raise ValueError(f"{source} has no question with is_hard: use quality instead")


def _lines(source: Source) -> Iterator[bytes]:
    with _reading(source), source.open("rb") as file:
        yield from file


def _object(line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON ({error})") from error
    if not isinstance(row, dict):
        raise ValueError("not a JSON object")
    return row


def _check_text(name: str, value: object) -> None:
    if not isinstance(value, str):
        shown = "missing" if value is None else f"{value!r}, which is not text"
        raise ValueError(f"field {name!r} is {shown}")
    if not encodable(value):
        raise ValueError(f"field {name!r} holds a lone surrogate")


def questions_of(rows: Iterator[Row]) -> dict[str, Question]:
    """Returns the questions by id, in the order of their first rows, without documents."""
    found: dict[str, Question] = {}
    for row in rows:
        asked = found.setdefault(row.id, Question(row.id, row.question))
        if row.output is not None:
            asked.outputs.append(row.output)
    return found


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    try:
        print(default_task(sys.argv[1:]))
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")
