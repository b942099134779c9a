"""Where the paper's 180.69 G MACs and 365.65 G FLOPs of TAPE come from (arXiv 2501.00712, Table 3).

They follow to all decimals from the authors' code under a profiler that takes linear layers and
matrix products for multiply-adds, and einsums for FLOPs alone:

* E keeps every frequency twice, and cosine and sine apart: two averages as wide as the values;
* all layers update E, the last one for nobody;
* W_x m is computed once for the cosine and once for the sine;
* P, W1 and W2 are einsums. P's takes as many as a map over heads, but multiplies by row sums.
"""

from __future__ import annotations

from typing import NamedTuple

from tape import TapeConfig
from tape.analysis import formulas


class Part(NamedTuple):
    """Multiply-adds of the authors' code; `counted` as such, or as FLOPs alone."""

    macs: int
    counted: bool


def parts(config: TapeConfig, length: int) -> dict[str, Part]:
    """What TAPE adds to RoPE in the authors' code, for one sequence and as many key/value heads as
    query heads."""
    H, D, width = config.num_attention_heads, config.head_dim, config.position["width"]
    tokens = config.num_hidden_layers * length
    return {
        "average of E": Part(tokens * 2 * H * length * D, True),
        "P a": Part(tokens * 2 * H**2 * D, False),
        "W_x m": Part(tokens * 2 * config.hidden_size * width, True),
        "W1 E1 and W2": Part(tokens * 2 * 2 * H * width * D, False),
    }


def macs(config: TapeConfig, length: int) -> int:
    """Of the whole forward pass, as the profiler counts them."""
    decoder = sum(formulas.multiply_adds(config, length).values())
    decoder -= sum(formulas.of_tape(config, length).values())
    return decoder + sum(part.macs for part in parts(config, length).values() if part.counted)


def flops(config: TapeConfig, length: int) -> int:
    """Of the whole forward pass: as in `formulas.flops`, and two per multiply-add of an einsum."""
    uncounted = sum(part.macs for part in parts(config, length).values() if not part.counted)
    layers = config.num_hidden_layers
    gates = length * config.position["width"]
    nonlinear = formulas.nonlinear(config, length) + gates * (2 * layers - (layers - 1))
    return 2 * (macs(config, length) + uncounted) + nonlinear
