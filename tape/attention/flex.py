"""torch's FlexAttention as a backend: values and payload under one softmax."""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, flex_attention

from tape.attention.payload import Attended, Request
from tape.positions.scores import ScoreMod

NARROWEST = 16  # channels of a head, on a GPU


class Blocks(NamedTuple):
    """Block sizes of a kernel."""

    queries: int  # their width, at most
    values: int  # width of values and payload, at most
    shared: int  # bytes of shared memory without a bias, as compiled for sm_90 (docs/efficiency.md)
    M: int
    N: int
    stages: int
    warps: int


# Inductor chooses block sizes by the width of the queries: with wider values, kernels need more
# shared memory than there is, or spill. Of the rows for two widths, in the order of preference, the
# first that fits is taken.
FORWARD = (
    Blocks(64, 128, 163_840, 128, 128, 3, 8),
    Blocks(64, 128, 90_112, 128, 64, 3, 8),
    Blocks(128, 128, 131_072, 128, 64, 3, 8),
    Blocks(128, 256, 180_224, 128, 64, 3, 8),
    Blocks(128, 256, 131_072, 128, 64, 2, 8),
    Blocks(128, 256, 90_112, 64, 32, 3, 4),
)
BACKWARD = (
    Blocks(64, 128, 123_904, 64, 128, 3, 8),
    Blocks(64, 128, 74_752, 64, 64, 2, 8),
    Blocks(128, 128, 132_096, 64, 64, 3, 8),
    Blocks(128, 128, 99_328, 64, 64, 2, 8),
    Blocks(128, 256, 99_328, 32, 64, 2, 8),
)
OF_BIAS = 5  # more bytes for each score of a block, seen with FIRE's on an H100
NAMES = {
    "fwd": (("BLOCK_M",), ("BLOCK_N",)),
    "bwd": (("BLOCK_M1", "BLOCK_N2"), ("BLOCK_N1", "BLOCK_M2")),
}


def kernel_options(queries: int, values: int, limit: int, bias: bool = False) -> dict[str, int]:
    """Block sizes for 16-bit numbers, given the widths of queries and of values with payload, the
    bytes of shared memory of a block on the device, and whether scores have a bias; {}: Inductor's.
    """
    found: dict[str, int] = {}
    if queries == values < 64:
        return found
    for kernel, rows in (("fwd", FORWARD), ("bwd", BACKWARD)):
        for row in rows:
            needed = row.shared + bias * OF_BIAS * row.M * row.N
            if queries <= row.queries and values <= row.values and needed <= limit:
                of_queries, of_keys = NAMES[kernel]
                sizes = dict.fromkeys(of_queries, row.M) | dict.fromkeys(of_keys, row.N)
                sizes |= {"num_stages": row.stages, "num_warps": row.warps}
                found |= {f"{kernel}_{name}": size for name, size in sizes.items()}
                break
    return found


@torch.compiler.assume_constant_result
def _shared_memory(index: int) -> int:
    return torch.cuda.get_device_properties(index).shared_memory_per_block_optin


def _options(q: Tensor, values: Tensor, bias: bool) -> dict[str, int]:
    """Leaves the choice to Inductor for the few queries of decoding and for float32, whose products
    are no matrix instructions."""
    if not q.is_cuda or q.element_size() != 2 or q.shape[-2] < 128:
        return {}
    return kernel_options(q.shape[-1], values.shape[-1], _shared_memory(q.device.index), bias)


@cache
def _compiled() -> Callable[..., Tensor]:
    # fullgraph: past the recompilation limit it fails instead of silently running unfused.
    return torch.compile(flex_attention, fullgraph=True)


def _masked_mod(mask_BHTS: Tensor, score_mod: ScoreMod | None) -> ScoreMod:
    """Applies a boolean mask that the caller made after `score_mod`."""

    def apply(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        score = score if score_mod is None else score_mod(score, b, h, i, j)
        return torch.where(mask_BHTS[b, h, i, j], score, -torch.inf)

    return apply


def flex(request: Request) -> Attended:
    """Backend of `tape.attention.backends`, without dropout; the bias is a `score_mod`. Compiled on
    a GPU; unfused on a CPU, where torch refuses gradients."""
    q, k, values, mask, bias, scaling, _, needs_lse = request
    (B, H, T, _), K, S = q.shape, *k.shape[1:3]
    joined = values.concat()
    score_mod = None
    if bias is not None:
        score_mod = bias.score_mod(torch.promote_types(q.dtype, torch.float32))
    if isinstance(mask, Tensor):
        mask, score_mod = None, _masked_mod(mask.expand(B, H, T, S), score_mod)
    settings = {
        "score_mod": score_mod,
        "block_mask": mask,
        "scale": scaling,
        "enable_gqa": K != H,
        "return_aux": AuxRequest(lse=needs_lse),
        "kernel_options": _options(q, joined, score_mod is not None),
    }
    if torch.compiler.is_compiling() or not q.is_cuda:
        attended, aux = flex_attention(q, k, joined, **settings)
    else:  # variants: payload, gradients, cache; one length, then any: more than the default
        with torch._dynamo.config.patch(recompile_limit=64):
            attended, aux = _compiled()(q, k, joined, **settings)
    return Attended(*values.split(attended), lse=aux.lse)
