"""Dynamic KV cache that appends in place, with spare capacity.

transformers' cache copies all keys and values of every layer for each decoded token.
"""

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.compiler import is_compiling
from transformers import Cache, DynamicCache, QuantizedCache
from transformers.cache_utils import DynamicLayer

from tape.attention.payload import Values


def check_kind(cache: Cache | None) -> None:
    """Raises a ValueError for anything but a cache of transformers, such as a tuple of tensors."""
    if not isinstance(cache, Cache | None):
        raise ValueError(
            f"past_key_values={type(cache).__name__}: must be a cache of transformers; give "
            "transformers.DynamicCache(pairs, config=model.config) for pairs of keys and values by "
            "layer, or no cache"
        )


def cached_extras(
    cache: Cache, layer_idx: int, encoding: str, head_dim: int, width: int
) -> Tensor | None:
    """Returns the extras of the cached tokens of a layer, (B, K, S, width), or None if nothing is
    cached. They are the last `width` > 0 channels of the keys. S includes the free slots of a
    static cache.

    Raises:
        ValueError: for a cache that rounds or drops tokens, and for keys of another encoding.
    """
    known = layer_idx < len(cache.layers) and cache.layers[layer_idx].is_initialized
    lossy = isinstance(cache, QuantizedCache)
    if known:
        keys, length = cached_keys(cache, layer_idx), cache.get_seq_length(layer_idx)
        lossy |= keys.ndim < 4 or (isinstance(length, int) and keys.shape[2] < length)
    if lossy:
        raise ValueError(
            f"position '{encoding}' with a cache that rounds or drops cached tokens: it keeps more "
            "of each token than keys and values; use a cache of all tokens that is not quantized"
        )
    if not known:
        return None
    check_channels(encoding, "keys", keys, head_dim + width, keys.shape[1])
    return keys[..., -width:]


def stored(
    cache: Cache, layer_idx: int, encoding: str, k: Tensor, extras: Tensor | None, values: Values
) -> tuple[Tensor, Tensor | None, Values]:
    """Appends new tokens to the cache of a layer.

    Extras are stored as more channels of the keys, and the payload as more channels of the values.
    All caches of transformers allow this. A `GrowingCache` on a CPU stores the payload as more
    heads, because two averages of 64 channels take half the time of one of 128 there.

    Returns:
        Keys (B, K, S, D), extras (B, K, S, width) or None, and values of all tokens.

    Raises:
        ValueError: if the cached tokens are of another encoding.
    """
    keys = k if extras is None else torch.cat((k, extras), dim=-1)
    stacks = isinstance(cache, GrowingCache) and k.device.type == "cpu"
    stacks &= values.width == values.v.shape[-1]
    all_values = values.alternating() if stacks else values.concat()
    if layer_idx < len(cache.layers) and (layer := cache.layers[layer_idx]).is_initialized:
        check_channels(encoding, "keys", layer.keys, keys.shape[-1], k.shape[1])
        count = values.v.shape[-1] + values.width
        check_channels(encoding, "values", layer.values, count, k.shape[1])
    keys, all_values = cache.update(keys, all_values, layer_idx)
    if extras is not None:
        keys, extras = keys.split((k.shape[-1], extras.shape[-1]), dim=-1)
    if stacks:
        return keys, extras, Values(all_values[:, ::2], all_values[:, 1::2])
    return keys, extras, Values(*values.split(all_values), all_values)


def check_channels(encoding: str, kind: str, cached: Tensor, count: int, K: int) -> None:
    """Raises a ValueError for cached tokens with other than `count` channels for each of K heads,
    if there are any."""
    channels = cached.shape[1] * cached.shape[-1] // K if cached.numel() else count
    if channels != count:
        raise ValueError(
            f"position '{encoding}' with cached {kind} of {channels} channels per head, as "
            f"from prefix tuning or a cache made before: it caches {count}, because it keeps more "
            "of a token; use LoRA, prompt tuning, a new cache or another encoding"
        )


def cached_keys(cache: Cache, layer_idx: int) -> Tensor:
    """Returns a layer's cached keys (B, K, S, D)."""
    if cache.offloading:  # it may still be fetching them
        raise ValueError(
            "an offloaded cache with an encoding or position_ids that read cached keys before it "
            "has fetched them; use another cache"
        )
    return cache.layers[layer_idx].keys


class GrowableBuffer:
    """Tensor (.., S, channels) with spare capacity of S / 8 + 64 tokens for appending."""

    def __init__(self) -> None:
        self.memory: Tensor | None = None
        self.content: Tensor | None = None  # the view that `append` returned last
        self.inference = False  # whether the memory was made in inference mode

    def append(self, content: Tensor, new: Tensor) -> Tensor:
        """Returns `content` plus the new tokens; copies unless `content` is the latest view.

        Cropping, reordering, assignment and a copy of the cache give a different tensor: tokens
        that are still referenced are never overwritten.
        """
        count = new.shape[-2]
        start = content.shape[-2] if content.ndim > 1 else 0  # empty tensors have one axis
        stop = start + count
        if content is not self.content or not self._fits(new, stop):
            spare = new.new_empty((*new.shape[:-2], 64 + stop // 8, new.shape[-1]))
            self.memory = torch.cat((content, new, spare), dim=-2)
            self.inference = torch.is_inference_mode_enabled()
        else:
            self.memory.narrow(-2, start, count).copy_(new)
        self.content = self.memory.narrow(-2, 0, stop)
        return self.content

    def _fits(self, new: Tensor, stop: int) -> bool:
        memory = self.memory
        return (
            stop <= memory.shape[-2]
            and new.shape[:-2] == memory.shape[:-2]
            and new.dtype == memory.dtype
            and self.inference == torch.is_inference_mode_enabled()
        )


class GrowingLayer(DynamicLayer):
    """Keys and values of a layer in growable buffers; with gradients, transformers' layer."""

    def __init__(self) -> None:
        super().__init__()
        self.buffers = GrowableBuffer(), GrowableBuffer()

    def update(
        self, key_states: Tensor, value_states: Tensor, *args, **kwargs
    ) -> tuple[Tensor, Tensor]:
        if is_compiling() or torch.is_grad_enabled():
            return super().update(key_states, value_states)
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        keys, values = self.buffers
        self.keys = keys.append(self.keys, key_states)
        self.values = values.append(self.values, value_states)
        return self.keys, self.values

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self.buffers = GrowableBuffer(), GrowableBuffer()  # every layer's, before the first appends
        super().reorder_cache(beam_idx)


class GrowingCache(DynamicCache):
    """Default cache of the decoder and of `generate`.

    Args:
        layers: keys and values of each, as torch.nn.DataParallel gives those of all its replicas.
    """

    def __init__(self, layers: Iterable[tuple[Tensor, ...]] = ()) -> None:
        Cache.__init__(self, layer_class_to_replicate=GrowingLayer)
        for layer_idx, (keys, values, *_) in enumerate(layers):
            self.update(keys, values, layer_idx)
