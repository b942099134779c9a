"""What each step from the literal TAPE to this package's gained: one layer's positions, forward and
backward pass.

python -m tape.analysis.optimisations
python -m tape.analysis.optimisations --batch 1 --length 1024 --hidden 768 --heads 12

A layer turns queries and keys, averages values and the state with the attention weights, and
updates the state; its maps of the hidden states belong to every encoding and are left out. All
variants compute the same. They take turns in one process; the times are medians over the rounds,
the ratios medians of those within a round. RoPE's layer is the fused kernel.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import cache, partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

from tape import TapeConfig
from tape.analysis.cost import configuration
from tape.analysis.decoders import decoder
from tape.analysis.measuring import DEVICE, in_turn, machine, observed, synchronize
from tape.attention import eager, flex, sdpa
from tape.command import Parser, expected_errors
from tape.evaluation.tables import markdown_table
from tape.names import check_integer
from tape.payload import Payload
from tape.positions import Positions
from tape.positions.rotary import apply_rotary
from tape.positions.tape import TapeUpdate

SMALL = {"layers": 2, "kv_heads": None, "mlp": 8, "vocabulary": 8}  # none of it is timed
Averages = tuple[Tensor, Tensor | None]
Inputs = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]  # q, k, v, e, output of the MLP
Layer = Callable[..., tuple[Tensor, ...]]


def whole(e: Tensor) -> Tensor:
    """(.., 2, F) -> (.., 2, D): every frequency twice, as the rotation of whole heads wants it."""
    return torch.cat((e, e), dim=-1)


def turn_whole(x: Tensor, e: Tensor) -> Tensor:
    """`apply_rotary` by a state that has every frequency twice."""
    first, second = x.chunk(2, dim=-1)
    return x * e[..., 0, :] + torch.cat((-second, first), dim=-1) * e[..., 1, :]


def in_one_call(kernel, q: Tensor, k: Tensor, v: Tensor, payload: Payload) -> Averages:
    """Causal averages of values and payload by one of the attention kernels."""
    T, mask = q.shape[2], None
    if kernel is eager:
        mask = torch.ones(T, T, dtype=torch.bool, device=q.device).tril()[None, None]
    elif kernel is flex:
        mask = causal_blocks(T)
    return kernel(q, k, v, payload, mask, None, q.shape[-1] ** -0.5, 0.0)[:2]


@cache
def causal_blocks(length: int) -> BlockMask:
    return create_block_mask(
        lambda b, h, i, j: i >= j, None, None, length, length, device=DEVICE.type
    )


def in_two_calls(q: Tensor, k: Tensor, v: Tensor, payload: Tensor) -> Averages:
    """By the fused kernel, first the values, then the payload."""
    attend = partial(F.scaled_dot_product_attention, q, k, is_causal=True)
    return attend(v), attend(payload)


def update_in_turn(update: TapeUpdate, e: Tensor, average: Tensor, mlp_out: Tensor) -> Tensor:
    """E + P a, and W1, the gate and W2 one after the other."""
    e = e + torch.einsum("mh,bhtpf->bmtpf", update.mix.weight, average.unflatten(-1, e.shape[-2:]))
    gate = F.silu(update.gate(mlp_out))
    up = torch.einsum("im,bmtpf->bitpf", update.up.weight, e)
    moved = gate.transpose(1, 2)[..., None, None] * up
    return e + torch.einsum("mi,bitpf->bmtpf", update.down.weight, moved)


def literal(update: TapeUpdate, q: Tensor, k: Tensor, v: Tensor, e: Tensor, m: Tensor):
    e = whole(e)
    attended, average = in_one_call(eager, turn_whole(q, e), turn_whole(k, e), v, e.flatten(-2))
    e = update_in_turn(update, e, average, m)
    return attended, e[..., : e.shape[-1] // 2]


def half_layout(update: TapeUpdate, q: Tensor, k: Tensor, v: Tensor, e: Tensor, m: Tensor):
    attended, average = in_one_call(eager, apply_rotary(q, e), apply_rotary(k, e), v, e.flatten(-2))
    return attended, update_in_turn(update, e, average, m)


def by_heads(attend, update: TapeUpdate, q: Tensor, k: Tensor, v: Tensor, e: Tensor, m: Tensor):
    """The update by one matrix of heads per token."""
    attended, average = attend(
        apply_rotary(q, e), apply_rotary(k, e), v, update.payload(e, v.dtype)
    )
    return attended, update(e, average, m)


def rope(_: TapeUpdate, q: Tensor, k: Tensor, v: Tensor, e: Tensor, m: Tensor):
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


def inputs(config: TapeConfig, batch: int, length: int) -> tuple[TapeUpdate, Inputs]:
    """A layer's update with perturbed weights, and what it is given."""
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


def step(layer: Layer, update: TapeUpdate, given: Inputs) -> Callable[[], None]:
    """Forward and backward pass."""
    grads = [torch.randn_like(x) for x in layer(update, *given)]

    def run() -> None:
        for x in (*given, *update.parameters()):
            x.grad = None
        torch.autograd.backward(layer(update, *given), grads)
        synchronize()

    return run


def run(batch: int, length: int, hidden: int, heads: int, rounds: int) -> str:
    """The table, in markdown."""
    check_integer("--batch", batch, most=10**6)
    check_integer("--rounds", rounds, 7, most=10**6)
    shape = {"hidden": hidden, "heads": heads, "length": length}
    config = configuration(SMALL | shape, {"name": "tape"})
    update, given = inputs(config, batch, length)
    work = {name: step(layer, update, given) for name, layer in variants().items()}
    memory = {name: observed(each)[0] for name, each in work.items()}
    seconds = in_turn(work, rounds)
    lines = [["layer", "ms", "time / rope", "quartiles", "memory, MiB"]]
    for name in work:
        low, high = seconds.quartiles(name, "rope")
        lines.append(
            [
                name,
                f"{1000 * seconds.median(name):.1f}",
                f"{seconds.ratio(name, 'rope'):.2f}",
                f"{low:.2f} to {high:.2f}",
                f"{memory[name] / 2**20:.0f}",
            ]
        )
    about = f"{batch} x {length:,} tokens, {heads} heads of {hidden // heads}"
    return f"{about}, {machine()}, torch {torch.__version__}\n\n{markdown_table(lines)}"


@expected_errors()
def main() -> None:
    parser = Parser(
        prog="python -m tape.analysis.optimisations",
        description="What each step from the literal TAPE to this package's gained.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--batch", type=int, default=8, help="sequences")
    parser.add_argument("--length", type=int, default=256, help="tokens of each")
    parser.add_argument("--hidden", type=int, default=256, help=" ")
    parser.add_argument("--heads", type=int, default=4, help=" ")
    parser.add_argument("--rounds", type=int, default=31, help="at least 7")
    print(run(**vars(parser.parse_args())))


if __name__ == "__main__":
    main()
