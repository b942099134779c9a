"""Cost of every encoding: arithmetic, parameters and memory, next to the paper's Table 3.

torch counts the operations and the memory of a forward pass on fake tensors without data.
"""

import argparse
import copy
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode
from transformers import DynamicCache

from tape.analysis.shapes import SHAPE, Shape
from tape.attention import blockwise
from tape.core import provenance
from tape.core.config import added_encodings
from tape.core.files import write_text
from tape.core.progress import track
from tape.encodings import ENCODINGS
from tape.evaluation.tables import markdown_table
from tape.model.configuration import TapeConfig
from tape.model.modeling import TapeForCausalLM
from tape.positions.base import Positions
from tape.positions.scores import ScoreBias

# Table 3 of arXiv 2501.00712 by encoding: G MACs, G FLOPs, parameters in units of 2^20.
PAPER = Path(__file__).with_name("table3.csv")
COUNTS = {
    "macs": ("MACs, G", 1e9),
    "flops": ("FLOPs, G", 1e9),
    "parameters": ("parameters, 2^20", 2**20),
}
MEMORY = {
    "activations_eager": "activations, eager, KiB per token",
    "activations_sdpa": "activations, sdpa, KiB per token",
    "cache": "cache, KiB per token",
}
NOTES = """\
MACs: multiply-adds of one forward pass, with the whole N x N attention. FLOPs: two for each of
them, and one for each number that softmax, SiLU or ReLU is taken of. Both are counted by torch.
Memory in float32. Activations: what a forward pass up to the logits keeps for the backward pass,
besides the weights. Cache: keys, values and TAPE's state."""
# torch counts matrix products only; the paper's profiler also counts the inputs of these.
NONLINEAR = dict.fromkeys(
    (torch.ops.aten._softmax, torch.ops.aten.silu, torch.ops.aten.relu),
    lambda *_, out_shape, **__: out_shape.numel(),
)


def solve(matrix: Sequence[int], *_: Any, out_shape: Sequence[int], **__: Any) -> int:
    """Returns two for each multiply-add of a solve with triangular matrices (.., L, L), whose
    diagonal is 1: each is as many as half a product with them."""
    return math.prod(out_shape) * (matrix[-1] - 1)


COUNTED = NONLINEAR | {torch.ops.aten.linalg_solve_triangular: solve}


class Counted(Positions):
    """Positions 0, 1, 2, ...: on fake tensors their numbers cannot be looked at."""

    def count_slots(self) -> bool:
        return True


def fake_model(config: TapeConfig, attention: str) -> TapeForCausalLM:
    """Builds a decoder on the CPU whose weights have shapes but no data."""
    config = copy.deepcopy(config)
    config._attn_implementation = attention
    with FakeTensorMode(allow_non_fake_inputs=True) as shapes:
        model = TapeForCausalLM(config)
    position = model.model.position
    biases = position.biases

    def with_real_positions(positions: Positions) -> list[ScoreBias | None]:
        # Real coordinates, because encodings check them; distances of all pairs would need memory.
        real = (shapes.from_tensor(each) for each in (positions.query, positions.key))
        return biases(Counted(*real))

    position.biases = with_real_positions
    return model


@torch.no_grad()
def operations(model: TapeForCausalLM, length: int) -> tuple[int, int]:
    """Returns multiply-adds and FLOPs of one sequence by the rule of the paper's Table 3; exact for
    eager attention, because torch's counter does not support every other backend."""
    with FlopCounterMode(display=False, custom_mapping=COUNTED) as counter:
        model.eval()(torch.zeros(1, length, dtype=torch.long), use_cache=False)
    counts = counter.get_flop_counts()["Global"]
    products = sum(count for op, count in counts.items() if op not in NONLINEAR)
    return products // 2, sum(counts.values())


@contextmanager
def all_heads_at_once(length: int) -> Iterator[None]:
    """Lets blockwise attention take all heads in one operation, because fake tensors need no cache
    and each of their operations takes as long as any other; what it keeps stays the same."""
    tile, blockwise.TILE = blockwise.TILE, length * length
    try:
        yield
    finally:
        blockwise.TILE = tile


