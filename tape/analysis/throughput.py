"""How much arithmetic a piece of work is, by the formulas of Table 3's rule.

A product of attention over pairs of tokens takes so many multiply-adds a pair, everything else so
many a token. The paper's rule counts all N^2 pairs; causally there are N (N + 1) / 2.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import NamedTuple

from tape import TapeConfig
from tape.analysis import formulas
from tape.analysis.workloads import Load

AVERAGE = "average of E"  # what is left of TAPE without its update
SHARED = "MLP of distances"  # FIRE's; all of it is of pairs


class Operations(NamedTuple):
    """Multiply-adds; those that are `shared` are made once for all sequences of a batch."""

    per_token: int
    per_pair: int
    shared_per_pair: int

    @classmethod
    def of(cls, parts: Callable[[int], dict[str, int]]) -> Operations:
        """From the parts of a sequence of any length."""
        one, two = (sum(n for part, n in parts(N).items() if part != SHARED) for N in (1, 2))
        per_pair = (two - 2 * one) // 2
        return cls(one - per_pair, per_pair, parts(1).get(SHARED, 0))


def of_model(config: TapeConfig) -> Operations:
    """Of a whole decoder, logits of every token included."""
    return Operations.of(lambda length: formulas.multiply_adds(config, length))


def of_layer(config: TapeConfig, update: bool = True) -> Operations:
    """Of one attention layer: what a second layer adds to a decoder, but for its MLP.

    Args:
        update: whether the layer's update of TAPE's state belongs to it.
    """
    one, two = copy.copy(config), copy.copy(config)
    one.num_hidden_layers, two.num_hidden_layers = 1, 2

    def parts(length: int) -> dict[str, int]:
        first, both = (formulas.multiply_adds(c, length) for c in (one, two))
        updates = formulas.of_encoding(two, length).keys() - {AVERAGE}
        left_out = {"MLP"} | (set() if update else updates)
        return {part: n - first.get(part, 0) for part, n in both.items() if part not in left_out}

    return Operations.of(parts)


def multiply_adds(operations: Operations, load: Load, logits: int, causal: bool) -> int:
    """Of a piece of work. A backward pass takes twice those of the forward pass.

    Args:
        logits: of those per token, what the logits take; a prompt has them of its last token only.
        causal: count the pairs of a token and those up to it alone.
    """
    N, tokens = load.length, load.length
    if load.work == "decoding":
        tokens, pairs = load.new, sum(range(N + 1, N + load.new + 1))
    else:
        pairs = N * (N + 1) // 2 if causal else N**2
    each = tokens * operations.per_token + pairs * operations.per_pair
    if load.work == "prefill":
        each -= (N - 1) * logits
    once = load.batch * each + pairs * operations.shared_per_pair
    return once * (3 if load.work == "training" else 1)
