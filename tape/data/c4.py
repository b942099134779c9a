"""C4: a choice of its shards, tokenized as a whole, or streamed as endless blocks of tokens.

The position in a stream is the number of blocks consumed. In each epoch the documents of all
shards, in a new order, are tokenized and packed into blocks without losing tokens, EOS after each.
Block n belongs to window n // window, and the blocks of a window are permuted by (seed, window):
the shuffle buffer of `datasets` is no part of its `state_dict()`, and would differ after a resume.
A file for each window has the state of `datasets` at its start; without it the stream is replayed
from the last known window.
"""

import hashlib
import json
import logging
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import chain, count, islice
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import numpy as np
import torch
from fsspec.core import url_to_fs
from torch.utils.data import IterableDataset, get_worker_info
from transformers import PreTrainedTokenizerBase

from tape.core.files import read_object, write_text
from tape.core.validation import check_flag, check_integer, check_path
from tape.data.blocks import (
    as_example,
    batches,
    check_unknown,
    encode,
    permutation,
    token_fingerprint,
)
from tape.data.corpora import Corpus, Split
from tape.data.readers import rows_of, texts

NAMES = "c4-train.00000-of-01024.json.gz, c4-validation.00000-of-00008.json.gz"
OFFICIAL = re.compile(r"c4-(train|validation)\.\d{5}-of-\d{5}\.json\.gz")
# Names that file systems use for a content hash.
CONTENT_HASHES = ("blob_id", "ETag", "etag", "md5Hash", "content_md5")
EDGE = 2**16  # bytes at each end that identify a shard without a version; gzip ends in a checksum
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
        return texts(rows_of(self.url, "text"), self.url)


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
        if shards is not None:
            check_integer("data.shards", shards)
        check_integer("data.validation_shards", validation_shards)
        check_integer("data.validation_documents", validation_documents)
        check_integer("data.tokenizer_documents", tokenizer_documents)
        check_integer("data.window", window, most=LARGEST_WINDOW)
        check_flag("data.streaming", streaming)
        super().__init__(name, documents)
        self.streaming, self.seed, self.window = streaming, seed, window
        self.validation_documents = validation_documents
        self.tokenizer_documents = tokenizer_documents

        folder = root if dir is None else str(check_path("data.dir", dir).absolute())
        available = list_shards(folder)
        for split, setting, needed in (
            ("train", "shards", shards or 0),
            ("validation", "validation_shards", validation_shards),
        ):
            if needed > (existing := len(available[split])):
                raise ValueError(
                    f"data.{setting}={needed} but {folder} has {existing} {split} shards"
                )
        self.train = self._shuffled(available["train"], "choice")[:shards]
        self.held_out = available["validation"][:validation_shards]

    def documents(self, split: Split) -> Iterator[str]:
        shards, most = self.train, None
        if split == "validation":
            shards, most = self.held_out, self.validation_documents
        return islice(chain.from_iterable(map(Shard.documents, shards)), most)

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
        names = {shard: f"{self.seed} {key} {shard.name}" for shard in shards}
        return sorted(shards, key=lambda shard: hashlib.sha256(names[shard].encode()).digest())

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
    missing. Raises an OSError if the folder cannot be listed, or a split has none."""
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
        there = f"no {missing} shards among the {len(entries):,} files of {folder}"
        raise FileNotFoundError(f"{there}; their names must be {NAMES}")
    return found


class StreamedBlocks(IterableDataset):
    """Blocks of `length` tokens as inputs and labels of a causal model, from number `start` on,
    determined by the corpus, the tokenizer, `length` and `seed`. An iteration in a worker, or over
    no documents, raises a ValueError."""

    def __init__(
        self,
        corpus: C4Corpus,
        tokenizer: PreTrainedTokenizerBase,
        length: int,
        cache_dir: Path,
        seed: int = 0,
        start: int = 0,
    ):
        self.corpus, self.tokenizer, self.length, self.seed = corpus, tokenizer, length, seed
        self.window, self.start = corpus.window, start
        content = token_fingerprint(corpus, "train", tokenizer)
        written = f"{content} {length} {seed} {self.window}"
        self.fingerprint = hashlib.sha256(written.encode()).hexdigest()[:16]
        version = f"datasets-{datasets.__version__}"  # which its states depend on
        self.folder = cache_dir / "streams" / self.fingerprint / version

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
        state = read_object(self._file(number)) if number else {}
        if number < first:
            log.info("replaying windows %s to %s of the stream", number, first - 1)
        size = self.window * self.length
        used, parts, room = state.get("used", 0), [], size
        for place, tokens in self._tokens(**state.get("documents", {})):
            while len(tokens) - used >= room:
                parts.append(tokens[used : used + room])
                used += room
                number += 1
                if not self._file(number).exists():
                    state = {"documents": place, "used": used}
                    write_text(self._file(number), json.dumps(state))
                if number > first:
                    yield np.concatenate(parts).reshape(self.window, self.length)
                parts, room = [], size
            parts.append(tokens[used:])
            room, used = room - len(parts[-1]), 0

    def _file(self, window: int) -> Path:
        return self.folder / f"{window}.json"

    def _tokens(
        self, epoch: int = 0, shard: int = 0, rows: dict[str, Any] | None = None
    ) -> Iterator[tuple[dict[str, Any], np.ndarray]]:
        """Yields the tokens of some documents, endlessly, each time with the arguments of this
        function that begin with these documents: epoch, number of the shard in its order, and
        `state_dict()` of its rows (None: all of them)."""
        checked = False
        while True:
            whole, order = shard == 0 and rows is None, self.corpus.order(self.seed, epoch)
            for number in range(shard, len(order)):
                url = order[number].url
                dataset = rows_of(url, "text")
                if rows is None:
                    rows = dataset.state_dict()
                else:
                    dataset.load_state_dict(rows)
                for batch in batches(texts(dataset, url)):
                    encoded = encode(self.tokenizer, batch)
                    if not checked:  # these documents stand for all of them
                        check_unknown(self.tokenizer, self.corpus.name, encoded, len(encoded))
                        checked = True
                    yield {"epoch": epoch, "shard": number, "rows": rows}, np.concatenate(encoded)
                    rows = dataset.state_dict()
                rows = None
            if whole and not checked:
                raise self.corpus.no_documents("train")
            epoch, shard = epoch + 1, 0
