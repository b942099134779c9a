"""The kernel seam: every attention implementation behind one signature.

    attended, attended_payload, weights = kernel(q, k, v, payload, mask, bias, scaling, dropout)

q (B, H, T, D), k and v (B, K, S, D), payload (B|1, K|1, S, P) or None; mask as the library's mask
builder for the same name makes it; bias a `ScoreBias` or None. Both averages are (B, H, T, ·) under
one set of weights; weights are (B, H, T, S), or None where the kernel never has them.

The names are the library's, so that `attn_implementation=`, `set_attn_implementation` and the mask
builders keep working. A request that cannot be honoured is refused, never replaced.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.utils import is_flash_attn_2_available

from tape.blockwise import causal_attention, pays
from tape.names import suggestion
from tape.positions import ENCODINGS, ScoreBias
from tape.positions.base import masked

Attended = tuple[Tensor, Tensor | None, Tensor | None]


def per_query_head(x_BKSD: Tensor, num_heads: int) -> Tensor:
    """Key/value heads, each repeated for the query heads of its group."""
    K = x_BKSD.shape[1]
    return x_BKSD if K in (1, num_heads) else x_BKSD.repeat_interleave(num_heads // K, dim=1)


def eager(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    payload: Tensor | None,
    mask: Tensor | None,
    bias: ScoreBias | None,
    scaling: float,
    dropout: float,
) -> Attended:
    """The definition, step by step; the only kernel that has the weights to show."""
    H = q.shape[1]
    scores = q @ per_query_head(k, H).transpose(-1, -2) * scaling
    if bias is not None:
        scores = scores + bias.dense(scores.dtype)
    scores = masked(scores, mask)
    weights = F.softmax(scores, dim=-1, dtype=torch.promote_types(q.dtype, torch.float32))
    weights = F.dropout(weights.to(q.dtype), dropout)
    attended = weights @ per_query_head(v, H)
    return attended, None if payload is None else weights @ per_query_head(payload, H), weights


def sdpa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    payload: Tensor | None,
    mask: Tensor | None,
    bias: ScoreBias | None,
    scaling: float,
    dropout: float,
) -> Attended:
    """torch's fused kernels, one call for values and one for the payload.

    Two calls of equal width beat one of unequal width: the latter falls back to unfused code.
    """
    B, H, T, _ = q.shape
    is_causal = mask is None and T > 1  # the builder leaves causality to us
    if bias is not None:
        if is_causal:
            mask = torch.ones(T, k.shape[2], dtype=torch.bool, device=q.device).tril()
        mask, is_causal = bias.masked(mask, q.dtype), False
    elif is_causal:
        # Slots of a static cache after the last query are free: drop them.
        k, v = k[:, :, :T], v[:, :, :T]
        payload = None if payload is None else payload[:, :, :T]

    def attend(values: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(
            q, k, values, attn_mask=mask, dropout_p=dropout, is_causal=is_causal, scale=scaling
        )

    k, v = per_query_head(k, H), per_query_head(v, H)
    if payload is None:
        return attend(v), None, None
    payload = per_query_head(payload, H).expand(B, H, *payload.shape[-2:])
    if dropout:  # drawn inside the kernel: one call, or the averages would drop different tokens
        attended = attend(torch.cat((v, payload), dim=-1))
    elif is_causal and k.shape[2] == T and pays(q):
        attended = causal_attention(q, k, torch.cat((v, payload), dim=-1), scaling)
    else:
        return attend(v), attend(payload), None
    return *attended.split((v.shape[-1], payload.shape[-1]), dim=-1), None


KERNELS: dict[str, Callable[..., Attended]] = {"eager": eager, "sdpa": sdpa}


def require(implementation: str, encoding: str) -> None:
    """Raise a ValueError unless this attention implementation can carry out this encoding.

    The message names both settings and what would work instead.
    """
    able = [name for name in KERNELS if name in ENCODINGS[encoding].backends]
    conflict = f"attn_implementation={implementation!r} with position {encoding!r}"
    if implementation in able:
        return
    if implementation.startswith("flash") and implementation not in ENCODINGS[encoding].backends:
        raise ValueError(
            f"{conflict}: flash attention takes no learned term on the scores; "
            f"allowed here: {', '.join(able)}"
        )
    if implementation == "flash_attention_2" and not is_flash_attn_2_available():
        raise ValueError(
            f"{conflict}: the flash-attn package is missing, or there is no CUDA device for it "
            f"(EXTRAS=dev,flash bash script/setup.sh); allowed here: {', '.join(able)}"
        )
    raise ValueError(f"{conflict}: no such implementation{suggestion(implementation, able)}")
