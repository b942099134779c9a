"""What attention takes and returns: averages of values, and of the payload next to them.

The payload is the slice of the positional state that attention averages under the same weights as
the values.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from tape.positions.scores import ScoreBias


class Values(NamedTuple):
    """What attention averages; a cache stores both as one tensor, of which they are views."""

    v: Tensor  # (B, K, S, D)
    payload: Tensor | None = None  # (B|1, K|1, S, P)
    joined: Tensor | None = None  # (B, K, S, D + P), if there is one

    @property
    def width(self) -> int:
        """P, the width of the payload; 0 without one."""
        return 0 if self.payload is None else self.payload.shape[-1]

    def concat(self) -> Tensor:
        """Returns values and payload in one tensor (B, K, S, D + P)."""
        if self.payload is None:
            return self.v
        if self.joined is not None:
            return self.joined
        return torch.cat((self.v, self.payload.expand(*self.v.shape[:-1], -1)), dim=-1)

    def alternating(self) -> Tensor:
        """Returns heads of values and, if it is as wide, of the payload in turn, (B, 2 K, S, D)."""
        return torch.stack((self.v, self.payload.expand_as(self.v)), dim=2).flatten(1, 2)

    def split(self, joined: Tensor) -> tuple[Tensor, Tensor | None]:
        """Splits what `concat` has joined, or averages of it, into values and payload."""
        if self.payload is None:
            return joined, None
        return joined.split((joined.shape[-1] - self.width, self.width), dim=-1)

    def per_query_head(self, H: int, B: int) -> "Values":
        """Returns both with B sequences and H heads."""
        parts = (x for x in (self.v, self.payload) if x is not None)
        return Values(*(per_query_head(x, H).expand(B, H, -1, -1) for x in parts))


class Request(NamedTuple):
    """What a backend is asked for: averages of values and payload, weighted by the softmax of
    scaling q . k + bias over the keys that the query sees."""

    q: Tensor  # (B, H, T, D)
    k: Tensor  # (B, K, S, D)
    values: Values
    mask: Any  # as `build_mask` returns it for the same backend
    bias: ScoreBias | None
    scaling: float
    dropout: float
    needs_lse: bool = False


class Attended(NamedTuple):
    """What a backend returns."""

    values: Tensor  # (B, H, T, D), averaged
    payload: Tensor | None = None  # (B, H, T, P), averaged under the same weights
    weights: Tensor | None = None  # (B, H, T, S), if the backend has them
    lse: Tensor | None = None  # (B, H, T) log-sum-exp of the masked scores, if `needs_lse`


def per_query_head(x_BKSD: Tensor, num_heads: int) -> Tensor:
    """Repeats keys, values or payload of a key/value head for the query heads of its group."""
    K = x_BKSD.shape[1]
    return x_BKSD if K in (1, num_heads) else x_BKSD.repeat_interleave(num_heads // K, dim=1)
