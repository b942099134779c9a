"""Sources of a task's rows: zips or folders, local or on the hub."""

from __future__ import annotations

import logging
import os
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from huggingface_hub import constants, get_hf_file_metadata, hf_hub_download, hf_hub_url
from huggingface_hub.errors import LocalEntryNotFoundError

from scrolls.tasks import SAMPLE, Split, Task

HUB = "tau/scrolls"
SITE = "https://www.scrolls-benchmark.com"
VARIABLE, FOLDER = "SCROLLS_DIR", "data/scrolls"  # the default folder, and where it is without it
# Password-protected zips raise RuntimeError, unknown compression NotImplementedError.
UNREADABLE = (OSError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)
Source = Path | zipfile.Path  # the rows of a split: a .jsonl, or a member of a zip
log = logging.getLogger(__name__)


@contextmanager
def _reading(source: Source) -> Iterator[None]:
    try:
        yield
    except UNREADABLE as error:
        raise ValueError(f"{source} cannot be read ({error}): fetch it again") from error


def lines_of(source: Source) -> Iterator[bytes]:
    """Yields its lines; raises a ValueError that names the file if it cannot be read."""
    with _reading(source), source.open("rb") as file:
        yield from file


def identity(source: Source) -> str:
    """Identifies its content by size and CRC-32, which a zip stores for its members; it is the same
    inside and outside a zip."""
    with _reading(source):
        if isinstance(source, zipfile.Path):
            about = source.root.getinfo(source.at)
            return f"{about.CRC:08x} {about.file_size}"
        crc = 0
        with source.open("rb") as file:
            while chunk := file.read(2**20):
                crc = zlib.crc32(chunk, crc)
        return f"{crc:08x} {source.stat().st_size}"


def default_folder() -> Path:
    return Path(os.environ.get(VARIABLE) or FOLDER)


def find(task: Task, split: Split, data_dir: Path | None, cache: Path) -> Source:
    """Finds the rows of a split in a folder with the official zips or their contents. Without
    `data_dir`, that is the default folder, and the hub if it lacks them. The rows of `sample` are
    written to the cache.

    Raises:
        FileNotFoundError: if they are neither in the folder nor available from the hub.
        ValueError: for a damaged zip.
    """
    if task.name == SAMPLE:
        if data_dir is not None:
            raise ValueError(
                f"{SAMPLE} is generated locally and not read from {data_dir}: leave out that folder"
            )
        from scrolls.sample import write_sample  # it has the local corpus behind it

        source = write_sample(cache) / f"{split}.jsonl"
        if not source.is_file():
            raise FileNotFoundError(f"{SAMPLE} has no {split} split")
        return source
    folder = default_folder() if data_dir is None else data_dir
    rows = f"{task.folder}/{split}.jsonl"
    if (folder / rows).is_file():
        return folder / rows
    archive, cause, failure = folder / f"{task.folder}.zip", None, ""
    if data_dir is None and not archive.is_file():
        try:
            archive = download(task)
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


def in_hub_cache(task: Task) -> Path | None:
    """Returns the zip if it was downloaded before."""
    name = f"{task.folder}.zip"
    try:
        return Path(hf_hub_download(HUB, name, repo_type="dataset", local_files_only=True))
    except LocalEntryNotFoundError:
        return None


def download(task: Task) -> Path:
    """Downloads the zip of a task from the hub to its cache.

    Raises:
        FileNotFoundError: if the hub is disabled. If it cannot be reached, errors of its client.
    """
    if (found := in_hub_cache(task)) is not None:
        return found
    if constants.HF_HUB_OFFLINE:
        raise FileNotFoundError("HF_HUB_OFFLINE is set")
    name = f"{task.folder}.zip"
    size = get_hf_file_metadata(hf_hub_url(HUB, name, repo_type="dataset")).size
    log.info("downloading %s of %s: %s bytes", name, HUB, f"{size or task.size * 10**6:,}")
    return Path(hf_hub_download(HUB, name, repo_type="dataset"))
