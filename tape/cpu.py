"""Attention without a bias or dropout that is faster on a CPU than torch's fused kernels."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.compiler import is_compiling

from tape.blockwise import causal_attention
from tape.payload import Payload, concat_payload, per_query_head, split, split_payload
from tape.positions.scores import masked


def is_single_query(q: Tensor, k: Tensor, payload: Payload, mask: Tensor | None) -> bool:
    """Whether one token is decoded, with a payload or grouped queries: keys and values are then
    read once for values and payload, and once per group of heads."""
    shared = payload is not None or k.shape[1] != q.shape[1]
    return q.shape[2] == 1 and shared and q.device.type == "cpu" and not torch.is_grad_enabled()


def single_query(
    q: Tensor, k: Tensor, v: Tensor, payload: Payload, mask: Tensor | None, scaling: float
) -> tuple[Tensor, Tensor | None]:
    """Computes the softmax unfused."""
    (B, H, _, D), K = q.shape, k.shape[1]
    scores = torch.bmm((q * scaling).reshape(B * K, -1, D), k.flatten(0, 1).mT)
    if mask is not None:
        scores = masked(scores.view(B, H, 1, -1), mask).view_as(scores)
    weights = scores.softmax(dim=-1, dtype=torch.promote_types(q.dtype, torch.float32))
    averages = torch.bmm(weights.to(q.dtype), concat_payload(v, payload).flatten(0, 1))
    return split(averages.view(B, H, 1, -1), payload)


def is_causal_training(q: Tensor, k: Tensor, payload: Payload, mask: Tensor | None) -> bool:
    """Whether the gradient of a causal text with a payload is wanted."""
    exact = q.dtype in (torch.float32, torch.float64) and not is_compiling()
    causal = payload is not None and mask is None and q.shape[2] == k.shape[2] > 1
    return causal and exact and q.device.type == "cpu" and q.requires_grad


def causal_training(
    q: Tensor, k: Tensor, v: Tensor, payload: Payload, mask: None, scaling: float
) -> tuple[Tensor, Tensor]:
    B, H = q.shape[:2]
    values = split_payload(v, payload)
    whole = (per_query_head(x, H).expand(B, H, *x.shape[-2:]) for x in (k, *values))
    return causal_attention(q, *whole, scaling)


PATHS = ((is_single_query, single_query), (is_causal_training, causal_training))
