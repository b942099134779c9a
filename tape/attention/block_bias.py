"""Biases in blockwise attention: what each kind adds to the scores of a block of queries, and its
gradients.

by distance   one number for each distance, computed once for all blocks
separated     one number for each query plus one for each key: more channels of the products
dense         one number for each pair of a block, computed for that block
"""

import math
from collections.abc import Sequence
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tape.positions.scores import ScoreBias, mapped

LOG2_E = 1 / math.log(2)  # scores are in units of ln 2: exp2 takes half as long as exp
CONTIGUOUS = torch.contiguous_format
Place = tuple[int, slice]  # a sequence and some of its key/value heads


class Keys(Protocol):
    """Keys of all blocks, and how many numbers they have."""

    k: Tensor  # (B, K, S, D and the channels of a bias)
    dtype: torch.dtype
    B: int
    K: int
    G: int  # query heads of a key/value head
    D: int
    S: int


def taken_apart(bias: ScoreBias | None) -> tuple[ScoreBias | None, list[Tensor], list[Tensor]]:
    """Separates a bias from its tensors, so that autograd sees them.

    Returns:
        The bias with the class `Tensor` at the places of its tensors; its tensors; and the trained
        weights of its modules. `put_together` reverses this.
    """
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


class NoBias:
    """The bias of an encoding without one, and the base class of the other kinds.

    Attributes:
        row: (B|1, H, t) a term that all scores of a query have in common, for the t queries of the
            block, or None. It changes no weight. Scores leave it out, and the log-sum-exp includes
            it.
        gradients: after all blocks, the gradients of the tensors and then of the weights from which
            the bias is computed.
    """

    row: Tensor | None = None
    gradients: Sequence[Tensor | None] = ()

    def start(self, queries: slice, keys: slice) -> None:
        """Begins with a block of queries and their keys."""

    def pairs(self, place: Place, keys: slice) -> Tensor | None:
        """Returns what is added to the scores of the block at some of its keys, (g|1, G|1, t, s)
        for g key/value heads, or None."""
        return None

    def collect(self, place: Place, keys: slice, grad_scores: Tensor) -> None:
        """Takes the gradient of the scores (g, G t, s) at some keys of the block."""

    def finish(self, queries: slice, keys: slice, grad_k: Tensor, grad_lse: Tensor | None) -> None:
        """Ends a block.

        Args:
            grad_k: (B, K, D and channels, S) the gradient of the keys; a kind takes that of its
                channels out of it.
            grad_lse: (B, H, t) the gradient of the log-sum-exp of the block's queries, or None.
        """

    def of_terms(self) -> Tensor | None:
        """Returns the gradient of numbers by distance, after all blocks."""
        return None


class ByDistance(NoBias):
    """A bias that depends on the distance only. It is computed once for each distance.

    `slab` (H, size, N) has the bias of the queries of any block of `size` queries. If a block
    begins at slot i, key j is column S + j - i.

    Args:
        terms: (H, N + size - 1) the bias at `distances`.
        begin: slot of the first query.
        learned: whether the gradient of `terms` is needed.
    """

    def __init__(self, given: Keys, terms: Tensor, size: int, begin: int, learned: bool):
        self.given, self.begin = given, begin
        self.slab = terms.unfold(-1, terms.shape[-1] - size + 1, 1).flip(1)
        self.grad_slab = torch.zeros_like(self.slab) if learned else None

    @staticmethod
    def distances(S: int, size: int) -> Tensor:
        """Returns the distances of `terms` for S keys and blocks of `size`."""
        return (S + size - 1 - torch.arange(S + 2 * size - 1)).clamp(min=0)

    def start(self, queries: slice, keys: slice) -> None:
        self.t = queries.stop - queries.start
        self.first = self.given.S - self.begin - queries.start

    def of_block(self, slab: Tensor, place: Place, keys: slice) -> Tensor:
        columns = slice(self.first + keys.start, self.first + keys.stop)
        by_group = slab.unflatten(0, (self.given.K, self.given.G))
        return by_group[place[1], :, : self.t, columns]

    def pairs(self, place: Place, keys: slice) -> Tensor:
        return self.of_block(self.slab, place, keys)

    def collect(self, place: Place, keys: slice, grad_scores: Tensor) -> None:
        if self.grad_slab is not None:
            columns = self.of_block(self.grad_slab, place, keys)
            columns += grad_scores.unflatten(1, (self.given.G, self.t))

    def of_terms(self) -> Tensor | None:
        if self.grad_slab is None:
            return None
        H, size, N = self.slab.shape
        padded = F.pad(self.grad_slab.flip(1), (0, size)).flatten(1)[:, :-size]
        return padded.view(H, size, N + size - 1).sum(1)  # over the diagonals


