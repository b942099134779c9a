"""Biases of attention scores, and their masks."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

DENSE_BACKENDS = frozenset({"eager", "sdpa", "flex_attention"})  # take biases as tensors
SCORE_BACKENDS = frozenset({"eager", "sdpa"})  # take scores in place of products


def masked(scores: Tensor, mask: Tensor | None, hidden: float | None = None) -> Tensor:
    """Applies a mask, boolean (True attends) or additive, that broadcasts to the scores.

    Hidden scores become `hidden`, by default the dtype's minimum, with which softmax over a query
    that sees nothing (padding) is uniform."""
    if mask is None:
        return scores
    lowest = torch.finfo(scores.dtype).min
    hidden = lowest if hidden is None else hidden
    if mask.dtype == torch.bool:
        return scores.masked_fill(~mask, hidden)
    # A sum would be -inf for two minima (NaN if in a whole row) and inf for an infinite score.
    return torch.where(mask > lowest / 2, scores + mask, hidden)


def lookup(x: Tensor) -> Callable[..., Tensor]:
    """Returns (batch, *indices) -> x[batch, *indices]; a batch of one serves every sequence."""
    if x.shape[0] == 1:
        row = x[0]
        return lambda batch, *indices: row[indices]
    own = x.view_as(x)  # torch 2.13 fails over graphs in which two lookups have one tensor
    return lambda *indices: own[indices]


# (score, batch, head, query, key) -> score; all scalar tensors.
ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


class ScoreBias:
    """Bias b_h(i, j) added to the scaled scores of one layer.

    `dense` is the definition; fused kernels may use an equivalent form. `rows` is the same bias for
    some queries: blockwise attention never computes that of all pairs.

    Attributes:
        replaces_products: whether it is the whole score: the products of queries and keys are not
            added.
        separates: whether it has `separated`, a number of the query plus one of the key.
    """

    replaces_products: bool = False
    separates: bool = False

    def dense(self, dtype: torch.dtype) -> Tensor:
        """Returns the bias of all pairs, (B|1, H, T, S), in `dtype`."""
        raise NotImplementedError

    def rows(self, queries: slice, keys: slice) -> "ScoreBias":
        """Returns the bias of the queries 0..T-1 in a slice at the keys 0..S-1 in another one,
        which holds all keys from the first to the last that any of these queries sees or is at."""
        raise NotImplementedError(
            f"{type(self).__name__} has no method rows, which long inputs need on a CPU"
        )

    def by_distance(self, distances: Tensor, dtype: torch.dtype) -> Tensor | None:
        """Returns the bias at distances (N,) >= 0, (H, N), if it is a function of the distance
        between slots alone, or None."""
        return None

    def separated(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Returns numbers of the queries (B|1, H, T) and of the keys (B|1, H, S) whose sums are the
        bias wherever the key is not after the query. Those of keys near the first query are small,
        so that sums in `dtype` are as exact as the bias."""
        raise NotImplementedError

    def masked(self, mask: Tensor | None, dtype: torch.dtype, causal: bool = False) -> Tensor:
        """Returns `dense` with a mask applied for torch's fused kernels; `causal` stands for a
        causal mask."""
        term = self.dense(dtype)
        if causal:
            mask = torch.ones(term.shape[-2:], dtype=torch.bool, device=term.device).tril()
        # A query that sees nothing gets 0, as with a mask alone. In torch 2.13 a row of finite
        # minima would have wrong gradients.
        return masked(term, mask, -torch.inf)

    def score_mod(self, dtype: torch.dtype) -> ScoreMod:
        """The bias as a FlexAttention score_mod in `dtype`; reads `dense` unless overridden.

        It may read a tensor that requires grad only once: compiled FlexAttention refuses more.
        """
        term = lookup(self.dense(dtype))
        return lambda score, b, h, i, j: score + term(b, h, i, j)

    def alibi_slopes(self) -> Tensor | None:
        """Slopes (H,) float32 if the bias is -slope_h (i - j) with i and j counting the real
        tokens, the only bias that FlashAttention supports; otherwise None."""
        return None


class ScaledBias(ScoreBias):
    """A bias times a factor for each head and query, (B|1, H, T)."""

    def __init__(self, bias: ScoreBias, factor: Tensor):
        self.whole, self.factor = bias, factor
        self.replaces_products = bias.replaces_products

    def dense(self, dtype: torch.dtype) -> Tensor:
        wide = torch.promote_types(dtype, self.factor.dtype)
        return (self.whole.dense(wide) * self.factor[..., None]).to(dtype)

    def rows(self, queries: slice, keys: slice) -> ScoreBias:
        return ScaledBias(self.whole.rows(queries, keys), self.factor[..., queries])

    def score_mod(self, dtype: torch.dtype) -> ScoreMod:
        mod, factor = self.whole.score_mod(dtype), lookup(self.factor.to(dtype))

        def add(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return score + factor(b, h, i) * mod(torch.zeros_like(score), b, h, i, j)

        return add


class SumOfBiases(ScoreBias):
    """Two biases of the same scores, of which one may be the whole score."""

    def __init__(self, first: ScoreBias, second: ScoreBias):
        self.parts = first, second
        self.replaces_products = first.replaces_products or second.replaces_products
        self.separates = first.separates and second.separates

    def dense(self, dtype: torch.dtype) -> Tensor:
        first, second = (part.dense(dtype) for part in self.parts)
        return first + second

    def rows(self, queries: slice, keys: slice) -> ScoreBias:
        return SumOfBiases(*(part.rows(queries, keys) for part in self.parts))

    def separated(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        first, second = (part.separated(dtype) for part in self.parts)
        return first[0] + second[0], first[1] + second[1]


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """Returns a copy of a bias, or of a part of it, with `change` applied to all that it is made
    of: tensors, modules and settings, also in tuples and in other biases."""
    if isinstance(value, ScoreBias):
        changed = copy.copy(value)
        vars(changed).update({name: mapped(part, change) for name, part in vars(value).items()})
        return changed
    if isinstance(value, tuple):
        parts = [mapped(part, change) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else (*parts,)
    return change(value)
