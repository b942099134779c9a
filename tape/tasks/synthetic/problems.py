"""Synthetic problems for training and evaluation: pure functions of seed and number."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from tape.hashing import splitmix64
from tape.model.loss import IGNORED
from tape.tasks.generated import Block, Source, is_held_out
from tape.tasks.synthetic.generators import PAD, TASKS, Draws, Task, keys_of, words_tokenizer
from tape.validation import check_integer, look_up

MAX_LENGTH = 100_000
SPLIT_BITS = 14  # log2 of the number of problems from which a length has held-out ones
LENGTHS, TRAINING, HELD_OUT, EVALUATION = range(4)  # random streams of a seed


@dataclass(frozen=True)
class Synthetic(Source):
    """Problems of one task, whose lengths are uniform in min_length..max_length in training.

    Raises:
        ValueError: for an unknown task, or lengths that it does not have.
    """

    task: str = "parity"
    min_length: int = 2
    max_length: int = 20

    FILE = "synthetic.json"
    CHUNK = 4096
    tokenizer = staticmethod(words_tokenizer)

    def __post_init__(self):
        least = self.of.shortest
        check_integer("data.min_length", self.min_length, least, MAX_LENGTH)
        check_integer("data.max_length", self.max_length, self.min_length, MAX_LENGTH)

    @property
    def of(self) -> Task:
        return look_up("data.task", self.task, TASKS)

    @property
    def length(self) -> int:
        """Tokens of the longest training sequence."""
        return self.positions(self.max_length)

    @property
    def trained(self) -> tuple[int, None]:
        return self.max_length, None

    def positions(self, length: int) -> int:
        """Returns the number of tokens of a problem of some length, with its answer."""
        return self.of.make(Draws(keys_of(0)), length)[0].shape[1]

    def draw(self, seed: int, stream: int, numbers: np.ndarray, length: int) -> Block:
        """Returns the problems (B,) of a stream with one length: tokens and labels (B, T) each.

        One problem in 16, by a hash of its tokens, is never trained on, and only these are in the
        other streams; lengths with fewer than 2**14 problems are not split.
        """
        split = length * self.of.bits >= SPLIT_BITS
        tokens, labels = self.of.make(Draws(keys_of(seed, stream, numbers, length, 0)), length)
        missing = np.arange(len(numbers))
        for attempt in itertools.count(1):
            missing = missing[split & (held_out(tokens[missing]) != (stream != TRAINING))]
            if not missing.size:
                return tokens, labels
            keys = keys_of(seed, stream, numbers[missing], length, attempt)
            tokens[missing], labels[missing] = self.of.make(Draws(keys), length)

    def evaluation(self, length: int, count: int, seed: int) -> Block:
        """Returns `count` problems for evaluation."""
        return self.draw(seed, EVALUATION, np.arange(count), length)

    def chunk(self, number: int, count: int, seed: int, held_out: bool) -> Block:
        """Returns problems of any trained length with answers, which alone are labels."""
        stream, numbers = HELD_OUT if held_out else TRAINING, number * self.CHUNK + np.arange(count)
        spread = self.max_length - self.min_length + 1
        keys = keys_of(seed, LENGTHS, stream, numbers)
        lengths = self.min_length + Draws(keys).integers(spread, 1)[:, 0]
        tokens = np.full((count, self.length), PAD)
        labels = np.full_like(tokens, IGNORED)
        for length in np.unique(lengths):
            rows = np.flatnonzero(lengths == length)
            made = self.draw(seed, stream, numbers[rows], int(length))
            for whole, part in zip((tokens, labels), made, strict=True):
                whole[rows, : part.shape[1]] = part
        return tokens, labels


def held_out(tokens: np.ndarray) -> np.ndarray:
    """Returns which problems (B,) of tokens (B, T) are for evaluation only, for any seed."""
    weights = splitmix64(np.arange(tokens.shape[1], dtype=np.uint64))
    return is_held_out(((tokens + 1).astype(np.uint64) * weights).sum(axis=1))
