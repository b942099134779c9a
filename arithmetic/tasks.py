"""Tasks: what is asked in a cell (n, m) of the grid, and what the answer is, in arrays of digits.

B problems of up to K operands of up to W digits are one array (B, K, W), and so are their answers.
The first digit is the least significant one, beyond the last are zeros, and those of a negative
number are all negative. No number becomes a machine integer, so it may have any length.

A new task is a class here and a line in `TASKS`.
"""

from __future__ import annotations

import math

import numpy as np

HELD_OUT_BITS = 4  # one problem of 2**4 is for evaluation only
PARTED_FROM = 10_000  # strings of digits in a cell; smaller cells are trained on as a whole


class Task:
    """Two operands of n and m digits; subclasses say what is to be made of them.

    Widths are how long numbers may become: arrays (..., K), for n and m of shape (...), with 0
    where a problem has fewer than K numbers. Those it has come last. They grow with n and m.
    """

    symbol: str  # one ASCII character, between the operands
    base = 10
    signed = False  # whether answers may be negative
    ragged = False  # whether operands may be shorter than their widths: any length is as likely

    def operand_widths(self, n: np.ndarray | int, m: np.ndarray | int) -> np.ndarray:
        return np.stack((n, m), axis=-1)

    def answer_widths(self, n: np.ndarray | int, m: np.ndarray | int) -> np.ndarray:
        raise NotImplementedError

    def answer(self, operands: np.ndarray) -> np.ndarray:
        """Operands (B, K, W) to answers (B, numbers, digits)."""
        raise NotImplementedError

    def draw(
        self,
        rng: np.random.Generator,
        n: np.ndarray,
        m: np.ndarray,
        *,
        leading_zeros: bool,
        held_out: bool,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Random operands (B, K, W) and their lengths (B, K) for cells n, m (B,), of which none is
        held out, or all are.

        A cell with fewer than 10,000 strings of digits (n + m < 4 for two decimal operands) is too
        small to be parted: there, any problem may come either way.
        """
        widths = self.operand_widths(n, m)
        parted = widths.sum(axis=1) * math.log10(self.base) >= math.log10(PARTED_FROM)
        digits = np.empty((*widths.shape, widths.max()), dtype=np.int64)
        lengths = np.empty_like(widths)
        missing = np.arange(len(widths))
        while missing.size:
            drawn = self._numbers(rng, widths[missing], digits.shape[-1], leading_zeros)
            digits[missing], lengths[missing] = drawn
            wrong = is_held_out(*drawn) != held_out
            missing = missing[wrong & parted[missing]]
        return digits, lengths

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

    def answer_widths(self, n, m):
        return np.maximum(n, m)[..., None] + 1

    def answer(self, operands):
        return carried(operands[:, 0] + operands[:, 1])[:, None]


class Subtraction(Task):
    """`21-3=9` is 12 - 3 = 9. The sign precedes the digits: `3-72=-42` is 3 - 27 = -24."""

    symbol = "-"
    signed = True

    def answer_widths(self, n, m):
        return np.maximum(n, m)[..., None]

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
    """`21,3,5=3,5,21` puts 12, 3 and 5 in ascending order: n numbers of 1 to m digits each, of m
    digits with leading zeros."""

    symbol = ","
    ragged = True

    def operand_widths(self, n, m):
        most = np.max(n)
        return (np.arange(most) >= most - np.expand_dims(n, -1)) * np.expand_dims(m, -1)

    answer_widths = operand_widths

    def answer(self, operands):
        # Numbers that are not there are zeros: they sort to the front, where widths are 0.
        order = np.lexsort(np.moveaxis(operands, -1, 0), axis=-1)
        return np.take_along_axis(operands, order[..., None], axis=1)


class BitwiseOr(Task):
    """`011|1=111` is 110 | 1 = 111 in binary: operands of n and m bits. With leading zeros they
    are any vectors of bits."""

    symbol = "|"
    base = 2

    def answer_widths(self, n, m):
        return np.maximum(n, m)[..., None]

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
    """Decimal digits (B, W + 1) of numbers of which `columns` (B, W) are the tens' coefficients,
    of any size and sign."""
    digits = np.empty((len(columns), columns.shape[1] + 1), dtype=np.int64)
    carry = np.zeros(len(columns), dtype=np.int64)
    for place, column in enumerate(columns.T):
        carry, digits[:, place] = np.divmod(column + carry, 10)
    digits[:, -1] = carry
    return digits


def significant(numbers: np.ndarray) -> np.ndarray:
    """How many digits each number has (..., W) -> (...) without leading zeros: 1 for zero."""
    return np.max((numbers != 0) * np.arange(1, numbers.shape[-1] + 1), axis=-1, initial=1)


def is_held_out(digits: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Which problems (B,) are for evaluation only: by a hash of the operands, whatever the seed.

    The hash is a sum of a random 64-bit number per operand and place, each times what is there.
    """
    operands, places = digits.shape[1:]
    operand = np.arange(operands, 0, -1, dtype=np.uint64)[:, None]  # from the last: see Task
    place = np.arange(places, dtype=np.uint64)
    written = np.where(place < lengths[..., None], digits + 1, 0).astype(np.uint64)
    hashes = (written * mixed(operand << 32 | place)).sum(axis=(1, 2))
    return mixed(hashes) >> (64 - HELD_OUT_BITS) == 0


def mixed(x: np.ndarray) -> np.ndarray:
    """Each uint64 to another that looks random (SplitMix64: Steele, Lea and Flood 2014)."""
    x = x + 0x9E3779B97F4A7C15
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)
