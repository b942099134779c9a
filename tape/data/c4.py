"""C4: a choice of its shards, tokenized as a whole, or streamed as endless blocks of tokens.

The position in a stream is one integer: the number of blocks consumed. In each epoch the documents
of all shards, in a new order, are tokenized and packed into blocks without losing tokens, EOS after
each document. Block n belongs to window n // window, and the blocks of a window are permuted by
(seed, window). A file for each window says at which document it begins; without it the stream is
replayed from the last known window.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import chain, count, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from fsspec.core import url_to_fs
from torch.utils.data import IterableDataset, get_worker_info
from transformers import PreTrainedTokenizerBase

from tape.data.blocks import (
    as_example,
    batches,
    check_unknown,
    encode,
    permutation,
    token_fingerprint,
)
from tape.data.corpora import Corpus, Split
from tape.data.readers import documents
from tape.files import read_object, write_text
from tape.validation import check_flag, check_integer, check_path, check_text

OFFICIAL = re.compile(r"c4-(train|validation)\.\d{5}-of-\d{5}\.json\.gz")
# Names that file systems use for a content hash.
CONTENT_HASHES = ("blob_id", "ETag", "etag", "md5Hash", "content_md5")
EDGE = 2**16  # bytes at each end that identify a shard without one: gzip's last are a checksum
SAMPLED = 8  # shards that the tokenizer's training documents come from
LARGEST_WINDOW = 2**20  # blocks, all in memory
log = logging.getLogger(__name__)


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

    def documents(self) -> Iterator[str]:
        return (text for _, text in documents(self.url))


class C4Corpus(Corpus):
    """Colossal Clean Crawled Corpus (Raffel et al. 2020, arXiv 1910.10683), in the format of
    allenai/c4: gzipped JSON lines in numbered shards, with separate validation shards. Settings:
    config/data/c4.yaml.

    The chosen shards and their order depend on `seed` and their names only: they are the same on
    every rank and machine, and a smaller choice is a prefix of a larger one.

    Raises:
        OSError: if the folder, or enough shards in it, cannot be found.
    """

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
        check_integer("data.shards", 1 if shards is None else shards)
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
        there = list_shards(folder)
        self.train = self._shuffled(there["train"], "choice")[:shards]
        self.held_out = there["validation"][:validation_shards]
        for setting, wanted, found in (
            ("shards", shards or 0, self.train),
            ("validation_shards", validation_shards, self.held_out),
        ):
            if len(found) < wanted:
                raise ValueError(f"data.{setting}={wanted} but {folder} has {len(found)} of these")

    def documents(self, split: Split) -> Iterator[str]:
        if split == "train":
            return chain.from_iterable(map(Shard.documents, self.train))
        held_out = chain.from_iterable(map(Shard.documents, self.held_out))
        return islice(held_out, self.validation_documents)

    def sample(self) -> Iterator[str]:
        """Yields `tokenizer_documents` training documents, evenly from a few shards."""
        shards = self.train[:SAMPLED]
        for number, shard in enumerate(shards):
            share = (self.tokenizer_documents + number) // len(shards)
            yield from islice(shard.documents(), share)

    def order(self, seed: int, epoch: int) -> list[Shard]:
        """Returns the training shards in the order of one epoch."""
        return self._shuffled(self.train, f"{seed} {epoch}")

    def _shuffled(self, shards: list[Shard], key: str) -> list[Shard]:
        """Sorts by a hash of the name, independent of other files in the folder."""

        def rank(shard: Shard) -> str:
            return hashlib.sha256(f"{self.seed} {key} {shard.name}".encode()).hexdigest()

        return sorted(shards, key=rank)

    @cache  # noqa: B019 - a corpus lives as long as the run
    def fingerprint(self) -> str:
        """Hashes the names and sizes of the chosen shards and the file system's content hashes, or
        their first and last bytes."""
        lines = [f"c4 {self.seed} {self.validation_documents} {self.tokenizer_documents}"]
        lines += [f"train {shard.identity()}" for shard in self.train]
        lines += [f"validation {shard.identity()}" for shard in self.held_out]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    def describe(self) -> str:
        size = sum(shard.size for shard in self.train + self.held_out)
        return (
            f"{self.name} {'streamed' if self.streaming else 'cached'}: "
            f"{len(self.train):,} training and {len(self.held_out):,} validation shards, "
            f"{size:,} bytes, sha256 {self.fingerprint()[:16]}"
        )


def list_shards(folder: str) -> dict[Split, list[Shard]]:
    """Returns the sorted shards with official names in a local folder or URL; numbers may be
    missing.

    Raises:
        OSError: if the folder cannot be listed, or a split has none.
    """
    try:
        files, path = url_to_fs(folder)
        entries = files.ls(path, detail=True)
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
    if missing := " or ".join(split for split, shards in found.items() if not shards):
        raise FileNotFoundError(
            f"no {missing} shards among the {len(entries):,} files of {folder}; their names must "
            "be c4-train.00000-of-01024.json.gz, c4-validation.00000-of-00008.json.gz"
        )
    return found


class Place(NamedTuple):
    """Where tokens begin in a stream: the shard's number in the order of the epoch, the row of a
    document in it, and the tokens of this and later documents to leave out."""

    epoch: int = 0
    shard: int = 0
    row: int = 0
    skipped: int = 0


class StreamedBlocks(IterableDataset):
    """Blocks of `length` tokens as inputs and labels of a causal model, determined by the corpus,
    the tokenizer, `length` and `seed`. An iteration begins with number `start`, which may be set.

    Raises:
        ValueError: when iterated in a worker, or over no documents.
    """

    def __init__(
        self,
        corpus: C4Corpus,
        tokenizer: PreTrainedTokenizerBase,
        length: int,
        cache_dir: Path,
        seed: int = 0,
    ):
        self.corpus, self.tokenizer, self.length, self.seed = corpus, tokenizer, length, seed
        self.window, self.start = corpus.window, 0
        content = token_fingerprint(corpus, "train", tokenizer)
        written = f"{content} {length} {seed} {self.window}"
        self.fingerprint = hashlib.sha256(written.encode()).hexdigest()[:16]
        self.folder = cache_dir / "streams" / self.fingerprint / "rows"

    def describe(self) -> str:
        return "streamed"

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        if get_worker_info() is not None:
            raise ValueError("a stream is read in the main process: use 0 workers")
        first, skipped = divmod(self.start, self.window)
        windows = self._windows(first)
        # A window is tokenized while the device works on the one before it.
        with ThreadPoolExecutor(1) as thread:
            following = thread.submit(next, windows)
            for number in count(first):
                blocks, following = following.result(), thread.submit(next, windows)
                order = permutation(self.window, self.seed, number)
                yield from (as_example(blocks[which]) for which in order[skipped:])
                skipped = 0

    def _windows(self, first: int) -> Iterator[np.ndarray]:
        """Yields windows from `first` on, in text order: (window, length) tokens each."""
        known = (int(path.stem) for path in self.folder.glob("*.json"))
        number = max((window for window in known if window <= first), default=0)
        begin = Place(**read_object(self._file(number))) if number else Place()
        if number < first:
            log.info("replaying windows %s to %s of the stream", number, first - 1)
        size, skipped = self.window * self.length, begin.skipped
        pending = np.empty(0, np.uint32)
        for place, tokens in self._tokens(begin):
            pending = np.concatenate([pending, tokens[skipped:]])
            skipped = max(0, skipped - len(tokens))
            while len(pending) >= size:
                window, pending = np.split(pending, [size])
                number += 1
                if not self._file(number).exists():
                    following = place._replace(skipped=len(tokens) - len(pending))
                    write_text(self._file(number), json.dumps(following._asdict()))
                if number > first:
                    yield window.reshape(self.window, self.length)

    def _file(self, window: int) -> Path:
        return self.folder / f"{window}.json"

    def _tokens(self, begin: Place) -> Iterator[tuple[Place, np.ndarray]]:
        """Yields the tokens of some documents, endlessly, and where these documents begin."""
        is_checked = False
        shards = (
            (epoch, number, shard)
            for epoch in count(begin.epoch)
            for number, shard in enumerate(self.corpus.order(self.seed, epoch))
            if (epoch, number) >= (begin.epoch, begin.shard)
        )
        for epoch, number, shard in shards:
            if epoch > begin.epoch and not is_checked:
                raise self.corpus.no_documents("train")
            first = begin.row if (epoch, number) == (begin.epoch, begin.shard) else 0
            for batch in batches(documents(shard.url, first=first)):
                encoded = encode(self.tokenizer, [text for _, text in batch])
                if not is_checked:  # these documents stand for all of them
                    check_unknown(self.tokenizer, self.corpus.name, encoded, len(encoded))
                    is_checked = True
                yield Place(epoch, number, batch[0][0]), np.concatenate(encoded)
