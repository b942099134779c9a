"""Figures of a model's attention and positions (the paper's Fig. 7).

tape visualize --model output/rope_local output/adape_local --data local

Runs that differ only in their seed are grouped. Curves are means over windows and seeds; maps show
the first window of the first seed.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib import colormaps
from matplotlib.colors import Normalize, PowerNorm
from matplotlib.figure import Figure
from torch import Tensor

from tape import parsers
from tape.analysis.inside import (
    Inside,
    as_files,
    by_distance,
    carry_out,
    check_size,
    dot_products,
    look_inside,
    windows,
)
from tape.evaluation.figures import write_figure
from tape.evaluation.tables import markdown_table, over_seeds
from tape.model.checkpoint import load

PANEL = 1.9  # inches
ATTENTION = "attention weight"
DOTS = "positional dot product / frequencies"
Maps = dict[int, np.ndarray]  # (heads, T, T), by the number of the layer


def beyond_a_quarter(A_HTT: Tensor) -> float:
    """Returns the share of attention on tokens farther back than a quarter of the text, averaged
    over heads and the queries that have such tokens."""
    T = A_HTT.shape[-1]
    far = A_HTT.tril(-(T // 4) - 1).sum(-1)
    return far[:, T // 4 + 1 :].mean().item()


def entropy(A_HTT: Tensor) -> float:
    """Returns the entropy of the weights of a query in nats, averaged over heads and queries."""
    return -torch.special.xlogy(A_HTT, A_HTT).sum(-1).mean().item()


def numbers(texts: list[Inside]) -> Iterator[dict[str, Any]]:
    """Yields a row per layer: means over texts."""
    for layer in range(len(texts[0].attention)):
        weights = [inside.attention[layer] for inside in texts]
        states = [e for inside in texts if (e := inside.states[layer]) is not None]
        yield {
            "layer": layer + 1,
            "texts": len(texts),
            "tokens": weights[0].shape[-1],
            "beyond_a_quarter": np.mean([beyond_a_quarter(A) for A in weights]),
            "entropy": np.mean([entropy(A) for A in weights]),
            "magnitude": np.mean([e.norm(dim=-2).mean().item() for e in states])
            if states
            else math.nan,
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
            image = axes.imshow(values, norm=norm, cmap=colours, interpolation="nearest")
            axes.set_title("all heads" if len(layer) == 1 else f"head {head}", fontsize=8)
    for axes in panels[-1]:
        axes.set_xlabel("key")
    figure.suptitle(name)
    figure.colorbar(image, ax=list(panels.flat), label=label, shrink=0.8)
    return figure


def distances(rows: dict[str, list[Inside]]) -> Figure:
    """Draws attention by distance, a panel per row and a line per layer: means over models and
    texts."""
    figure = Figure(figsize=(4.6 * len(rows) + 0.6, 3.8), layout="constrained")
    panels = figure.subplots(1, len(rows), squeeze=False, sharey=True, sharex=True)[0]
    labels = {"xlabel": "tokens between query and key", "ylabel": "mean weight"}
    for axes, (name, texts) in zip(panels, rows.items(), strict=True):
        layers = [*zip(*(inside.attention for inside in texts), strict=True)]
        for n, layer in enumerate(layers):
            weights = torch.stack([by_distance(A)[1:] for A in layer]).mean(0).numpy()
            colour = colormaps["viridis"](0.9 * n / max(1, len(layers) - 1))
            places = np.arange(1, len(weights) + 1)
            axes.plot(places, weights, color=colour, label=f"layer {n + 1}")
        axes.set(title=name, xscale="log", yscale="log", **labels)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7)
    figure.suptitle("Attention by distance")
    return figure


def maps_of(inside: Inside, label: str) -> Maps:
    """Returns the maps of a text, of the layers that have them."""
    if label == ATTENTION:
        return {n: A.numpy() for n, A in enumerate(inside.attention, start=1)}
    states = {n: e for n, e in enumerate(inside.states, start=1) if e is not None}
    return {n: (dot_products(e) / e.shape[-1]).numpy() for n, e in states.items()}


def draw(rows: dict[str, list[Inside]], heads: int, out: Path) -> None:
    """Writes all figures of the rows of models to a folder."""
    write_figure(distances(rows), out / "distance")
    files = as_files(rows)
    for stem, label in (("attention", ATTENTION), ("dot_products", DOTS)):
        maps = {row: maps_of(texts[0], label) for row, texts in rows.items()}
        sizes = [abs(x).max() for layers in maps.values() for x in layers.values()]
        most = max(sizes, default=1)
        colours, norm = "RdBu_r", Normalize(-most, most)
        if label == ATTENTION:
            colours, norm = "viridis", PowerNorm(0.5, 0, most)
        for row, layers in maps.items():
            if layers:
                figure = grid(row, layers, heads, label, norm, colours)
                write_figure(figure, out / f"{stem}_{files[row]}")


def main(given: list[str] | None = None) -> None:
    asked = parsers.visualize(given)
    seen: dict[str, list[Inside]] = {}  # by row

    def measure(_: argparse.Namespace, folder: Path, about: dict[str, str]) -> list[dict]:
        model, _ = load(folder)
        size = f"--length {asked.length} --windows {asked.windows}"
        check_size(model, asked.length, size, asked.windows)
        _, texts = windows(asked, folder, model, asked.length)
        with model.evaluation_length(asked.length):
            found = [look_inside(model, ids) for ids in texts]
        seen.setdefault(about["row"], []).extend(found)
        names = {"model": about["model"], "row": about["row"]}
        return [names | row for row in numbers(found)]

    carry_out("attention", asked, measure, markdown, lambda *_: draw(seen, asked.heads, asked.out))


if __name__ == "__main__":
    main()
