"""Attention backends: functions of a `Request` (`tape.attention.payload`).

Backend names are transformers'. An unsupported request raises an error; there is no fallback.
"""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask
from transformers import PretrainedConfig, StaticCache
from transformers.utils import is_flash_attn_2_available

from tape.attention import cpu, flex, gpu
from tape.attention.flash import flash, ragged
from tape.attention.masks import Batch, Seen, build_mask
from tape.attention.payload import Attended, Request, Values, per_query_head
from tape.attention.shifted_sparse import check_backend, padding, shifted_groups
from tape.core.tensor_validation import refuse_unless
from tape.core.validation import suggestion
from tape.encodings import ENCODINGS
from tape.positions.scores import ScoreBias, masked

Kernel = Callable[[Request], Attended]

NO_BIAS = "it supports no score bias other than ALiBi's slopes at consecutive positions"
NOT_ITS_SCORES = "it computes scores as products of queries and keys, which this encoding replaces"


def eager(request: Request) -> Attended:
    """Reference implementation, and the only backend that returns attention weights."""
    q, k, values, mask, bias, scaling, dropout, needs_lse = request
    B, H = q.shape[:2]
    scores = q @ per_query_head(k, H).transpose(-1, -2) * scaling
    if bias is not None:
        scores = scores + bias.dense(scores.dtype)
    scores = masked(scores, mask)
    wide = torch.promote_types(q.dtype, torch.float32)
    lse = scores.to(wide).logsumexp(-1) if needs_lse else None
    weights = F.softmax(scores, dim=-1, dtype=wide)
    weights = F.dropout(weights.to(q.dtype), dropout)
    values = values.per_query_head(H, B)
    payload = None if values.payload is None else weights @ values.payload
    return Attended(weights @ values.v, payload, weights, lse)


def sdpa(request: Request) -> Attended:
    """Returns averages by torch's fused kernels.

    The kernels do not return the log-sum-exp, so `eager` computes it where it is needed. Long
    inputs on a CPU, and long inputs with a bias on a GPU, are processed in blocks of queries
    (`tape.attention.blockwise`). On a CPU, the payload takes a second call, because torch has no
    fused code for values wider than queries.
    """
    by_blocks = cpu.attend if request.q.device.type == "cpu" else gpu.attend_by_blocks
    if (attended := by_blocks(request)) is not None:
        return attended
    request, is_causal = _with_dense_mask(request)
    if request.needs_lse:
        return eager(request)._replace(weights=None)
    request = request._replace(bias=None)
    if request.q.is_cuda:
        return gpu.attend(request, is_causal)
    return _fused(request, is_causal)


def _with_dense_mask(request: Request) -> tuple[Request, bool]:
    """Returns a request whose mask is a tensor or None, and has the bias in it unless the
    log-sum-exp is needed; and whether the attention is causal without a mask."""
    q, k, values, mask, bias, *_ = request
    T, S = q.shape[2], k.shape[2]
    if isinstance(mask, Seen):
        mask = mask.dense(S)
    is_causal = mask is None  # the builder leaves causality to us
    if T == 1:  # a branch: in a graph a comparison may have no value
        is_causal = False
    if request.needs_lse:
        if is_causal:
            mask = torch.ones(T, S, dtype=torch.bool, device=q.device).tril()
    elif bias is not None:
        mask, is_causal = bias.masked(mask, q.dtype, causal=is_causal), False
    elif is_causal and S > T:  # drop the free slots of a static cache, after the queries
        k = k[:, :, :T]
        values = Values(*(None if x is None else x[:, :, :T] for x in values))
    return request._replace(k=k, values=values, mask=mask), is_causal


def _fused(request: Request, is_causal: bool) -> Attended:
    """torch's kernels for a CPU."""
    q, k, values, mask, _, scaling, dropout, _ = request
    B, H, _, D = q.shape
    if values.payload is not None or k.shape[1] != H:
        k, values = per_query_head(k, H).expand(B, H, -1, -1), values.per_query_head(H, B)
    averages, parts = [], [x for x in (values.v, values.payload) if x is not None]
    # With dropout one call: two would draw different dropout masks.
    for part in [values.concat()] if dropout else parts:
        missing = max(0, D - part.shape[-1])  # fused kernels need one width
        part = F.pad(part, (0, missing)) if missing else part  # zero channels average to zero
        part = F.scaled_dot_product_attention(q, k, part, mask, dropout, is_causal, scale=scaling)
        averages.append(part[..., :-missing] if missing else part)
    return Attended(*(values.split(averages[0]) if dropout else averages))


