"""A corpus that is generated: chains of letters with statistics of their own."""

import hashlib
from collections.abc import Iterator, Sequence
from string import ascii_lowercase

import numpy as np

from tape.data.corpora import Corpus, Split


class BigramCorpus(Corpus):
    """Documents whose statistics are their own, the same on every machine: each is a Markov chain
    over 16 letters with a random transition table. Nothing about a letter is known except from
    earlier letters of its document. docs/text.md has the lowest loss that can be reached."""

    SYMBOLS = 16
    CONCENTRATION = 0.1  # of the Dirichlet distribution of a row of a table
    DOCUMENTS = {"train": 10_240, "validation": 1_024}
    # Letters of a document; EOS follows. Windows of up to 512 tokens every 513 tokens of the
    # validation split begin with a document. In training, documents end at any place of a sequence.
    LETTERS = {"train": 510, "validation": 512}
    AT_ONCE = 1_024  # documents

    def __init__(self, name: str = "bigrams", documents: str | None = None):
        super().__init__(name, documents)

    @classmethod
    def chains(cls, seed: Sequence[int], count: int, length: int) -> np.ndarray:
        """Draws `count` chains of `length` symbols, (count, length), each from a table of its own:
        for each row i, probabilities of the next symbol from Dirichlet(0.1, ..., 0.1)."""
        random = np.random.RandomState(seed)  # the same numbers in all versions of numpy
        tables = random.standard_gamma(cls.CONCENTRATION, (count, cls.SYMBOLS, cls.SYMBOLS))
        tables, each = tables.cumsum(-1), np.arange(count)
        symbols = np.empty((count, length), np.int64)
        symbols[:, 0] = random.randint(cls.SYMBOLS, size=count)
        for n in range(1, length):
            row = tables[each, symbols[:, n - 1]]
            drawn = random.random_sample((count, 1)) * row[:, -1:]
            symbols[:, n] = (drawn >= row[:, :-1]).sum(-1)
        return symbols

    def symbols(self, split: Split) -> Iterator[np.ndarray]:
        """Yields the documents as arrays (up to 1,024, length)."""
        number = [*self.DOCUMENTS].index(split)
        for n, first in enumerate(range(0, self.DOCUMENTS[split], self.AT_ONCE)):
            count = min(self.AT_ONCE, self.DOCUMENTS[split] - first)
            yield self.chains([number, n], count, self.LETTERS[split])

    def documents(self, split: Split) -> Iterator[str]:
        letters = np.array([*ascii_lowercase[: self.SYMBOLS]])
        for part in self.symbols(split):
            yield from map("".join, letters[part])

    def fingerprint(self) -> str:
        rule = f"bigrams {self.SYMBOLS} {self.CONCENTRATION} {self.DOCUMENTS} {self.LETTERS}"
        return hashlib.sha256(rule.encode()).hexdigest()

    def describe(self) -> str:
        count, length = self.DOCUMENTS["train"], self.LETTERS["train"]
        return f"{self.name}: {count:,} random documents of {length} letters"
