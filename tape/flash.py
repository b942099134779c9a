"""FlashAttention-2 through the optional package flash-attn (Dao 2023, arXiv 2307.08691).

It supports float16 and bfloat16, one width for queries, keys and values, padding masks only, and
ALiBi as its only score bias. Anything else is refused. The library's wrapper ignores ALiBi slopes
and crops values that are wider than queries, so the package is called directly.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from tape.payload import Attended, Payload, concat_payload, split, split_payload
from tape.positions import ScoreBias

DTYPES = (torch.float16, torch.bfloat16)
MAX_HEAD_DIM = 256  # the package's maximum head dimension
ERROR_PREFIX = "attn_implementation='flash_attention_2'"
ALTERNATIVES = "allowed here: eager, sdpa, flex_attention"


def functions() -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
    """Returns the package's functions for fixed and for variable sequence lengths."""
    # For exported code the library's loader treats any other form as a mandatory import.
    try:
        from flash_attn import flash_attn_func, flash_attn_varlen_func
    except ImportError as error:
        raise ValueError(
            f"{ERROR_PREFIX}: the flash-attn package is missing; {ALTERNATIVES}"
        ) from error
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
    needs_lse: bool = False,
    window: int | None = None,
    documents: Tensor | None = None,
) -> Attended:
    """Backend of `tape.attention`; mask is None or (B, S), False at padding. A query attends to
    itself and the `window` - 1 real tokens before it, within its document (`documents`, (B, T)
    numbers).

    Averages of padding queries are zero.

    Raises:
        ValueError: for inputs that the package does not support.
    """
    _check(q, mask, bias, needs_lse)
    settings = {"dropout_p": dropout, "softmax_scale": scaling, "causal": True}
    if window is not None:
        settings["window_size"] = (window - 1, 0)  # tokens before and after a query
    if bias is not None:
        settings["alibi_slopes"] = bias.alibi_slopes()
    if needs_lse:
        settings["return_attn_probs"] = True
    if documents is not None and mask is None:
        mask = torch.ones_like(documents, dtype=torch.bool)
    v, payload = split_payload(v, payload)
    attend = partial(_attend, q, k, mask=mask, documents=documents, settings=settings)
    if payload is None:
        values, lse = attend(v)
        return Attended(values, None, lse=lse)
    payload = payload.expand(*k.shape[:-1], -1)
    if dropout:  # one call: two would draw different dropout masks
        attended, lse = attend(concat_payload(v, payload))
        return Attended(*split(attended, payload), lse=lse)
    values, lse = attend(v)
    return Attended(values, attend(payload)[0], lse=lse)


def _check(q: Tensor, mask: Tensor | None, bias: ScoreBias | None, needs_lse: bool) -> None:
    if q.dtype not in DTYPES:
        raise ValueError(
            f"{ERROR_PREFIX} with {q.dtype}: it supports float16 and bfloat16; load the model with "
            f"dtype=torch.bfloat16, or train with bf16=true; {ALTERNATIVES}"
        )
    if mask is not None and mask.ndim != 2:
        raise ValueError(
            f"{ERROR_PREFIX} with an attention_mask of {mask.ndim} dimensions: it supports (B, S), "
            f"zero at padding; {ALTERNATIVES}"
        )
    if bias is not None and bias.alibi_slopes() is None:
        raise ValueError(
            f"{ERROR_PREFIX} with a score bias other than ALiBi's at consecutive positions; "
            f"{ALTERNATIVES}"
        )
    if needs_lse and q.requires_grad and torch.is_grad_enabled():
        raise ValueError(
            f"{ERROR_PREFIX} with gradients of the log-sum-exp of the scores, which the package "
            f"does not have; {ALTERNATIVES}"
        )


def _attend(
    q: Tensor,
    k: Tensor,
    values: Tensor,
    mask: Tensor | None,
    documents: Tensor | None,
    settings: dict,
) -> tuple[Tensor, Tensor | None]:
    """Averages `values` (B, K, S, P) of any width P; returns (B, H, T, P) and the log-sum-exp
    (B, H, T), if the settings ask for it."""
    width = max(q.shape[-1], values.shape[-1])
    if width > MAX_HEAD_DIM:
        raise ValueError(
            f"{ERROR_PREFIX}: head_dim={q.shape[-1]} with values of width {values.shape[-1]}: both "
            f"must be <= {MAX_HEAD_DIM} (attention_dropout > 0 appends the positional state to the "
            f"values); {ALTERNATIVES}"
        )
    # Zero channels leave scores unchanged; the scale is passed explicitly.
    q_BTHW, k_BSKW, v_BSKW = (
        (x if x.shape[-1] == width else F.pad(x, (0, width - x.shape[-1]))).transpose(1, 2)
        for x in (q, k, values)
    )
    fixed, varying = functions()
    if mask is None:
        found = fixed(q_BTHW, k_BSKW, v_BSKW, **settings)
        attended, lse = found[:2] if isinstance(found, tuple) else (found, None)
    else:
        attended, lse = _attend_unpadded(
            varying, q_BTHW, k_BSKW, v_BSKW, mask.bool(), documents, settings
        )
    return attended[..., : values.shape[-1]].transpose(1, 2), lse


def _attend_unpadded(
    varying: Callable[..., Tensor],
    q_BTHW: Tensor,
    k_BSKW: Tensor,
    v_BSKW: Tensor,
    mask_BS: Tensor,
    documents: Tensor | None,
    settings: dict,
) -> tuple[Tensor, Tensor | None]:
    """Attends among the real tokens of each row or document. The real queries are the last real
    keys, which is how the package aligns them."""
    T, S = q_BTHW.shape[1], k_BSKW.shape[1]
    queries_BT = mask_BS[:, S - T :]
    found = varying(
        q_BTHW[queries_BT],
        k_BSKW[mask_BS],
        v_BSKW[mask_BS],
        cu_seqlens_q=_boundaries(queries_BT, documents),
        cu_seqlens_k=_boundaries(mask_BS, documents),
        max_seqlen_q=T,
        max_seqlen_k=S,
        **settings,
    )
    attended, lse = found[:2] if isinstance(found, tuple) else (found, None)
    if lse is not None:  # (H, tokens)
        lse_BTH = lse.new_zeros(q_BTHW.shape[:3]).index_put((queries_BT,), lse.mT)
        lse = lse_BTH.transpose(1, 2)
    return torch.zeros_like(q_BTHW).index_put((queries_BT,), attended), lse


def _boundaries(real: Tensor, documents: Tensor | None) -> Tensor:
    """Returns the start of each sequence among all real tokens, and the end, (sequences + 1,)
    int32. A sequence is a row, or a document of one."""
    lengths = real.sum(-1)
    if documents is not None:
        rows = torch.arange(len(real), device=real.device)[:, None] * (real.shape[1] + 1)
        _, lengths = (rows + documents)[real].unique_consecutive(return_counts=True)
    return F.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)
