"""Sequence parallelism over heads (DeepSpeed-Ulysses, Jacobs et al. 2023, arXiv 2309.14509).

Each process of a group has all layers and a part of the tokens. Around attention the processes
exchange tokens for heads: each attends with some of the heads over the whole text. A payload goes
with the values; the positional state stays with its tokens.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from tape.attention.payload import Attended, Values
from tape.model.loss import IGNORED
from tape.positions import ENCODINGS, Positions, ScoreBias, sampling

if TYPE_CHECKING:
    from transformers import Cache, PreTrainedModel

    from tape.attention.backends import Kernel
    from tape.model.configuration import TapeConfig


class _Exchange(torch.autograd.Function):
    """(n, ...) -> (n, ...): element i of process j becomes element j of process i."""

    @staticmethod
    def forward(ctx, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        found = torch.empty_like(x)
        dist.all_to_all_single(found, x, group=group)
        return found

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        return _Exchange.apply(grad.contiguous(), ctx.group), None


class _SumBefore(torch.autograd.Function):
    """The sum of a tensor over the processes before this one."""

    @staticmethod
    def forward(ctx, x: Tensor, shard: Shard) -> Tensor:
        ctx.shard = shard
        return shard.gather(x)[: shard.rank].sum(0)

    @staticmethod
    @once_differentiable  # it would need the sum over the processes after this one
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.shard.gather(grad.contiguous())[ctx.shard.rank + 1 :].sum(0), None


class Shard:
    """The part that a process has of every text, of `size` parts of equal length."""

    def __init__(self, group: dist.ProcessGroup):
        self.group, self.size, self.rank = group, dist.get_world_size(group), dist.get_rank(group)

    def __deepcopy__(self, memo: dict) -> Shard:
        return self  # processes cannot be copied

    def part(self, length: int) -> slice:
        """Returns where the tokens of this process are in a text.

        Raises:
            ValueError: for a length that does not divide into parts.
        """
        if length % self.size:
            raise ValueError(
                f"{length} tokens over {self.size} processes: the length must be a multiple of the "
                "number of processes; pad the batch"
            )
        count = length // self.size
        return slice(self.rank * count, (self.rank + 1) * count)

    def gather(self, x: Tensor) -> Tensor:
        found = [torch.empty_like(x) for _ in range(self.size)]
        dist.all_gather(found, x.contiguous(), group=self.group)
        return torch.stack(found)

    def sum_before(self, x: Tensor) -> Tensor:
        """Returns the sum over the processes that have earlier tokens."""
        return _SumBefore.apply(x, self)

    def to_heads(self, x_BHTD: Tensor) -> Tensor:
        """Part of the tokens, all heads -> all tokens, part of the heads."""
        parts = x_BHTD.unflatten(1, (self.size, -1)).movedim(1, 0).contiguous()
        return _Exchange.apply(parts, self.group).movedim(0, 2).flatten(2, 3)

    def to_tokens(self, x_BHTD: Tensor) -> Tensor:
        """All tokens, part of the heads -> part of the tokens, all heads."""
        parts = x_BHTD.unflatten(2, (self.size, -1)).movedim(2, 0).contiguous()
        return _Exchange.apply(parts, self.group).movedim(0, 1).flatten(1, 2)

    def own(
        self, x_BTC: Tensor, positions: Positions, real: Tensor | None, slots: Tensor
    ) -> tuple[Tensor, Positions, Positions, Tensor | None, Tensor]:
        """Returns the embeddings of this process's tokens; the positions of the whole text, as the
        first process drew them, and those here; which tokens here are real, and their slots."""
        query, key = positions.query.contiguous(), positions.key.contiguous()
        for drawn in (query, key):
            dist.broadcast(drawn, group=self.group, group_src=0)
        positions, part = positions._replace(query=query, key=key), self.part(x_BTC.shape[1])
        local, x_BTC = positions._replace(query=query[:, part]), x_BTC[:, part]
        return (
            x_BTC,
            positions,
            local,
            None if real is None else real[:, part],
            slots[: x_BTC.shape[1]],
        )

    def labels(self, labels: Tensor, num_items: Tensor | int | None) -> tuple[Tensor, Tensor | int]:
        """Returns the labels of this process's tokens and of the next one, which the last of them
        predicts, and the number of labels of the whole batch."""
        if num_items is None:
            num_items = (labels[:, 1:] != IGNORED).sum()
        part = self.part(labels.shape[1])
        return F.pad(labels, (0, 1), value=IGNORED)[:, part.start : part.stop + 1], num_items

    def kernels(
        self,
        kernels: dict[Any, tuple[Kernel, Any]],
        cache: Cache | None,
        weights: bool | None = False,
    ) -> dict[Any, tuple[Kernel, Any]]:
        """Returns the backends of a forward pass, as called with a part of the tokens.

        Raises:
            ValueError: for a cache, or if attention weights are asked for.
        """
        if cache is not None:
            raise ValueError("sequence parallelism with a cache: give use_cache=False")
        if weights:
            raise ValueError("sequence parallelism with output_attentions=True: it has no weights")
        return {
            key: (partial(self.attend, kernel), mask) for key, (kernel, mask) in kernels.items()
        }

    def attend(
        self,
        kernel: Kernel,
        q: Tensor,
        k: Tensor,
        values: Values,
        mask: Any,
        bias: ScoreBias | None,
        scaling: float,
        dropout: float,
        needs_lse: bool = False,
    ) -> Attended:
        """As the kernel; the mask is that of the whole text."""
        heads, payload = q.shape[1] // self.size, values.payload
        if payload is not None:
            payload = self.to_heads(payload.expand(*k.shape[:3], -1))
        if bias is not None:
            bias = bias.across(self.to_heads, self.rank * heads, heads)
        q, k, v = map(self.to_heads, (q, k, values.v))
        found = kernel(q, k, Values(v, payload), mask, bias, scaling, dropout, needs_lse)
        payload = None if found.payload is None else self.to_tokens(found.payload)
        lse = None if found.lse is None else self.to_tokens(found.lse[..., None])[..., 0]
        return Attended(self.to_tokens(found.values), payload, None, lse)


def check_tensor_parallelism(model: PreTrainedModel, size: int) -> None:
    """Raises a ValueError for per-head parameters, which transformers' plan does not split."""
    options = ("qk_norm", "attention_sink", "scalable_softmax", "gated_attention")
    owners = [name for name in options if getattr(model.config, name)]
    if model.position.per_head:
        owners.append(f"position {model.config.position['name']!r}")
    if owners:
        able = (name for name, kind in ENCODINGS.items() if not kind.per_head)
        raise ValueError(
            f"tp_size={size} with {owners[0]}, whose parameters are not split with the heads; "
            f"allowed: none of {', '.join(options)}, and position {', '.join(able)}"
        )


