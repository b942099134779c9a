"""Which token is the how-manieth: indices from masks, caches and position_ids.

An index counts the real tokens before a token, so that padding on either side changes nothing.
Caches keep keys, not their indices: those are told from the distance in slots to the newest token,
and what cannot be told that way is refused here.
"""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import Cache


def token_indices(
    x_BTC: Tensor,
    attention_mask: Tensor | None,
    position_ids: Tensor | None,
    cache: Cache | None,
) -> tuple[Tensor, Tensor]:
    """Indices of the new tokens, (B|1, T), and of the keys in all slots, (B|1, S).

    `position_ids` are indices of the new tokens, and override the count. A mask of four dimensions
    says nothing about indices: without `position_ids` they are slots then.
    """
    T, device = x_BTC.shape[1], x_BTC.device
    past, S = 0, T
    if cache is not None:
        past = cache.get_seq_length()
        S, _ = cache.get_mask_sizes(T, 0)
    new = torch.arange(T, device=device) + past  # slots of the new tokens
    if attention_mask is not None and attention_mask.ndim == 2:
        real = torch.zeros(x_BTC.shape[0], S, dtype=torch.long, device=device)
        width = min(S, attention_mask.shape[1])
        real[:, :width] = attention_mask[:, :width].to(device)
        key = (real.cumsum(-1) - 1).clamp(min=0)
    else:
        key = torch.arange(S, device=device)[None]
    query = key[:, new]
    if position_ids is not None:
        key = (key + position_ids[:, -1:] - query[:, -1:]).clamp(min=0)
        key = key.index_copy(1, new, position_ids.to(key).expand(key.shape[0], T))
        query = position_ids
    return query, key


def refuse_unless(holds: Tensor, message: str, now: bool) -> None:
    """Raise a ValueError unless all of `holds`, which a graph does not look at. On a GPU reading
    them waits for the device: not `now`, the device asserts them when it comes to them."""
    if torch.compiler.is_compiling():
        return
    if holds.is_cuda and not now:
        torch._assert_async(holds.all(), message)
    elif not holds.all():
        raise ValueError(message)


def check_mask(mask: Tensor | None, T: int, cache: Cache | None, training: bool = False) -> None:
    """Refuse masks that kernels would read as something else, or that do not cover all tokens."""
    if mask is None:
        return
    if mask.ndim not in (2, 4):
        raise ValueError(
            f"attention_mask of shape {tuple(mask.shape)}: allowed are (B, S), 0 at padding, and "
            f"(B, 1, T, S)"
        )
    if mask.ndim == 4:
        if not (mask.dtype == torch.bool or mask.is_floating_point()):
            raise ValueError(
                f"a 4-D attention_mask must be boolean (True attends) or additive, not {mask.dtype}"
            )
        return
    past = 0 if cache is None else cache.get_seq_length()
    if isinstance(past, int) and mask.shape[1] < past + T:
        raise ValueError(
            f"attention_mask covers {mask.shape[1]} tokens, but there are {past} in the cache "
            f"and {T} new ones; give it for all {past + T}"
        )
    if mask.dtype != torch.bool:
        refuse_unless(
            mask == mask.bool(),
            "attention_mask of (B, S) with other values: it is 0 at padding and 1 at tokens; for "
            "anything else, such as documents in a row, give one of (B, 1, T, S)",
            now=T > 1 and not training,
        )


def check_draw(draw: tuple[int, ...] | None, cache: Cache | None) -> None:
    """Refuse keys that were turned by another draw of positions than the one in force."""
    if draw is None or cache is None:
        return
    if not torch.compiler.is_compiling() and int(cache.get_seq_length()) == 0:
        cache.tape_draw = draw
    if getattr(cache, "tape_draw", draw) != draw:
        raise ValueError(
            f"the cached tokens have positions drawn for eval_length={cache.tape_draw[1]}, the new "
            f"ones for {draw[1]}; wrap all calls that share a cache in one "
            f"`with model.evaluation_length(n):`"
        )


def check_gaps(position_ids: Tensor | None, cache: Cache | None) -> None:
    """Refuse to continue a cache behind a gap in the indices or a step back, for encodings that ask
    for those of its keys: distances in slots would be taken for them."""
    if cache is None:
        return
    compiling = torch.compiler.is_compiling()  # a graph knows what earlier calls found, no values
    several = not compiling and position_ids is not None and position_ids.shape[1] > 1
    gaps = False
    if several:
        steps = position_ids.diff(dim=-1)
        gaps = bool(((steps > 1) | (steps < 0)).any())
    found = gaps or getattr(cache, "tape_gaps", False)
    if found and (compiling or int(cache.get_seq_length())):
        raise ValueError(
            "position_ids with gaps or steps back, and a cache: this encoding needs the indices of "
            "cached keys, which no cache keeps; give all tokens at once, or indices that count up "
            "by one"
        )
    if not compiling:
        cache.tape_gaps = gaps
