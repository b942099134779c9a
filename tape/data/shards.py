"""Numbered shards of gzipped JSON lines in the format of C4.

The folder is local, on the hub (`hf://`) or any other URL that fsspec reads.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from fsspec.core import url_to_fs
from huggingface_hub import constants, hf_hub_download, snapshot_download
from huggingface_hub.errors import LocalEntryNotFoundError

from tape.data.corpora import Split
from tape.validation import encodable

OFFICIAL = re.compile(r"c4-(train|validation)\.\d{5}-of-(\d{5})\.json\.gz")
NAMES = "c4-train.00000-of-01024.json.gz, c4-validation.00000-of-00008.json.gz"
ON_HUB = re.compile(r"hf://datasets/([^/@]+/[^/@]+)(?:@([^/]+))?/(.+)")
# Names that file systems use for a content hash.
CONTENT_HASHES = ("blob_id", "ETag", "etag", "md5Hash", "content_md5")
EDGE = 2**16  # bytes at each end that identify a file without a content hash
CHUNK = 2**14  # compressed bytes; a fault loses at most this much before it


class Fault(ValueError):
    """A bad line, or a shard that is broken from some line on."""


@dataclass(frozen=True)
class Shard:
    """A file of a folder; `version` is its content hash if the file system knows one."""

    name: str
    url: str
    size: int
    version: str | None

    def identity(self) -> str:
        """Identifies the content without reading all of it."""
        if self.version is not None:
            return f"{self.name} {self.size} {self.version}"
        files, path = url_to_fs(self.url)
        edges = files.cat_file(path, 0, EDGE) + files.cat_file(path, max(0, self.size - EDGE))
        return f"{self.name} {self.size} {hashlib.sha256(edges).hexdigest()}"

    def digest(self) -> str:
        """Returns a hash of all bytes."""
        files, path = url_to_fs(self.url)
        digest = hashlib.sha256()
        with files.open(path, "rb") as file:
            while chunk := file.read(2**20):
                digest.update(chunk)
        return f"{self.name} {self.size} {digest.hexdigest()}"

    def lines(self) -> Iterator[bytes]:
        """Yields lines without line ends. Opens the file system anew each time, because some do not
        survive a fork.

        Raises:
            Fault: after the last whole line before corrupt compressed data.
            OSError: if bytes are missing, which is a fault of the source, not of the data.
        """
        rest = b""
        try:
            files, path = url_to_fs(self.url)
            with files.open(path, "rb") as file:
                for part in self._inflated(file):
                    *whole, rest = (rest + part).split(b"\n")
                    yield from whole
        except (Fault, OSError):
            raise
        except Exception as error:  # file systems raise errors of their own
            raise OSError(f"{self.url} cannot be read: {error}") from error
        if rest:
            yield rest

    def _inflated(self, file: BinaryIO) -> Iterator[bytes]:
        decoder, came = zlib.decompressobj(wbits=31), 0
        while chunk := file.read(CHUNK):
            came += len(chunk)
            while chunk:
                if decoder.eof:  # a gzip file may consist of several members
                    decoder = zlib.decompressobj(wbits=31)
                try:
                    part = decoder.decompress(chunk)
                except zlib.error as error:
                    raise Fault(f"the compressed data are corrupt ({error})") from error
                yield part
                chunk = decoder.unused_data
        if came != self.size:
            raise OSError(f"{self.url}: received {came:,} bytes of {self.size:,}; try again")
        if not decoder.eof:
            raise Fault("the compressed data end too early")


def text_of(line: bytes) -> str:
    """Returns the text of a record and ignores its other fields.

    Raises:
        Fault: if the line is not a JSON object with a valid text.
    """
    try:
        row = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise Fault(f"not UTF-8 (byte {line[error.start]:#04x} at {error.start:,})") from error
    except (ValueError, RecursionError) as error:
        raise Fault(f"not JSON ({error})") from error
    text = row.get("text") if isinstance(row, dict) else None
    if not isinstance(text, str):
        raise Fault("no text in field 'text'")
    if not encodable(text):
        raise Fault("'text' holds a lone surrogate")
    return text


def list_shards(folder: str) -> dict[Split, list[Shard]]:
    """Returns the sorted shards with official names in a local folder or URL; numbers may be
    missing.

    Raises:
        FileNotFoundError: if there are none.
        OSError: if the folder cannot be listed.
        ValueError: if shards of several editions are mixed.
    """
    try:
        files, path = url_to_fs(folder)
        entries = files.ls(path, detail=True)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"there is no folder {folder}") from error
    except Exception as error:  # file systems raise errors of their own
        raise OSError(
            f"{folder} cannot be listed: {error}; without a network use data.dir=/path/to/en"
        ) from error
    found: dict[Split, list[Shard]] = {"train": [], "validation": []}
    editions = set()
    for entry in sorted(entries, key=lambda entry: entry["name"]):
        name = entry["name"].rsplit("/", 1)[-1]
        if match := OFFICIAL.fullmatch(name):
            version = next((str(entry[key]) for key in CONTENT_HASHES if entry.get(key)), None)
            url = files.unstrip_protocol(entry["name"])
            found[match[1]].append(Shard(name, url, entry["size"], version))
            editions.add(match.groups())
    if not found["train"] or not found["validation"]:
        missing = " or ".join(split for split in found if not found[split])
        raise FileNotFoundError(
            f"no {missing} shards among the {len(entries):,} files of {folder}; their names must "
            f"be {NAMES}"
        )
    if len(editions) > 2:
        raise ValueError(f"{folder} mixes shards of several editions: {sorted(editions)}")
    return found


def cached_folder(url: str) -> str:
    """Returns the cached folder of a hub folder if the hub is offline, otherwise `url`."""
    match = ON_HUB.fullmatch(url)
    if not match or not constants.HF_HUB_OFFLINE:
        return url
    repository, revision, folder = match.groups()
    try:
        snapshot = snapshot_download(
            repository, repo_type="dataset", revision=revision, local_files_only=True
        )
    except LocalEntryNotFoundError as error:
        raise OSError(
            f"HF_HUB_OFFLINE is set and nothing of {url} is in the hub's cache; "
            f"use data.dir=/path/to/en"
        ) from error
    return f"{snapshot}/{folder}"


def download(shard: Shard, folder: str) -> Shard:
    """Downloads a shard from the hub to its cache; other shards are returned as they are."""
    match = ON_HUB.fullmatch(folder)
    if not match:
        return shard
    repository, revision, inside = match.groups()
    name = f"{inside}/{shard.name}"
    path = hf_hub_download(repository, name, repo_type="dataset", revision=revision)
    return Shard(shard.name, path, os.path.getsize(path), None)
