"""Problems of addition as arrays of digits and as tokens.

B numbers of up to W digits are one array (B, W), the least significant digit first, padded with
zeros. Operands and sum are written in the same order, `21+3=51` for 12 + 3 = 15, with one token per
character, and EOS follows. Parts of unequal length are joined with padding in between, a gap.
"""

from dataclasses import dataclass

import numpy as np
from tokenizers import Regex, decoders, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tape.core.validation import check_integer
from tape.data.tokenizer import END, PADDING
from tape.model.loss import IGNORED
from tape.tasks.generated import Block, Source, added, is_held_out, word_tokenizer

MIN_SPLIT_DIGITS = 4  # of both operands; smaller cells have no held-out problems
MAX_DIGITS = 10_000  # of an operand
TRAINING, EVALUATION, SEQUENCES_HELD_OUT = range(3)  # random streams of a seed
VOCABULARY = (END, PADDING, *"0123456789=-, +*|")  # part of it unused: that of all trained models
PLACES = np.array([[2], [1]]) << 32  # of the operands' digits, in hashes
EOS, GAP, ZERO, EQUALS, PLUS = map(VOCABULARY.index, (END, PADDING, "0", "=", "+"))


def character_tokenizer() -> PreTrainedTokenizerFast:
    """Returns a tokenizer of `VOCABULARY`, a token per character, which refuses all others."""
    return word_tokenizer(VOCABULARY, pre_tokenizers.Split(Regex("."), "isolated"), decoders.Fuse())


@dataclass(frozen=True)
class Problems(Source):
    """Additions. A cell (n, m) is the set of problems with operands of n and m digits; operands
    other than 0 have no leading zeros. Training draws uniformly from the cells 1..max_first x
    1..max_second."""

    max_first: int = 5
    max_second: int = 5

    FILE = "problems.json"
    CHUNK = 1024
    tokenizer = staticmethod(character_tokenizer)

    def __post_init__(self):
        for name in ("max_first", "max_second"):
            check_integer(f"data.{name}", getattr(self, name), most=MAX_DIGITS)

    @property
    def length(self) -> int:
        return self.max_first + self.max_second + max(self.trained) + len("+=1") + 1

    @property
    def trained(self) -> tuple[int, int]:
        return self.max_first, self.max_second

    def evaluation(self, n: int, m: int, count: int, seed: int) -> list[tuple[str, str]]:
        """Draws `count` problems of a cell as (prompt, answer), such as ("21+3=", "51"). They may
        repeat; none is a training problem if the cell is large enough (see `draw`)."""
        rng = np.random.default_rng((seed, EVALUATION, n, m))
        drawn = draw(rng, np.tile((n, m), (count, 1)), held_out=True)
        texts = (
            ["".join(VOCABULARY[x] for x in each if x != GAP) for each in part] for part in drawn
        )
        return list(zip(*texts, strict=True))

    def chunk(self, number: int, count: int, seed: int, held_out: bool) -> Block:
        """Returns problems of random cells. Labels are what follows '='."""
        stream = SEQUENCES_HELD_OUT if held_out else TRAINING
        rng = np.random.default_rng((seed, stream, number))
        cells = [rng.integers(1, most, self.CHUNK, endpoint=True) for most in self.trained]
        ends = np.full((self.CHUNK, 1), EOS)
        ids = np.hstack((*draw(rng, np.stack(cells, axis=-1), held_out), ends))
        order = np.argsort(ids == GAP, axis=1, kind="stable")
        ids = np.take_along_axis(ids, order, axis=1)[:count, : self.length]
        answers = (ids != GAP) & (np.cumsum(ids == EQUALS, axis=1) > 0) & (ids != EQUALS)
        return ids, np.where(answers, ids, IGNORED)


def draw(rng: np.random.Generator, widths: np.ndarray, held_out: bool) -> Block:
    """Draws problems with operands of these numbers of digits (B, 2), either all or none of them
    held out; returns the tokens of prompts and answers, with gaps. Cells with fewer than 10,000
    pairs of digit strings (n + m < 4) are too small to be split: either may draw their problems."""
    split = widths.sum(axis=1) >= MIN_SPLIT_DIGITS
    place = np.arange(widths.max())
    operands = np.empty((*widths.shape, len(place)), dtype=np.int64)
    missing = np.arange(len(widths))
    while missing.size:
        last = widths[missing, :, None] - 1
        digits = rng.integers(10, size=(len(missing), 2, len(place)), dtype=np.uint8)
        nonzero = rng.integers(1, 10, size=last.shape, dtype=np.uint8)
        digits = np.where((place == last) & (last > 0), nonzero, digits)
        operands[missing] = np.where(place <= last, digits, 0)
        values = np.where(place <= last, operands[missing], -1)
        wrong = is_held_out(values, PLACES | place) != held_out
        missing = missing[wrong & split[missing]]
    sums = added(*operands.swapaxes(0, 1))
    first, second = (written(*of) for of in zip(operands.swapaxes(0, 1), widths.T, strict=True))
    digits = np.arange(1, sums.shape[1] + 1)
    sums = written(sums, np.max((sums > 0) * digits, axis=1, initial=1))
    plus, equals = (np.full((len(sums), 1), token) for token in (PLUS, EQUALS))
    return np.hstack((first, plus, second, equals)), sums


def written(numbers: np.ndarray, widths: np.ndarray) -> np.ndarray:
    """Returns the tokens of numbers (B, W), whose first `widths` (B,) digits count."""
    return np.where(np.arange(numbers.shape[1]) < widths[:, None], ZERO + numbers, GAP)
