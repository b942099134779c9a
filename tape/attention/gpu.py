"""Attention on a GPU: which of torch's fused kernels, and in how many calls; or, for long inputs
with biases, by blocks.

What the kernels take, in torch 2.13: FlashAttention and cuDNN 16-bit numbers, no mask of ours and
grouped queries; cuDNN and the memory-efficient kernel values wider than queries, cuDNN up to 128
channels in training; the memory-efficient kernel masks and float32, but no grouped queries. On
recent GPUs torch prefers cuDNN, also with a mask, where its gradients may be NaN (pytorch issue
196678).
"""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.compiler import is_compiling
from torch.nn.attention import SDPBackend, sdpa_kernel

from tape.attention import blockwise
from tape.attention.masks import Seen
from tape.attention.payload import Attended, Request, per_query_head

LONG = 1024  # tokens whose pairs may stand in memory: 2^20 numbers for each sequence and head
WIDEST = 128  # channels of values and payload in one call
ALIGNED = 8  # numbers: keys that a cache holds beside what an encoding keeps begin anywhere
ANY = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION]
UNEQUAL = [SDPBackend.CUDNN_ATTENTION]
REST = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def kernels(q: Tensor, values: Tensor, mask: Tensor | None) -> list[SDPBackend]:
    """The kernels that may run; torch chooses among those that support the rest of the input."""
    if mask is not None:
        return REST
    return (ANY if q.shape[-1] == values.shape[-1] else UNEQUAL) + REST


def aligned(x_BHTD: Tensor) -> Tensor:
    """Copies a view whose rows the kernels refuse or take unfused."""
    return x_BHTD.contiguous() if x_BHTD.stride(-2) % ALIGNED else x_BHTD


def attend_by_blocks(request: Request) -> Attended | None:
    """Returns the averages of an input of more than LONG tokens with a bias, in memory linear in
    the length; None for other inputs, which torch's kernels compute in less time.

    The mask of the request is None (causal), boolean or additive (B|1, 1, T, S). Additive masks are
    among the other inputs.
    """
    q, k, _, mask, bias, _, dropout, _ = request
    T, S = q.shape[2], k.shape[2]
    if bias is None or dropout or is_compiling() or T <= LONG or T != S:
        return None
    if mask is not None:
        if mask.dtype != torch.bool:
            return None
        mask = Seen(torch.arange(T, device=q.device), None, len(mask), given=mask)
    return blockwise.attend(request._replace(mask=mask))


def attend(request: Request, is_causal: bool) -> Attended:
    """Averages values and payload, in one call where they have at most 128 channels; a bias is in
    the mask."""
    q, k, values, mask, _, scaling, dropout, _ = request
    (B, H, _, _), grouped = q.shape, k.shape[1] != q.shape[1]
    # Only the kernels that take neither a mask, float32 nor unequal widths take grouped queries.
    grouped &= values.payload is None and mask is None and q.element_size() == 2
    if not grouped:
        k, values = per_query_head(k, H).expand(B, H, -1, -1), values.per_query_head(H, B)
    k = aligned(k)

    def average(x: Tensor) -> Tensor:
        with sdpa_kernel(kernels(q, x, mask)):
            return F.scaled_dot_product_attention(
                q, k, aligned(x), mask, dropout, is_causal, scale=scaling, enable_gqa=grouped
            )

    v, payload = values.v, values.payload
    if payload is None:
        return Attended(average(v))
    # Two calls would draw different dropout masks.
    if dropout or v.shape[-1] + payload.shape[-1] <= WIDEST:
        return Attended(*values.split(average(values.concat())))
    return Attended(average(v), average(payload.contiguous()))  # cuDNN refused expanded ones
