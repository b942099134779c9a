"""Arithmetic problems as text, for training and evaluation.

Operands and answer are written least significant digit first, `21+3=51` for 12 + 3 = 15, followed
by EOS. Before tokenization a text is a row of bytes: ASCII, or one of the codes below. Parts of
unequal length are joined with gaps, which are removed at the end.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tokenizers import Regex, decoders, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from arithmetic.tasks import TASKS, Task, significant
from tape.data.tokenizer import END, PADDING
from tape.tasks.generated import NO_LABEL, Source, word_tokenizer
from tape.validation import check_flag, check_integer, look_up

GAP, EOS = 0, 1
CHARACTERS = "".join(dict.fromkeys("0123456789=-, " + "".join(t.symbol for t in TASKS.values())))
VOCABULARY = (END, PADDING, *CHARACTERS)
TOKENS = np.zeros(128, dtype=np.int64)  # by byte
TOKENS[[EOS, GAP, *map(ord, CHARACTERS)]] = np.arange(len(VOCABULARY))
MAX_DIGITS = 10_000  # digits of an operand
TRAINING, EVALUATION, SEQUENCES_HELD_OUT = range(3)  # random streams of a seed


def character_tokenizer() -> PreTrainedTokenizerFast:
    """Returns a tokenizer with one token per character: digits, '=', '-', ',', space, the symbol of
    every task, and EOS and padding. It refuses other characters."""
    return word_tokenizer(VOCABULARY, pre_tokenizers.Split(Regex("."), "isolated"), decoders.Fuse())


@dataclass(frozen=True)
class Problems(Source):
    """A task and its notation.

    A cell (n, m) is the set of problems with operands of n and m digits; for sorting, n numbers of
    up to m digits. Operands other than 0 have no leading zeros.

    Args:
        max_first, max_second: training draws uniformly from the cells 1..max_first x
            1..max_second.
        reverse: whether numbers are written least significant digit first.
        leading_zeros: whether operands may have leading zeros; answers are then padded with zeros
            to the longest answer of the cell (a '-' is extra).
        spaces: probability of a space after each character in training, in answers too.

    Raises:
        ValueError: for an unknown task, or values that are not allowed.
    """

    task: str = "addition"
    max_first: int = 5
    max_second: int = 5
    reverse: bool = True
    leading_zeros: bool = False
    spaces: float = 0.0

    FILE = "problems.json"
    DROPPED = ("abacus_offset",)
    CHUNK = 1024
    tokenizer = staticmethod(character_tokenizer)

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

    @property
    def trained(self) -> tuple[int, int]:
        return self.max_first, self.max_second

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
        operands, lengths = task.draw(rng, n, m, self.leading_zeros, held_out)
        answers, widths = task.answer(operands), task.answer_widths(n, m)
        if not self.leading_zeros:
            widths = np.minimum(widths, significant(answers))
        prompts = written(operands, lengths, task.symbol, ord("="), self.reverse)
        return prompts, written(answers, widths, ",", GAP, self.reverse)

    def chunk(
        self, number: int, count: int, seed: int, held_out: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns problems of random cells. Labels are what follows '='."""
        stream = SEQUENCES_HELD_OUT if held_out else TRAINING
        rng = np.random.default_rng((seed, stream, number))
        n, m = (rng.integers(1, most, self.CHUNK, endpoint=True) for most in self.trained)
        texts = np.hstack(self.draw(rng, n, m, held_out=held_out))
        if self.spaces:
            texts = spaced(texts, self.spaces, rng)
        ends = np.full((self.CHUNK, 1), EOS, dtype=np.uint8)
        texts = packed(np.hstack((texts, ends)), self.length)[:count]
        ids, equals = TOKENS[texts], texts == ord("=")
        answers = (texts != GAP) & np.logical_or.accumulate(equals, axis=1) & ~equals
        return ids, np.where(answers, ids, NO_LABEL)

    def _task(self, n: int, m: int) -> Task:
        """Returns the task after checking the cell."""
        check_integer("n", n)
        check_integer("m", m)
        return TASKS[self.task]


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
