"""What attention averages beside the values: one tensor behind the other, or each by itself.

A payload is a tensor (B|1, K|1, S, P). In a cache it lies behind the values, as the last channels
of each; there it is given as a number, its width P, and nobody has to copy the cache.
"""

from __future__ import annotations

import torch
from torch import Tensor

Payload = Tensor | int | None


def concat_payload(v: Tensor, payload: Payload) -> Tensor:
    """Values with the payload behind them, (B, K, S, D + P)."""
    if not isinstance(payload, Tensor):
        return v
    return torch.cat((v, payload.expand(*v.shape[:-1], -1)), dim=-1)


def split(x: Tensor, payload: Payload) -> tuple[Tensor, Tensor | None]:
    """The two parts of what `concat_payload` made, or of its averages; None without a payload."""
    if payload is None:
        return x, None
    P = width(payload)
    return x.split((x.shape[-1] - P, P), dim=-1)


def split_payload(v: Tensor, payload: Payload) -> tuple[Tensor, Tensor | None]:
    """Values and payload, each by itself."""
    return split(v, payload) if isinstance(payload, int) else (v, payload)


def width(payload: Tensor | int) -> int:
    return payload if isinstance(payload, int) else payload.shape[-1]
