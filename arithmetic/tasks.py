"""Tasks: the operands of a cell (n, m) of the grid and their answers, as arrays of digits.

B problems with up to K operands of up to W digits are one array (B, K, W), as are their answers.
The first digit is the least significant one; arrays are padded with zeros, and the digits of a
negative number are all negative. Numbers never become machine integers, so their length is
unlimited.

A new task is a class here and a line in `TASKS`.
"""

from __future__ import annotations

import math

import numpy as np

from tape.hashing import splitmix64
from tape.tasks.generated import is_held_out

MIN_SPLIT_STRINGS = 10_000  # digit strings per cell; smaller cells have no held-out problems


class Task:
    """Two operands of n and m digits; subclasses define the answer.

    Widths are the maximum lengths of numbers: arrays (..., K) for n and m of shape (...). They
    increase with n and m. For problems with fewer than K numbers the first widths are 0.
    """

    symbol: str  # one ASCII character, between the operands
    base = 10
    longer = 0  # digits of the answer beyond those of the longer operand
    signed = False  # whether answers may be negative
    ragged = False  # whether operands may be shorter than their widths, uniformly in length

    def operand_widths(self, n: np.ndarray | int, m: np.ndarray | int) -> np.ndarray:
        return np.stack((n, m), axis=-1)

    def answer_widths(self, n: np.ndarray | int, m: np.ndarray | int) -> np.ndarray:
        return np.maximum(n, m)[..., None] + self.longer

    def answer(self, operands: np.ndarray) -> np.ndarray:
        """Maps operands (B, K, W) to answers (B, numbers, digits)."""
        raise NotImplementedError

    def draw(
        self,
        rng: np.random.Generator,
        n: np.ndarray,
        m: np.ndarray,
        leading_zeros: bool,
        held_out: bool,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draws operands (B, K, W) and their lengths (B, K) for cells n, m (B,), either all or none
        of them held out.

        Cells with fewer than 10,000 digit strings (n + m < 4 for two decimal operands) are too
        small to be split: their problems may be drawn in either case.
        """
        widths = self.operand_widths(n, m)
        split = self._is_split(widths.sum(axis=1))
        count = (widths > 0).sum(axis=1)
        digits = np.empty((*widths.shape, widths.max()), dtype=np.int64)
        lengths = np.empty_like(widths)
        missing = np.arange(len(widths))
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
        if self.ragged and not leading_zeros:
            lengths = np.ceil(widths * (1 - rng.random(widths.shape))).astype(np.int64)
        last = lengths[..., None] - 1
        place = np.arange(longest)
        digits = rng.integers(self.base, size=(*widths.shape, longest), dtype=np.uint8)
        if not leading_zeros:
            nonzero = rng.integers(1, self.base, size=last.shape, dtype=np.uint8)
            digits = np.where((place == last) & (last > 0), nonzero, digits)
        return np.where(place <= last, digits, 0), lengths


class Addition(Task):
    """`21+3=51` is 12 + 3 = 15."""

    symbol = "+"
    longer = 1

    def answer(self, operands):
        return carried(operands[:, 0] + operands[:, 1])[:, None]


class Subtraction(Task):
    """`21-3=9` is 12 - 3 = 9. The sign precedes the digits: `3-72=-42` is 3 - 27 = -24."""

    symbol = "-"
    signed = True

    def answer(self, operands):
        columns = operands[:, 0] - operands[:, 1]
        highest = np.take_along_axis(columns, significant(columns)[:, None] - 1, axis=1)
        sign = np.where(highest < 0, -1, 1)
        return (sign * carried(sign * columns))[:, None]


class Multiplication(Task):
    """`21*3=63` is 12 * 3 = 36."""

    symbol = "*"

    def answer_widths(self, n, m):
        return np.add(n, m)[..., None]

    def answer(self, operands):
        first, second = operands[:, 0], operands[:, 1]
        width = operands.shape[-1]
        columns = np.zeros((len(operands), 2 * width - 1), dtype=np.int64)
        for place in range(width):
            columns[:, place : place + width] += first[:, place, None] * second
        return carried(columns)[:, None]


class Sorting(Task):
    """`21,3,5=3,5,21` sorts 12, 3 and 5 in ascending order: n numbers of 1 to m digits each, or of
    exactly m digits with leading zeros."""

    symbol = ","
    ragged = True

    def operand_widths(self, n, m):
        most = np.max(n)
        return (np.arange(most) >= most - np.expand_dims(n, -1)) * np.expand_dims(m, -1)

    answer_widths = operand_widths

    def answer(self, operands):
        # Absent numbers are zeros: they sort to the front, where widths are 0.
        order = np.lexsort(np.moveaxis(operands, -1, 0), axis=-1)
        return np.take_along_axis(operands, order[..., None], axis=1)


class BitwiseOr(Task):
    """`011|1=111` is 110 | 1 = 111 in binary: operands of n and m bits, with leading zeros any bit
    vectors."""

    symbol = "|"
    base = 2

    def answer(self, operands):
        return (operands[:, 0] | operands[:, 1])[:, None]


TASKS: dict[str, Task] = {
    "addition": Addition(),
    "subtraction": Subtraction(),
    "multiplication": Multiplication(),
    "sorting": Sorting(),
    "bitwise_or": BitwiseOr(),
}


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


def are_held_out(digits: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Returns which problems (B,) are for evaluation only, by a hash of the operands, for any seed.

    The hash sums a random 64-bit number per operand and place, multiplied by the digit.
    """
    operands, places = digits.shape[1:]
    operand = np.arange(operands, 0, -1, dtype=np.uint64)[:, None]  # from the last, see Task
    place = np.arange(places, dtype=np.uint64)
    written = np.where(place < lengths[..., None], digits + 1, 0).astype(np.uint64)
    return is_held_out((written * splitmix64(operand << 32 | place)).sum(axis=(1, 2)))
