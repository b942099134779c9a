"""The rows of the official files: checked, from zips or folders, local or on the hub."""

import json
import logging
import os
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
from huggingface_hub import hf_hub_download

from scrolls.sample import write_sample
from scrolls.tasks import FOLDER, SAMPLE, VARIABLE, Task
from tape.core.validation import encodable
from tape.data.readers import reading

HUB = "tau/scrolls"
Split = Literal["train", "validation", "test"]
Item = TypeVar("Item")
Source = Path | zipfile.Path  # the rows of a split: a .jsonl, or a member of a zip
log = logging.getLogger(__name__)


def find(task: Task, split: Split, data_dir: Path | None, cache: Path) -> Source:
    """Finds the rows of a split in a folder with the official zips or their contents. Without
    `data_dir`, that is the default folder, then the hub. The rows of `sample` are written to the
    cache."""
    folder = data_dir or Path(os.environ.get(VARIABLE) or FOLDER)
    rows = f"{task.name}/{split}.jsonl"
    if task.name == SAMPLE:
        return write_sample(cache) / f"{split}.jsonl"
    if (folder / rows).is_file():
        return folder / rows
    archive, cause = folder / f"{task.name}.zip", None
    if data_dir is None and not archive.is_file():
        log.info("%s is not there: from %s (about %s MB)", archive, HUB, f"{task.size:,}")
        try:
            archive = Path(hf_hub_download(HUB, archive.name, repo_type="dataset"))
        except Exception as error:  # the hub's client also raises errors of its HTTP clients
            cause = error
    if not archive.is_file():
        raise FileNotFoundError(
            f"{folder} has neither {archive.name} nor {rows}; put {archive.name} (about "
            f"{task.size:,} MB) there, from https://huggingface.co/datasets/{HUB}. {VARIABLE} may "
            f"name another folder" + (f". The hub cannot be used: {cause}" if cause else "")
        ) from cause
    with reading(archive / rows):
        member = zipfile.Path(archive, rows)
        if member.exists():
            return member
    raise FileNotFoundError(f"{archive} has no {rows}")


def identity(source: Source) -> str:
    """Identifies content by size and CRC-32, which a zip stores: the same in and outside a zip."""
    if isinstance(source, zipfile.Path):
        about = source.root.getinfo(source.at)
        return f"{about.CRC:08x} {about.file_size}"
    crc = 0
    with reading(source), source.open("rb") as file:
        while chunk := file.read(2**20):
            crc = zlib.crc32(chunk, crc)
    return f"{crc:08x} {source.stat().st_size}"


class Row(NamedTuple):
    """One gold answer (None where the test split hides it) to a question about a document."""

    id: str
    question: str  # including the blank line after it; empty if there is only a document
    document: str
    output: str | None


def read_rows(source: Source, task: Task, split: Split) -> Iterator[Row]:
    """Yields the rows of a file, which may be larger than memory; a ValueError names the first
    invalid one. (The JSON reader of `datasets` turns the number 5 into the text "5".)"""
    pids: set[str] = set()
    with reading(source), source.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                row = _checked(line, split)
                if row["pid"] in pids:
                    raise ValueError(f"duplicate pid {row['pid']!r}")
                start = task.document_start(row["input"])
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{source}, line {number}: {error}") from error
            pids.add(row["pid"])
            yield Row(row["id"], row["input"][:start], row["input"][start:], row["output"])
    if not pids:
        raise ValueError(f"{source} has no rows: fetch it again")


def spread(items: list[Item], limit: int | None) -> list[Item]:
    """Returns `limit` items, spread evenly over a list; None: all."""
    if limit is None or limit >= len(items):
        return items
    return [items[place] for place in np.linspace(0, len(items) - 1, limit).astype(int)]


def limited(folder: Path, limit: int | None) -> Path:
    """Returns the folder for answers to `limit` questions, beside the answers to all."""
    return folder if limit is None else folder / f"limit_{limit}"


def _checked(line: bytes, split: Split) -> dict[str, Any]:
    row = json.loads(line)
    if not isinstance(row, dict):
        raise ValueError("not a JSON object")
    row.setdefault("output", None)
    for name in ("id", "pid", "input", "output"):
        value = row.get(name)
        if value is None and (name, split) == ("output", "test"):
            continue
        if not isinstance(value, str) or not encodable(value):
            raise ValueError(f"id {row.get('id')!r}: {name}={value!r} must be text")
    return row
