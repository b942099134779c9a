"""Attention on a CPU where torch's fused kernels are slower, or have no linear memory: one new
token, long inputs with biases or masks, values with a payload, 16-bit numbers."""

import torch
from torch import Tensor
from torch.compiler import is_compiling

from tape.attention import blockwise
from tape.attention.masks import Seen, is_long
from tape.attention.payload import Attended, Request, Values
from tape.positions.scores import masked


def attend(request: Request) -> Attended | None:
    """Returns the averages of a request without dropout on a CPU, or None where torch's fused
    kernels compute them."""
    q, k, values, mask, bias, scaling, dropout, needs_lse = request
    T, S = q.shape[2], k.shape[2]
    if dropout or is_compiling():
        return None
    if T == 1:
        if bias is not None or needs_lse or torch.is_grad_enabled():
            return None
        if values.payload is None and k.shape[1] == q.shape[1]:
            return None
        return Attended(*_single_query(q, k, values, mask, scaling))
    # torch's kernels have values of the queries' width: a payload takes a second call.
    joint = values.payload is not None and q.requires_grad and mask is None and T == S
    if is_long(T, q.device):
        slow = q.element_size() == 2 and not blockwise.HAS_BFLOAT16
        plain = bias is None and values.payload is None and not needs_lse
        joint |= not plain or isinstance(mask, Seen) or slow
    elif q.element_size() == 2 or bias is not None or needs_lse:
        joint = False
    if not joint or not (mask is None or isinstance(mask, Seen)):
        return None
    if mask is None and S > T:  # the free slots of a static cache
        k, values = k[:, :, :T], Values(*(None if x is None else x[:, :, :T] for x in values))
        request = request._replace(k=k, values=values)
    return blockwise.attend(request)


def _single_query(
    q: Tensor, k: Tensor, values: Values, mask: Tensor | None, scaling: float
) -> tuple[Tensor, Tensor | None]:
    """Computes the softmax unfused: keys and values are read once per group of heads."""
    (B, H, _, D), (K, S) = q.shape, k.shape[1:3]
    scores = torch.bmm((q * scaling).view(B * K, -1, D), k.flatten(0, 1).mT)
    if mask is not None:
        scores = masked(scores.view(B, K, -1, S), mask).flatten(0, 1)
    weights = scores.softmax(dim=-1, dtype=torch.promote_types(q.dtype, torch.float32)).to(q.dtype)

    def average(x_BKSD: Tensor) -> Tensor:
        return torch.bmm(weights, x_BKSD.flatten(0, 1)).view(B, H, 1, -1)

    if values.payload is None:
        return average(values.v), None
    if values.joined is not None:
        return values.split(average(values.joined))
    return average(values.v), average(values.payload.expand(B, K, -1, -1))
