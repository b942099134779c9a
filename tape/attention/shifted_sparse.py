"""S2, shifted sparse attention, for training on long sequences (LongLoRA, Chen et al. 2023, arXiv
2309.12307).

Tokens attend within groups of consecutive tokens. In the first half of the heads, groups start at
multiples of the group size; in the second half they are shifted by half a group, and the first and
last groups are shorter. (The original code rolls them into one group, in which the first tokens can
see the last ones.) Groups count the real tokens of each sequence, so padding changes nothing.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tape.attention.payload import Attended, Request, Values
from tape.positions.base import LayerPosition, PositionEncoding

Parts = list[Tensor]  # q, k, v and optionally the payload
SUPPORTED_BACKENDS = ("sdpa", "flash_attention_2")  # causal without a mask


def check_backend(implementation: str) -> None:
    if implementation not in SUPPORTED_BACKENDS:
        raise ValueError(
            f"training in shifted groups with attn_implementation={implementation!r}; allowed: "
            f"{', '.join(SUPPORTED_BACKENDS)}"
        )


def check_groups(model: nn.Module, group: int) -> None:
    """Raises a ValueError unless a decoder can train in groups of `group` tokens."""
    config, layers, trying = model.config, model.layers, f"training in groups of {group} tokens"
    if type(group) is not int or group < 2 or group % 2:
        raise ValueError(f"{trying}: it must be an even integer >= 2, to shift by half")
    check_backend(config._attn_implementation)
    if config.num_attention_heads % 2:
        raise ValueError(f"{trying}: num_attention_heads={config.num_attention_heads} is odd")
    windows = {config.sliding_window, *(layer.context.window for layer in layers)} - {None}
    if windows:
        raise ValueError(
            f"{trying} with windows of {', '.join(map(str, sorted(windows)))} tokens: groups "
            "replace the mask; allowed: layers without a window"
        )
    if config.scalable_softmax:
        raise ValueError(
            f"{trying} with scalable_softmax, which counts the keys of the whole text; choose one"
        )
    encodings = [part for part in model.position.modules() if isinstance(part, PositionEncoding)]
    if any(type(each).biases is not PositionEncoding.biases for each in encodings) or any(
        type(layer.context).bias is not LayerPosition.bias for layer in layers
    ):
        raise ValueError(
            f"{trying} with position {config.position['name']!r}, which adds a bias to the "
            "scores; allowed: nope, rope, tape and others without one"
        )


def padding(attention_mask: Tensor | None, documents: Tensor | None = None) -> Tensor | None:
    """Returns the mask of `shifted_groups`, (B, T), False at padding; refuses others."""
    if documents is not None:
        raise ValueError(
            "training in shifted groups with document_ids: groups would join documents; give one "
            "document per row"
        )
    if attention_mask is None:
        return None
    if attention_mask.ndim != 2:
        raise ValueError(
            f"training in shifted groups with an attention_mask of {attention_mask.ndim} "
            "dimensions: it must be (B, T), zero at padding"
        )
    return attention_mask


def shifted_groups(within: Callable[[Request], Attended], group: int, request: Request) -> Attended:
    """Backend of `tape.attention.backends` without a cache, by the backend `within` in groups of an
    even number of tokens; the mask is None or (B, T), False at padding."""
    q, k, values, mask, *_, needs_lse = request

    def attend(parts: Parts, size: int) -> Parts:
        """Averages within groups of `size` tokens, counted from the first token."""
        B, _, T, _ = parts[0].shape
        size = min(size, T)
        folded = [_fold(x, size) for x in parts]
        q, k, v, payload = folded if len(folded) == 4 else (*folded, None)
        found = within(request._replace(q=q, k=k, values=Values(v, payload), mask=None))
        lse = found.lse[..., None] if needs_lse else None
        averages = (found.values, found.payload, lse)
        return [_unfold(x, B, T) for x in averages if x is not None]

    (B, H), K = q.shape[:2], k.shape[1]
    parts = [x.expand(B, K, -1, -1) for x in (k, values.v, values.payload) if x is not None]
    if K % 2:  # each half of the heads has its own
        parts = [x.repeat_interleave(H // K, dim=1) for x in parts]
    parts.insert(0, q)
    if mask is not None:
        order = mask.int().argsort(dim=-1, descending=True, stable=True)  # real tokens first
        parts = [_reorder(x, order) for x in parts]
    first, second = zip(*(x.chunk(2, dim=1) for x in parts), strict=True)
    shifted = attend([x[:, :, : group // 2] for x in second], group)
    if q.shape[2] > group // 2:
        rest = attend([x[:, :, group // 2 :] for x in second], group)
        shifted = [torch.cat(pair, dim=2) for pair in zip(shifted, rest, strict=True)]
    halves = zip(attend(first, group), shifted, strict=True)
    averages = [torch.cat(pair, dim=1) for pair in halves]
    if mask is not None:
        averages = [_reorder(x, order.argsort(dim=-1)) for x in averages]
    lse = averages.pop()[..., 0] if needs_lse else None
    return Attended(averages[0], None if values.payload is None else averages[1], lse=lse)


def _reorder(x_BHTC: Tensor, order_BT: Tensor) -> Tensor:
    return x_BHTC.take_along_dim(order_BT[:, None, :, None], dim=2)


def _fold(x_BHTC: Tensor, size: int) -> Tensor:
    """Folds groups into the batch, (B n, H, size, C), the last one padded at its end."""
    n = math.ceil(x_BHTC.shape[2] / size)
    x_BHTC = F.pad(x_BHTC, (0, 0, 0, n * size - x_BHTC.shape[2]))
    return x_BHTC.unflatten(2, (n, size)).transpose(1, 2).flatten(0, 1)


def _unfold(x: Tensor, B: int, T: int) -> Tensor:
    """Inverse of `_fold`: (B n, H, size, C) to (B, H, T, C)."""
    return x.unflatten(0, (B, -1)).transpose(1, 2).flatten(2, 3)[:, :, :T]