KERNELS: dict[str, Kernel] = {
    "eager": eager,
    "sdpa": sdpa,
    "flex_attention": flex.flex,
    "flash_attention_2": flash,
}


def kernel_and_mask(
    config: PretrainedConfig, window: int | None, batch: Batch
) -> tuple[Kernel, Tensor | BlockMask | None]:
    """Returns the backend and the mask of layers with this window, or the configuration's."""
    implementation, window = config._attn_implementation, window or config.sliding_window
    kernel, mask = KERNELS[implementation], build_mask(config, window, batch)
    if implementation == "flash_attention_2":
        mask = ragged(mask, batch.documents, batch.x_BTC.shape[1])
        kernel = partial(kernel, window=window)
    return kernel, mask


def preferred(config: PretrainedConfig, device: torch.device, length: int) -> str:
    """Returns the backend of a training run that does not name one.

    It is "flex_attention" on a GPU, for inputs of more than `gpu.LONG` tokens, if FlexAttention
    computes the bias of the encoding pair by pair. There, a stored bias of all pairs would take
    much memory. Otherwise it is "sdpa".

    Args:
        length: tokens of a training sequence.
    """
    pairs = ENCODINGS[config.position["name"]].fused_bias and not config.attention_dropout
    wide = config.hidden_size // config.num_attention_heads >= flex.NARROWEST
    if device.type == "cuda" and length > gpu.LONG and pairs and wide:
        return "flex_attention"
    return "sdpa"


def require(implementation: str, config: PretrainedConfig) -> None:
    """Raises a ValueError unless this backend supports this configuration."""
    encoding = config.position["name"]
    able = ENCODINGS[encoding].able_backends(config.position)
    missing = set() if is_flash_attn_2_available() else {"flash_attention_2"}
    names = [name for name in KERNELS if name in able - missing]
    conflict = f"attn_implementation={implementation!r} with position {encoding!r}"
    if implementation not in KERNELS:
        raise ValueError(f"{conflict}: no such implementation{suggestion(implementation, KERNELS)}")
    if implementation not in able:
        limit = NO_BIAS if implementation == "flash_attention_2" else NOT_ITS_SCORES
        raise ValueError(f"{conflict}: {limit}; allowed here: {', '.join(names)}")
    if implementation in missing:
        raise ValueError(
            f"{conflict}: the flash-attn package is missing, or there is no CUDA device for it "
            f"(EXTRAS=flash bash script/setup.sh); allowed here: {', '.join(names)}"
        )
    if implementation == "flex_attention" and config.attention_dropout:
        raise ValueError(
            f"{conflict}: attention_dropout={config.attention_dropout}, which it does not have; "
            "set it to 0, or use eager, sdpa or flash_attention_2"
        )


def shifted(config: PretrainedConfig, group: int, batch: Batch) -> tuple[Kernel, Tensor | None]:
    """Returns the kernel and the mask of S2 attention (`tape.attention.shifted_sparse`).

    Args:
        config: names the backend that attends within a group.
        group: number of tokens in a group.

    Raises:
        ValueError: for backends and masks that S2 does not support.
    """
    check_backend(config._attn_implementation)
    kernel = partial(shifted_groups, KERNELS[config._attn_implementation], group)
    return kernel, padding(batch.mask, batch.documents)


def check_flash(
    batch: Batch, position_ids: Tensor | None, key: Tensor, bias: ScoreBias | None
) -> None:
    """Refuses inputs that flash_attention_2 would misread.

    Args:
        key: (B|1, S) the positions of the keys.
        bias: ALiBi, or None.

    Raises:
        ValueError: for a static cache, because the package would attend to its free slots; and for
            ALiBi if positions do not count the real tokens one by one, because the package takes
            distances from the order of the tokens.
    """
    conflict = "attn_implementation='flash_attention_2' with"
    if isinstance(batch.cache, StaticCache):
        raise ValueError(
            f"{conflict} a static cache: it would attend to the free slots; use a dynamic cache, "
            f"or sdpa, flex_attention or eager"
        )
    if bias is None or position_ids is None:
        return
    real = torch.ones_like(key) if batch.mask is None else batch.mask[:, : key.shape[-1]]
    real = real.bool()
    offset = key - real.cumsum(-1)
    lowest, highest = offset.amin(-1, keepdim=True), offset.amax(-1, keepdim=True)
    refuse_unless(
        offset.where(real, lowest).amax(-1) <= offset.where(real, highest).amin(-1),
        f"{conflict} position_ids that do not count the real tokens one by one: it takes ALiBi's "
        f"distances from their order; use sdpa, flex_attention or eager",
        now=position_ids.shape[-1] > 1,
    )
