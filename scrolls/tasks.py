"""The tasks of SCROLLS, and the rows of their official files: checked, from zips or folders, local
or on the hub."""

from __future__ import annotations

import json
import logging
import os
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

from huggingface_hub import hf_hub_download

from tape.validation import encodable

Split = Literal["train", "validation", "test"]
SPLITS = ("train", "validation", "test")
HUB = "tau/scrolls"
VARIABLE, FOLDER = "SCROLLS_DIR", "data/scrolls"  # the default folder, and where it is without it
Source = Path | zipfile.Path  # the rows of a split: a .jsonl, or a member of a zip
log = logging.getLogger(__name__)


class Task(NamedTuple):
    name: str  # also of its zip on the hub, and of the folder in the zip
    layout: Literal["document", "question", "choices"]  # the document alone, or what precedes it
    metric: Literal["exact_match", "f1", "rouge"]
    size: int = 0  # of its zip on the hub, approximately, in megabytes

    @property
    def kind(self) -> Literal["answer", "summary"]:
        """The kind of answer, which determines its token budget."""
        return "summary" if self.metric == "rouge" else "answer"

    def document_start(self, text: str) -> int:
        """Returns the offset of the document in an input; the question and a blank line precede it.

        Raises:
            ValueError: if the input does not have this task's layout.
        """
        if self.layout == "document":
            return 0
        start = 0
        for mark in ("\n\n (A) ", "\n (B) ", "\n (C) ", "\n (D) ") * (self.layout == "choices"):
            start = text.find(mark, start)
            if start < 0:
                raise ValueError(f"its input has no choice{mark.rstrip()!r} after the question")
            start += len(mark)
        start = text.find("\n\n", start)
        if start < 0:
            raise ValueError("its input has no blank line between the question and the document")
        return start + 2


BENCHMARK = {
    task.name: task
    for task in (
        Task("gov_report", "document", "rouge", 316),
        Task("summ_screen_fd", "document", "rouge", 51),
        Task("qmsum", "question", "rouge", 28),
        Task("narrative_qa", "question", "f1", 8000),
        Task("qasper", "question", "f1", 20),
        Task("quality", "choices", "exact_match", 20),
        Task("contract_nli", "question", "exact_match", 5),
    )
}
SAMPLE = "sample"  # not part of SCROLLS: see scrolls.sample
TASKS = BENCHMARK | {SAMPLE: Task(SAMPLE, "question", "f1")}


def find(task: Task, split: Split, data_dir: Path | None, cache: Path) -> Source:
    """Finds the rows of a split in a folder with the official zips or their contents. Without
    `data_dir`, that is the default folder, then the hub. The rows of `sample` are written to the
    cache.

    Raises:
        FileNotFoundError: if they are in none of these.
        ValueError: for a damaged zip.
    """
    if task.name == SAMPLE:
        if data_dir is not None:
            raise ValueError(f"{SAMPLE} is generated, not read from {data_dir}: leave that out")
        from scrolls.sample import write_sample  # imports torch

        source = write_sample(cache) / f"{split}.jsonl"
        if not source.is_file():
            raise FileNotFoundError(f"{SAMPLE} has no {split} split")
        return source
    folder = data_dir or Path(os.environ.get(VARIABLE) or FOLDER)
    rows = f"{task.name}/{split}.jsonl"
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
    from tape.data.readers import reading  # imports torch

    with reading(archive / rows):
        member = zipfile.Path(archive, rows)
        found = member.exists()
    if not found:
        raise FileNotFoundError(f"{archive} has no {rows}")
    return member


def identity(source: Source) -> str:
    """Identifies its content by CRC-32, which a zip stores for its members, and size; it is the
    same inside and outside a zip."""
    if isinstance(source, zipfile.Path):
        about = source.root.getinfo(source.at)
        return f"{about.CRC:08x} {about.file_size}"
    from tape.data.readers import reading  # imports torch

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
    """Yields the rows of a file, which may be larger than memory. (The JSON reader of `datasets`
    turns the number 5 into the text "5", and does not name the line.)

    Raises:
        ValueError: for the first invalid row; names file, line and id.
    """
    from tape.data.readers import reading  # imports torch

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
            except ValueError as error:
                raise ValueError(f"{source}, line {number}: {error}") from error
            pids.add(row["pid"])
            yield Row(row["id"], row["input"][:start], row["input"][start:], row["output"])
    if not pids:
        raise ValueError(f"{source} has no rows: fetch it again")


def _checked(line: bytes, split: Split) -> dict[str, Any]:
    try:
        row = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON ({error})") from error
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
