"""Arithmetic problems as arrays of digits and as text, for training and evaluation.

B problems with up to K operands of up to W digits are one array (B, K, W), as are their answers.
The first digit is the least significant one; arrays are padded with zeros, and the digits of a
negative number are all negative. Numbers never become machine integers, so their length is
unlimited. A new task is a function of the operands and a line in `TASKS`.

Operands and answer are written least significant digit first, `21+3=51` for 12 + 3 = 15, followed
by EOS. Before tokenization a text is a row of bytes: ASCII, or one of the codes below. Parts of
unequal length are joined with gaps, which are removed at the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from tokenizers import Regex, decoders, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tape.data.tokenizer import END, PADDING
from tape.hashing import splitmix64
from tape.tasks.generated import NO_LABEL, Block, Source, is_held_out, word_tokenizer
from tape.validation import check_flag, check_integer, look_up

MIN_SPLIT_STRINGS = 10_000  # digit strings per cell; smaller cells have no held-out problems
MAX_DIGITS = 10_000  # digits of an operand
TRAINING, EVALUATION, SEQUENCES_HELD_OUT = range(3)  # random streams of a seed
GAP, EOS = 0, 1
Count = np.ndarray | int


class Task(NamedTuple):
    """Operands of a cell (n, m) and their answers.

    Widths are the maximum lengths of numbers: arrays (..., K) for n and m of shape (...). They
    increase with n and m. For problems with fewer than K numbers the first widths are 0.

    Attributes:
        symbol: one ASCII character, between the operands.
        answer: maps operands (B, K, W) to answers (B, numbers, digits).
        width: of the answer to two operands of n and m digits.
        signed: whether answers may be negative.
        many: whether operands and answers are n numbers of up to m digits, uniform in length, and
            not two of n and m digits with one answer.
    """

    symbol: str
    answer: Callable[[np.ndarray], np.ndarray]
    width: Callable[[Count, Count], np.ndarray] = np.maximum
    base: int = 10
    signed: bool = False
    many: bool = False

    def operand_widths(self, n: Count, m: Count) -> np.ndarray:
        if not self.many:
            return np.stack((n, m), axis=-1)
        most = np.max(n)
        return (np.arange(most) >= most - np.expand_dims(n, -1)) * np.expand_dims(m, -1)

    def answer_widths(self, n: Count, m: Count) -> np.ndarray:
        return self.operand_widths(n, m) if self.many else self.width(n, m)[..., None]

    def draw(
        self, rng: np.random.Generator, widths: np.ndarray, leading_zeros: bool, held_out: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draws operands (B, K, W) of at most these widths (B, K) and their lengths (B, K), either
        all or none of them held out.

        Cells with fewer than 10,000 digit strings (n + m < 4 for two decimal operands) are too
        small to be split: their problems may be drawn in either case.
        """
        split = self._is_split(widths.sum(axis=1))
        count = (widths > 0).sum(axis=1)
        digits = np.empty((*widths.shape, widths.max()), dtype=np.int64)
        lengths, missing = np.empty_like(widths), np.arange(len(widths))
        while missing.size:
            drawn = self._numbers(rng, widths[missing], digits.shape[-1], leading_zeros)
            digits[missing], lengths[missing] = drawn
            wrong = are_held_out(*drawn) != held_out
            if held_out:  # none that training draws for a smaller cell, which is not split
                wrong |= ~self._is_split(count[missing] * drawn[1].max(axis=1))
            missing = missing[wrong & split[missing]]
        return digits, lengths

    def _is_split(self, digits: np.ndarray) -> np.ndarray:
        """Whether cells whose operands have so many digits in all are split."""
        return digits * math.log10(self.base) >= math.log10(MIN_SPLIT_STRINGS)

    def _numbers(
        self, rng: np.random.Generator, widths: np.ndarray, longest: int, leading_zeros: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        lengths = widths
        if self.many and not leading_zeros:
            lengths = np.ceil(widths * (1 - rng.random(widths.shape))).astype(np.int64)
        last = lengths[..., None] - 1
        place = np.arange(longest)
        digits = rng.integers(self.base, size=(*widths.shape, longest), dtype=np.uint8)
        if not leading_zeros:
            nonzero = rng.integers(1, self.base, size=last.shape, dtype=np.uint8)
            digits = np.where((place == last) & (last > 0), nonzero, digits)
        return np.where(place <= last, digits, 0), lengths


def carried(columns: np.ndarray) -> np.ndarray:
    """Returns decimal digits (B, W + 1) of the numbers sum_i columns[:, i] 10^i, for `columns`
    (B, W) of any size and sign."""
    digits = np.empty((len(columns), columns.shape[1] + 1), dtype=np.int64)
    carry = np.zeros(len(columns), dtype=np.int64)
    for place, column in enumerate(columns.T):
        carry, digits[:, place] = np.divmod(column + carry, 10)
    digits[:, -1] = carry
    return digits


def significant(numbers: np.ndarray) -> np.ndarray:
    """Returns the number of digits of each number without leading zeros, (..., W) -> (...)."""
    return np.max((numbers != 0) * np.arange(1, numbers.shape[-1] + 1), axis=-1, initial=1)


def added(operands: np.ndarray) -> np.ndarray:
    """`21+3=51` is 12 + 3 = 15."""
    return carried(operands[:, 0] + operands[:, 1])[:, None]


def subtracted(operands: np.ndarray) -> np.ndarray:
    """`21-3=9` is 12 - 3 = 9. The sign precedes the digits: `3-72=-42` is 3 - 27 = -24."""
    columns = operands[:, 0] - operands[:, 1]
    highest = np.take_along_axis(columns, significant(columns)[:, None] - 1, axis=1)
    sign = np.where(highest < 0, -1, 1)
    return (sign * carried(sign * columns))[:, None]


def multiplied(operands: np.ndarray) -> np.ndarray:
    """`21*3=63` is 12 * 3 = 36."""
    first, second = operands[:, 0], operands[:, 1]
    width = operands.shape[-1]
    columns = np.zeros((len(operands), 2 * width - 1), dtype=np.int64)
    for place in range(width):
        columns[:, place : place + width] += first[:, place, None] * second
    return carried(columns)[:, None]


def in_order(operands: np.ndarray) -> np.ndarray:
    """`21,3,5=3,5,21` sorts 12, 3 and 5 in ascending order. With leading zeros, numbers have
    exactly m digits."""
    # Absent numbers are zeros: they sort to the front, where widths are 0.
    order = np.lexsort(np.moveaxis(operands, -1, 0), axis=-1)
    return np.take_along_axis(operands, order[..., None], axis=1)


def bitwise_or(operands: np.ndarray) -> np.ndarray:
    """`011|1=111` is 110 | 1 = 111 in binary: operands of n and m bits, with leading zeros any bit
    vectors."""
    return (operands[:, 0] | operands[:, 1])[:, None]


TASKS: dict[str, Task] = {
    "addition": Task("+", added, width=lambda n, m: np.maximum(n, m) + 1),
    "subtraction": Task("-", subtracted, signed=True),
    "multiplication": Task("*", multiplied, width=np.add),
    "sorting": Task(",", in_order, many=True),
    "bitwise_or": Task("|", bitwise_or, base=2),
}


def are_held_out(digits: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Returns which problems (B,) are for evaluation only, by a hash of the operands, for any seed.

    The hash sums a random 64-bit number per operand and place, multiplied by the digit.
    """
    operands, places = digits.shape[1:]
    operand = np.arange(operands, 0, -1, dtype=np.uint64)[:, None]  # from the last, see Task
    place = np.arange(places, dtype=np.uint64)
    written = np.where(place < lengths[..., None], digits + 1, 0).astype(np.uint64)
    return is_held_out((written * splitmix64(operand << 32 | place)).sum(axis=(1, 2)))


CHARACTERS = "".join(dict.fromkeys("0123456789=-, " + "".join(t.symbol for t in TASKS.values())))
VOCABULARY = (END, PADDING, *CHARACTERS)
TOKENS = np.zeros(128, dtype=np.int64)  # by byte
TOKENS[[EOS, GAP, *map(ord, CHARACTERS)]] = np.arange(len(VOCABULARY))


def character_tokenizer() -> PreTrainedTokenizerFast:
    """Returns a tokenizer with one token per character of `CHARACTERS`, EOS and padding, which
    refuses other characters."""
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
        if type(self.spaces) not in (int, float) or not 0 <= self.spaces <= 1:
            raise ValueError(f"data.spaces={self.spaces!r} must be a probability, from 0 to 1")

    @property
    def of(self) -> Task:
        return TASKS[self.task]

    @property
    def length(self) -> int:
        """Tokens of a training sequence: the longest problem with EOS."""
        characters = self.prompt_width(*self.trained) + self.answer_width(*self.trained)
        return characters * (2 if self.spaces else 1) + 1

    @property
    def trained(self) -> tuple[int, int]:
        return self.max_first, self.max_second

    def digits(self, n: int, m: int) -> int:
        """Returns the most digits of a number in a cell's problems and answers."""
        return int(max(self.of.operand_widths(n, m).max(), self.of.answer_widths(n, m).max()))

    def prompt_width(self, n: int, m: int) -> int:
        """Returns the length in characters of a cell's longest prompt, with '=', without spaces."""
        widths = self.of.operand_widths(n, m)
        return int(widths.sum()) + len(widths)

    def answer_width(self, n: int, m: int) -> int:
        """Returns the length in characters of a cell's longest answer, without EOS and spaces."""
        widths = self.of.answer_widths(n, m)
        return int(widths.sum()) + len(widths) - 1 + self.of.signed

    def evaluation(self, n: int, m: int, count: int, seed: int) -> list[tuple[str, str]]:
        """Draws `count` problems of a cell as (prompt, answer), such as ("21+3=", "51").

        No training problem of any seed is among them if the cell is large enough (see `Task.draw`).
        Problems may repeat. All prompts have the same length, except for sorting.

        Raises:
            ValueError: for n, m or count below 1, or a negative seed.
        """
        for name, value in {"n": n, "m": m, "count": count}.items():
            check_integer(name, value)
        check_integer("seed", seed, least=0)
        rng = np.random.default_rng((seed, EVALUATION, n, m))
        texts = self.draw(rng, np.full(count, n), np.full(count, m), held_out=True)
        prompts, answers = ([row[row != GAP].tobytes().decode() for row in text] for text in texts)
        return list(zip(prompts, answers, strict=True))

    def draw(self, rng: np.random.Generator, n: np.ndarray, m: np.ndarray, held_out: bool) -> Block:
        """Draws prompts and answers of cells n, m (B,): bytes (B, characters and gaps) each."""
        task = self.of
        widths = task.operand_widths(n, m)
        operands, lengths = task.draw(rng, widths, self.leading_zeros, held_out)
        answers, widths = task.answer(operands), task.answer_widths(n, m)
        if not self.leading_zeros:
            widths = np.minimum(widths, significant(answers))
        prompts = written(operands, lengths, task.symbol, ord("="), self.reverse)
        return prompts, written(answers, widths, ",", GAP, self.reverse)

    def chunk(self, number: int, count: int, seed: int, held_out: bool) -> Block:
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