class Learned(NoBias):
    """A bias whose numbers are computed for each block, and its gradient passed on to what they are
    made of.

    Args:
        bias: what `taken_apart` has left.
        tensors: those of the bias.
        needs: whether a gradient is needed of each of these, then of each trained weight; nothing
            in a forward pass.
    """

    def __init__(
        self, given: Keys, bias: ScoreBias, tensors: list[Tensor], needs: tuple[bool, ...] = ()
    ):
        self.given = given
        self.gradients: list[Tensor | None] = [None] * len(needs)
        self.learned = [n for n, needed in enumerate(needs) if needed]
        if self.learned:
            tensors = [x.detach().requires_grad_(n) for x, n in zip(tensors, needs, strict=False)]
            _, _, weights = taken_apart(bias)
            sources = [*tensors, *weights]
            self.sources = [sources[n] for n in self.learned]
        self.bias = put_together(bias, tensors)

    def by_head(self, x: Tensor) -> Tensor:
        """Returns numbers (B|1, H, ...) as (B, K, G, ...), without their graph."""
        x = x.detach().expand(self.given.B, *x.shape[1:])
        return x.unflatten(1, (self.given.K, self.given.G))

    def pass_on(self, numbers: list[Tensor], grads: list[Tensor]) -> None:
        """Adds to `gradients`, given those (B, H, ...) of numbers (B|1, H, ...) of the block."""
        pairs = zip(numbers, grads, strict=True)
        pairs = [(x, grad.sum_to_size(x.shape)) for x, grad in pairs if x.requires_grad]
        if not pairs:
            return
        numbers, grads = zip(*pairs, strict=True)
        of_block = torch.autograd.grad(numbers, self.sources, grads, allow_unused=True)
        for n, grad in zip(self.learned, of_block, strict=True):
            if grad is not None:
                kept = self.gradients[n]
                self.gradients[n] = grad.clone() if kept is None else kept.add_(grad)


class Dense(Learned):
    """One number for each pair of a block."""

    def start(self, queries: slice, keys: slice) -> None:
        self.begin = keys.start
        self.block = self.grads = None  # memory of the block before
        with torch.set_grad_enabled(bool(self.learned)):
            self.block = self.bias.rows(queries, keys).dense(self.given.dtype)
        if self.block.requires_grad:
            self.grads = torch.empty_like(self.by_head(self.block), memory_format=CONTIGUOUS)

    def of_keys(self, x: Tensor, place: Place, keys: slice) -> Tensor:
        return x[*place][..., keys.start - self.begin : keys.stop - self.begin]

    def pairs(self, place: Place, keys: slice) -> Tensor:
        return self.of_keys(self.by_head(self.block), place, keys)

    def collect(self, place: Place, keys: slice, grad_scores: Tensor) -> None:
        if self.grads is not None:
            of_keys = self.of_keys(self.grads, place, keys)
            of_keys.copy_(grad_scores.view_as(of_keys))

    def finish(self, queries: slice, keys: slice, grad_k: Tensor, grad_lse: Tensor | None) -> None:
        if self.grads is not None:
            self.pass_on([self.block], [self.grads.flatten(1, 2)])


class Separated(Learned):
    """One number for each query plus one for each key.

    Those of the keys are channels of the keys, one for each head of a group, which the queries of
    that head have as a channel of one: they take no operation of their own on scores.
    """

    def start(self, queries: slice, keys: slice) -> None:
        with torch.set_grad_enabled(bool(self.learned)):
            self.row, self.column = self.bias.rows(queries, keys).separated(self.given.dtype)
        columns, D = self.by_head(self.column).transpose(2, 3), self.given.D
        self.given.k[:, :, keys, D : D + self.given.G] = columns * LOG2_E

    def finish(self, queries: slice, keys: slice, grad_k: Tensor, grad_lse: Tensor | None) -> None:
        channels = grad_k[:, :, self.given.D :, keys]
        # The scores of a query have gradients whose sum is that of their log-sum-exp.
        if grad_lse is None:
            grad_lse = channels.new_zeros(self.row.shape)
        self.pass_on([self.row, self.column], [grad_lse, channels.flatten(1, 2)])
        channels.zero_()
