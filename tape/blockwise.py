"""Causal CPU attention that averages values and payload in one pass, by blocks of queries.

torch's fused CPU kernel requires values of the queries' width, so values and payload take two
calls: two softmaxes, and ten matrix products in the backward pass. One softmax for both takes
seven products, or six for texts short enough to save the weights for the backward pass. For longer
texts the weights are recomputed, as in the fused kernel, so memory is linear in the length.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

BLOCK = 64  # queries whose weights are in memory at the same time
# Attention weights are saved for the backward pass up to this many tokens per channel of a head.
MAX_SAVED_LENGTH_RATIO = 4
# Added to the scores of a diagonal block, at keys after the query.
CAUSAL_BLOCK_MASK = torch.full((BLOCK, BLOCK), -torch.inf, device="cpu").triu(1)


class _CausalAttention(torch.autograd.Function):
    """All tensors are (B H, tokens, channels); queries are already scaled."""

    @staticmethod
    def weights(q: Tensor, k: Tensor, start: int) -> Tensor:
        """Softmax over keys 0..S-1 for a block of queries that starts at key `start`."""
        scores = q @ k.mT
        T = q.shape[1]
        scores[..., start:] += CAUSAL_BLOCK_MASK[:T, :T]
        return scores.softmax(dim=-1)

    @staticmethod
    def forward(
        ctx, q: Tensor, k: Tensor, v: Tensor, payload: Tensor, scaling: float
    ) -> tuple[Tensor, Tensor]:
        B, H, T, _ = q.shape
        attended = [x.new_empty(B, T, H, x.shape[-1]).transpose(1, 2) for x in (v, payload)]
        q, k = (q * scaling).flatten(0, 1), k.flatten(0, 1)
        ctx.scaling = scaling
        kept = [] if MAX_SAVED_LENGTH_RATIO * q.shape[-1] >= T else None
        values = torch.cat((v, payload), dim=-1).flatten(0, 1)
        for start in range(0, T, BLOCK):
            block, seen = slice(start, start + BLOCK), slice(start + BLOCK)
            weights = _CausalAttention.weights(q[:, block], k[:, seen], start)
            if kept is not None:
                kept.append(weights)
            averages = weights @ values[:, seen]
            parts = averages.unflatten(0, (B, H)).split([x.shape[-1] for x in attended], dim=-1)
            for whole, part in zip(attended, parts, strict=True):
                whole[:, :, block] = part
        ctx.save_for_backward(q, k, v, payload, *(kept or ()))
        return tuple(attended)

    @staticmethod
    @once_differentiable
    def backward(ctx, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, payload, *kept = ctx.saved_tensors
        shape, widths = v.shape[:2], (v.shape[-1], payload.shape[-1])
        # Concatenated, as in the forward pass: one wide product reads the weights once.
        values, grad = (torch.cat(xs, dim=-1).flatten(0, 1) for xs in ((v, payload), grads))
        # The first layer's payload is a constant.
        wanted = grad if ctx.needs_input_grad[3] else grad[..., : widths[0]]
        grad_q, grad_k, grad_values = torch.empty_like(q), None, None
        for start in reversed(range(0, q.shape[1], BLOCK)):
            block, seen = slice(start, start + BLOCK), slice(start + BLOCK)
            weights = (
                kept.pop() if kept else _CausalAttention.weights(q[:, block], k[:, seen], start)
            )
            grad_weights = grad[:, block] @ values[:, seen].mT
            grad_scores = torch._softmax_backward_data(grad_weights, weights, -1, weights.dtype)
            grad_q[:, block] = grad_scores @ k[:, seen]
            # Not baddbmm_ into the sum: on a slice it loops over the batch.
            parts = grad_scores.mT @ q[:, block], weights.mT @ wanted[:, block]
            if grad_k is None:  # the last block, the only one that sees all keys
                grad_k, grad_values = parts
            else:
                grad_k[:, seen] += parts[0]
                grad_values[:, seen] += parts[1]
        grad_q = grad_q.mul_(ctx.scaling)
        grad_q, grad_k, grad_values = (x.unflatten(0, shape) for x in (grad_q, grad_k, grad_values))
        if not ctx.needs_input_grad[3]:
            return grad_q, grad_k, grad_values, None, None
        return grad_q, grad_k, *grad_values.split(widths, dim=-1), None


def causal_attention(
    q: Tensor, k: Tensor, v: Tensor, payload: Tensor, scaling: float
) -> tuple[Tensor, Tensor]:
    """Computes softmax(scaling q k^T, causal) times v and times the payload.

    Args:
        q, k: (B, H, T, D); v, payload: (B, H, T, any width); all float32 or all float64.
    """
    return _CausalAttention.apply(q, k, v, payload, scaling)
