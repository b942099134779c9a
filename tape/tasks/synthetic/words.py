"""The vocabulary of all synthetic tasks, and random draws that depend on nothing but a key."""

from __future__ import annotations

import string

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tape.data.tokenizer import END, PADDING
from tape.hashing import splitmix64

SYMBOLS = 128
NAMES = (
    PADDING,
    END,
    "=",
    "|",
    ".",
    *string.digits,
    *string.ascii_lowercase,
    *(f"s{n}" for n in range(SYMBOLS)),
)
PAD, EOS, EQUALS, SEPARATOR, BLANK = range(5)
DIGIT, LETTER, SYMBOL = (NAMES.index(first) for first in ("0", "a", "s0"))
STEP = np.uint64(0x9E3779B97F4A7C15)  # of SplitMix64


def words_tokenizer() -> PreTrainedTokenizerFast:
    """Returns a tokenizer with one token per word of `NAMES`, in that order."""
    vocabulary = {name: index for index, name in enumerate(NAMES)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, pad_token=PADDING, padding_side="right"
    )


def keys_of(*parts: np.ndarray | int) -> np.ndarray:
    """Hashes integers >= 0, of shapes that broadcast to (B,), to keys (B,)."""
    key = np.zeros(1, dtype=np.uint64)
    for part in parts:
        key = splitmix64(key + np.asarray(part, dtype=np.uint64))
    return key


class Draws:
    """Random numbers of B problems: the outputs of SplitMix64, started from each key (B,)."""

    def __init__(self, keys: np.ndarray):
        self.keys, self.used = keys[:, None], 0

    def bits(self, count: int) -> np.ndarray:
        """(B, count) of uint64."""
        places = np.arange(self.used, self.used + count, dtype=np.uint64)
        self.used += count
        return splitmix64(self.keys + places * STEP)

    def integers(self, bound: int, count: int) -> np.ndarray:
        """(B, count) in 0..bound-1, of equal probability up to bound / 2**32."""
        return ((self.bits(count) >> 32) * np.uint64(bound) >> 32).astype(np.int64)

    def permutation(self, count: int) -> np.ndarray:
        """(B, count): 0..count-1 in random order."""
        return np.argsort(self.bits(count), axis=1, kind="stable")
