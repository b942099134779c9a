"""Figures of a model's attention and positions (the paper's Fig. 7).

tape visualize --model output/rope_local output/adape_local --data local

Runs that differ only in their seed are grouped. Curves are means over windows and seeds; maps show
the first window of the first seed.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib import colormaps
from matplotlib.colors import Normalize, PowerNorm
from matplotlib.figure import Figure

from tape.analysis.inside import (
    Inside,
    beyond_a_quarter,
    by_distance,
    check_size,
    entropy,
    look_inside,
    magnitudes,
)
from tape.analysis.texts import Model, Rows, carry_out, parser_of, tabulate, windows
from tape.command import integer
from tape.evaluation.figures import write_figure
from tape.evaluation.tables import markdown_table, over_seeds
from tape.model.checkpoint import check_length, load

PANEL = 1.9  # inches
ATTENTION = "attention weight"
DOTS = "positional dot product / frequencies"
Maps = dict[int, np.ndarray]  # (heads, T, T), by the number of the layer


def maps_of(inside: Inside) -> dict[str, Maps]:
    """Returns the maps of a text by label, for the layers that have them."""
    dots = [None if e is None else e @ e.mT / (e.shape[-1] / 2) for e in inside.states]
    return {
        label: {n: x.numpy(force=True) for n, x in enumerate(layers, 1) if x is not None}
        for label, layers in ((ATTENTION, inside.attention), (DOTS, dots))
    }


def numbers(model: Model, texts: list[Inside]) -> Iterator[dict[str, Any]]:
    """Yields a row per layer: means over texts."""
    for layer in range(len(texts[0].attention)):
        weights = [inside.attention[layer] for inside in texts]
        sizes = [magnitudes(e).mean().item() for x in texts if (e := x.states[layer]) is not None]
        yield {
            "model": model.name,
            "row": model.row,
            "layer": layer + 1,
            "texts": len(texts),
            "tokens": weights[0].shape[-1],
            "beyond_a_quarter": np.mean([beyond_a_quarter(A) for A in weights]),
            "entropy": np.mean([entropy(A) for A in weights]),
            "magnitude": np.mean(sizes) if sizes else "",
        }


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


def as_files(rows: list[str]) -> dict[str, str]:
    """Maps rows to distinct file names."""
    found: dict[str, str] = {}
    for row in rows:
        name = re.sub(r"[^\w.=,-]+", "_", row).strip("_")[:80]
        found[row] = f"{name}_{len(found) + 1}" if name in found.values() else name
    return found


def draw(rows: dict[str, list[Inside]], heads: int, out: Path) -> list[str]:
    """Writes all figures of the rows of models to a folder; returns their names."""
    figures = {"distance": distances(rows)}
    files = as_files(list(rows))
    all_maps = {row: maps_of(texts[0]) for row, texts in rows.items()}
    for label, stem in ((ATTENTION, "attention"), (DOTS, "dot_products")):
        for old in out.glob(f"{stem}_*.*"):  # of an earlier call
            if old.suffix in (".png", ".svg"):
                old.unlink()
        maps = {row: found[label] for row, found in all_maps.items() if found[label]}
        most = max((abs(x).max() for layers in maps.values() for x in layers.values()), default=1)
        colours, norm = "RdBu_r", Normalize(-most, most)
        if label == ATTENTION:
            colours, norm = "viridis", PowerNorm(0.5, 0, most)
        for row, layers in maps.items():
            figures[f"{stem}_{files[row]}"] = grid(row, layers, heads, label, norm, colours)
    for name, figure in figures.items():
        write_figure(figure, out / name)
    return list(figures)


def look(arguments: argparse.Namespace, folder: Path) -> list[Inside]:
    """Inspects a model on each window."""
    model, _ = load(folder)
    length, given = arguments.length, f"--length {arguments.length}"
    check_size(model, f"{given} --windows {arguments.windows}", length, arguments.windows)
    _, texts = windows(arguments, folder, model, length)
    check_length(model, length, given)
    with model.evaluation_length(length):
        return [look_inside(model, ids) for ids in texts]


def markdown(rows: Rows) -> str:
    """Tabulates by row and layer: means over models, with 95 % intervals."""
    head = ["attention beyond a quarter of the text, %", "entropy, nats", r"\|e\|"]
    lines = [["model", "layer", "seeds", *head]]
    for (name, layer), group in pd.DataFrame(rows).groupby(["row", "layer"], sort=False):
        far = over_seeds((100 * group["beyond_a_quarter"]).tolist(), 2)
        spread = over_seeds(group["entropy"].tolist(), 3)
        size = over_seeds([value for value in group["magnitude"] if value != ""], 3)
        lines.append([name, layer, len(group), far, spread, size])
    return markdown_table(lines)


def run(arguments: argparse.Namespace) -> tuple[str, bool]:
    rows: dict[str, list[Inside]] = {}

    def of(model: Model) -> Iterator[dict[str, Any]]:
        texts = look(arguments, model.folder)
        rows.setdefault(model.row, []).extend(texts)
        return numbers(model, texts)

    text, whole = tabulate(arguments, "attention", of, markdown)
    return f"{text}\n\nPictures: {', '.join(draw(rows, arguments.heads, arguments.out))}", whole


def parse(given: list[str] | None = None) -> argparse.Namespace:
    about = "Figures of a model's attention and positions (Fig. 7)."
    parser = parser_of("visualize", about, windows=8)
    add = parser.add_argument
    add("--length", type=integer(8), default=256, help="tokens per window")
    add("--heads", type=integer(1), default=4, help="heads to show per layer")
    return parser.parse_args(given)


def main() -> None:
    carry_out(run, parse())


if __name__ == "__main__":
    main()
