"""What a forward pass takes, counted by torch on tensors without data: no memory, little time."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode
from transformers import DynamicCache

from tape import TapeConfig, TapeForCausalLM
from tape.positions import Positions, ScoreBias

aten = torch.ops.aten


def _numbers(shape: torch.Size, *_: Any, out_shape: torch.Size, **__: Any) -> int:
    return out_shape.numel()


# torch counts products of matrices alone. The paper's profiler also counts what these are taken of.
NONLINEAR = dict.fromkeys((aten._softmax, aten.silu, aten.relu), _numbers)


def hollow(config: TapeConfig, attention: str) -> TapeForCausalLM:
    """A decoder on the CPU whose weights have shapes and no data."""
    config = copy.deepcopy(config)
    config._attn_implementation = attention
    with FakeTensorMode(allow_non_fake_inputs=True) as shapes:
        model = TapeForCausalLM(config)
    position = model.model.position
    biases = position.biases

    def of_hollow(positions: Positions, num_layers: int) -> list[ScoreBias | None]:
        # Coordinates are real, for they are checked. Distances would be real, too, of all pairs.
        return biases(Positions(*map(shapes.from_tensor, positions)), num_layers)

    position.biases = of_hollow
    return model


def _tokens(length: int) -> Tensor:
    return torch.zeros(1, length, dtype=torch.long)


@torch.no_grad()
def operations(model: TapeForCausalLM, length: int) -> tuple[int, int]:
    """Multiply-adds and FLOPs of one sequence by the rule of `formulas.flops`, which is one for
    eager attention: torch does not see into every other."""
    with FlopCounterMode(display=False, custom_mapping=NONLINEAR) as counter:
        model.eval()(_tokens(length), use_cache=False)
    counts = counter.get_flop_counts()["Global"]
    products = sum(count for op, count in counts.items() if op not in NONLINEAR)
    return products // 2, sum(counts.values())


def saved_bytes(model: TapeForCausalLM, length: int) -> int:
    """Bytes that a forward pass of one sequence in training, up to the logits, keeps for the
    backward pass besides the weights; what several operations keep is there once."""
    kept: dict[int, torch.UntypedStorage] = {}  # held, so that no address is used twice

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
    """Bytes that a cache holds of one sequence."""
    cache = DynamicCache(config=model.config)
    model.eval()(_tokens(length), past_key_values=cache, use_cache=True)
    return sum(x.nbytes for layer in cache.layers for x in (layer.keys, layer.values))
