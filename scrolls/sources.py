"""Sources of a task's rows: zips or folders, local or on the hub."""

from __future__ import annotations

import io
import logging
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple

from huggingface_hub import constants, get_hf_file_metadata, hf_hub_download, hf_hub_url
from huggingface_hub.errors import LocalEntryNotFoundError

from scrolls.tasks import HARD, SAMPLE, Split, Task

HUB = "tau/scrolls"
# Password-protected zips raise RuntimeError, unknown compression NotImplementedError.
UNREADABLE = (OSError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)
log = logging.getLogger(__name__)


class Source(NamedTuple):
    """A file with the rows of a split: a .jsonl, or a member of a zip."""

    path: Path
    member: str | None = None

    def __str__(self) -> str:
        return str(self.path) if self.member is None else f"{self.path}/{self.member}"

    def lines(self) -> Iterator[bytes]:
        """Yields its lines; raises a ValueError that names the file if it cannot be read."""
        with self._reading(), self._open() as file:
            yield from file

    def identity(self) -> str:
        """Identifies its content by size and CRC-32, which a zip stores for its members; it is the
        same inside and outside a zip."""
        with self._reading():
            if self.member is not None:
                with zipfile.ZipFile(self.path) as archive:
                    about = archive.getinfo(self.member)
                    return f"{about.CRC:08x} {about.file_size}"
            with self.path.open("rb") as file:
                crc = 0
                while chunk := file.read(2**20):
                    crc = zlib.crc32(chunk, crc)
            return f"{crc:08x} {self.path.stat().st_size}"

    @contextmanager
    def _open(self) -> Iterator[BinaryIO]:
        if self.member is None:
            with self.path.open("rb") as file:
                yield file
        else:
            with zipfile.ZipFile(self.path) as archive, archive.open(self.member) as file:
                yield io.BufferedReader(file)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except UNREADABLE as error:
            raise ValueError(f"{self} cannot be read ({error}): fetch it again") from error


def find(task: Task, split: Split, data_dir: Path | None, cache: Path) -> Source:
    """Finds the rows of a split in a folder with the official zips or their contents, or on the hub
    if no folder is given. The rows of `sample` are written to the cache.

    Raises:
        FileNotFoundError: if they are not in the folder or not available from the hub.
        ValueError: for a damaged zip.
    """
    if task.name == SAMPLE:
        if data_dir is not None:
            raise ValueError(f"{SAMPLE} is made here and read from no {data_dir}: leave that out")
        from scrolls.sample import write_sample  # it has the local corpus behind it

        source = Source(write_sample(cache) / f"{split}.jsonl")
        if not source.path.is_file():
            raise FileNotFoundError(f"{SAMPLE} has no {split} split")
        return source
    name = "quality" if task.name == HARD else task.name
    if data_dir is None:
        return _member(download(task), name, split)
    folder, archive = data_dir / name, data_dir / f"{name}.zip"
    if (folder / f"{split}.jsonl").is_file():
        return Source(folder / f"{split}.jsonl")
    if archive.is_file():
        return _member(archive, name, split)
    raise FileNotFoundError(
        f"{data_dir} has neither {archive.name} nor {name}/{split}.jsonl; both are on "
        f"https://huggingface.co/datasets/{HUB}"
    )


def _member(archive: Path, name: str, split: Split) -> Source:
    source = Source(archive, f"{name}/{split}.jsonl")
    with source._reading(), zipfile.ZipFile(archive) as content:
        found = source.member in content.namelist()
    if not found:
        raise FileNotFoundError(f"{archive} has no {source.member}")
    return source


def in_hub_cache(task: Task) -> Path | None:
    """Returns the zip if it was downloaded before."""
    name = f"{'quality' if task.name == HARD else task.name}.zip"
    try:
        return Path(hf_hub_download(HUB, name, repo_type="dataset", local_files_only=True))
    except LocalEntryNotFoundError:
        return None


def download(task: Task) -> Path:
    """Downloads the zip of a task from the hub to its cache.

    Raises:
        FileNotFoundError: if the hub cannot be reached or is disabled.
    """
    if (found := in_hub_cache(task)) is not None:
        return found
    name = f"{'quality' if task.name == HARD else task.name}.zip"
    try:
        if constants.HF_HUB_OFFLINE:
            raise FileNotFoundError("HF_HUB_OFFLINE is set")
        size = get_hf_file_metadata(hf_hub_url(HUB, name, repo_type="dataset")).size
        log.info("downloading %s of %s: %s bytes", name, HUB, f"{size or task.size * 10**6:,}")
        return Path(hf_hub_download(HUB, name, repo_type="dataset"))
    except Exception as error:  # the hub's client also raises errors of its HTTP clients
        raise FileNotFoundError(
            f"{name} of {HUB} (about {task.size:,} MB) is neither in the hub's cache nor available "
            f"from the hub ({error}); give data_dir=..., a folder with the official zips"
        ) from error
