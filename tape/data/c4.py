"""C4: a choice of its shards, cached or streamed; bad lines are reported, counted and skipped."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from functools import cache
from itertools import chain, islice
from pathlib import Path

from tape.data.corpora import Corpus, Split
from tape.data.shards import Fault, Shard, cached_folder, download, list_shards, text_of
from tape.validation import check_flag, check_integer, check_path, check_text

log = logging.getLogger(__name__)

SAMPLED = 8  # shards that the tokenizer's training documents come from
SHOWN = 10  # bad lines that are reported individually
LARGEST_WINDOW = 2**20  # blocks, all in memory


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
        window: size of the shuffle buffer in blocks when streamed.
        max_bad: number of bad lines and broken shards to skip before giving up.

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
        max_bad: int = 100,
        name: str = "c4",
        documents: str | None = None,
    ):
        if shards is not None:
            check_integer("data.shards", shards)
        check_integer("data.validation_shards", validation_shards)
        check_integer("data.validation_documents", validation_documents)
        check_integer("data.tokenizer_documents", tokenizer_documents)
        check_integer("data.seed", seed, 0)
        check_integer("data.max_bad", max_bad, 0)
        check_integer("data.window", window, most=LARGEST_WINDOW)
        check_flag("data.streaming", streaming)
        check_text("data.root", root)
        super().__init__(name, documents)
        self.streaming, self.seed, self.window = streaming, seed, window
        self.validation_documents = validation_documents
        self.tokenizer_documents = tokenizer_documents
        self.max_bad = max_bad
        self.bad: set[tuple[str, int | None]] = set()  # (shard, line); None: its rest

        folder = root if dir is None else str(check_path("data.dir", dir).absolute())
        if dir is None and not streaming:
            folder = cached_folder(folder)
        there = list_shards(folder)
        wanted = {"shards": shards, "validation_shards": validation_shards}
        for (setting, count), (split, found) in zip(wanted.items(), there.items(), strict=True):
            if count is not None and count > len(found):
                raise ValueError(
                    f"data.{setting}={count} but {folder} has {len(found)} {split} shards"
                )
        self.train = self._shuffled(there["train"], "choice")[:shards]
        self.held_out = there["validation"][:validation_shards]
        if not streaming:
            self.train = [download(shard, folder) for shard in self.train]
            self.held_out = [download(shard, folder) for shard in self.held_out]

    def documents(self, split: Split) -> Iterator[str]:
        training = split == "train"
        texts = chain.from_iterable(map(self.read, self.train if training else self.held_out))
        yield from (
            text for _, text in islice(texts, None if training else self.validation_documents)
        )

    def sample(self) -> Iterator[str]:
        """Yields `tokenizer_documents` training documents, evenly from a few shards."""
        shards = self.train[:SAMPLED]
        for number, shard in enumerate(shards):
            share = (self.tokenizer_documents + number) // len(shards)
            yield from (text for _, text in islice(self.read(shard), share))

    def order(self, seed: int, epoch: int) -> list[Shard]:
        """Returns the training shards in the order of one epoch."""
        return self._shuffled(self.train, f"{seed} {epoch}")

    def read(self, shard: Shard, first: int = 0) -> Iterator[tuple[int, str]]:
        """Yields (line number, document) from line `first` on, counted from 0."""
        number = -1
        try:
            for number, line in enumerate(shard.lines()):
                if number < first or not line.strip():
                    continue
                try:
                    text = text_of(line)
                except Fault as fault:
                    self._leave_out(shard, number, fault)
                    continue
                if text.strip():
                    yield number, text
        except Fault as fault:
            self._leave_out(shard, None, Fault(f"{fault} after line {number + 1:,}"))

    def _leave_out(self, shard: Shard, line: int | None, fault: Fault) -> None:
        if (shard.name, line) in self.bad:
            return  # already counted in an earlier pass
        self.bad.add((shard.name, line))
        count = len(self.bad)
        where = shard.name if line is None else f"{shard.name}, line {line + 1:,}"
        if count > self.max_bad:
            raise ValueError(
                f"{where}: {fault}; with it {count:,} lines or shards are bad, more than "
                f"data.max_bad={self.max_bad}. Fetch the shard again, or raise the limit"
            ) from fault
        what = "skipped" if line is not None else "the rest of the shard is skipped"
        if count <= SHOWN or line is None:
            log.warning("%s: %s; %s (%s so far)", where, fault, what, f"{count:,}")
        elif count % 100 == 0:
            log.warning("%s bad lines skipped so far, the last one in %s", f"{count:,}", where)

    def _shuffled(self, shards: list[Shard], key: str) -> list[Shard]:
        """Sorts by a hash of the name, independent of other files in the folder."""
        ranks = {x.name: hashlib.sha256(f"{self.seed} {key} {x.name}".encode()) for x in shards}
        return sorted(shards, key=lambda shard: ranks[shard.name].hexdigest())

    @cache  # noqa: B019 - a corpus lives as long as the run
    def fingerprint(self) -> str:
        """Hashes all bytes of the chosen shards; when streamed, their names, sizes and the file
        system's content hashes or their first and last bytes."""
        rule = f"c4 {self.seed} {self.validation_documents} {self.tokenizer_documents}"
        digest = hashlib.sha256(rule.encode())
        for split, shards in (("train", self.train), ("validation", self.held_out)):
            for shard in shards:
                content = shard.identity() if self.streaming else shard.digest()
                digest.update(f"\n{split} {content}".encode())
        return digest.hexdigest()

    def describe(self) -> str:
        size = sum(shard.size for shard in self.train + self.held_out)
        return (
            f"{self.name} {'streamed' if self.streaming else 'cached'}: "
            f"{len(self.train):,} training and {len(self.held_out):,} validation shards, "
            f"{size:,} bytes, sha256 {self.fingerprint()[:16]}"
        )
