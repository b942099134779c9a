"""Attention masks: causal, windows, packed documents, and what the caller's mask hides."""

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.compiler import is_compiling
from torch.nn.attention.flex_attention import BlockMask, create_block_mask
from torch.utils._python_dispatch import _disable_current_modes
from transformers import Cache, PretrainedConfig
from transformers.masking_utils import and_masks, create_causal_mask

from tape.positions.scores import lookup

SHORT = 256  # new tokens, up to which masks and biases are tensors of all pairs

# (batch, head, query slot, key slot) -> whether they attend; of scalars, or tensors that broadcast.
Allowed = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


class Batch(NamedTuple):
    """The new tokens of a forward pass, and what they may attend to."""

    x_BTC: Tensor  # embeddings
    mask: Tensor | None  # boolean: (B, S), False at padding, or (B, 1, T, S)
    cache: Cache | None
    slots: Tensor  # (T,) cache slots of the new tokens; 0 to T - 1 without a cache
    real: Tensor | None  # (B|1, S) False at padding; None without padding
    documents: Tensor | None  # (B, T) numbers of packed documents; only without a cache


def restrict(
    window: int | None, real_BS: Tensor | None, documents_BT: Tensor | None, slots: int
) -> Allowed | None:
    """Returns a function of (b, h, i, j) that tells whether the query at slot i may see the key at
    slot j, or None if nothing is restricted. Causality and padding are not part of it.

    Args:
        window: a query sees itself and the `window` - 1 real tokens before it; None: no window.
        real_BS: (B, S) False at padding, or None.
        documents_BT: (B, T) numbers of documents; a query sees only its own; or None.
        slots: number of slots in the cache.
    """
    conditions: list[Allowed] = []
    if window is not None and real_BS is None:
        conditions.append(lambda b, h, i, j: i - j < window)
    elif window is not None:
        count = lookup(F.pad(real_BS, (0, slots - real_BS.shape[1])).cumsum(-1))
        conditions.append(lambda b, h, i, j: count(b, i) - count(b, j) < window)
    if documents_BT is not None:
        number = lookup(documents_BT)
        conditions.append(lambda b, h, i, j: number(b, i) == number(b, j))
    return and_masks(*conditions) if conditions else None


class Seen:
    """Which keys the new tokens see, computed for some of them at a time: a mask of long inputs.

    Args:
        allowed: what restricts the keys, besides causality and padding (`restrict`).
        batch: number of sequences, 1 if all have one mask.
        real: (B, S or fewer slots) False at padding, or None.
        given: the caller's mask (B|1, 1, T, S) in place of causality and padding, or None.
        window: number of keys that a query sees at most, if nothing is padded.
    """

    def __init__(
        self,
        slots: Tensor,
        allowed: Allowed | None,
        batch: int,
        real: Tensor | None = None,
        given: Tensor | None = None,
        window: int | None = None,
    ):
        self.slots, self.allowed, self.batch = slots, allowed, batch
        self.real, self.given, self.window = real, given, window
        self.begin = int(slots[0])  # slots are consecutive

    def rows(self, queries: slice) -> tuple[slice, Tensor]:
        """Returns the keys from the first to the last that a query of a slice sees or is at, and
        which of them each one sees, (B|1, 1, t, s)."""
        first, last = 0, self.begin + queries.stop
        if self.given is not None:
            last = self.given.shape[-1]
        elif self.window is not None:
            first = max(0, self.begin + queries.start - self.window + 1)
        query, key = self.slots[queries, None], torch.arange(first, last, device=self.slots.device)
        causal = (key <= query)[None, None]
        seen = causal if self.given is None else self.given[:, :, queries]
        if self.real is not None:
            seen = seen & self.real[:, None, None, first:last]
        if self.allowed is not None:
            rows = torch.arange(self.batch, device=key.device)[:, None, None, None]
            seen = seen & self.allowed(rows, torch.zeros_like(rows), query, key)
        # With the keys of the queries themselves, which padding hides: encodings read them.
        low, high = self.begin + queries.start - first, self.begin + queries.stop - first
        some = seen.any(dim=(0, 1, 2)).nonzero()
        if len(some):
            low, high = min(low, int(some[0])), max(high, int(some[-1]) + 1)
        return slice(first + low, first + high), seen[..., low:high]

    def dense(self, S: int) -> Tensor:
        """Returns which of all keys each token sees, (B|1, 1, T, S)."""
        keys, seen = self.rows(slice(0, len(self.slots)))
        return F.pad(seen, (keys.start, S - keys.stop))


def is_long(T: int, device: torch.device) -> bool:
    """Returns whether attention over T new tokens goes by blocks, where no graph is made of it."""
    return device.type == "cpu" and not is_compiling() and T > SHORT


