"""Cost of the parts of a layer, of RoPE and of TAPE: forward and backward pass, in milliseconds.

python benchmarks/layer.py --shape base

The parts run alternately in one process; times are medians.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from measuring import SHAPES, build, publish, table, table_folder
from torch import Tensor

from tape.analysis.measuring import DEVICE, in_turn, synchronize
from tape.blockwise import causal_attention
from tape.command import Parser, expected_errors, integer
from tape.positions import Positions


def parts(shape: str) -> dict[str, Callable[[], None]]:
    """Returns forward and backward pass of each part, for the tokens of a training step."""
    sizes = SHAPES[shape]
    hidden, H, (B, T) = sizes.hidden, sizes.heads, sizes.tokens
    torch.manual_seed(0)
    q, k, v = (torch.randn(B, H, T, hidden // H, device=DEVICE) for _ in range(3))
    mlp_out = torch.randn(B, T, hidden, device=DEVICE)
    index = torch.arange(T, device=DEVICE)[None]
    rope, tape = (build(name, shape).model.position for name in ("rope", "tape"))
    phases = rope.state(Positions(index, index), torch.float32)
    state = phases.expand(B, H, *phases.shape[2:]).clone()
    update, payload = build("tape", shape).model.layers[0].context, state.flatten(-2)

    def fused(q: Tensor, k: Tensor, *values: Tensor) -> list[Tensor]:
        return [F.scaled_dot_product_attention(q, k, x, is_causal=True) for x in values]

    work = {
        "rope: attention": (fused, q, k, v),
        "tape: attention, two fused calls": (fused, q, k, v, payload),
        "tape: attention, blockwise": (
            lambda *inputs: causal_attention(*inputs, scaling=q.shape[-1] ** -0.5),
            *(q, k, v, payload),
        ),
        "rope: turning queries and keys": (lambda q, k: rope.rotate(q, k, phases), q, k),
        "tape: turning queries and keys": (tape.rotate, q, k, state),
        "tape: update of the state": (
            lambda *inputs: [update(*inputs)],
            *(state, payload, mlp_out),
        ),
    }
    return {name: timed(function, *inputs) for name, (function, *inputs) in work.items()}


def timed(function: Callable[..., list[Tensor]], *inputs: Tensor) -> Callable[[], None]:
    inputs = [x.detach().clone().requires_grad_() for x in inputs]
    grads = [torch.randn_like(x) for x in function(*inputs)]

    def run() -> None:
        for x in inputs:
            x.grad = None
        torch.autograd.backward(list(function(*inputs)), grads)
        synchronize()

    return run


if __name__ == "__main__":
    parser = Parser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--shape", choices=SHAPES, default="base")
    parser.add_argument("--repeats", type=integer(1), default=31, help="rounds")
    parser.add_argument(
        "--out", type=table_folder, help="folder for the table; printed only by default"
    )
    arguments = parser.parse_args()
    with expected_errors():
        work = parts(arguments.shape)
        seconds = in_turn(work, arguments.repeats)
        rows = [{"part": name, "ms": f"{1000 * seconds.median(name):.1f}"} for name in work]
        publish("layer", table(rows), arguments.out)
