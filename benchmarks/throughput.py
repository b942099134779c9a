"""Multiply-adds of a piece of work, by the formulas behind the paper's Table 3.

A product of attention takes so many multiply-adds per pair of tokens, everything else so many per
token. The paper counts all N^2 pairs; under a causal mask there are N (N + 1) / 2.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import NamedTuple

from benchmarks.workloads import Load
from tape import TapeConfig
from tape.analysis import formulas

AVERAGE = "average of E"  # stays in a layer of TAPE without its update
SHARED = "MLP of distances"  # of FIRE, per pair, once for all sequences of a batch


class Operations(NamedTuple):
    """Multiply-adds per token, per pair of tokens, and per pair for all sequences together."""

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
    """Of a whole decoder with the logits of every token."""
    return Operations.of(lambda length: formulas.multiply_adds(config, length))


def of_layer(config: TapeConfig, update: bool = True) -> Operations:
    """Of one attention layer: the difference of a second layer without its MLP.

    Args:
        update: whether the layer updates TAPE's state.
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
        logits: those of the logits per token. Of a prompt, only the last token has logits.
        causal: count only the pairs under a causal mask.
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
