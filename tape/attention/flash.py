"""FlashAttention-2 through the optional package flash-attn (Dao 2023, arXiv 2307.08691).

It supports float16 and bfloat16, one width for queries, keys and values, padding masks only, and
ALiBi as its only score bias. Anything else is refused. transformers' wrapper ignores ALiBi slopes
and crops values that are wider than queries, so the package is called directly.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from tape.attention.payload import Attended, Request
from tape.positions.scores import ScoreBias

DTYPES = (torch.float16, torch.bfloat16)
MAX_HEAD_DIM = 256  # the package's maximum head dimension
ERROR_PREFIX = "attn_implementation='flash_attention_2'"
ALTERNATIVES = "allowed here: eager, sdpa, flex_attention"


class Ragged(NamedTuple):
    """Places of the real tokens in a padded batch. They are computed once for all layers.

    The package aligns queries with the last keys, so the real queries are the last real keys.
    """

    queries: Tensor  # their numbers in (B, T) when it is flattened
    keys: Tensor  # their numbers in (B, S)
    query_starts: Tensor  # (sequences + 1,) int32, where each row or document begins
    key_starts: Tensor

    def whole(self, x: Tensor, B: int, T: int) -> Tensor:
        """(tokens, ...) -> (B, T, ...), 0 at padding."""
        padded = x.new_zeros(B * T, *x.shape[1:])
        return padded.index_put((self.queries,), x).unflatten(0, (B, T))


def ragged(mask: Tensor | None, documents: Tensor | None, T: int) -> Ragged | None:
    """Returns the places of the real tokens, or None if nothing is padded or packed.

    Args:
        mask: (B, S) False at padding, or None.
        documents: (B, T) numbers of packed documents, or None if each row is one document.
        T: number of new tokens.

    Raises:
        ValueError: for a mask with other than two dimensions.
    """
    if mask is None and documents is None:
        return None
    if mask is not None and mask.ndim != 2:
        raise ValueError(
            f"{ERROR_PREFIX} with an attention_mask of {mask.ndim} dimensions: it supports (B, S), "
            f"zero at padding; {ALTERNATIVES}"
        )
    real = torch.ones_like(documents) if mask is None else mask
    real = real.bool()
    queries = real[:, real.shape[1] - T :]
    places = (x.flatten().nonzero()[:, 0] for x in (queries, real))
    return Ragged(*places, *(_boundaries(x, documents) for x in (queries, real)))


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


def flash(request: Request, window: int | None = None) -> Attended:
    """Backend of `tape.attention.backends`. A query attends to itself and the `window` - 1 real
    tokens before it, within its document. Averages of padding queries are zero.

    Raises:
        ValueError: for inputs that the package does not support.
    """
    q, k, values, mask, bias, scaling, dropout, needs_lse = request
    _check(q, bias, needs_lse)
    settings = {"dropout_p": dropout, "softmax_scale": scaling, "causal": True}
    if window is not None:
        settings["window_size"] = (window - 1, 0)  # tokens before and after a query
    if bias is not None:
        settings["alibi_slopes"] = bias.alibi_slopes()
    if needs_lse:
        settings["return_attn_probs"] = True
    if dropout or values.payload is None:  # one call: two would draw different dropout masks
        averages, lse = _attend(q, k, values.concat(), mask, settings)
        return Attended(*values.split(averages), lse=lse)
    averages, lse = _attend(q, k, values.v, mask, settings)
    payload, _ = _attend(q, k, values.payload.expand(*k.shape[:-1], -1), mask, settings)
    return Attended(averages, payload, lse=lse)


def _check(q: Tensor, bias: ScoreBias | None, needs_lse: bool) -> None:
    if q.dtype not in DTYPES:
        raise ValueError(
            f"{ERROR_PREFIX} with {q.dtype}: it supports float16 and bfloat16; load the model with "
            f"dtype=torch.bfloat16, or train with bf16=true; {ALTERNATIVES}"
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
    (B, _, T, D), P = q.shape, values.shape[-1]
    width = max(D, P)
    if width > MAX_HEAD_DIM:
        raise ValueError(
            f"{ERROR_PREFIX}: head_dim={D} with values of width {P}: both must be <= "
            f"{MAX_HEAD_DIM} (attention_dropout > 0 appends the positional state to the values); "
            f"{ALTERNATIVES}"
        )
    # Zero channels leave scores unchanged; the scale is passed explicitly.
    q, k, v = (
        (x if x.shape[-1] == width else F.pad(x, (0, width - x.shape[-1]))).transpose(1, 2)
        for x in (q, k, values)
    )
    fixed, varying = functions()
    if ragged is None:
        found = fixed(q, k, v, **settings)
    else:
        found = varying(
            q.flatten(0, 1)[ragged.queries],
            k.flatten(0, 1)[ragged.keys],
            v.flatten(0, 1)[ragged.keys],
            cu_seqlens_q=ragged.query_starts,
            cu_seqlens_k=ragged.key_starts,
            max_seqlen_q=T,
            max_seqlen_k=k.shape[1],
            **settings,
        )
    attended, lse = found[:2] if isinstance(found, tuple) else (found, None)
    if ragged is not None:
        attended = ragged.whole(attended, B, T)
        if lse is not None:  # (H, tokens)
            lse = ragged.whole(lse.mT, B, T).transpose(1, 2)
    return attended[..., :P].transpose(1, 2), lse


def _boundaries(real: Tensor, documents: Tensor | None) -> Tensor:
    """Returns the start of each sequence among all real tokens, and the end, (sequences + 1,)
    int32. A sequence is a row, or a document of one."""
    lengths = real.sum(-1)
    if documents is not None:
        rows = torch.arange(len(real), device=real.device)[:, None] * (real.shape[1] + 1)
        _, lengths = (rows + documents)[real].unique_consecutive(return_counts=True)
    return F.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)
