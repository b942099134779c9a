"""Bigrams in context: documents whose statistics are their own.

Each document is a Markov chain over 16 letters with a random transition table, so nothing about a
letter is known except from earlier letters of its document, and a longer context is worth more at
any length. docs/pretraining.md has the lowest loss that a model can reach.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from string import ascii_lowercase

import numpy as np

from tape.data.corpora import Corpus, Split

SYMBOLS = 16
CONCENTRATION = 0.1  # of the Dirichlet distribution of a row of a table
DOCUMENTS = {"train": 10_240, "validation": 1_024}
# Letters of a document; EOS follows. Windows of up to 512 tokens every 513 tokens of the validation
# split begin with a document. In training, documents end at any place of a sequence.
LETTERS = {"train": 510, "validation": 512}
AT_ONCE = 1_024  # documents


def chains(seed: Sequence[int], count: int, length: int) -> np.ndarray:
    """Draws `count` chains of `length` symbols, (count, length), each from a table of its own: for
    each row i, probabilities of the next symbol from Dirichlet(0.1, ..., 0.1)."""
    random = np.random.RandomState(seed)  # the same numbers in all versions of numpy
    tables = random.standard_gamma(CONCENTRATION, (count, SYMBOLS, SYMBOLS)).cumsum(-1)
    symbols, each = np.empty((count, length), np.int64), np.arange(count)
    symbols[:, 0] = random.randint(SYMBOLS, size=count)
    for n in range(1, length):
        row = tables[each, symbols[:, n - 1]]
        drawn = random.random_sample((count, 1)) * row[:, -1:]
        symbols[:, n] = (drawn >= row[:, :-1]).sum(-1)
    return symbols


class BigramCorpus(Corpus):
    """Documents of random Markov chains, the same on every machine."""

    def __init__(self, name: str = "bigrams", documents: str | None = None):
        super().__init__(name, documents)

    def symbols(self, split: Split) -> Iterator[np.ndarray]:
        """Yields the documents as arrays (up to 1,024, length)."""
        number = [*DOCUMENTS].index(split)
        for n, first in enumerate(range(0, DOCUMENTS[split], AT_ONCE)):
            count = min(AT_ONCE, DOCUMENTS[split] - first)
            yield chains([number, n], count, LETTERS[split])

    def documents(self, split: Split) -> Iterator[str]:
        letters = np.array([*ascii_lowercase[:SYMBOLS]])
        for part in self.symbols(split):
            yield from map("".join, letters[part])

    def fingerprint(self) -> str:
        rule = f"bigrams {SYMBOLS} {CONCENTRATION} {DOCUMENTS} {LETTERS}"
        return hashlib.sha256(rule.encode()).hexdigest()

    def describe(self) -> str:
        return f"{self.name}: {DOCUMENTS['train']:,} random documents of {LETTERS['train']} letters"