def saved_bytes(model: TapeForCausalLM, length: int) -> int:
    """Returns the bytes that a training forward pass of one sequence, up to the logits, saves for
    the backward pass besides the weights; storage shared by several operations counts once."""
    kept: dict[int, torch.UntypedStorage] = {}  # referenced, so that addresses stay unique

    def keep(x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        kept[storage._cdata] = storage
        return x

    with saved_tensors_hooks(keep, lambda x: x), all_heads_at_once(length):
        model.train()(torch.zeros(1, length, dtype=torch.long), use_cache=False)
    for weight in (*model.parameters(), *model.buffers()):
        kept.pop(weight.untyped_storage()._cdata, None)
    return sum(storage.nbytes() for storage in kept.values())


@torch.no_grad()
def cached_bytes(model: TapeForCausalLM, length: int) -> int:
    """Returns the bytes of the KV cache of one sequence."""
    cache = DynamicCache(config=model.config)
    model.eval()(torch.zeros(1, length, dtype=torch.long), past_key_values=cache, use_cache=True)
    return sum(x.nbytes for layer in cache.layers for x in (layer.keys, layer.values))


def configuration(shape: Shape, position: dict[str, Any]) -> TapeConfig:
    """Returns a decoder's configuration with the given length as its training length."""
    hidden, heads = shape["hidden"], shape["heads"]
    if hidden % heads:
        raise ValueError(f"--hidden {hidden} must be a multiple of --heads {heads}")
    return TapeConfig(
        vocab_size=shape["vocabulary"],
        hidden_size=hidden,
        intermediate_size=shape["mlp"],
        num_hidden_layers=shape["layers"],
        num_attention_heads=heads,
        num_key_value_heads=shape["kv_heads"],
        max_position_embeddings=shape["length"],
        position=position,
        bos_token_id=None,
        eos_token_id=None,
    )


def encodings(shape: Shape) -> Iterator[dict[str, Any]]:
    """Yields all encodings, then TAPE's ablations: the widths of the paper's Table 7 at its 12
    heads, and the variants of Table 6."""
    yield from ({"name": name} for name in (*ENCODINGS, *sorted(added_encodings())))
    heads = shape["heads"]
    for width in (heads, 2 * heads, 8 * heads, 16 * heads):
        yield {"name": "tape", "width": width}
    for without in ("attention", "feed_forward", "equivariant"):
        yield {"name": "tape", without: False}
    if shape["kv_heads"] in (None, heads):  # other variants do not support grouped queries
        yield {"name": "tape", "tensorial": False}
        yield {"name": "tape", "equivariant": False, "tensorial": False}


def cost_of(shape: Shape, position: dict[str, Any]) -> dict[str, str | int]:
    """Computes the cost of an encoding for one sequence, memory in bytes of all its tokens. It is
    labelled by its name, then its arguments as on a command line."""
    config, length = configuration(shape, position), shape["length"]
    (_, name), *arguments = position.items()
    eager, sdpa = (fake_model(config, kernel) for kernel in ("eager", "sdpa"))
    counts = operations(eager, length)
    return {
        "encoding": " ".join([name, *(f"{key}={str(x).lower()}" for key, x in arguments)]),
        "macs": counts[0],
        "flops": counts[1],
        "parameters": eager.num_parameters(),
        "activations_eager": saved_bytes(eager, length),
        "activations_sdpa": saved_bytes(sdpa, length),
        "cache": cached_bytes(eager, length),
    }


def tables(costs: pd.DataFrame, beside_paper: bool) -> list[str]:
    """Tabulates multiply-adds, FLOPs and parameters, beside those of the paper if wanted; then
    activations and cache, of bytes per token."""
    paper = pd.read_csv(PAPER, dtype=str, index_col="encoding").reindex(costs["encoding"])
    names = ["encoding", *costs["encoding"]]
    counts, memory = [names], [names]  # columns with their titles
    for name, (title, unit) in COUNTS.items():
        values = (f"{x:.2f}" if x >= 0.01 else f"{x:.2g}" for x in costs[name] / unit)
        counts.append([title, *values])
        if beside_paper:
            counts.append(["paper", *paper[name].fillna("")])
    for name, title in MEMORY.items():
        memory.append([title, *(f"{x:,.1f}" for x in costs[name] / 2**10)])
    return [markdown_table(zip(*columns, strict=True)) for columns in (counts, memory)]


def main(arguments: argparse.Namespace) -> None:
    shape, out = {name: getattr(arguments, name) for name in SHAPE}, arguments.out
    positions = track([*encodings(shape)], desc="cost")
    costs = pd.DataFrame([cost_of(shape, position) for position in positions])
    costs[[*MEMORY]] /= shape["length"]
    text = "\n\n".join([*tables(costs, shape == SHAPE), NOTES]) + "\n"
    write_text(out / "cost.csv", costs.round(2).to_csv(index=False))
    write_text(out / "cost.md", text)
    provenance.record(out)
    print(f"{text}\nalso in {out}, as cost.csv and cost.md")
