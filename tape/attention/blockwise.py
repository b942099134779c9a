"""Softmax attention by blocks of queries on a CPU, with memory linear in the length: averages of
values and payload under one softmax, biases and scores of an encoding, masks, the log-sum-exp.

The scores of a block, and the bias in them, are computed again in the backward pass. Products and
softmax are in float32 or float64: torch has no products of 16-bit numbers on a CPU whose sums are
not rounded, and without instructions for them they take ten times as long.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from tape.attention.masks import SHORT, Seen
from tape.attention.payload import Attended, Request
from tape.positions.base import without_autocast
from tape.positions.scores import ScoreBias, mapped

# Queries whose scores are in memory at the same time: a pass takes memory for the scores and the
# bias of B H BLOCK S pairs. Fewer take less memory and more time.
BLOCK = 128
TILE = 512  # keys whose scores with a block, of one head and thread, fit into a core's cache
LOG2_E = 1 / math.log(2)  # powers of 2 take half as long as powers of e


def taken_apart(bias: ScoreBias | None) -> tuple[ScoreBias | None, list[Tensor], list[Tensor]]:
    """Returns a bias with the type `Tensor` in the place of its tensors; these; and the trained
    weights of its modules."""
    tensors: list[Tensor] = []
    weights: dict[Tensor, None] = {}

    def take(part: Any) -> Any:
        if isinstance(part, nn.Module):
            weights.update(dict.fromkeys(x for x in part.parameters() if x.requires_grad))
        if not isinstance(part, Tensor):
            return part
        tensors.append(part)
        return Tensor

    return (None if bias is None else mapped(bias, take)), tensors, [*weights]


def put_together(bias: ScoreBias, tensors: list[Tensor]) -> ScoreBias:
    """Returns a bias with these tensors in the places that `taken_apart` has left."""
    rest = iter(tensors)
    return mapped(bias, lambda part: next(rest) if part is Tensor else part)


class Blocks(NamedTuple):
    """What scores are made of, besides products of queries and keys."""

    scaling: float
    mask: Seen | None  # None: query i sees the keys 0..i
    bias: ScoreBias | None

    def of(self, T: int) -> Iterator[tuple[slice, slice, Tensor | None]]:
        """Yields some queries, their keys, and -inf at the keys that they do not see, (B|1, 1, t,
        s); None for a causal mask."""
        for start in range(0, T, BLOCK):
            queries = slice(start, min(T, start + BLOCK))
            if self.mask is None:
                yield queries, slice(0, queries.stop), None
            else:
                keys, seen = self.mask.rows(queries)
                yield queries, keys, torch.zeros(seen.shape).masked_fill_(~seen, -torch.inf)


class Profile:
    """A bias that depends on the distance alone, computed once for each distance.

    `slab` (H, BLOCK, N) has it for the queries of any block: key j of a block that begins at slot i
    is its column S + j - i.
    """

    @staticmethod
    def distances(S: int) -> Tensor:
        """Returns the distances of the terms that `slab` takes."""
        return (S + BLOCK - 1 - torch.arange(S + 2 * BLOCK - 1)).clamp(min=0)

    @staticmethod
    def slab(terms: Tensor) -> Tensor:
        """Returns the slab of terms (H, N + BLOCK - 1)."""
        return terms.unfold(-1, terms.shape[-1] - BLOCK + 1, 1).flip(1)

    @staticmethod
    def gradient(slab: Tensor) -> Tensor:
        """Returns the gradient of the terms, sums over the diagonals of that of the slab."""
        H, _, N = slab.shape
        padded = F.pad(slab.flip(1), (0, BLOCK)).flatten(1)[:, :-BLOCK]
        return padded.view(H, BLOCK, N + BLOCK - 1).sum(1)


class Operands:
    """Queries times the scaling in units of ln 2, keys, and values next to the payload, in at least
    float32: (B, K, G, T, D), (B, K, S, D) and (B, K, S, P)."""

    def __init__(self, blocks: Blocks, q: Tensor, k: Tensor, v: Tensor, payload: Tensor | None):
        self.dtype = torch.promote_types(q.dtype, torch.float32)
        self.B, self.K, self.S, self.D = k.shape
        self.H, self.T = q.shape[1:3]
        self.G = self.H // self.K
        q = q.to(self.dtype) * (blocks.scaling * LOG2_E)
        self.q, self.k = q.unflatten(1, (self.K, self.G)), k.to(self.dtype).contiguous()
        self.parts = [x.shape[-1] for x in (v, payload) if x is not None]
        self.values = (v if payload is None else torch.cat((v, payload), dim=-1)).to(self.dtype)
        self.blocks, self.causal = blocks, torch.full((BLOCK, BLOCK), -torch.inf).triu(1)

    def heads(self, t: int, s: int) -> Iterator[tuple[int, slice]]:
        """Yields sequences and key/value heads, as many as fit into the caches; more of short
        inputs, whose operations would be too small."""
        scores = torch.get_num_threads() * BLOCK * TILE * (1 if self.T > SHORT else 4)
        most = max(1, scores // (self.G * t * min(s, TILE)))
        for b in range(self.B):
            for first in range(0, self.K, most):
                yield b, slice(first, min(self.K, first + most))

    def stacked(self, x: Tensor, place: tuple[int, slice], queries: slice) -> Tensor:
        """Returns numbers (B, K, G, T, N) of some queries, (g, G t, N) for g key/value heads."""
        return x[*place, :, queries].flatten(1, 2)

    def scores(
        self,
        out: Tensor,
        place: tuple[int, slice],
        queries: slice,
        keys: slice,
        hidden: Tensor | None,
        bias: Tensor | None,
        less: Tensor | None = None,
    ) -> Tensor:
        """Writes the scores of some queries and keys to `out`, (g, G t, s), in units of ln 2, less
        a number for each query (g, G t, 1).

        Args:
            hidden: -inf at keys that a query does not see, (B|1, 1, t, s), or None.
            bias: (g|1, G|1, t, s), or None.
        """
        t, s = queries.stop - queries.start, keys.stop - keys.start
        q, k = self.stacked(self.q, place, queries), self.k[*place, keys].mT
        pairs = out.view(len(out), self.G, t, s)
        if bias is not None and less is not None:
            torch.add(-less.view(*pairs.shape[:3], 1), bias, alpha=LOG2_E, out=pairs)
        elif bias is not None:
            torch.mul(bias, LOG2_E, out=pairs)
        if bias is None and less is None:
            torch.bmm(q, k, out=out)
        elif bias is None:
            torch.baddbmm(less, q, k, beta=-1, out=out)
        elif self.D:
            out.baddbmm_(q, k)
        if hidden is not None:
            pairs += hidden[min(place[0], len(hidden) - 1)]
        elif (first := max(queries.start, keys.start)) < keys.stop:
            after = self.causal[:t, first - queries.start : keys.stop - queries.start]
            pairs[..., first - keys.start :] += after
        return out


class _Blockwise(torch.autograd.Function):
    """Averages of v and payload, and the log-sum-exp (B, H, T), for q (B, H, T, D), k (B, K, S, D),
    v (B, K, S, any width) and payload; the scores of `blocks` have `terms` of a Profile, or a bias
    that is put together from the first of `sources`; the others are weights of its modules."""

    @staticmethod
    def forward(
        ctx,
        blocks: Blocks,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        payload: Tensor | None,
        terms: Tensor | None,
        count: int,
        *sources: Tensor,
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        ctx.set_materialize_grads(False)
        with without_autocast(q):
            attended, lse = _Blockwise.averages(blocks, q, k, v, payload, terms, sources[:count])
        ctx.blocks, ctx.count = blocks, count
        ctx.save_for_backward(q, k, v, payload, terms, *attended, lse, *sources[:count])
        return *attended, lse / LOG2_E

    @staticmethod
    def averages(
        blocks: Blocks,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        payload: Tensor | None,
        terms: Tensor | None,
        tensors: tuple[Tensor, ...],
    ) -> tuple[list[Tensor | None], Tensor]:
        """Returns both averages, and the log-sum-exp in units of ln 2."""
        given = Operands(blocks, q, k, v, payload)
        B, H, T, S, G = given.B, given.H, given.T, given.S, given.G
        attended = [
            None if x is None else x.new_empty(B, T, H, x.shape[-1]).transpose(1, 2)
            for x in (v, payload)
        ]
        wholes = [x.unflatten(1, (-1, G)) for x in attended if x is not None]
        lse = q.new_empty(B, given.K, G, T, 1, dtype=given.dtype)
        bias = None if blocks.bias is None else put_together(blocks.bias, tensors)
        slab = None if terms is None else Profile.slab(terms)
        begin = 0 if blocks.mask is None else blocks.mask.begin
        lowest = torch.finfo(given.dtype).min / 2
        memory = q.new_empty(0, dtype=given.dtype)
        for queries, keys, hidden in blocks.of(T):
            t, s = queries.stop - queries.start, keys.stop - keys.start
            dense = None
            if bias is not None:
                dense = bias.rows(queries, keys).dense(given.dtype).expand(B, H, t, s)
            elif slab is not None:
                first = S - begin - queries.start
                where = slice(first + keys.start, first + keys.stop)
                dense = slab[None, :, :t, where].expand(B, -1, -1, -1)
            if dense is not None:
                dense = dense.unflatten(1, (-1, G))
            for place in given.heads(t, s):
                n = place[1].stop - place[1].start
                if memory.numel() < n * G * t * s:
                    memory = memory.new_empty(n * G * t * S)
                out = memory[: n * G * t * s].view(n, G * t, s)
                term = None if dense is None else dense[place]
                scores = given.scores(out, place, queries, keys, hidden, term)
                # A query that sees nothing has no weights, and averages of 0.
                highest = scores.amax(-1, keepdim=True).clamp_(min=lowest)
                weights = scores.sub_(highest).exp2_()
                total = weights.sum(-1, keepdim=True)
                total.masked_fill_(total == 0, 1)
                averages = (weights @ given.values[*place, keys]).div_(total)
                parts = averages.unflatten(1, (G, t)).split(given.parts, dim=-1)
                for whole, part in zip(wholes, parts, strict=True):
                    whole[*place, :, queries] = part
                lse[*place, :, queries] = total.log2_().add_(highest).unflatten(1, (G, t))
        return attended, lse.view(B, H, T)

    @staticmethod
    @once_differentiable
    def backward(
        ctx, grad_v: Tensor | None, grad_payload: Tensor | None, grad_lse: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        q, k, v, payload, terms, *saved = ctx.saved_tensors
        with without_autocast(q):
            return _Blockwise.gradients(
                ctx, q, k, v, payload, terms, saved, (grad_v, grad_payload, grad_lse)
            )

    @staticmethod
    def gradients(
        ctx,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        payload: Tensor | None,
        terms: Tensor | None,
        saved: list[Tensor],
        grads: tuple[Tensor | None, ...],
    ) -> tuple[Tensor | None, ...]:
        blocks, (attended, (lse, *tensors)) = ctx.blocks, (saved[:2], saved[2:])
        given = Operands(blocks, q, k, v, payload)
        (B, K, S, D), H, T, G, dtype = k.shape, given.H, given.T, given.G, given.dtype
        # The first layer's payload is a constant.
        needs_payload = payload is not None and ctx.needs_input_grad[4]
        averages = [x for x in attended if x is not None]
        of_averages = zip(averages, grads, strict=False)  # without a payload the first alone
        parts = [torch.zeros_like(x) if g is None else g for x, g in of_averages]
        grad = torch.cat(parts, dim=-1).to(dtype)
        less = (grad * torch.cat(averages, dim=-1)).sum(-1, keepdim=True)
        if grads[2] is not None:
            less -= grads[2][..., None]
        grad, less, lse = (x.unflatten(1, (K, G)) for x in (grad, less, lse[..., None]))
        wanted = grad if needs_payload else grad[..., : given.parts[0]]
        grad_q = torch.empty_like(given.q)
        grad_k = grad.new_zeros(B, K, D, S)  # transposed: products write rows of many keys
        grad_values = grad.new_zeros(B, K, wanted.shape[-1], S)
        needs = ctx.needs_input_grad[7:]
        bias, inputs, found = None, [], [None] * len(needs)
        if blocks.bias is not None:
            _, _, weights = taken_apart(blocks.bias)
            leaves = [x.detach().requires_grad_(n) for x, n in zip(tensors, needs, strict=False)]
            bias, inputs = put_together(blocks.bias, leaves), [*leaves, *weights]
        learned = [n for n, needed in enumerate(needs) if needed]
        slab = None if terms is None else Profile.slab(terms)
        needs_terms = terms is not None and ctx.needs_input_grad[5]
        grad_slab = torch.zeros_like(slab) if needs_terms else None
        begin = 0 if blocks.mask is None else blocks.mask.begin
        memory = grad.new_empty(2, 0)
        for queries, keys, hidden in blocks.of(T):
            t, s = queries.stop - queries.start, keys.stop - keys.start
            dense = grad_dense = None
            if bias is not None:
                with torch.set_grad_enabled(bool(learned)):
                    own = bias.rows(queries, keys).dense(dtype)
                dense = own.detach().expand(B, H, t, s)
                if own.requires_grad:
                    grad_dense = grad.new_empty(B, K, G, t, s)
            elif slab is not None:
                first = S - begin - queries.start
                where = slice(first + keys.start, first + keys.stop)
                dense = slab[None, :, :t, where].expand(B, -1, -1, -1)
            if dense is not None:
                dense = dense.unflatten(1, (-1, G))
            for place in given.heads(t, s):
                n = place[1].stop - place[1].start
                if memory.shape[1] < n * G * t * min(s, TILE):
                    memory = memory.new_empty(2, n * G * t * min(s, TILE))
                of_q, of_grad, of_wanted, of_less, of_lse = (
                    given.stacked(x, place, queries) for x in (given.q, grad, wanted, less, lse)
                )
                sums = None
                for start in range(keys.start, keys.stop, TILE):
                    tile = slice(start, min(keys.stop, start + TILE))
                    part = slice(tile.start - keys.start, tile.stop - keys.start)
                    size = tile.stop - tile.start
                    weights, grad_scores = (
                        x[: n * G * t * size].view(n, G * t, size) for x in memory
                    )
                    term = None if dense is None else dense[place][..., part]
                    unseen = None if hidden is None else hidden[..., part]
                    given.scores(weights, place, queries, tile, unseen, term, of_lse).exp2_()
                    of_values = given.values[*place, tile].mT
                    torch.baddbmm(of_less, of_grad, of_values, beta=-1, out=grad_scores)
                    grad_scores.mul_(weights)
                    of_keys = given.k[*place, tile]
                    if sums is None:
                        sums = torch.bmm(grad_scores, of_keys)
                    else:
                        sums.baddbmm_(grad_scores, of_keys)
                    grad_k[*place, :, tile].baddbmm_(of_q.mT, grad_scores)
                    grad_values[*place, :, tile].baddbmm_(of_wanted.mT, weights)
                    if grad_dense is not None:
                        grad_dense[*place, ..., part] = grad_scores.unflatten(1, (G, t))
                    elif grad_slab is not None:
                        where = slice(first + tile.start, first + tile.stop)
                        by_head = grad_slab.unflatten(0, (K, G))[place[1], :, :t, where]
                        by_head += grad_scores.unflatten(1, (G, t))
                grad_q[*place, :, queries] = sums.unflatten(1, (G, t))
            if grad_dense is not None:
                given_to = grad_dense.flatten(1, 2).sum_to_size(own.shape)
                of_block = torch.autograd.grad(
                    own, [inputs[n] for n in learned], given_to, allow_unused=True
                )
                for n, x in zip(learned, of_block, strict=True):
                    if x is not None:
                        found[n] = x if found[n] is None else found[n].add_(x)
        grad_q = grad_q.flatten(1, 2).mul_(blocks.scaling).to(q.dtype)
        grad_k = grad_k.div_(LOG2_E).mT.to(k.dtype)
        grad_parts = [*grad_values.mT.to(v.dtype).split(given.parts[: 1 + needs_payload], -1), None]
        grad_terms = None
        if grad_slab is not None:
            grad_terms = Profile.gradient(grad_slab)
        return None, grad_q, grad_k, *grad_parts[:2], grad_terms, None, *found


def attend(request: Request) -> Attended:
    """Backend of `tape.attention.backends`, on a CPU and without dropout; its mask is a `Seen`, or
    None for a causal one of as many queries as keys."""
    q, k, values, mask, bias, scaling, _, needs_lse = request
    (B, K, S, _), v, payload = k.shape, values.v, values.payload
    if payload is not None:
        payload = payload.expand(B, K, -1, -1)
    terms = None
    if bias is not None and (mask is None or mask.given is None):  # keys are not after queries
        wide = torch.promote_types(q.dtype, torch.float32)
        terms = bias.by_distance(Profile.distances(S), wide)
    inputs: list[Tensor | None] = [q, k, v, payload]
    if folds := mask is None and bias is None:  # heads of all sequences are alike
        inputs = [None if x is None else x.flatten(0, 1)[None] for x in inputs]
    bias, tensors, weights = taken_apart(None if terms is not None else bias)
    blocks = Blocks(scaling, mask, bias)
    found = _Blockwise.apply(blocks, *inputs, terms, len(tensors), *tensors, *weights)
    if folds:
        found = [None if x is None else x[0].unflatten(0, (B, -1)) for x in found]
    return Attended(found[0], found[1], lse=found[2] if needs_lse else None)
