"""Attention with a payload, or with grouped queries, that is faster on a CPU than torch's fused
kernels.

torch's kernel requires values of the queries' width, so values and payload take two calls: two
softmaxes, and ten matrix products in the backward pass. One softmax for both, by blocks of queries,
takes seven. As in the fused kernel the backward pass computes the weights again, so memory is
linear in the length.
"""

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.compiler import is_compiling

from tape.attention.payload import Values, per_query_head
from tape.positions.scores import masked

BLOCK = 64  # queries whose weights are in memory at the same time
# Added to the scores of a diagonal block, at keys after the query.
CAUSAL_BLOCK_MASK = torch.full((BLOCK, BLOCK), -torch.inf, device="cpu").triu(1)


class _CausalAttention(torch.autograd.Function):
    """Causal softmax(scaling q k^T) times v and times the payload.

    q, k (B, H, T, D); v, payload (B, H, T, any width); all float32 or all float64.
    """

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
        ctx.save_for_backward(q, k, v, payload)
        ctx.scaling = scaling
        q, k = (q * scaling).flatten(0, 1), k.flatten(0, 1)
        values = torch.cat((v, payload), dim=-1).flatten(0, 1)
        for start in range(0, T, BLOCK):
            block, seen = slice(start, start + BLOCK), slice(start + BLOCK)
            weights = _CausalAttention.weights(q[:, block], k[:, seen], start)
            averages = weights @ values[:, seen]
            parts = averages.unflatten(0, (B, H)).split([x.shape[-1] for x in attended], dim=-1)
            for whole, part in zip(attended, parts, strict=True):
                whole[:, :, block] = part
        return tuple(attended)

    @staticmethod
    @once_differentiable
    def backward(ctx, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, payload = ctx.saved_tensors
        q, k = (q * ctx.scaling).flatten(0, 1), k.flatten(0, 1)
        shape, widths = v.shape[:2], (v.shape[-1], payload.shape[-1])
        # Concatenated, as in the forward pass: one wide product reads the weights once.
        values, grad = (torch.cat(xs, dim=-1).flatten(0, 1) for xs in ((v, payload), grads))
        # The first layer's payload is a constant.
        wanted = grad if ctx.needs_input_grad[3] else grad[..., : widths[0]]
        grad_q, grad_k, grad_values = torch.empty_like(q), None, None
        for start in reversed(range(0, q.shape[1], BLOCK)):
            block, seen = slice(start, start + BLOCK), slice(start + BLOCK)
            weights = _CausalAttention.weights(q[:, block], k[:, seen], start)
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


def attend(
    q: Tensor, k: Tensor, values: Values, mask: Tensor | None, scaling: float
) -> tuple[Tensor, Tensor | None] | None:
    """Returns the averages of values and payload for one new token, or for a causal text in
    training; None for anything else."""
    (B, H, T, _), S = q.shape, k.shape[2]
    if T == 1 and not torch.is_grad_enabled():
        return _single_query(q, k, values, mask, scaling)
    exact = q.dtype in (torch.float32, torch.float64) and not is_compiling()
    if values.payload is None or mask is not None or not (T == S > 1 and exact and q.requires_grad):
        return None
    k, v, payload = (
        (x if x.shape[1] in (1, H) else per_query_head(x, H)).expand(B, H, -1, -1)
        for x in (k, values.v, values.payload)
    )
    return _CausalAttention.apply(q, k, v, payload, scaling)


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