def check_sharing(config: TapeConfig, size: int) -> None:
    """Raises a ValueError for a decoder whose texts `size` processes cannot share."""
    if size == 1:
        return
    trying = f"sequence parallelism over {size} processes"
    for name in ("num_attention_heads", "num_key_value_heads"):
        if (heads := getattr(config, name)) % size:
            raise ValueError(f"{trying}: {name}={heads} must be a multiple of {size}")
    encoding = config.position["name"]
    if not ENCODINGS[encoding].shards:
        able = ", ".join(name for name, kind in ENCODINGS.items() if kind.shards)
        raise ValueError(f"{trying} with position {encoding!r}: allowed: {able}")
    chosen = config.position.get("sampler", "index")
    if sampling.build(chosen).draw is not None:
        raise ValueError(f"{trying} with position.sampler={chosen}: allowed: index, shift")


def shard_sequence(model: PreTrainedModel, group: dist.ProcessGroup | None) -> None:
    """Lets the processes of a group share each text (`Shard`) in a `TapeModel`; None: no longer.

    Every process calls the model with the same whole batch. It gets the outputs of its own part of
    the tokens, and with labels its part of the loss: the losses of all processes, and the gradients
    of their weights, add up to those of one process. Without caches.

    Raises:
        ValueError: for heads that do not divide, and for encodings that need the whole text.
    """
    if group is not None:
        if model.s2_group_size is not None:
            raise ValueError("sequence parallelism with training in shifted groups: choose one")
        check_sharing(model.config, dist.get_world_size(group))
    model.shard = None if group is None else Shard(group)
