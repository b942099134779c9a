"""FlashAttention-2 through the optional package flash-attn (Dao 2023, arXiv 2307.08691).

It supports float16 and bfloat16, one width for queries, keys and values, padding masks only, and
ALiBi as its only score bias. Anything else is refused. transformers' wrapper ignores ALiBi slopes
and crops values that are wider than queries, so the package is called directly.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from tape.attention.payload import Attended, Values
from tape.positions import ScoreBias

DTYPES = (torch.float16, torch.bfloat16)
MAX_HEAD_DIM = 256  # the package's maximum head dimension
ERROR_PREFIX = "attn_implementation='flash_attention_2'"
ALTERNATIVES = "allowed here: eager, sdpa, flex_attention"


class Ragged(NamedTuple):
    """Where the real tokens of a batch are, found once for all layers.

    The real queries are the last real keys, which is how the package aligns them.

    Attributes:
        queries: of (B, T), their numbers when it is flattened.
        keys: of (B, S).
        query_starts, key_starts: (sequences + 1,) int32, where each row or document begins.
    """

    queries: Tensor
    keys: Tensor
    query_starts: Tensor
    key_starts: Tensor

    @classmethod
    def of(cls, mask: Tensor, documents: Tensor | None, T: int) -> Ragged:
        """
        Args:
            mask: (B, S), False at padding.
            documents: (B, T) numbers; None: a row is one.
        """
        real = mask.bool()
        queries = real[:, real.shape[1] - T :]
        places = (x.flatten().nonzero()[:, 0] for x in (queries, real))
        return cls(*places, *(_boundaries(x, documents) for x in (queries, real)))


def ragged(mask: Tensor | None, documents: Tensor | None, T: int) -> Ragged | Tensor | None:
    """Returns the mask of all layers; one that is refused is left as it is."""
    if documents is not None and mask is None:
        mask = torch.ones_like(documents, dtype=torch.bool)
    return mask if mask is None or mask.ndim != 2 else Ragged.of(mask, documents, T)


def functions() -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
    """Returns the package's functions for fixed and for variable sequence lengths."""
    # For exported code transformers' loader treats any other form as a mandatory import.
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
    values: Values,
    mask: Ragged | Tensor | None,
    bias: ScoreBias | None,
    scaling: float,
    dropout: float,
    needs_lse: bool = False,
    window: int | None = None,
) -> Attended:
    """Backend of `tape.attention.backends`; mask is a `Ragged`, (B, S), False at padding, or None.
    A query attends to itself and the `window` - 1 real tokens before it, within its document.

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
    if isinstance(mask, Tensor):
        mask = Ragged.of(mask, None, q.shape[2])
    attend = partial(_attend, q, k, ragged=mask, settings=settings)
    if dropout or values.payload is None:  # one call: two would draw different dropout masks
        averages, lse = attend(values.concat())
        return Attended(*values.split(averages), lse=lse)
    averages, lse = attend(values.v)
    payload, _ = attend(values.payload.expand(*k.shape[:-1], -1))
    return Attended(averages, payload, lse=lse)


def _check(
    q: Tensor, mask: Ragged | Tensor | None, bias: ScoreBias | None, needs_lse: bool
) -> None:
    if q.dtype not in DTYPES:
        raise ValueError(
            f"{ERROR_PREFIX} with {q.dtype}: it supports float16 and bfloat16; load the model with "
            f"dtype=torch.bfloat16, or train with bf16=true; {ALTERNATIVES}"
        )
    if isinstance(mask, Tensor) and mask.ndim != 2:
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
    q: Tensor, k: Tensor, values: Tensor, ragged: Ragged | None, settings: dict
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
    if ragged is None:
        found = fixed(q_BTHW, k_BSKW, v_BSKW, **settings)
        attended, lse = found[:2] if isinstance(found, tuple) else (found, None)
    else:
        attended, lse = _attend_ragged(varying, q_BTHW, k_BSKW, v_BSKW, ragged, settings)
    return attended[..., : values.shape[-1]].transpose(1, 2), lse


def _attend_ragged(
    varying: Callable[..., Tensor],
    q_BTHW: Tensor,
    k_BSKW: Tensor,
    v_BSKW: Tensor,
    ragged: Ragged,
    settings: dict,
) -> tuple[Tensor, Tensor | None]:
    """Attends among the real tokens of each row or document."""
    found = varying(
        q_BTHW.flatten(0, 1)[ragged.queries],
        k_BSKW.flatten(0, 1)[ragged.keys],
        v_BSKW.flatten(0, 1)[ragged.keys],
        cu_seqlens_q=ragged.query_starts,
        cu_seqlens_k=ragged.key_starts,
        max_seqlen_q=q_BTHW.shape[1],
        max_seqlen_k=k_BSKW.shape[1],
        **settings,
    )
    attended, lse = found[:2] if isinstance(found, tuple) else (found, None)

    def whole(x: Tensor) -> Tensor:
        """(tokens, ...) -> (B, T, ...), 0 at padding."""
        padded = x.new_zeros(q_BTHW.shape[0] * q_BTHW.shape[1], *x.shape[1:])
        return padded.index_put((ragged.queries,), x).unflatten(0, q_BTHW.shape[:2])

    if lse is not None:  # (H, tokens)
        lse = whole(lse.mT).transpose(1, 2)
    return whole(attended), lse


def _boundaries(real: Tensor, documents: Tensor | None) -> Tensor:
    """Returns the start of each sequence among all real tokens, and the end, (sequences + 1,)
    int32. A sequence is a row, or a document of one."""
    lengths = real.sum(-1)
    if documents is not None:
        rows = torch.arange(len(real), device=real.device)[:, None] * (real.shape[1] + 1)
        _, lengths = (rows + documents)[real].unique_consecutive(return_counts=True)
    return F.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)
