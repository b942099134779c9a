"""Attention backends with one signature.

    attended = kernel(q, k, v, payload, mask, bias, scaling, dropout, needs_lse)

q (B, H, T, D); k and v (B, K, S, D); payload (B|1, K|1, S, P), None, or its width P if the cache
stores it as the last channels of the values (`tape.payload`); mask as the library's mask builder
for the same backend returns it; bias a `ScoreBias` or None. The result is an `Attended`, whose log-
sum-exp is None unless `needs_lse`.

Backend names are the library's, so `attn_implementation=`, `set_attn_implementation` and the mask
builders keep working. An unsupported request raises an error; there is no silent fallback.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask
from transformers import Cache, StaticCache
from transformers.utils import is_flash_attn_2_available

from tape import cpu, gpu
from tape.flash import flash, ragged
from tape.flex import WITH_DROPOUT, flex
from tape.masks import build_mask, num_slots, restrict, unpadded_blocks
from tape.names import suggestion
from tape.payload import Attended, Payload, concat_payload, per_query_head, split, split_payload
from tape.positions import ENCODINGS, ScoreBias
from tape.positions.scores import masked
from tape.refusal import refuse_unless
from tape.s2 import check_groups, shifted_groups

if TYPE_CHECKING:
    from transformers import PretrainedConfig

Kernel = Callable[..., Attended]

NOT_ITS_SCORES = "it computes scores as products of queries and keys, which this encoding replaces"


def eager(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    payload: Payload,
    mask: Tensor | None,
    bias: ScoreBias | None,
    scaling: float,
    dropout: float,
    needs_lse: bool = False,
) -> Attended:
    """Reference implementation, and the only backend that returns attention weights."""
    H = q.shape[1]
    v, payload = split_payload(v, payload)
    scores = q @ per_query_head(k, H).transpose(-1, -2) * scaling
    if bias is not None:
        scores = scores + bias.dense(scores.dtype)
    scores = masked(scores, mask)
    wide = torch.promote_types(q.dtype, torch.float32)
    lse = scores.to(wide).logsumexp(-1) if needs_lse else None
    weights = F.softmax(scores, dim=-1, dtype=wide)
    weights = F.dropout(weights.to(q.dtype), dropout)
    attended = weights @ per_query_head(v, H)
    payload = None if payload is None else weights @ per_query_head(payload, H)
    return Attended(attended, payload, weights, lse)


def sdpa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    payload: Payload,
    mask: Tensor | None,
    bias: ScoreBias | None,
    scaling: float,
    dropout: float,
    needs_lse: bool = False,
) -> Attended:
    """torch's fused kernels; `tape.gpu` chooses among those of a GPU.

    On a CPU, two calls of equal width, for values and payload, are faster than one of unequal
    width, which falls back to unfused code. Some inputs have faster paths there (`tape.cpu`). No
    kernel returns the log-sum-exp: with it the scores are computed as by `eager`.
    """
    B, H, T, _ = q.shape
    is_causal = mask is None and T > 1  # the builder leaves causality to us
    if needs_lse:
        if is_causal:
            mask = torch.ones(T, k.shape[2], dtype=torch.bool, device=q.device).tril()
        return eager(q, k, v, payload, mask, bias, scaling, dropout, needs_lse)._replace(
            weights=None
        )
    for applies, run in cpu.PATHS:
        if bias is None and not dropout and applies(q, k, payload, mask):
            return Attended(*run(q, k, v, payload, mask, scaling))
    v, payload = split_payload(v, payload)
    if bias is not None:
        mask, is_causal = bias.masked(mask, q.dtype, causal=is_causal), False
    elif is_causal:
        # Slots of a static cache after the last query are free: drop them.
        k, v = k[:, :, :T], v[:, :, :T]
        payload = None if payload is None else payload[:, :, :T]
    if q.is_cuda:
        return Attended(*gpu.attend(q, k, v, payload, mask, scaling, dropout, is_causal))

    def attend(values: Tensor) -> Tensor:
        missing = q.shape[-1] - values.shape[-1]
        if missing > 0:  # fused kernels need one width; zero channels average to zero
            return attend(F.pad(values, (0, missing)))[..., :-missing]
        return F.scaled_dot_product_attention(
            q, k, values, attn_mask=mask, dropout_p=dropout, is_causal=is_causal, scale=scaling
        )

    k, v = (per_query_head(x, H).expand(B, H, *x.shape[-2:]) for x in (k, v))
    if payload is None:
        return Attended(attend(v), None)
    payload = per_query_head(payload, H).expand(B, H, *payload.shape[-2:])
    if dropout:  # one call: two would draw different dropout masks
        return Attended(*split(attend(concat_payload(v, payload)), payload))
    return Attended(attend(v), attend(payload))


KERNELS: dict[str, Kernel] = {
    "eager": eager,
    "sdpa": sdpa,
    "flex_attention": flex,
    "flash_attention_2": flash,
}


def of_windows(
    config: PretrainedConfig,
    windows: set[int | None],
    x_BTC: Tensor,
    attention_mask: Tensor | None,
    cache: Cache | None,
    real: Tensor | None,
    slots: Tensor,
    documents: Tensor | None,
) -> dict[int | None, tuple[Kernel, Tensor | BlockMask | None]]:
    """Returns the backend of a forward pass and its mask, for each window (`tape.masks`)."""
    found, implementation = {}, config._attn_implementation
    for window in windows:
        kernel = KERNELS[implementation]
        if implementation == "flash_attention_2":
            kernel = partial(kernel, window=window)
        usual, mask = False, None
        if implementation == "flex_attention" and attention_mask is None and documents is None:
            usual, mask = unpadded_blocks(window, x_BTC, cache)
        if not usual:
            allowed = restrict(window, real, documents, num_slots(x_BTC, cache))
            mask = build_mask(config, x_BTC, attention_mask, cache, slots, allowed)
            if implementation == "flash_attention_2":
                mask = ragged(mask, documents, x_BTC.shape[1])
        found[window] = kernel, mask
    return found


def require(implementation: str, config: PretrainedConfig) -> None:
    """Raises a ValueError unless this backend supports this configuration.

    The message names both settings and the alternatives.
    """
    encoding = config.position["name"]
    able = ENCODINGS[encoding].able_backends(config.position)
    missing = set() if is_flash_attn_2_available() else {"flash_attention_2"}
    names = [name for name in KERNELS if name in able - missing]
    conflict = f"attn_implementation={implementation!r} with position {encoding!r}"
    if implementation not in KERNELS:
        raise ValueError(f"{conflict}: no such implementation{suggestion(implementation, KERNELS)}")
    if implementation not in able:
        limit = "flash attention supports no score bias other than ALiBi's slopes at consecutive "
        limit = f"{limit}positions" if implementation == "flash_attention_2" else NOT_ITS_SCORES
        raise ValueError(f"{conflict}: {limit}; allowed here: {', '.join(names)}")
    if implementation in missing:
        raise ValueError(
            f"{conflict}: the flash-attn package is missing, or there is no CUDA device for it "
            f"(EXTRAS=dev,flash bash script/setup.sh); allowed here: {', '.join(names)}"
        )
    if implementation == "flex_attention" and config.attention_dropout:
        raise ValueError(WITH_DROPOUT.format(config.attention_dropout))


def shifted(implementation: str, config: PretrainedConfig, group: int) -> Kernel:
    """Returns S2 attention in groups of `group` tokens (`tape.s2`), computed by this backend.

    S2 is a training-time pattern and has no backend name of its own, because all named backends
    compute the same function. Its mask is (B, T), False at padding, or None.

    Raises:
        ValueError: for an unsupported backend or configuration.
    """
    check_groups(implementation, config, group)
    return partial(shifted_groups, KERNELS[implementation], group)


def check_flash(
    attention_mask: Tensor | None,
    position_ids: Tensor | None,
    key: Tensor,
    cache: Cache | None,
    bias: ScoreBias | None,
) -> None:
    """Refuses inputs that flash_attention_2 would misread: it knows neither the free slots of a
    static cache nor the token indices `key` (B|1, S).

    Raises:
        ValueError: for a static cache; for ALiBi with indices that do not count the real tokens.
    """
    conflict = "attn_implementation='flash_attention_2' with"
    if isinstance(cache, StaticCache):
        raise ValueError(
            f"{conflict} a static cache: it would attend to the free slots; use a dynamic cache, "
            f"or sdpa, flex_attention or eager"
        )
    if bias is None or position_ids is None:
        return
    real = torch.ones_like(key) if attention_mask is None else attention_mask[:, : key.shape[-1]]
    real = real.bool()
    offset = key - real.cumsum(-1)
    lowest, highest = offset.amin(-1, keepdim=True), offset.amax(-1, keepdim=True)
    refuse_unless(
        offset.where(real, lowest).amax(-1) <= offset.where(real, highest).amin(-1),
        f"{conflict} position_ids that do not count the real tokens one by one: it takes ALiBi's "
        f"distances from their order; use sdpa, flex_attention or eager",
        now=position_ids.shape[-1] > 1,
    )
