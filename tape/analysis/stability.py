"""Changes in a model's attention and positions when a text is shifted (the paper's Table 8).

The text is shifted in two ways, by 3 tokens as in the paper and by more: by BOS tokens in front of
it, and by position ids that start later. Models that depend on relative positions only do not
change under the second shift, up to rounding.
"""

import argparse
import math
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor

from tape.analysis.inside import carry_out, check_size, dot_products, look_inside, windows
from tape.core.progress import track
from tape.core.statistics import student
from tape.evaluation.tables import markdown_table, over_seeds
from tape.model.checkpoint import load
from tape.model.modeling import TapeForCausalLM

SHOWN = (1, 2, 4, 8)  # layers in the paper's table
PAPER = Path(__file__).with_name("table8.csv")
KINDS = {"bos": "{} BOS tokens in front", "ids": "position ids from {}"}
MEASURES = {"attention": "Attention weights, x 1e-2", "dot": "Dot products, %"}
DEFINITIONS = """\
Attention: with A the weights on a text and A' those of the same tokens after the move, rows of both
divided by their sum over these tokens, the mean over heads and queries of sum_j |A'_ij - A_ij|,
times 100; 0 is the same, 200 no token in common.
Dot products: with D_ij = Re(e_i conj(e_j)), summed over frequencies, of the state e that the layer
reads, ||D' - D|| / ||D|| in percent, norms over heads and pairs of tokens; "-" without a state.
Means over windows of the text, as many as the csv file says, and over seeds, with 95 % intervals
(Student)."""
Changes = list[tuple[float, float]]  # of the attention and of the dot products, by layer


def attention_change(before: Tensor, after: Tensor) -> float:
    """Compares weights (H, T, T) with those after n more tokens in front, (H, n + T, n + T)."""
    T = before.shape[-1]
    # bfloat16 weights do not sum to 1 exactly, even before the shift.
    one, other = (F.normalize(A, p=1, dim=-1) for A in (before, after[:, -T:, -T:]))
    return 100 * (other - one).abs().sum(-1).mean().item()


def dot_change(before: Tensor | None, after: Tensor | None) -> float:
    """Compares dot products of states (K|1, T, 2, F) likewise; NaN without a state."""
    if before is None:
        return math.nan
    one, other = dot_products(before), dot_products(after[:, -before.shape[1] :])
    return 100 * ((other - one).norm() / one.norm()).item()


def moved(model: TapeForCausalLM, ids: Tensor, bos: int, kind: str, by: int) -> Changes:
    """Returns the changes in percent when tokens (T,) are shifted."""
    with model.evaluation_length(by + len(ids)):  # one draw of RandPE for both
        before = look_inside(model, ids)
        if kind == "ids":
            after = look_inside(model, ids, first=by)
        else:
            after = look_inside(model, torch.cat((ids.new_full((by,), bos), ids)))
    attention = map(attention_change, before.attention, after.attention)
    return [*zip(attention, map(dot_change, before.states, after.states), strict=True)]


def rows_of(
    arguments: argparse.Namespace, folder: Path, about: dict[str, str]
) -> Iterator[dict[str, Any]]:
    """Yields a row per dtype, shift and layer of one model."""
    length, farthest = arguments.length, max(arguments.shifts)
    for dtype in arguments.dtypes:
        model, tokenizer = load(folder, getattr(torch, dtype))
        check_size(model, length + farthest, f"--length {length} shifted by {farthest}", texts=2)
        bos = tokenizer.eos_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id
        if bos is None:
            raise ValueError("the tokenizer has neither a BOS nor an EOS token to prepend")
        text, texts = windows(arguments, folder, model, length)
        given = about | {"dtype": dtype, "data": text, "length": length, "windows": len(texts)}
        moves = [*product(KINDS, arguments.shifts)]
        for kind, by in track(moves, desc=f"{folder}, {dtype}"):
            found = [moved(model, ids, bos, kind, by) for ids in texts]
            for layer, of_texts in enumerate(zip(*found, strict=True), start=1):
                changes = dict(zip(MEASURES, map(fmean, zip(*of_texts, strict=True)), strict=True))
                yield given | {"move": kind, "by": by, "layer": layer} | changes


def markdown(frame: pd.DataFrame) -> str:
    """Tabulates the paper's layers, models and shifts; the paper's rows follow."""
    paper = pd.read_csv(PAPER, dtype=str, keep_default_na=False)
    last = frame["layer"].max()
    layers = sorted({layer for layer in SHOWN if layer < last} | {last})
    parts = []
    for measure, title in MEASURES.items():
        lines = [[title, "dtype", "move", "seeds", *(f"layer {n}" for n in layers)]]
        groups = frame.groupby(["row", "dtype", "move", "by"], sort=False)
        for (name, dtype, kind, by), found in groups:
            values = {layer: each.tolist() for layer, each in found.groupby("layer")[measure]}
            cells = [_over_seeds(values.get(layer, [math.nan])) for layer in layers]
            lines.append([name, dtype, KINDS[kind].format(by), len(values[1]), *cells])
        for row in paper[paper["measure"] == measure].to_dict("records"):
            cells = [row.get(str(layer)) or "-" for layer in layers]
            name, kind = f"{row['method']} (paper)", KINDS[row["move"]].format(row["by"])
            lines.append([name, "", kind, "", *cells])
        parts.append(markdown_table(lines))
    return "\n\n".join([*parts, DEFINITIONS])


def _over_seeds(values: list[float]) -> str:
    if math.isnan(fmean(values)):
        return "-"
    if fmean(values) >= 0.01:
        return over_seeds(values, 2)
    spread = f" ± {student(values):.1g}" if len(values) > 1 else ""
    return f"{fmean(values):.2g}{spread}"


def main(arguments: argparse.Namespace) -> None:
    carry_out("stability", arguments, rows_of, markdown)
