"""Scores, or biases of them, that a layer computes from its queries and keys."""

import torch
from torch import Tensor

from tape.positions.base import LayerPosition, Tokens
from tape.positions.scores import ScoreBias


class PairLayer(LayerPosition):
    """A layer whose `forward` returns its bias, or if it `replaces_products` all of its scores, (B,
    H, T, S). It takes the arguments of `bias`, with queries and keys in at least float32."""

    replaces_products: bool = False

    def bias(
        self, q_BHTD: Tensor, k_BKSD: Tensor, extras: Tensor | None, tokens: Tokens
    ) -> ScoreBias:
        return PairBias(self, q_BHTD, k_BKSD, extras, tokens)


class PairBias(ScoreBias):
    """What a `PairLayer` computes from queries (B, H, T, D) and keys (B, K, S, D)."""

    def __init__(
        self, layer: PairLayer, q: Tensor, k: Tensor, extras: Tensor | None, tokens: Tokens
    ):
        self.layer, self.q, self.k, self.extras, self.tokens = layer, q, k, extras, tokens
        self.replaces_products = layer.replaces_products

    def dense(self, dtype: torch.dtype) -> Tensor:
        wide = torch.promote_types(dtype, torch.float32)
        with torch.autocast(self.q.device.type, enabled=False):
            q, k = self.q.to(wide), self.k.to(wide)
            return self.layer(q, k, self.extras, self.tokens).to(dtype)

    def rows(self, queries: slice, keys: slice) -> ScoreBias:
        extras = None if self.extras is None else self.extras[:, :, keys]
        tokens = self.tokens.rows(queries, keys)
        return type(self)(self.layer, self.q[:, :, queries], self.k[:, :, keys], extras, tokens)


def for_queries(k_BKSD: Tensor, q_BHTD: Tensor) -> Tensor:
    """Repeats keys for the query heads of each key/value head, (B, H, S, D)."""
    return k_BKSD.repeat_interleave(q_BHTD.shape[1] // k_BKSD.shape[1], dim=1)
