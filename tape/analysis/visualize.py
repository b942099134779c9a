"""Figures of a model's attention and positions (the paper's Fig. 7).

Runs that differ only in their seed are grouped. Curves are means over windows and seeds; maps show
the first window of the first seed.
"""

import argparse
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from matplotlib import colormaps
from matplotlib.colors import Normalize, PowerNorm
from matplotlib.figure import Figure
from torch import Tensor

from tape.analysis import inside
from tape.evaluation.figures import write_figure
from tape.evaluation.tables import markdown_table, over_seeds
from tape.model.checkpoint import load

PANEL = 1.9  # inches
ATTENTION = "attention weight"
DOTS = "positional dot product / frequencies"
Maps = dict[int, Tensor]  # (heads, T, T), by the number of the layer


def beyond_a_quarter(A_HTT: Tensor) -> float:
    """Returns the mean share of attention on tokens farther back than a quarter of the text, of the
    queries that have such tokens."""
    T = A_HTT.shape[-1]
    far = A_HTT.tril(-(T // 4) - 1).sum(-1)
    return far[:, T // 4 + 1 :].mean().item()


def entropy(A_HTT: Tensor) -> float:
    """Returns the entropy of the weights of a query in nats, averaged over heads and queries."""
    return -torch.special.xlogy(A_HTT, A_HTT).sum(-1).mean().item()


def numbers(texts: list[inside.Inside]) -> Iterator[dict[str, Any]]:
    """Yields a row per layer: means over texts, of weights divided by their sum, which is not 1 in
    an encoding or with a sink that takes attention away."""
    for n, layer in enumerate(zip(*(text.attention for text in texts), strict=True)):
        weights = [F.normalize(A, p=1, dim=-1) for A in layer]
        states = [e for text in texts if (e := text.states[n]) is not None]
        sizes = [e.norm(dim=-2).mean().item() for e in states]
        yield {
            "layer": n + 1,
            "texts": len(texts),
            "tokens": weights[0].shape[-1],
            "beyond_a_quarter": np.mean([beyond_a_quarter(A) for A in weights]),
            "entropy": np.mean([entropy(A) for A in weights]),
            "magnitude": np.mean(sizes) if sizes else math.nan,
        }


def markdown(frame: pd.DataFrame) -> str:
    """Tabulates by row and layer: means over models, with 95 % intervals."""
    head = ["attention beyond a quarter of the text, %", "entropy, nats", r"\|e\|"]
    lines = [["model", "layer", "seeds", *head]]
    for (name, layer), group in frame.groupby(["row", "layer"], sort=False):
        far = over_seeds((100 * group["beyond_a_quarter"]).tolist(), 2)
        spread = over_seeds(group["entropy"].tolist(), 3)
        size = over_seeds(group["magnitude"].dropna().tolist(), 3)
        lines.append([name, layer, len(group), far, spread, size])
    return markdown_table(lines)


def grid(name: str, layers: Maps, heads: int, label: str, norm: Normalize, colours: str) -> Figure:
    """Draws a row per layer and a column per head with one colour scale."""
    columns = min(heads, max(map(len, layers.values())))
    size = (PANEL * columns + 1.4, PANEL * len(layers) + 0.6)
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(len(layers), columns, squeeze=False, sharex=True, sharey=True)
    for row, (number, layer) in zip(panels, layers.items(), strict=True):
        row[0].set_ylabel(f"layer {number}\nquery")
        for axes in row[len(layer) :]:  # one state for all heads
            axes.axis("off")
        for head, (axes, values) in enumerate(zip(row, layer, strict=False), start=1):
            image = axes.imshow(values.numpy(), norm=norm, cmap=colours, interpolation="nearest")
            axes.set_title("all heads" if len(layer) == 1 else f"head {head}", fontsize=8)
    for axes in panels[-1]:
        axes.set_xlabel("key")
    figure.suptitle(name)
    figure.colorbar(image, ax=list(panels.flat), label=label, shrink=0.8)
    return figure


def distances(rows: dict[str, list[inside.Inside]]) -> Figure:
    """Draws mean attention by distance, a panel per row and a line per layer."""
    figure = Figure(figsize=(4.6 * len(rows) + 0.6, 3.8), layout="constrained")
    panels = figure.subplots(1, len(rows), squeeze=False, sharey=True, sharex=True)[0]
    for axes, (name, texts) in zip(panels, rows.items(), strict=True):
        layers = [*zip(*(text.attention for text in texts), strict=True)]
        colours = colormaps["viridis"](np.linspace(0, 0.9, len(layers)))
        for n, layer in enumerate(layers):
            weights = torch.stack([inside.by_distance(A) for A in layer]).mean(0).numpy()
            places = range(1, len(weights))
            axes.plot(places, weights[1:], color=colours[n], label=f"layer {n + 1}")
        axes.set(title=name, xscale="log", yscale="log")
        axes.set(xlabel="tokens between query and key", ylabel="mean weight")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7)
    figure.suptitle("Attention by distance")
    return figure


def draw(rows: dict[str, list[inside.Inside]], heads: int, out: Path) -> None:
    """Writes all figures of the rows of models to a folder; maps are of their first text."""
    write_figure(distances(rows), out / "distance")
    files, dots = inside.as_files(rows), {}
    for row, (text, *_) in rows.items():
        states = {n: e for n, e in enumerate(text.states, start=1) if e is not None}
        dots[row] = {n: inside.dot_products(e) / e.shape[-1] for n, e in states.items()}
    weights = {row: dict(enumerate(text.attention, start=1)) for row, (text, *_) in rows.items()}
    for stem, label, maps in (("attention", ATTENTION, weights), ("dot_products", DOTS, dots)):
        sizes = [x.abs().max().item() for layers in maps.values() for x in layers.values()]
        most = max(sizes, default=1)
        colours, norm = "RdBu_r", Normalize(-most, most)
        if label == ATTENTION:
            colours, norm = "viridis", PowerNorm(0.5, 0, most)
        for row, layers in maps.items():
            if layers:
                figure = grid(row, layers, heads, label, norm, colours)
                write_figure(figure, out / f"{stem}_{files[row]}")


def main(asked: argparse.Namespace) -> None:
    seen: dict[str, list[inside.Inside]] = {}  # by row

    def measure(_: argparse.Namespace, folder: Path, about: dict[str, str]) -> list[dict]:
        model, _ = load(folder)
        size = f"--length {asked.length} --windows {asked.windows}"
        inside.check_size(model, asked.length, size, asked.windows)
        _, texts = inside.windows(asked, folder, model, asked.length)
        with model.evaluation_length(asked.length):
            found = [inside.look_inside(model, ids) for ids in texts]
        seen.setdefault(about["row"], []).extend(found)
        names = {"model": about["model"], "row": about["row"]}
        return [names | row for row in numbers(found)]

    drawn = lambda *_: draw(seen, asked.heads, asked.out)  # noqa: E731
    inside.carry_out("attention", asked, measure, markdown, drawn)
