"""Arithmetic problems as text, for training and evaluation.

Operands and answer are written least significant digit first, `21+3=51` for 12 + 3 = 15, followed
by EOS. Before tokenization a text is a row of bytes: ASCII, or one of the codes below. Parts of
unequal length are joined with gaps, which are removed at the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from arithmetic.tasks import TASKS, Task, significant
from tape.data.tokenizer import END, PADDING
from tape.saved_settings import load, save
from tape.training.generated import GeneratedSequences
from tape.validation import check_flag, check_integer, look_up

GAP, EOS = 0, 1
FILE = "problems.json"
CHUNK = 1024  # training problems generated at a time
CHARACTERS = "".join(dict.fromkeys("0123456789=-, " + "".join(t.symbol for t in TASKS.values())))
MAX_DIGITS = 10_000  # digits of an operand
TRAINING, EVALUATION, SEQUENCES_HELD_OUT = range(3)  # random streams of a seed


@dataclass(frozen=True)
class Problems:
    """A task and its notation.

    A cell (n, m) is the set of problems with operands of n and m digits; for sorting, n numbers of
    up to m digits. Operands other than 0 have no leading zeros.

    Args:
        task: one of `TASKS`, which has an example of each.
        max_first, max_second: training draws uniformly from the cells 1..max_first x
            1..max_second.
        reverse: whether numbers are written least significant digit first.
        leading_zeros: whether operands may have leading zeros; answers are then padded with zeros
            to the longest answer of the cell (a '-' is extra).
        spaces: probability of a space after each character in training. Spaces after '=' count in
            the loss like other characters.

    Raises:
        ValueError: for an unknown task, or values that are not allowed.
    """

    task: str = "addition"
    max_first: int = 5
    max_second: int = 5
    reverse: bool = True
    leading_zeros: bool = False
    spaces: float = 0.0

    def __post_init__(self):
        look_up("data.task", self.task, TASKS)
        for name in ("max_first", "max_second"):
            check_integer(f"data.{name}", getattr(self, name), most=MAX_DIGITS)
        for name in ("reverse", "leading_zeros"):
            check_flag(f"data.{name}", getattr(self, name))
        number = isinstance(self.spaces, int | float) and not isinstance(self.spaces, bool)
        if not number or not 0 <= self.spaces <= 1:
            raise ValueError(
                f"data.spaces={self.spaces!r} must be a probability, a number from 0 to 1"
            )

    @property
    def length(self) -> int:
        """Tokens of a training sequence: the longest problem with EOS."""
        cell = self.max_first, self.max_second
        characters = self.prompt_width(*cell) + self.answer_width(*cell)
        return characters * (2 if self.spaces else 1) + 1

    def digits(self, n: int, m: int) -> int:
        """Returns the most digits of a number in a cell's problems and answers."""
        task = self._task(n, m)
        return int(max(task.operand_widths(n, m).max(), task.answer_widths(n, m).max()))

    def prompt_width(self, n: int, m: int) -> int:
        """Returns the length in characters of a cell's longest prompt, with '=', without spaces."""
        widths = self._task(n, m).operand_widths(n, m)
        return int(widths.sum()) + len(widths)

    def answer_width(self, n: int, m: int) -> int:
        """Returns the length in characters of a cell's longest answer, without EOS and spaces."""
        task = self._task(n, m)
        widths = task.answer_widths(n, m)
        return int(widths.sum()) + len(widths) - 1 + task.signed

    def evaluation(self, n: int, m: int, count: int, seed: int) -> list[tuple[str, str]]:
        """Draws `count` problems of a cell as (prompt, answer), such as ("21+3=", "51").

        No training problem of any seed is among them if the cell is large enough (see `Task.draw`).
        Problems may repeat. All prompts have the same length, except for sorting.

        Raises:
            ValueError: for n, m or count below 1, or a negative seed.
        """
        self._task(n, m)
        check_integer("count", count)
        check_integer("seed", seed, least=0)
        rng = np.random.default_rng((seed, EVALUATION, n, m))
        texts = self.draw(rng, np.full(count, n), np.full(count, m), held_out=True)
        prompts, answers = ([row[row != GAP].tobytes().decode() for row in text] for text in texts)
        return list(zip(prompts, answers, strict=True))

    def draw(
        self, rng: np.random.Generator, n: np.ndarray, m: np.ndarray, held_out: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draws prompts and answers of cells n, m (B,): bytes (B, characters and gaps) each."""
        task = TASKS[self.task]
        operands, lengths = task.draw(
            rng, n, m, leading_zeros=self.leading_zeros, held_out=held_out
        )
        answers, widths = task.answer(operands), task.answer_widths(n, m)
        if not self.leading_zeros:
            widths = np.minimum(widths, significant(answers))
        prompts = written(operands, lengths, task.symbol, ord("="), self.reverse)
        return prompts, written(answers, widths, ",", GAP, self.reverse)

    def save(self, folder: str | Path) -> None:
        """Writes problems.json to the folder of the model trained on them."""
        save(self, Path(folder) / FILE)

    @classmethod
    def load(cls, folder: str | Path) -> Problems:
        """Reads problems written by `save`.

        Raises:
            ValueError: if the folder has no problems.json, or one with other settings.
        """
        path = Path(folder) / FILE
        if not path.is_file():
            raise ValueError(f"{folder} has no {FILE}: give the folder of an arithmetic run")
        return load(cls, path, dropped=("abacus_offset",))

    def _task(self, n: int, m: int) -> Task:
        """Returns the task after checking the cell."""
        check_integer("n", n)
        check_integer("m", m)
        return TASKS[self.task]


def character_tokenizer() -> PreTrainedTokenizerFast:
    """Returns a tokenizer with one token per character: digits, '=', '-', ',', space, the symbol of
    every task, and EOS and padding. It refuses other characters."""
    vocabulary = {token: index for index, token in enumerate((END, PADDING, *CHARACTERS))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, pad_token=PADDING, padding_side="right"
    )


class ProblemSequences(GeneratedSequences):
    """Training problems as sequences of `problems.length` tokens, or held-out ones (as in
    `Problems.evaluation`). They are generated in chunks, and only the latest chunk is kept: read
    them in order.

    Raises:
        ValueError: for a tokenizer without a token for each character, EOS and padding.
    """

    def __init__(
        self, source: Problems, tokenizer: PreTrainedTokenizerBase, *args: Any, **how: Any
    ):
        super().__init__(source, tokenizer, *args, **how)
        vocabulary = tokenizer.get_vocab()
        missing = [character for character in CHARACTERS if character not in vocabulary]
        if missing or None in (tokenizer.eos_token_id, tokenizer.pad_token_id):
            raise ValueError(
                f"the tokenizer lacks a token for {missing or 'EOS or padding'}; "
                f"use arithmetic.character_tokenizer()"
            )
        self._tokens = np.zeros(128, dtype=np.int64)
        self._tokens[[GAP, EOS]] = tokenizer.pad_token_id, tokenizer.eos_token_id
        for character in CHARACTERS:
            self._tokens[ord(character)] = vocabulary[character]
        self._latest: tuple[int, dict[str, Tensor]] | None = None

    def sequence(self, i: int) -> dict[str, Tensor]:
        """Returns input_ids and labels (-100 up to '=' and on padding): (length,) each. Padding
        comes last, where causal attention does not look, so no mask is needed."""
        chunk, place = divmod(i, CHUNK)
        if self._latest is None or self._latest[0] != chunk:
            self._latest = chunk, self._make(chunk)
        return {name: rows[place] for name, rows in self._latest[1].items()}

    def _make(self, chunk: int) -> dict[str, Tensor]:
        """Generates the problems of a chunk: (CHUNK, length) each."""
        stream = SEQUENCES_HELD_OUT if self.held_out else TRAINING
        rng = np.random.default_rng((self.seed, stream, chunk))
        n, m = (
            rng.integers(1, most, CHUNK, endpoint=True)
            for most in (self.source.max_first, self.source.max_second)
        )
        texts = np.hstack(self.source.draw(rng, n, m, held_out=self.held_out))
        if self.source.spaces:
            texts = spaced(texts, self.source.spaces, rng)
        ends = np.full((CHUNK, 1), EOS, dtype=np.uint8)
        texts = packed(np.hstack((texts, ends)), self.source.length)
        ids, equals = self._tokens[texts], texts == ord("=")
        answers = (texts != GAP) & np.logical_or.accumulate(equals, axis=1) & ~equals
        columns = {"input_ids": ids, "labels": np.where(answers, ids, -100)}
        return {name: torch.from_numpy(rows) for name, rows in columns.items()}


def written(
    numbers: np.ndarray, lengths: np.ndarray, separator: str, end: int, reverse: bool
) -> np.ndarray:
    """Writes numbers (B, K, W), whose first `lengths` (B, K) digits count, as (B, characters and
    gaps): signs and digits, separators between the numbers, and `end` after the last one."""
    there = lengths[..., None]
    digits = np.where(np.arange(numbers.shape[-1]) < there, np.abs(numbers) + ord("0"), GAP)
    signs = np.where((numbers < 0).any(axis=-1, keepdims=True), ord("-"), GAP)
    follows = np.where(there, ord(separator), GAP)
    follows[:, -1] = end  # the last number is always present
    parts = (signs, digits if reverse else digits[..., ::-1], follows)
    return np.concatenate(parts, axis=-1).reshape(len(numbers), -1).astype(np.uint8)


def spaced(texts: np.ndarray, probability: float, rng: np.random.Generator) -> np.ndarray:
    """Adds a space after each character with the given probability: (B, T) -> (B, 2 T)."""
    chosen = (texts != GAP) & (rng.random(texts.shape) < probability)
    spaces = np.where(chosen, ord(" "), GAP)
    return np.stack((texts, spaces), axis=-1).reshape(len(texts), -1).astype(np.uint8)


def packed(texts: np.ndarray, length: int) -> np.ndarray:
    """Moves the gaps of texts to the right: (B, T) -> (B, length)."""
    there = texts != GAP
    closed = np.full((len(texts), length), GAP, dtype=np.uint8)
    closed[np.arange(length) < there.sum(axis=1, keepdims=True)] = texts[there]
    return closed
