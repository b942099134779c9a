"""FlashAttention-2, by the optional package flash-attn (Dao 2023, arXiv 2307.08691).

It takes float16 and bfloat16, one width for queries, keys and values, padding but no other mask,
and of all terms on the scores only ALiBi's. What it cannot do is refused. The library's own wrapper
would ignore ALiBi's slopes and crop values that are wider than queries: the package is called here.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from tape.payload import Payload, concat_payload, split, split_payload
from tape.positions import ScoreBias

DTYPES = (torch.float16, torch.bfloat16)
WIDEST = 256  # channels of a head, what the package has kernels for
ERROR_PREFIX = "attn_implementation='flash_attention_2'"
INSTEAD = "allowed here: eager, sdpa, flex_attention"


def functions() -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
    """The package's functions for sequences of one length, and of several."""
    # The library's loader of exported code takes other forms for a package that must be there.
    try:
        from flash_attn import flash_attn_func, flash_attn_varlen_func
    except ImportError as error:
        raise ValueError(f"{ERROR_PREFIX}: the flash-attn package is missing; {INSTEAD}") from error
    return flash_attn_func, flash_attn_varlen_func


def flash(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    payload: Payload,
    mask: Tensor | None,
    bias: ScoreBias | None,
    scaling: float,
    dropout: float,
) -> tuple[Tensor, Tensor | None, None]:
    """The kernel of `tape.attention`; mask is None or (B, S), False at padding.

    The averages of padding queries are zero.

    Raises:
        ValueError: for what the package cannot do, see above.
    """
    _check(q, mask, bias)
    settings = {"dropout_p": dropout, "softmax_scale": scaling, "causal": True}
    if bias is not None:
        settings["alibi_slopes"] = bias.alibi_slopes()
    v, payload = split_payload(v, payload)
    if payload is None:
        return _attend(q, k, v, mask, settings), None, None
    payload = payload.expand(*k.shape[:-1], -1)
    if dropout:  # drawn inside the kernel: one call, or the averages would drop different tokens
        attended = _attend(q, k, concat_payload(v, payload), mask, settings)
        return *split(attended, payload), None
    return _attend(q, k, v, mask, settings), _attend(q, k, payload, mask, settings), None


def _check(q: Tensor, mask: Tensor | None, bias: ScoreBias | None) -> None:
    if q.dtype not in DTYPES:
        raise ValueError(
            f"{ERROR_PREFIX} with {q.dtype}: it takes float16 and bfloat16; load the model with "
            f"dtype=torch.bfloat16, or train with bf16=true; {INSTEAD}"
        )
    if mask is not None and mask.ndim != 2:
        raise ValueError(
            f"{ERROR_PREFIX} with an attention_mask of {mask.ndim} dimensions: it takes (B, S), "
            f"zero at padding; {INSTEAD}"
        )
    if bias is not None and bias.alibi_slopes() is None:
        raise ValueError(
            f"{ERROR_PREFIX} with a term on the scores that is not ALiBi's at consecutive "
            f"positions; {INSTEAD}"
        )


def _attend(q: Tensor, k: Tensor, values: Tensor, mask: Tensor | None, settings: dict) -> Tensor:
    """The average of `values` (B, K, S, P), (B, H, T, P), whatever P is."""
    width = max(q.shape[-1], values.shape[-1])
    if width > WIDEST:
        raise ValueError(
            f"{ERROR_PREFIX}: a head of {q.shape[-1]} channels with values of {values.shape[-1]} "
            f"is above its {WIDEST} (attention_dropout > 0 averages values and positional state "
            f"in one call); {INSTEAD}"
        )
    # Channels of zeros change no score; the scale is given, not told from the width.
    q_BTHW, k_BSKW, v_BSKW = (
        (x if x.shape[-1] == width else F.pad(x, (0, width - x.shape[-1]))).transpose(1, 2)
        for x in (q, k, values)
    )
    fixed, varying = functions()
    if mask is None:
        attended = fixed(q_BTHW, k_BSKW, v_BSKW, **settings)
    else:
        attended = _attend_unpadded(varying, q_BTHW, k_BSKW, v_BSKW, mask.bool(), settings)
    return attended[..., : values.shape[-1]].transpose(1, 2)


def _attend_unpadded(
    varying: Callable[..., Tensor],
    q_BTHW: Tensor,
    k_BSKW: Tensor,
    v_BSKW: Tensor,
    mask_BS: Tensor,
    settings: dict,
) -> Tensor:
    """Attention among the real tokens of each sequence. The real queries are the last of the real
    keys, and so does the package align them."""
    T, S = q_BTHW.shape[1], k_BSKW.shape[1]
    queries_BT = mask_BS[:, S - T :]
    attended = varying(
        q_BTHW[queries_BT],
        k_BSKW[mask_BS],
        v_BSKW[mask_BS],
        cu_seqlens_q=_boundaries(queries_BT),
        cu_seqlens_k=_boundaries(mask_BS),
        max_seqlen_q=T,
        max_seqlen_k=S,
        **settings,
    )
    return torch.zeros_like(q_BTHW).index_put((queries_BT,), attended)


def _boundaries(real: Tensor) -> Tensor:
    """Where each sequence starts among all real tokens, and the end, (B + 1,) int32."""
    return F.pad(real.sum(-1).cumsum(0), (1, 0)).to(torch.int32)
