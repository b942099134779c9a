"""C4: a choice of its shards, streamed or cached."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from functools import cache
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

from fsspec.core import url_to_fs
from huggingface_hub import constants

from tape.data.corpora import Corpus, Split
from tape.data.readers import from_hub, json_lines, texts
from tape.validation import check_flag, check_integer, check_path, check_text

NAMES = "c4-train.00000-of-01024.json.gz, c4-validation.00000-of-00008.json.gz"
OFFICIAL = re.compile(r"c4-(train|validation)\.\d{5}-of-\d{5}\.json\.gz")
ON_HUB = re.compile(r"hf://datasets/([^/@]+/[^/@]+)(?:@([^/]+))?/(.+)")
# Names that file systems use for a content hash.
CONTENT_HASHES = ("blob_id", "ETag", "etag", "md5Hash", "content_md5")
EDGE = 2**16  # bytes at each end that identify a shard without one: gzip's last are a checksum
SAMPLED = 8  # shards that the tokenizer's training documents come from
LARGEST_WINDOW = 2**20  # blocks, all in memory


class Shard(NamedTuple):
    name: str
    url: str
    size: int
    version: str | None  # its content hash if the file system knows one

    def identity(self) -> str:
        """Identifies the content without reading all of it."""
        version = self.version
        if version is None:
            files, path = url_to_fs(self.url)
            edges = files.cat_file(path, 0, EDGE) + files.cat_file(path, max(0, self.size - EDGE))
            version = hashlib.sha256(edges).hexdigest()
        return f"{self.name} {self.size} {version}"


class C4Corpus(Corpus):
    """Colossal Clean Crawled Corpus (Raffel et al. 2020, arXiv 1910.10683), in the format of
    allenai/c4: gzipped JSON lines in numbered shards, with separate validation shards.

    The chosen shards and their order depend on `seed` and their names only: they are the same on
    every rank and machine, and a smaller choice is a prefix of a larger one.

    Args:
        dir: local folder with shards; None: `root`.
        root: URL of the folder, on the hub or anywhere fsspec can read.
        streaming: read during training; otherwise all chosen shards are tokenized once.
        shards: number of training shards; None: all.
        validation_shards, validation_documents: how much of the validation split to use.
        tokenizer_documents: number of training documents to train a tokenizer on.
        seed: of the choice of shards.
        window: number of blocks that are shuffled together when streamed.

    Raises:
        ValueError: for numbers out of bounds.
        OSError: if the folder, or enough shards in it, cannot be found.
    """

    remedy = "fetch its shards again, or give others with data.dir"

    def __init__(
        self,
        dir: str | Path | None = None,
        root: str = "hf://datasets/allenai/c4/en",
        streaming: bool = True,
        shards: int | None = None,
        validation_shards: int = 1,
        validation_documents: int = 10_000,
        tokenizer_documents: int = 100_000,
        seed: int = 0,
        window: int = 8192,
        name: str = "c4",
        documents: str | None = None,
    ):
        if shards is not None:
            check_integer("data.shards", shards)
        check_integer("data.validation_shards", validation_shards)
        check_integer("data.validation_documents", validation_documents)
        check_integer("data.tokenizer_documents", tokenizer_documents)
        check_integer("data.seed", seed, 0)
        check_integer("data.window", window, most=LARGEST_WINDOW)
        check_flag("data.streaming", streaming)
        check_text("data.root", root)
        super().__init__(name, documents)
        self.streaming, self.seed, self.window = streaming, seed, window
        self.validation_documents = validation_documents
        self.tokenizer_documents = tokenizer_documents

        folder = root if dir is None else str(check_path("data.dir", dir).absolute())
        remote = None if streaming else ON_HUB.fullmatch(folder)
        repository, revision, inside = remote.groups() if remote else (None, None, None)
        if repository and constants.HF_HUB_OFFLINE:  # what was downloaded before
            folder, repository = f"{from_hub(repository, None, revision)[0]}/{inside}", None
        there = list_shards(folder)
        wanted = {"shards": shards, "validation_shards": validation_shards}
        for (setting, count), (split, found) in zip(wanted.items(), there.items(), strict=True):
            if count is not None and count > len(found):
                raise ValueError(
                    f"data.{setting}={count} but {folder} has {len(found)} {split} shards"
                )
        self.train = self._shuffled(there["train"], "choice")[:shards]
        self.held_out = there["validation"][:validation_shards]
        if repository:
            chosen = self.train + self.held_out
            names = [f"{inside}/{shard.name}" for shard in chosen]
            paths = from_hub(repository, names, revision)
            local = [
                shard._replace(url=str(path), version=None)
                for shard, path in zip(chosen, paths, strict=True)
            ]
            self.train, self.held_out = local[: len(self.train)], local[len(self.train) :]

    def documents(self, split: Split) -> Iterator[str]:
        training = split == "train"
        found = chain.from_iterable(map(_documents, self.train if training else self.held_out))
        yield from islice(found, None if training else self.validation_documents)

    def sample(self) -> Iterator[str]:
        """Yields `tokenizer_documents` training documents, evenly from a few shards."""
        shards = self.train[:SAMPLED]
        for number, shard in enumerate(shards):
            share = (self.tokenizer_documents + number) // len(shards)
            yield from islice(_documents(shard), share)

    def order(self, seed: int, epoch: int) -> list[Shard]:
        """Returns the training shards in the order of one epoch."""
        return self._shuffled(self.train, f"{seed} {epoch}")

    def _shuffled(self, shards: list[Shard], key: str) -> list[Shard]:
        """Sorts by a hash of the name, independent of other files in the folder."""
        ranks = {x.name: hashlib.sha256(f"{self.seed} {key} {x.name}".encode()) for x in shards}
        return sorted(shards, key=lambda shard: ranks[shard.name].hexdigest())

    @cache  # noqa: B019 - a corpus lives as long as the run
    def fingerprint(self) -> str:
        """Hashes the names and sizes of the chosen shards and the file system's content hashes, or
        their first and last bytes."""
        rule = f"c4 {self.seed} {self.validation_documents} {self.tokenizer_documents}"
        digest = hashlib.sha256(rule.encode())
        for split, shards in (("train", self.train), ("validation", self.held_out)):
            for shard in shards:
                digest.update(f"\n{split} {shard.identity()}".encode())
        return digest.hexdigest()

    def describe(self) -> str:
        size = sum(shard.size for shard in self.train + self.held_out)
        return (
            f"{self.name} {'streamed' if self.streaming else 'cached'}: "
            f"{len(self.train):,} training and {len(self.held_out):,} validation shards, "
            f"{size:,} bytes, sha256 {self.fingerprint()[:16]}"
        )


def _documents(shard: Shard) -> Iterator[str]:
    rows = texts(json_lines(shard.url, "text"), shard.url)
    return (text for text in rows if text.strip())


def list_shards(folder: str) -> dict[Split, list[Shard]]:
    """Returns the sorted shards with official names in a local folder or URL; numbers may be
    missing.

    Raises:
        FileNotFoundError: if there are none.
        OSError: if the folder cannot be listed.
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
    for entry in sorted(entries, key=lambda entry: entry["name"]):
        name = entry["name"].rsplit("/", 1)[-1]
        if match := OFFICIAL.fullmatch(name):
            version = next((str(entry[key]) for key in CONTENT_HASHES if entry.get(key)), None)
            url = files.unstrip_protocol(entry["name"]).removeprefix("file://")
            found[match[1]].append(Shard(name, url, entry["size"], version))
    if not found["train"] or not found["validation"]:
        missing = " or ".join(split for split in found if not found[split])
        raise FileNotFoundError(
            f"no {missing} shards among the {len(entries):,} files of {folder}; their names must "
            f"be {NAMES}"
        )
    return found
