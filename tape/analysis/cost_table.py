"""The costs of encodings as tables, beside the paper's."""

from __future__ import annotations

import csv
from dataclasses import asdict, dataclass
from pathlib import Path

from tape import TapeConfig
from tape.analysis import formulas, original
from tape.evaluation.tables import csv_table, markdown_table

PAPER = Path(__file__).with_name("table3.csv")
NOTE = """\
MACs: multiply-adds of one forward pass, with the whole N x N attention. FLOPs: two for each of
them, and one for each number that softmax, SiLU or ReLU is taken of. Both are counted by torch and
equal the formulas of tape/analysis/formulas.py."""
MEMORY_NOTE = """\
In float32. Activations: what a forward pass up to the logits keeps for the backward pass, besides
the weights. Cache: keys, values and TAPE's state."""


@dataclass(frozen=True)
class Cost:
    """Of one sequence; memory in bytes, of all of its tokens."""

    encoding: str
    macs: int
    flops: int
    parameters: int
    activations_eager: int
    activations_sdpa: int
    cache: int


def paper() -> dict[str, dict[str, str]]:
    """Table 3 of arXiv 2501.00712 by encoding: G MACs, G FLOPs, parameters in units of 2^20."""
    with PAPER.open(encoding="utf-8", newline="") as file:
        return {row["encoding"]: row for row in csv.DictReader(file)}


def table(costs: list[Cost], length: int) -> str:
    """As csv; memory in bytes per token."""
    lines = [list(asdict(costs[0]))]
    for cost in costs:
        *counts, eager, sdpa, cache = asdict(cost).values()
        lines.append([*counts, *(round(x / length, 2) for x in (eager, sdpa, cache))])
    return csv_table(lines)


def markdown(costs: list[Cost], tape: TapeConfig, length: int, beside_paper: bool) -> str:
    """All tables.

    Args:
        tape: the decoder with TAPE.
        beside_paper: its shape is the paper's.
    """
    parts = [arithmetic(costs, beside_paper), NOTE, memory(costs, length), MEMORY_NOTE]
    if tape.num_key_value_heads == tape.num_attention_heads:
        parts.append(difference(tape, length))
    return "\n\n".join(parts) + "\n"


def _decimals(x: float) -> str:
    """Two, as in the paper; more for what is small."""
    return f"{x:.2f}" if x >= 0.01 or x == 0 else f"{x:.2g}"


def arithmetic(costs: list[Cost], beside_paper: bool) -> str:
    """Multiply-adds, FLOPs and parameters."""
    published = paper() if beside_paper else {}
    quantities = {"macs": "MACs, G", "flops": "FLOPs, G", "parameters": "parameters, 2^20"}
    head = ["encoding", *quantities.values()]
    if beside_paper:
        head = ["encoding", *(x for name in quantities.values() for x in (name, "paper"))]
    lines = [[*head, "parameters"]]
    for cost in costs:
        cells = [cost.encoding]
        for name in quantities:
            unit = 2**20 if name == "parameters" else 1e9
            cells.append(_decimals(getattr(cost, name) / unit))
            if beside_paper:
                cells.append(published.get(cost.encoding, {}).get(name, ""))
        lines.append([*cells, f"{cost.parameters:,}"])
    return markdown_table(lines)


def memory(costs: list[Cost], length: int) -> str:
    """Activations and cache, per token."""
    kinds = {
        "activations_eager": "activations, eager, KiB per token",
        "activations_sdpa": "activations, sdpa, KiB per token",
        "cache": "cache, KiB per token",
    }
    lines = [["encoding", *kinds.values()]]
    for cost in costs:
        cells = (f"{getattr(cost, kind) / length / 2**10:,.1f}" for kind in kinds)
        lines.append([cost.encoding, *cells])
    return markdown_table(lines)


def difference(tape: TapeConfig, length: int) -> str:
    """What TAPE adds to RoPE in the authors' code, and here."""
    theirs, ours = original.parts(tape, length), formulas.of_tape(tape, length)
    lines = [["TAPE adds, G MACs", "the authors' code", "of it in Table 3", "here"]]
    for name in {**theirs, **ours}:
        part = theirs.get(name)
        done, counted = (part.macs, part.macs * part.counted) if part else (None, None)
        cells = (done, counted, ours.get(name))
        lines.append([name, *("" if x is None else _decimals(x / 1e9) for x in cells)])
    sums = [
        sum(part.macs for part in theirs.values()),
        sum(part.macs for part in theirs.values() if part.counted),
        sum(ours.values()),
    ]
    lines.append(["all", *(_decimals(x / 1e9) for x in sums)])
    return markdown_table(lines)
