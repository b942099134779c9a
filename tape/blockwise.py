"""Causal attention on a CPU whose values are wider than its queries, by blocks of queries.

torch's fused CPU kernel wants values of the queries' width: values and payload take two calls of
it, two softmaxes, and ten matrix products in the backward pass. Here they share one softmax and
take seven. Like the fused kernel this keeps no weights: a block's are computed again for its
gradients, so that memory grows with the length and not with its square.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.compiler import is_compiling

BLOCK = 128  # queries whose weights are in memory at once


def _weights(q: Tensor, k: Tensor, start: int) -> Tensor:
    """Softmax over keys 0..S-1 for the queries of a block, which begins at key `start`."""
    scores = q @ k.transpose(-1, -2)
    T = q.shape[-2]
    after = torch.ones(T, T, dtype=torch.bool, device=q.device).triu(1)
    scores[..., start:].masked_fill_(after, -torch.inf)
    return scores.softmax(dim=-1)


class _CausalAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor, scaling: float) -> Tensor:
        ctx.save_for_backward(q, k, v)
        ctx.scaling = scaling
        B, H, T, _ = q.shape
        attended = q.new_empty(B, T, H, v.shape[-1]).transpose(1, 2)
        for start in range(0, T, BLOCK):
            block, seen = slice(start, start + BLOCK), slice(start + BLOCK)
            weights = _weights(q[:, :, block] * scaling, k[:, :, seen], start)
            attended[:, :, block] = weights @ v[:, :, seen]
        return attended

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        q, k, v = ctx.saved_tensors
        grad_q, grad_k, grad_v = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for start in range(0, q.shape[-2], BLOCK):
            block, seen = slice(start, start + BLOCK), slice(start + BLOCK)
            scaled_q, grad_block = q[:, :, block] * ctx.scaling, grad[:, :, block].contiguous()
            weights = _weights(scaled_q, k[:, :, seen], start)
            grad_v[:, :, seen] += weights.transpose(-1, -2) @ grad_block
            grad_weights = grad_block @ v[:, :, seen].transpose(-1, -2)
            grad_scores = torch._softmax_backward_data(grad_weights, weights, -1, weights.dtype)
            grad_q[:, :, block] = grad_scores @ k[:, :, seen]
            grad_k[:, :, seen] += grad_scores.transpose(-1, -2) @ scaled_q
        return grad_q.mul_(ctx.scaling), grad_k, grad_v, None


def pays(q: Tensor) -> bool:
    """Whether `causal_attention` beats two fused calls: on a CPU, for its backward pass."""
    exact = q.dtype in (torch.float32, torch.float64)
    return q.device.type == "cpu" and exact and q.requires_grad and not is_compiling()


def causal_attention(q: Tensor, k: Tensor, v: Tensor, scaling: float) -> Tensor:
    """softmax(scaling q k^T, causal) v.

    Args:
        q, k: (B, H, T, D); v: (B, H, T, any width); float32 or float64.
    """
    return _CausalAttention.apply(q, k, v, scaling)
