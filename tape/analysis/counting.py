"""Operations and memory of a forward pass, counted by torch on fake tensors without data."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode
from transformers import DynamicCache

from tape.model.configuration import TapeConfig
from tape.model.modeling import TapeForCausalLM
from tape.positions import Positions, ScoreBias

aten = torch.ops.aten


def _numbers(shape: torch.Size, *_: Any, out_shape: torch.Size, **__: Any) -> int:
    return out_shape.numel()


# torch counts matrix products only; the paper's profiler also counts the inputs of these.
NONLINEAR = dict.fromkeys((aten._softmax, aten.silu, aten.relu), _numbers)


def fake_model(config: TapeConfig, attention: str) -> TapeForCausalLM:
    """Builds a decoder on the CPU whose weights have shapes but no data."""
    config = copy.deepcopy(config)
    config._attn_implementation = attention
    with FakeTensorMode(allow_non_fake_inputs=True) as shapes:
        model = TapeForCausalLM(config)
    position = model.model.position
    biases = position.biases

    def with_real_positions(positions: Positions, num_layers: int) -> list[ScoreBias | None]:
        # Real coordinates, because encodings check them; distances of all pairs would need memory.
        real = (shapes.from_tensor(each) for each in (positions.query, positions.key))
        return biases(Positions(*real), num_layers)

    position.biases = with_real_positions
    return model


def _tokens(length: int) -> Tensor:
    return torch.zeros(1, length, dtype=torch.long)


@torch.no_grad()
def operations(model: TapeForCausalLM, length: int) -> tuple[int, int]:
    """Returns multiply-adds and FLOPs of one sequence by the rule of `formulas.flops`; exact for
    eager attention, because torch's counter does not support every other backend."""
    with FlopCounterMode(display=False, custom_mapping=NONLINEAR) as counter:
        model.eval()(_tokens(length), use_cache=False)
    counts = counter.get_flop_counts()["Global"]
    products = sum(count for op, count in counts.items() if op not in NONLINEAR)
    return products // 2, sum(counts.values())


def saved_bytes(model: TapeForCausalLM, length: int) -> int:
    """Returns the bytes that a training forward pass of one sequence, up to the logits, saves for
    the backward pass besides the weights; storage shared by several operations counts once."""
    kept: dict[int, torch.UntypedStorage] = {}  # referenced, so that addresses stay unique

    def keep(x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        kept[storage._cdata] = storage
        return x

    with saved_tensors_hooks(keep, lambda x: x):
        model.train()(_tokens(length), use_cache=False)
    for weight in (*model.parameters(), *model.buffers()):
        kept.pop(weight.untyped_storage()._cdata, None)
    return sum(storage.nbytes() for storage in kept.values())


@torch.no_grad()
def cached_bytes(model: TapeForCausalLM, length: int) -> int:
    """Returns the bytes of the KV cache of one sequence."""
    cache = DynamicCache(config=model.config)
    model.eval()(_tokens(length), past_key_values=cache, use_cache=True)
    return sum(x.nbytes for layer in cache.layers for x in (layer.keys, layer.values))