def long_mask(window: int | None, batch: Batch) -> Seen | None:
    """Returns the mask of a long input, None if it is causal from slot 0 on."""
    x_BTC, mask, cache, slots, real, documents = batch
    given = None
    if mask is not None and mask.ndim == 4:
        mask, given = None, mask
    elif mask is not None and bool(mask[:, : int(slots[-1]) + 1].all()):
        mask = real = None
    alone = mask is None and given is None and documents is None  # causal, or within a window
    if alone and window is None and int(slots[0]) == 0:
        return None
    S = len(slots) if cache is None else cache.get_mask_sizes(len(slots), 0)[0]
    allowed = restrict(window, real, documents, S)
    size = 1 if alone else len(x_BTC)
    return Seen(slots, allowed, size, mask, given, window if alone else None)


def narrowed(mask: Tensor, slots: Tensor, window: int) -> Tensor:
    """Returns a mask (B|1, 1, T, S) of the last `window` tokens that each query sees in it."""
    count = mask.cumsum(-1)
    own = count.gather(-1, slots[:, None].expand(*count.shape[:-1], 1))
    return mask & (own - count < window)


@lru_cache(maxsize=16)
@torch.inference_mode(False)  # a mask made for inference could not be saved for a gradient
def causal_blocks(T: int, window: int | None, device: torch.device) -> BlockMask:
    """Returns FlexAttention's mask of T tokens without padding, one for all sequences."""

    def seen(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return j <= i if window is None else (j <= i) & (i - j < window)

    create = torch.compile(create_block_mask) if device.type == "cuda" else create_block_mask
    with _disable_current_modes():  # fake tensors of torch.export must not be kept
        return create(seen, None, None, T, T, device=device)


def build_mask(
    config: PretrainedConfig, window: int | None, batch: Batch
) -> Tensor | BlockMask | Seen | None:
    """Returns the mask for the backend of the configuration, as transformers' builder does, with a
    window and documents (`restrict`), which flash attention takes as arguments of its own; for
    sdpa and a long input on a CPU, what each query sees without a tensor of all pairs."""
    x_BTC, attention_mask, cache, slots, real, documents = batch
    T = x_BTC.shape[1]
    plain = attention_mask is None and documents is None
    decoding = T == 1 and cache is not None and not cache.is_compileable
    if plain and decoding and window is None:
        return None  # the token sees all of the cache
    if window is not None and attention_mask is not None and attention_mask.ndim == 4:
        attention_mask, window = narrowed(attention_mask, slots, window), None
    implementation, allowed = config._attn_implementation, None
    if implementation == "sdpa" and is_long(T, x_BTC.device):
        return long_mask(window, batch._replace(mask=attention_mask))
    if implementation == "flex_attention" and plain and cache is None and not is_compiling():
        return causal_blocks(T, window, x_BTC.device)
    if window is not None or documents is not None:
        S = T if cache is None else cache.get_mask_sizes(T, 0)[0]  # all of a static cache
        allowed = restrict(window, real, documents, S)
    given = {
        "config": config,
        "inputs_embeds": x_BTC,
        "attention_mask": attention_mask,
        # Masks depend on slots and padding only. Given position_ids, the builder would take a
        # gap in them for the border of a packed document.
        "past_key_values": None if cache is None else CacheSizes(cache),
    }
    if implementation == "flex_attention" and (attention_mask is None or attention_mask.ndim == 2):
        return create_causal_mask(**given, and_mask_function=allowed)
    mask = create_causal_mask(**given)
    if allowed is None or implementation == "flash_attention_2":
        return mask
    rows = torch.arange(x_BTC.shape[0], device=x_BTC.device)[:, None, None, None]
    query, key = slots[:, None], torch.arange(S, device=x_BTC.device)
    seen = allowed(rows, torch.zeros_like(rows), query, key)
    if mask is None:  # the builder leaves causality to sdpa
        return (seen & (key <= query)).expand(x_BTC.shape[0], 1, -1, -1)
    if mask.dtype == torch.bool:
        return mask & seen
    return mask.masked_fill(~seen, torch.finfo(mask.dtype).min)


def visible_keys(window: int | None, batch: Batch, index: Tensor | None) -> Tensor:
    """Returns the number of keys that each token sees, (B|1, T) >= 1; `index` is of documents."""
    mask, slots = batch.mask, batch.slots
    if mask is not None and mask.ndim == 4:
        seen = mask if window is None else narrowed(mask, slots, window)
        return seen[:, 0].sum(-1).clamp(min=1)
    if index is not None:
        count = index + 1
    elif batch.real is not None:
        count = batch.real.cumsum(-1)[:, slots]
    else:
        count = slots[None] + 1
    return count.clamp(min=1, max=window)


class CacheSizes:
    """Cache sizes for transformers' mask builder, taken before the forward pass: a static cache
    updates its length in place, and FlexAttention evaluates its mask after that."""

    def __init__(self, cache: Cache):
        self.get_mask_sizes, self.is_compileable = cache.get_mask_sizes, cache.is_compileable
        length = cache.get_query_offset()
        self._length = length.clone() if isinstance(length, Tensor) else length

    def get_query_offset(self, layer_idx: int) -> Tensor | int:
        return self._length
