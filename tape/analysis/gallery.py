"""Pictures of what every encoding adds to attention scores before training.

One layer with its initial weights reads one token again and again, with unit projections of queries
and keys: without an encoding, all scores of a query are equal. A picture shows each score minus the
query's score of itself, which are the differences that softmax sees.
"""

import argparse
from collections.abc import Callable

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from tape.analysis.cost import configuration
from tape.core import provenance
from tape.core.files import write_text
from tape.encodings import ENCODINGS, canonical
from tape.evaluation.figures import side_by_side, write_figure
from tape.model.modeling import TapeForCausalLM

HEADS, CHANNELS = 4, 32  # of a head
SHAPE = {"layers": 1, "hidden": HEADS * CHANNELS, "heads": HEADS, "kv_heads": None}
SHAPE |= {"mlp": 1, "vocabulary": 1}
COLUMNS, PANEL = 6, 2.2  # inches


@torch.no_grad()
def scores(name: str, length: int) -> Tensor:
    """Returns the scores of all pairs minus those of the query's own token, (H, T, T), -inf after
    the query; float64. Where it has no weight, the token before counts as the own. An encoding
    gets arguments that allow for `length` tokens, all digits."""
    needed = {
        "abacus": {"digits": [0], "length": length + 1},
        "coupling": {"digits": [0], "length": length + 1},
        "fope": {"length": length},
        "learned": {"length": length},
        "randpe": {"length": 2 * length, "eval_length": length},
    }
    position = {"name": name, **needed.get(name, {})}
    config = configuration(SHAPE | {"length": length // 2}, position)
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    model = TapeForCausalLM(config).double().eval()
    attention = model.model.layers[0].self_attn
    model.model.embed_tokens.weight.fill_(1)
    for projection in (attention.q_proj, attention.k_proj):
        projection.weight.copy_(torch.eye(HEADS * CHANNELS))
    tokens = torch.zeros(1, length, dtype=torch.long)
    weights = model(tokens, output_attentions=True, use_cache=False).attentions[0][0]
    if not weights[:, torch.ones(length, length).tril(-1).bool()].all():
        raise ValueError(
            f"--length {length}: {name} has scores whose weights are 0 in float64, which would "
            "look like masked ones; give a shorter one"
        )
    weights = weights.log()
    own, before = (weights.diagonal(n, dim1=-2, dim2=-1) for n in (0, -1))
    own.copy_(own.where(own.isfinite(), F.pad(before, (1, 0))))
    return (weights - own[..., None]).round(decimals=12)  # rounding errors are no structure


def by_distance(scores_HTT: Tensor) -> Tensor:
    """Returns the scores of the last query by distance, (H, T)."""
    return scores_HTT[:, -1].flip(-1)


def panels(
    found: dict[str, Tensor], height: float, x: str, y: str, draw: Callable[[Axes, Tensor], None]
) -> Figure:
    """Draws a panel of `height` inches per encoding."""
    figure, axes = side_by_side(len(found), COLUMNS, (PANEL, height))
    for axis, (name, scores_HTT) in zip(axes, found.items(), strict=True):
        axis.set_title(name, fontsize=9)
        axis.tick_params(labelsize=7)
        draw(axis, scores_HTT)
    figure.supxlabel(x, fontsize=9)
    figure.supylabel(y, fontsize=9)
    return figure


def draw_curve(axis: Axes, scores_HTT: Tensor) -> None:
    axis.plot(by_distance(scores_HTT).T.numpy(), linewidth=0.9)
    axis.axvline(scores_HTT.shape[-1] // 2, color="0.6", linewidth=0.7, linestyle=":")
    axis.margins(x=0)
    if not by_distance(scores_HTT).any():
        axis.set_ylim(-1, 1)


def draw_map(axis: Axes, scores_HTT: Tensor) -> None:
    """Draws the scores of the first head: rows are queries, columns are keys."""
    image = np.where(scores_HTT[0].isneginf(), np.nan, scores_HTT[0])
    bound = np.nanquantile(np.abs(image), 0.98) or 1.0
    shown = axis.imshow(image, cmap="RdBu_r", vmin=-bound, vmax=bound, interpolation="nearest")
    axis.figure.colorbar(shown, ax=axis, fraction=0.046, pad=0.03).ax.tick_params(labelsize=6)


def main(arguments: argparse.Namespace) -> None:
    """Writes curves.png and .svg, maps.png and .svg, and scores.csv to a folder."""
    # Each layer of a mixture has the encoding of an entry.
    asked = arguments.encodings or [name for name in ENCODINGS if name != "mixed"]
    names, out = dict.fromkeys(canonical(name)[0] for name in asked), arguments.out
    found = {name: scores(name, arguments.length) for name in names}
    lines = pd.concat({name: pd.DataFrame(by_distance(x).numpy()) for name, x in found.items()})
    table = lines.stack().rename_axis(["encoding", "head", "distance"]).rename("score").round(6)
    write_text(out / "scores.csv", table.reset_index().to_csv(index=False))
    distance = "distance to the key, tokens (dotted: the trained length)"
    lines = panels(found, PANEL, distance, "score - score of the query itself", draw_curve)
    write_figure(lines, out / "curves")
    write_figure(panels(found, 0.85 * PANEL, "key", "query", draw_map), out / "maps")
    provenance.record(out)
    print(f"{len(found)} encodings in {out}: curves.png, maps.png and scores.csv")
