"""A dynamic cache whose tokens are written behind those that are there.

The library's copies all keys and values, in every layer, for each token that is decoded.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.compiler import is_compiling
from transformers import Cache, DynamicCache
from transformers.cache_utils import DynamicLayer


class GrowableBuffer:
    """Memory for a tensor (.., S, channels) that grows, an eighth longer than it is."""

    def __init__(self) -> None:
        self.memory: Tensor | None = None
        self.content: Tensor | None = None  # its beginning, as it was given away last

    def append(self, content: Tensor, new: Tensor) -> Tensor:
        """`content` with the new tokens behind it; it is copied unless it is the newest `content`.

        What was cropped, reordered or put in its place, or has grown in a copy of the cache, is
        another tensor: no token that somebody may still look at is written over. (Autograd counts
        what is written behind them, too: a graph through cached tensors is to be used before.)
        """
        start = content.shape[-2] if content.ndim > 1 else 0  # the library's empty one has one axis
        stop = start + new.shape[-2]
        if content is not self.content or not self._takes(new, stop):
            spare = new.new_empty((*new.shape[:-2], 64 + stop // 8, new.shape[-1]))
            self.memory = torch.cat((content, new, spare), dim=-2)
        else:
            self.memory[..., start:stop, :] = new
        self.content = self.memory[..., :stop, :]
        return self.content

    def _takes(self, new: Tensor, stop: int) -> bool:
        there = self.memory
        return (
            stop <= there.shape[-2]
            and new.shape[:-2] == there.shape[:-2]
            and new.dtype == there.dtype
            and there.is_inference() == torch.is_inference_mode_enabled()
        )


class GrowingLayer(DynamicLayer):
    """Keys and values of a layer, each with room behind them; with gradients, the library's."""

    def __init__(self) -> None:
        super().__init__()
        self.reset_buffers()

    def reset_buffers(self) -> None:
        """For what is another tensor now: it has no room behind it."""
        self.buffers = GrowableBuffer(), GrowableBuffer()

    def update(
        self, key_states: Tensor, value_states: Tensor, *args, **kwargs
    ) -> tuple[Tensor, Tensor]:
        if is_compiling() or torch.is_grad_enabled():
            self.reset_buffers()
            return super().update(key_states, value_states)
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        keys, values = self.buffers
        self.keys = keys.append(self.keys, key_states)
        self.values = values.append(self.values, value_states)
        return self.keys, self.values

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self.reset_buffers()
        super().reorder_cache(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        self.reset_buffers()
        super().batch_select_indices(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        self.reset_buffers()
        super().batch_repeat_interleave(repeats)


class GrowingCache(DynamicCache):
    """What the decoder makes for itself, and for `generate`."""

    def __init__(self) -> None:
        Cache.__init__(self, layer_class_to_replicate=GrowingLayer)
