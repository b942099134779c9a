"""Synthetic problems for training and evaluation: pure functions of seed and number."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tape.hashing import splitmix64
from tape.saved_settings import load, save
from tape.tasks.synthetic.generators import NO_LABEL, TASKS, Block, Task
from tape.tasks.synthetic.words import PAD, Draws, keys_of
from tape.training.generated import GeneratedSequences
from tape.validation import check_integer, look_up

FILE = "synthetic.json"
CHUNK = 4096  # training problems generated at a time
HELD_OUT_BITS = 4  # one problem in 2**4 is for evaluation only
SPLIT_BITS = 14  # log2 of the number of problems from which a length is split so
LENGTHS, TRAINING, HELD_OUT, EVALUATION = range(4)  # random streams of a seed


@dataclass(frozen=True)
class Synthetic:
    """Problems of one task, whose lengths are uniform in min_length..max_length in training.

    Raises:
        ValueError: for an unknown task, or lengths that it does not have.
    """

    task: str = "parity"
    min_length: int = 2
    max_length: int = 20

    def __post_init__(self):
        for name in ("min_length", "max_length"):
            self.of.check(self.task, getattr(self, name), f"data.{name}")
        if self.min_length > self.max_length:
            raise ValueError(
                f"data.min_length={self.min_length} must be at most "
                f"data.max_length={self.max_length}"
            )

    @property
    def of(self) -> Task:
        return look_up("data.task", self.task, TASKS)

    @property
    def length(self) -> int:
        """Tokens of the longest training sequence."""
        return self.positions(self.max_length)

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
        attempt, missing = 0, np.arange(len(numbers))
        while split:
            missing = missing[is_held_out(tokens[missing]) != (stream != TRAINING)]
            if not missing.size:
                break
            attempt += 1
            keys = keys_of(seed, stream, numbers[missing], length, attempt)
            tokens[missing], labels[missing] = self.of.make(Draws(keys), length)
        return tokens, labels

    def evaluation(self, length: int, count: int, seed: int) -> Block:
        """Returns `count` problems of a length for evaluation.

        Raises:
            ValueError: for a length that the task does not have, a count below 1 or a negative
                seed.
        """
        self.of.check(self.task, length)
        check_integer("samples", count)
        check_integer("seed", seed, least=0)
        return self.draw(seed, EVALUATION, np.arange(count), length)

    def training(self, seed: int, stream: int, numbers: np.ndarray) -> Block:
        """Returns problems (B,) of any trained length, padded to `length` tokens."""
        spread = self.max_length - self.min_length + 1
        keys = keys_of(seed, LENGTHS, stream, numbers)
        lengths = self.min_length + Draws(keys).integers(spread, 1)[:, 0]
        tokens = np.full((len(numbers), self.length), PAD)
        labels = np.full_like(tokens, NO_LABEL)
        for length in np.unique(lengths):
            rows = np.flatnonzero(lengths == length)
            made = self.draw(seed, stream, numbers[rows], int(length))
            for whole, part in zip((tokens, labels), made, strict=True):
                whole[rows, : part.shape[1]] = part
        return tokens, labels

    def save(self, folder: str | Path) -> None:
        """Writes synthetic.json to the folder of the model trained on them."""
        save(self, Path(folder) / FILE)

    @classmethod
    def load(cls, folder: str | Path) -> Synthetic:
        """Reads problems written by `save`.

        Raises:
            ValueError: if the folder has no synthetic.json, or one with other settings.
        """
        path = Path(folder) / FILE
        if not path.is_file():
            raise ValueError(f"{folder} has no {FILE}: give the folder of a synthetic run")
        return load(cls, path)


def is_held_out(tokens: np.ndarray) -> np.ndarray:
    """Returns which problems (B,) of tokens (B, T) are for evaluation only, for any seed."""
    weights = splitmix64(np.arange(tokens.shape[1], dtype=np.uint64))
    sums = ((tokens + 1).astype(np.uint64) * weights).sum(axis=1)
    return splitmix64(sums) >> np.uint64(64 - HELD_OUT_BITS) == 0


class SyntheticSequences(GeneratedSequences):
    """Training problems, or held-out ones. They are generated in chunks, and only the latest chunk
    is kept: read them in order."""

    def __init__(self, source: Synthetic, *args: Any, **how: Any):
        super().__init__(source, *args, **how)
        self._latest: tuple[int, dict[str, Tensor]] | None = None

    def sequence(self, i: int) -> dict[str, Tensor]:
        """Returns input_ids and labels: (length,) each. Only answers are labels. Padding comes
        last, where causal attention does not look, so no mask is needed."""
        chunk, place = divmod(i, CHUNK)
        if self._latest is None or self._latest[0] != chunk:
            numbers = np.arange(chunk * CHUNK, min((chunk + 1) * CHUNK, self.total))
            stream = HELD_OUT if self.held_out else TRAINING
            made = self.source.training(self.seed, stream, numbers)
            rows = zip(("input_ids", "labels"), map(torch.from_numpy, made), strict=True)
            self._latest = chunk, dict(rows)
        return {name: rows[place] for name, rows in self._latest[1].items()}
