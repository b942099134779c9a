"""Endless stream of token blocks whose position is one integer: the number of blocks consumed.

In each epoch the documents of all shards, in a new order, are tokenized and packed into blocks
without losing tokens, EOS after each document. A shuffle buffer holds `window` blocks: block n of
the stream belongs to window n // window, which is permuted by (seed, window). Checkpoints therefore
store nothing of the stream. An index file records where windows start among the documents; without
it the stream is replayed from the last known window.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import zlib
from collections.abc import Iterator
from multiprocessing.context import ForkProcess
from multiprocessing.process import current_process
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info
from transformers import PreTrainedTokenizerBase

from tape.data.blocks import (
    TokenBlocks,
    TrainingOrder,
    as_example,
    batches,
    check_unknown,
    encode,
    permutation,
    token_fingerprint,
    tokenize_corpus,
)
from tape.data.c4 import C4Corpus
from tape.data.corpora import Corpus
from tape.data.prefetch import prefetch

log = logging.getLogger(__name__)


class Place(NamedTuple):
    """A place between two tokens: `token` tokens of a document (with its EOS) precede it."""

    epoch: int = 0
    shard: int = 0  # its number in the epoch's order
    line: int = 0
    token: int = 0


class WindowIndex:
    """Index of where windows start, one entry per line of an append-only file. Runs that share it
    write the same entries; incomplete lines are skipped."""

    def __init__(self, path: Path):
        self.path = path

    def read(self) -> dict[int, Place]:
        places = {0: Place()}
        for line in self.path.read_bytes().splitlines() if self.path.exists() else []:
            try:
                fact = json.loads(line)
                if fact.pop("check") == _checksum(fact):
                    number = fact.pop("window")
                    places[number] = Place(**fact)
            except (ValueError, TypeError, AttributeError, KeyError):
                continue
        return places

    def add(self, number: int, place: Place) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fact = {"window": number, **place._asdict()}
        # Starts a new line, after a possible partial line, in a single write.
        line = "\n" + json.dumps(fact | {"check": _checksum(fact)}) + "\n"
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(file, line.encode())
        finally:
            os.close(file)


def _checksum(fact: dict[str, int]) -> int:
    return zlib.crc32(json.dumps(fact, sort_keys=True).encode())


class StreamedBlocks(IterableDataset):
    """Blocks of `length` tokens as inputs and labels of a causal model, from number `start` on,
    determined by the corpus, the tokenizer, `length` and `seed`.

    Raises:
        ValueError: for a length below 2; when iterated in several workers, or over no documents.
    """

    def __init__(
        self,
        corpus: C4Corpus,
        tokenizer: PreTrainedTokenizerBase,
        length: int,
        cache_dir: Path,
        seed: int = 0,
        start: int = 0,
    ):
        if length < 2:
            raise ValueError(f"length={length}: must be an integer >= 2")
        self.corpus, self.tokenizer, self.length, self.seed = corpus, tokenizer, length, seed
        self.window, self.start = corpus.window, start
        content = token_fingerprint(corpus, "train", tokenizer)
        written = f"{content} {length} {seed} {self.window}"
        self.fingerprint = hashlib.sha256(written.encode()).hexdigest()[:16]
        self.index = WindowIndex(cache_dir / "streams" / self.fingerprint / "windows.jsonl")

    def describe(self) -> str:
        return "streamed"

    def seek(self, block: int) -> None:
        """Starts the next iteration at this block."""
        self.start = block

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        worker = get_worker_info()
        if worker is not None and worker.num_workers > 1:
            raise ValueError(f"{worker.num_workers} workers cannot share one stream: use 0 or 1")
        if isinstance(current_process(), ForkProcess):
            # The tokenizer's threads do not survive the fork: it would wait for them forever.
            os.environ["TOKENIZERS_PARALLELISM"] = "false"
        first, skipped = divmod(self.start, self.window)
        # A window is tokenized while the device works on the one before it.
        for number, blocks in prefetch(self._windows(first)):
            order = permutation(self.window, self.seed, number)
            yield from (as_example(blocks[which]) for which in order[skipped:])
            skipped = 0

    def _windows(self, first: int) -> Iterator[tuple[int, np.ndarray]]:
        """Yields windows from `first` on, in text order: (window, length) tokens each."""
        known = self.index.read()
        number = max(window for window in known if window <= first)
        if number < first:
            log.info("replaying windows %s to %s of the stream", number, first - 1)
        size, parts, room = self.window * self.length, [], self.window * self.length
        for place, tokens in self._documents(known[number]):
            while len(tokens) >= room:
                parts.append(tokens[:room])
                tokens = tokens[room:]
                place = place._replace(token=place.token + room)
                if number + 1 not in known:
                    self.index.add(number + 1, place)
                if number >= first:
                    yield number, np.concatenate(parts).reshape(self.window, self.length)
                number, parts, room = number + 1, [], size
            parts.append(tokens)
            room -= len(tokens)

    def _documents(self, start: Place) -> Iterator[tuple[Place, np.ndarray]]:
        """Yields each document's start and tokens from a place on, endlessly."""
        for number, batch in enumerate(batches(self._texts(start))):
            encoded = encode(self.tokenizer, [text for _, text in batch])
            if number == 0:  # these documents stand for all of them
                check_unknown(self.tokenizer, self.corpus.name, encoded, len(encoded))
            for (place, _), tokens in zip(batch, encoded, strict=True):
                if place == start._replace(token=0):
                    yield start, tokens[start.token :]
                else:
                    yield place, tokens

    def _texts(self, start: Place) -> Iterator[tuple[Place, str]]:
        epoch, shard, line, _ = start
        while True:
            empty = shard == line == 0
            order = self.corpus.order(self.seed, epoch)
            for number in range(shard, len(order)):
                for at, text in self.corpus.read(order[number], first=line):
                    empty = False
                    yield Place(epoch, number, at), text
                line = 0
            if empty:
                raise ValueError(f"the training shards of {self.corpus.name} hold no documents")
            epoch, shard = epoch + 1, 0


def training_blocks(
    corpus: Corpus,
    tokenizer: PreTrainedTokenizerBase,
    length: int,
    cache_dir: Path,
    seed: int,
    total: int,
) -> TrainingOrder | StreamedBlocks:
    """Returns training data in training order: a stream if the corpus streams, otherwise `total`
    blocks of the tokenized corpus."""
    if corpus.streaming:
        return StreamedBlocks(corpus, tokenizer, length, cache_dir, seed)
    stream = tokenize_corpus(corpus, "train", tokenizer, cache_dir)
    return TrainingOrder(TokenBlocks(stream, length), total, seed)
