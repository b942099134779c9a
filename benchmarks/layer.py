"""Cost of the parts of a layer, of RoPE and of TAPE: forward and backward pass.

python benchmarks/layer.py --shape base
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.harness import Comparison, parser, show
from benchmarks.models import SHAPES, TOKENS
from benchmarks.optimisations import inputs, step
from tape.attention.cpu import attend
from tape.attention.payload import Values
from tape.command import expected_errors


def parts(shape: str) -> dict[str, tuple]:
    """Returns a function and its inputs for each part, for the tokens of a training step."""
    batch, length = TOKENS[shape]
    update, (q, k, v, state, mlp_out) = inputs(SHAPES[shape], batch, length)
    phases, payload = state[:1, :1].detach(), state.detach().flatten(-2).requires_grad_()

    def fused(q: Tensor, k: Tensor, *values: Tensor) -> list[Tensor]:
        return [F.scaled_dot_product_attention(q, k, x, is_causal=True) for x in values]

    def blockwise(q: Tensor, k: Tensor, *values: Tensor) -> tuple[Tensor, Tensor]:
        return attend(q, k, Values(*values), None, q.shape[-1] ** -0.5)

    return {
        "rope: attention": (fused, q, k, v),
        "tape: attention, two fused calls": (fused, q, k, v, payload),
        "tape: attention, blockwise": (blockwise, q, k, v, payload),
        "rope: rotating queries and keys": (lambda q, k: update.rotate(q, k, phases), q, k),
        "tape: rotating queries and keys": (update.rotate, q, k, state),
        "tape: update of the state": (lambda *x: [update.next_state(*x)], state, payload, mlp_out),
    }


@expected_errors()
def main() -> None:
    arguments = parser(__doc__, shape="base", rounds=(31, 1)).parse_args()
    torch.manual_seed(0)
    work = parts(arguments.shape)
    comparison = Comparison("parts of a layer", [*work], lambda name: step(*work[name]))
    show("layer", arguments, [comparison], title="part")


if __name__ == "__main__":
    main()
