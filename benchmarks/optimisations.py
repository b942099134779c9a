"""Gain of each step from the literal TAPE to this package's: the positional part of one layer,
forward and backward pass.

python benchmarks/optimisations.py
python benchmarks/optimisations.py --batch 1 --length 1024 --hidden 768 --heads 12

A layer rotates queries and keys, averages values and the state with the attention weights, and
updates the state; its maps of the hidden states belong to every encoding and are left out. All
variants compute the same. RoPE's layer is the fused kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

from benchmarks.harness import Comparison, parser, show
from benchmarks.models import DEVICE, SMALL, decoder
from benchmarks.timing import Work
from tape.analysis.cost import configuration
from tape.attention.backends import eager, flex, sdpa
from tape.attention.payload import Values
from tape.command import expected_errors
from tape.positions import Positions
from tape.positions.rotary import apply_rotary
from tape.positions.tape import TapeLayer

Averages = tuple[Tensor, Tensor | None]
Inputs = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]  # q, k, v, e, output of the MLP
Layer = Callable[..., tuple[Tensor, ...]]


def repeated(e: Tensor) -> Tensor:
    """(.., 2, F) -> (.., 2, D): every frequency twice, the layout that rotates whole heads."""
    return torch.cat((e, e), dim=-1)


def rotate_whole(x: Tensor, e: Tensor) -> Tensor:
    """`apply_rotary` by a state that has every frequency twice."""
    first, second = x.chunk(2, dim=-1)
    return x * e[..., 0, :] + torch.cat((-second, first), dim=-1) * e[..., 1, :]


def in_one_call(kernel, q: Tensor, k: Tensor, v: Tensor, payload: Tensor | None) -> Averages:
    """Causal averages of values and payload by one of the attention kernels."""
    T, mask = q.shape[2], None
    if kernel is eager:
        mask = torch.ones(T, T, dtype=torch.bool, device=q.device).tril()[None, None]
    elif kernel is flex:
        mask = causal_blocks(T)
    return kernel(q, k, Values(v, payload), mask, None, q.shape[-1] ** -0.5, 0.0)[:2]


@cache
def causal_blocks(length: int) -> BlockMask:
    return create_block_mask(
        lambda b, h, i, j: i >= j, None, None, length, length, device=DEVICE.type
    )


def in_two_calls(q: Tensor, k: Tensor, v: Tensor, payload: Tensor) -> Averages:
    """By the fused kernel, first the values, then the payload."""
    attend = partial(F.scaled_dot_product_attention, q, k, is_causal=True)
    return attend(v), attend(payload)


def update_in_turn(update: TapeLayer, e: Tensor, average: Tensor, mlp_out: Tensor) -> Tensor:
    """E + P a, and W1, the gate and W2 one after the other."""
    e = e + torch.einsum("mh,bhtpf->bmtpf", update.mix.weight, average.unflatten(-1, e.shape[-2:]))
    gate = F.silu(update.gate(mlp_out))
    up = torch.einsum("im,bmtpf->bitpf", update.up.weight, e)
    moved = gate.transpose(1, 2)[..., None, None] * up
    return e + torch.einsum("mi,bitpf->bmtpf", update.down.weight, moved)


def literal(update: TapeLayer, q: Tensor, k: Tensor, v: Tensor, e: Tensor, m: Tensor):
    e = repeated(e)
    attended, average = in_one_call(eager, rotate_whole(q, e), rotate_whole(k, e), v, e.flatten(-2))
    e = update_in_turn(update, e, average, m)
    return attended, e[..., : e.shape[-1] // 2]


def half_layout(update: TapeLayer, q: Tensor, k: Tensor, v: Tensor, e: Tensor, m: Tensor):
    attended, average = in_one_call(eager, apply_rotary(q, e), apply_rotary(k, e), v, e.flatten(-2))
    return attended, update_in_turn(update, e, average, m)


def by_heads(attend, update: TapeLayer, q: Tensor, k: Tensor, v: Tensor, e: Tensor, m: Tensor):
    """The update as one matrix over heads per token."""
    attended, average = attend(
        apply_rotary(q, e), apply_rotary(k, e), v, update.payload(e, v.dtype)
    )
    return attended, update.next_state(e, average, m)


def rope(_: TapeLayer, q: Tensor, k: Tensor, v: Tensor, e: Tensor, m: Tensor):
    phases = e[:1, :1].detach()
    return (in_one_call(sdpa, apply_rotary(q, phases), apply_rotary(k, phases), v, None)[0],)


def variants() -> dict[str, Layer]:
    """RoPE's layer, and from the literal form to the one in use."""
    fused = flex if DEVICE.type == "cuda" else sdpa
    return {
        "rope": rope,
        "literal: every frequency twice, maps in turn, attention step by step": literal,
        "every frequency once": half_layout,
        "the update by one matrix of heads per token": partial(
            by_heads, partial(in_one_call, eager)
        ),
        "fused attention, values and state in two calls": partial(by_heads, in_two_calls),
        "values and state under one softmax": partial(by_heads, partial(in_one_call, fused)),
    }


def inputs(shape: dict[str, int | None], batch: int, length: int) -> tuple[TapeLayer, Inputs]:
    """Returns a layer's update with perturbed weights, and its inputs, which require gradients."""
    untimed = {"layers": 2, "mlp": 8, "vocabulary": 8, "length": length}
    config = configuration(shape | untimed, {"name": "tape"})
    model = decoder(config, "sdpa").train()
    heads, width = config.num_attention_heads, config.head_dim
    index = torch.arange(length, device=DEVICE)[None]
    phases = model.model.position.state(Positions(index, index), torch.float32)
    torch.manual_seed(1)
    q, k, v = (torch.randn(batch, heads, length, width, device=DEVICE) for _ in range(3))
    state = phases.expand(batch, heads, *phases.shape[2:]).clone()
    mlp_out = torch.randn(batch, length, config.hidden_size, device=DEVICE)
    given = tuple(x.requires_grad_() for x in (q, k, v, state, mlp_out))
    return model.model.layers[0].context, given


def step(function: Layer, *given: Tensor) -> Work:
    """Returns forward and backward pass of a function of tensors."""
    learned = [x for x in given if isinstance(x, Tensor)]
    learned += [x for module in given if isinstance(module, TapeLayer) for x in module.parameters()]
    grads = [torch.randn_like(x) for x in function(*given)]

    def work() -> None:
        for x in learned:
            x.grad = None
        torch.autograd.backward(list(function(*given)), grads)

    return work


@expected_errors()
def main() -> None:
    counts = {
        "batch": (8, 1, "sequences"),
        "length": (256, 1, "tokens of each"),
        "hidden": (256, 1, "width of the layer"),
        "heads": (4, 1, "of attention"),
    }
    arguments = parser(__doc__, rounds=(31, 7), **counts).parse_args()
    shape = SMALL | {"hidden": arguments.hidden, "heads": arguments.heads}
    update, given = inputs(shape, arguments.batch, arguments.length)
    layers = variants()
    comparison = Comparison("a layer", [*layers], lambda name: step(layers[name], update, *given))
    show("optimisations", arguments, [comparison], title="layer")


if __name__ == "__main__":
    main()
