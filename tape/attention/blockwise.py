"""Softmax attention by blocks of queries, with memory linear in the length: averages of
values and payload under one softmax, biases and scores of an encoding, masks, the log-sum-exp.

The scores of a block, and the bias in them, are computed again in the backward pass. Products and
softmax are in float32 or float64, because torch's products of 16-bit numbers round their sums.
Where the processor multiplies in bfloat16, only the gradients of bfloat16 keys and values are such
products: torch's fused kernel rounds them, too. On a GPU only inputs with biases that its fused
kernels do not compute go this way.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from tape.attention.block_bias import (
    LOG2_E,
    ByDistance,
    Dense,
    NoBias,
    Place,
    Separated,
    taken_apart,
)
from tape.attention.masks import SHORT, Seen
from tape.attention.payload import Attended, Request
from tape.positions.base import without_autocast
from tape.positions.scores import ScoreBias

# Queries of a block, whose keys are read together; half as many if they have a bias of pairs, which
# takes memory for B H BLOCK / 2 S of them. Fewer take less memory and more time.
BLOCK = 256
HAS_BFLOAT16 = torch.ops.mkldnn._is_mkldnn_bf16_supported()  # in products on this CPU
TILE = 512  # keys whose scores with a block, of one head and thread, fit into a core's cache


class Blocks(NamedTuple):
    """What scores are made of, besides products of queries and keys."""

    size: int  # the number of queries of a block
    scaling: float
    mask: Seen | None  # None: query i sees the keys 0..i
    bias: ScoreBias | None  # `taken_apart`
    separated: bool  # whether the bias can be, under this mask

    @property
    def begin(self) -> int:
        """The slot of the first query."""
        return 0 if self.mask is None else self.mask.begin

    def of(self, T: int) -> Iterator[tuple[slice, slice, Tensor | None]]:
        """Yields the blocks.

        Yields:
            A slice of t queries; a slice of their s keys; and a mask (B|1, 1, t, s), which is 0
            where the query sees the key and -inf elsewhere, or None for a causal mask.
        """
        for start in range(0, T, self.size):
            queries = slice(start, min(T, start + self.size))
            if self.mask is None:
                yield queries, slice(0, queries.stop), None
            else:
                keys, seen = self.mask.rows(queries)
                hidden = torch.zeros(seen.shape, device=seen.device).masked_fill_(~seen, -torch.inf)
                yield queries, keys, hidden


class Operands:
    """Queries (B, K, G, T, D), keys (B, K, S, D), and values next to the payload (B, K, S, P), in
    at least float32. Queries are multiplied by the scaling and by log2(e), so scores are in units
    of ln 2.

    More channels add terms to the products at no further cost. A separated bias takes G of them in
    queries and keys. With the log-sum-exp `lse` (B, K, G, T, 1), queries have a channel -lse, and
    keys and values have a channel of ones. Scores are then less the log-sum-exp of their query.

    Attributes:
        narrow: dtype of the products that give the gradients of keys and values.
        plain_q: only with `lse`: queries with the channels of a bias and without the scaling, in
            the dtype `narrow`.
    """

    def __init__(
        self,
        blocks: Blocks,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        payload: Tensor | None,
        lse: Tensor | None = None,
    ):
        self.dtype = torch.promote_types(q.dtype, torch.float32)
        self.B, self.K, self.S, self.D = k.shape
        self.H, self.T = q.shape[1:3]
        self.G, self.size = self.H // self.K, blocks.size
        self.parts = [x.shape[-1] for x in (v, payload) if x is not None]
        fast = q.dtype == torch.bfloat16 and (q.is_cuda or HAS_BFLOAT16)
        self.narrow = q.dtype if fast else self.dtype
        q, k = q.to(self.dtype).unflatten(1, (self.K, self.G)), k.to(self.dtype)
        queries, keys = [q], [k]
        values = [v] if payload is None else [v, payload]
        if blocks.separated:
            heads = torch.eye(self.G, dtype=self.dtype, device=k.device)[:, None]
            queries.append(heads.expand(*q.shape[:-1], -1))
            keys.append(k.new_zeros(*k.shape[:-1], self.G))
        self.channels = sum(x.shape[-1] for x in keys)
        if lse is not None:
            self.plain_q = joined(queries).to(self.narrow)
            queries.append(-lse)
            ones = k.new_ones(*k.shape[:-1], 1)
            keys.append(ones)
            values.append(ones)
        queries[0] = q * (blocks.scaling * LOG2_E)
        self.q, self.k, self.values = (joined(x) for x in (queries, keys, values))
        self.values = self.values.to(self.dtype)
        self.causal = k.new_full((blocks.size, blocks.size), -torch.inf).triu(1)

    def bias(
        self,
        blocks: Blocks,
        terms: Tensor | None,
        tensors: list[Tensor],
        learned: bool = False,
        needs: tuple[bool, ...] = (),
    ) -> NoBias:
        """Returns the bias of the blocks.

        Args:
            terms: the bias by distance (`ByDistance`), or None for other biases.
            tensors: the tensors of the bias, if `terms` is None.
            learned: whether the gradient of `terms` is needed.
            needs: for each tensor, and then for each trained weight, whether its gradient is
                needed.
        """
        if terms is not None:
            return ByDistance(self, terms, blocks.size, blocks.begin, learned)
        if blocks.bias is None:
            return NoBias()
        return (Separated if blocks.separated else Dense)(self, blocks.bias, tensors, needs)

    def places(self, t: int, s: int) -> Iterator[Place]:
        """Yields pairs of a sequence and a slice of key/value heads that are computed together.

        On a CPU, the slices are as large as the processor's caches allow for t queries and s keys.
        Short inputs have larger slices, because their operations would be too small. On a GPU, a
        slice has all heads.
        """
        scores = torch.get_num_threads() * self.size * TILE * (1 if self.T > SHORT else 4)
        most = max(1, scores // (self.G * t * min(s, TILE)))
        if self.k.is_cuda:
            most = self.K
        for b in range(self.B):
            for first in range(0, self.K, most):
                yield b, slice(first, min(self.K, first + most))

    def scores(
        self,
        out: Tensor,
        place: Place,
        queries: slice,
        keys: slice,
        hidden: Tensor | None,
        bias: Tensor | None,
    ) -> Tensor:
        """Writes the scores of t queries and s keys to `out` (g, G t, s), in units of ln 2, for the
        g key/value heads of `place`.

        Args:
            hidden: (B|1, 1, t, s) -inf where a query does not see a key, else 0; or None.
            bias: (g|1, G|1, t, s) in nats, or None.
        """
        t, s = queries.stop - queries.start, keys.stop - keys.start
        q, k = stacked(self.q, place, queries), self.k[*place, keys].mT
        pairs = out.view(len(out), self.G, t, s)
        if bias is None:
            torch.bmm(q, k, out=out)
        else:
            torch.mul(bias, LOG2_E, out=pairs)
            if q.shape[-1]:  # no channels where a bias replaces the products
                out.baddbmm_(q, k)
        if hidden is not None:
            pairs += hidden[min(place[0], len(hidden) - 1)]
        elif (first := max(queries.start, keys.start)) < keys.stop:
            after = self.causal[:t, first - queries.start : keys.stop - queries.start]
            pairs[..., first - keys.start :] += after
        return out


def joined(parts: list[Tensor]) -> Tensor:
    """Returns tensors next to each other, a single one without a copy."""
    return torch.cat(parts, dim=-1) if len(parts) > 1 else parts[0].contiguous()


def lowest(dtype: torch.dtype) -> float:
    """Returns the log-sum-exp of a query that sees nothing."""
    return torch.finfo(dtype).min / 2


def stacked(x: Tensor, place: Place, queries: slice) -> Tensor:
    """Returns numbers (B, K, G, T, N) of some queries, (g, G t, N) for g key/value heads."""
    return x[*place, :, queries].flatten(1, 2)


def add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """Adds a @ b, which may have a narrower dtype, to the total."""
    if a.dtype == total.dtype:
        total.baddbmm_(a, b)
    else:
        total += a @ b


def averages(
    given: Operands, blocks: Blocks, bias: NoBias, attended: list[Tensor]
) -> tuple[Tensor, Tensor | None]:
    """Computes the forward pass. Writes the averages of values and payload to `attended`, two
    tensors (B, H, T, N).

    Returns:
        The log-sum-exp (B, K, G, T, 1) in units of ln 2, without `NoBias.row`; and these rows (B,
        H, T), or None.
    """
    wholes = [x.unflatten(1, (-1, given.G)) for x in attended]
    lse = given.q.new_empty(*given.q.shape[:-1], 1)
    rows: list[Tensor] = []
    memory = given.q.new_empty(0)
    for queries, keys, hidden in blocks.of(given.T):
        bias.start(queries, keys)
        if bias.row is not None:
            rows.append(bias.row)
        t, s = queries.stop - queries.start, keys.stop - keys.start
        for place in given.places(t, s):
            n = (place[1].stop - place[1].start) * given.G * t
            if memory.numel() < n * s:
                memory = memory.new_empty(n * given.S)
            out = memory[: n * s].view(-1, given.G * t, s)
            scores = given.scores(out, place, queries, keys, hidden, bias.pairs(place, keys))
            # A query that sees nothing has no weights, and averages of 0.
            highest = scores.amax(-1, keepdim=True).clamp_(min=lowest(given.dtype))
            weights = scores.sub_(highest).exp2_()
            total = weights.sum(-1, keepdim=True)
            total.masked_fill_(total == 0, 1)
            means = (weights @ given.values[*place, keys]).div_(total).unflatten(1, (-1, t))
            for whole, part in zip(wholes, means.split(given.parts, dim=-1), strict=True):
                whole[*place, :, queries] = part
            lse[*place, :, queries] = total.log2_().add_(highest).unflatten(1, (-1, t))
    return lse, torch.cat(rows, dim=-1) if rows else None


class Gradients:
    """Gradients of queries, keys and values, summed over blocks.

    Args:
        given: the operands, with their log-sum-exp.
        grad: (B, K, G, T, P + 1) the gradients of the averages. The last channel is a number for
            each query: the gradient of a score is its weight times the sum of this number and of
            the product of `grad` with the value.
        width: number of channels of the values that need a gradient.
    """

    def __init__(self, given: Operands, grad: Tensor, width: int):
        self.given, self.grad = given, grad
        self.outer = grad[..., :width].to(given.narrow)
        self.of_q = torch.empty_like(given.q[..., : given.D])
        # Transposed: products write rows of many keys.
        self.of_k, self.of_values = (
            grad.new_zeros(given.B, given.K, N, given.S) for N in (given.channels, width)
        )
        self.memory = grad.new_empty(2, 0)
        self.narrow = self.memory.to(given.narrow)

    def add(
        self, place: Place, queries: slice, keys: slice, hidden: Tensor | None, bias: NoBias
    ) -> None:
        """Adds what some heads of a block contribute, tile by tile of the keys."""
        given, t = self.given, queries.stop - queries.start
        grad, plain_q, outer = (
            stacked(x, place, queries) for x in (self.grad, given.plain_q, self.outer)
        )
        n = grad.shape[0] * grad.shape[1]
        most = n * min(TILE, keys.stop - keys.start)
        if self.memory.shape[1] < most:
            self.memory = self.memory.new_empty(2, most)
            if given.narrow != given.dtype:
                self.narrow = self.narrow.new_empty(2, most)
        of_q = grad.new_empty(*grad.shape[:-1], given.D)
        for start in range(keys.start, keys.stop, TILE):
            tile = slice(start, min(keys.stop, start + TILE))
            size = tile.stop - tile.start
            both = self.memory[:, : n * size].view(2, len(grad), -1, size)
            weights, of_scores = both
            unseen = None
            if hidden is not None:
                unseen = hidden[..., tile.start - keys.start : tile.stop - keys.start]
            term = bias.pairs(place, tile)
            given.scores(weights, place, queries, tile, unseen, term).exp2_()
            torch.bmm(grad, given.values[*place, tile].mT, out=of_scores).mul_(weights)
            later = float(start > keys.start)  # 0: what stands in memory does not count
            of_q.baddbmm_(of_scores, given.k[*place, tile, : given.D], beta=later)
            bias.collect(place, tile, of_scores)
            if given.narrow != given.dtype:
                both = self.narrow[:, : n * size].view_as(both).copy_(both)
            weights, of_scores = both
            add_product(self.of_k[*place, :, tile], plain_q.mT, of_scores)
            add_product(self.of_values[*place, :, tile], outer.mT, weights)
        self.of_q[*place, :, queries] = of_q.unflatten(1, (-1, t))


class _Blockwise(torch.autograd.Function):
    """Averages of v and payload, and the log-sum-exp (B, H, T), for q (B, H, T, D), k (B, K, S, D),
    v (B, K, S, any width) and payload; the scores of `blocks` have `terms` by distance, or a bias
    that is put together from the first `count` of `sources`; the others are weights of its modules.
    """

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
        B, H, T, _ = q.shape
        attended = [
            None if x is None else x.new_empty(B, T, H, x.shape[-1]).transpose(1, 2)
            for x in (v, payload)
        ]
        with without_autocast(q):
            given = Operands(blocks, q, k, v, payload)
            bias = given.bias(blocks, terms, list(sources[:count]))
            wholes = [x for x in attended if x is not None]
            lse, rows = averages(given, blocks, bias, wholes)
        ctx.blocks = blocks
        ctx.save_for_backward(q, k, v, payload, terms, *attended, lse, *sources[:count])
        sums = lse.view(B, H, T) / LOG2_E
        return *attended, sums if rows is None else sums + rows

    @staticmethod
    @once_differentiable
    def backward(
        ctx, grad_v: Tensor | None, grad_payload: Tensor | None, grad_lse: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        saved, blocks, needs = ctx.saved_tensors, ctx.blocks, ctx.needs_input_grad
        q, k, v, payload, terms, *attended, lse = saved[:8]  # checkpointing gives them once
        tensors = saved[8:]
        with without_autocast(q):
            given = Operands(blocks, q, k, v, payload, lse)
            bias = given.bias(blocks, terms, list(tensors), needs[5], needs[7:])
            parts = [  # without a payload the first alone
                (x, torch.zeros_like(x) if grad is None else grad)
                for x, grad in zip(attended, (grad_v, grad_payload), strict=True)
                if x is not None
            ]
            means, grad = (torch.cat(x, dim=-1).to(given.dtype) for x in zip(*parts, strict=True))
            more = -(grad * means).sum(-1, keepdim=True)
            if grad_lse is not None:
                grad_lse = grad_lse.masked_fill(lse.view_as(grad_lse) <= lowest(given.dtype), 0)
                more += grad_lse[..., None]
            grad = torch.cat((grad, more), dim=-1).unflatten(1, (given.K, given.G))
            # The first layer's payload is a constant.
            learned = given.parts[: 2 if needs[4] else 1]
            found = Gradients(given, grad, sum(learned))
            for queries, keys, hidden in blocks.of(given.T):
                bias.start(queries, keys)
                for place in given.places(queries.stop - queries.start, keys.stop - keys.start):
                    found.add(place, queries, keys, hidden, bias)
                of_sums = None if grad_lse is None else grad_lse[..., queries]
                bias.finish(queries, keys, found.of_k, of_sums)
            of_q = found.of_q.flatten(1, 2).mul_(blocks.scaling).to(q.dtype)
            of_k = (found.of_k[:, :, : given.D] * blocks.scaling).mT.to(k.dtype)
            of_values = [*found.of_values.mT.to(v.dtype).split(learned, dim=-1), None]
        of_bias = [None] * (len(needs) - 7)
        return None, of_q, of_k, *of_values[:2], bias.of_terms(), None, *(bias.gradients or of_bias)


def attend(request: Request) -> Attended:
    """Backend of `tape.attention.backends`, without dropout; its mask is a `Seen`, or
    None for a causal one of as many queries as keys."""
    q, k, values, mask, bias, scaling, _, needs_lse = request
    (B, K, S, _), v, payload = k.shape, values.v, values.payload
    if payload is not None:
        payload = payload.expand(B, K, -1, -1)
    terms = None
    ordered = bias is not None and (mask is None or mask.given is None)  # no key after its query
    separated = ordered and bias.separates
    size = BLOCK if bias is None or separated else BLOCK // 2
    if ordered and not separated:
        wide = torch.promote_types(q.dtype, torch.float32)
        terms = bias.by_distance(ByDistance.distances(S, size).to(q.device), wide)
    inputs: list[Tensor | None] = [q, k, v, payload]
    if folds := mask is None and bias is None:  # heads of all sequences are alike
        inputs = [None if x is None else x.flatten(0, 1)[None] for x in inputs]
    bias, tensors, weights = taken_apart(None if terms is not None else bias)
    blocks = Blocks(size, scaling, mask, bias, separated)
    found = _Blockwise.apply(blocks, *inputs, terms, len(tensors), *tensors, *weights)
    if folds:
        found = [None if x is None else x[0].unflatten(0, (B, -1)) for x in found]
    return Attended(found[0], found[1], lse=found[2] if needs_lse else None)
