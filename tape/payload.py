"""Payload: the slice of the positional state that attention averages next to the values.

A payload is a tensor (B|1, K|1, S, P). A cache stores it as the last P channels of the values; it
is then given as its width P, so that the cache is not copied.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

Payload = Tensor | int | None


class Attended(NamedTuple):
    """What attention returns."""

    values: Tensor  # (B, H, T, D), averaged
    payload: Tensor | None  # (B, H, T, P), averaged under the same weights
    weights: Tensor | None = None  # (B, H, T, S), if the backend has them
    lse: Tensor | None = None  # (B, H, T) log-sum-exp of the masked scores, if asked for


def concat_payload(v: Tensor, payload: Payload) -> Tensor:
    """Concatenates values and payload: (B, K, S, D + P)."""
    if not isinstance(payload, Tensor):
        return v
    return torch.cat((v, payload.expand(*v.shape[:-1], -1)), dim=-1)


def split(x: Tensor, payload: Payload) -> tuple[Tensor, Tensor | None]:
    """Splits the result of `concat_payload`, or its average; None without a payload."""
    if payload is None:
        return x, None
    P = width(payload)
    return x.split((x.shape[-1] - P, P), dim=-1)


def split_payload(v: Tensor, payload: Payload) -> tuple[Tensor, Tensor | None]:
    """Returns values and payload as two tensors."""
    return split(v, payload) if isinstance(payload, int) else (v, payload)


def width(payload: Tensor | int) -> int:
    return payload if isinstance(payload, int) else payload.shape[-1]


def per_query_head(x_BKSD: Tensor, num_heads: int) -> Tensor:
    """Repeats keys, values or payload of a key/value head for the query heads of its group."""
    K = x_BKSD.shape[1]
    return x_BKSD if K in (1, num_heads) else x_BKSD.repeat_interleave(num_heads // K, dim=1)
