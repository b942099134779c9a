"""Interpolated Kneser-Ney models of n tokens: what counting reaches on the training tokens.

Kneser & Ney 1995; Chen & Goodman 1998, section 2.7, with one discount per order,
n1 / (n1 + 2 n2) from the numbers of n-grams that occur once and twice.
"""

from typing import NamedTuple, Self

import numpy as np

ORDERS = {"bigram": 2, "trigram": 3, "5-gram": 5}


class Counts(NamedTuple):
    """Counts of all k-grams of one order; their contexts are their first k - 1 tokens."""

    grams: np.ndarray  # (G,) count by k-gram
    total: np.ndarray  # (C,) sum of counts by context
    distinct: np.ndarray  # (C,) k-grams with a count by context
    discount: float  # subtracted from every count

    @classmethod
    def of(cls, grams: np.ndarray, contexts: np.ndarray, size: int) -> Self:
        once, twice = (grams == 1).sum(), (grams == 2).sum()
        discount = once / (once + 2 * twice) if once else 0.5
        total = np.bincount(contexts, grams, size)
        return cls(grams, total, np.bincount(contexts[grams > 0], minlength=size), discount)


class NGrams:
    """Models of up to `order` tokens, fitted to blocks of tokens.

    A k-gram has an id: the rank of (id of its first k - 1 tokens, last token) among those that
    occur, so ids stay below the number of tokens. The id of a single token is the token.

    Args:
        blocks: (N, L) training tokens; no k-gram spans two blocks.
        vocabulary: number of tokens; each has a probability above 0.
    """

    def __init__(self, blocks: np.ndarray, vocabulary: int, order: int = max(ORDERS.values())):
        self.vocabulary = vocabulary
        tokens = blocks.astype(np.int64)
        self.keys: list[np.ndarray] = [np.arange(vocabulary)]  # sorted, of order 1, 2, ...
        contexts, size = np.zeros(vocabulary, np.int64), 1
        grams = np.bincount(tokens.ravel(), minlength=vocabulary).astype(float)
        self.counts = [Counts.of(grams, contexts, size)]  # of occurrences
        self.continuations: list[Counts] = []  # of different tokens before the k-gram
        ids = tokens
        for k in range(2, order + 1):
            longer = ids[:, :-1] * vocabulary + tokens[:, k - 1 :]
            keys, first, inverse, found = np.unique(
                longer, return_index=True, return_inverse=True, return_counts=True
            )
            # The last k - 1 tokens of each k-gram, where it first occurs.
            suffixes = ids[:, 1:].ravel()[first]
            before = np.bincount(suffixes, minlength=len(self.keys[-1])).astype(float)
            self.continuations.append(Counts.of(before, contexts, size))
            contexts, size = keys // vocabulary, len(self.keys[-1])
            self.keys.append(keys)
            self.counts.append(Counts.of(found.astype(float), contexts, size))
            ids = inverse.reshape(longer.shape)

    def probabilities(self, grams: np.ndarray, order: int) -> np.ndarray:
        """Returns the probability of the last token of each row, given the tokens before it: (M,).

        Args:
            grams: (M, order) tokens.
            order: number of tokens of the model, from 2 to the one that was fitted.
        """
        found = np.full(len(grams), 1 / self.vocabulary)
        for k in range(1, order + 1):
            gram = np.zeros(len(grams), np.int64)
            for n, token in enumerate(grams[:, order - k :].astype(np.int64).T):
                context, gram = gram, self._ids(n, gram, token)
            counts = self.counts[k - 1] if k == order else self.continuations[k - 1]
            total = np.where(context >= 0, counts.total[context], 0)
            count = np.where(gram >= 0, counts.grams[gram], 0)
            known = total > 0
            left = counts.discount * counts.distinct[context] * found
            found[known] = ((np.maximum(count - counts.discount, 0) + left)[known]) / total[known]
        return found

    def _ids(self, n: int, context: np.ndarray, token: np.ndarray) -> np.ndarray:
        """Returns the ids of (n + 1)-grams from those of their first n tokens; -1 if unknown."""
        keys, key = self.keys[n], context * self.vocabulary + token
        place = np.minimum(np.searchsorted(keys, key), len(keys) - 1)
        return np.where((context >= 0) & (keys[place] == key), place, -1)
