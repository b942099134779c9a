"""Figures of a model's attention and positions (the paper's Fig. 7).

python -m tape.analysis.visualize --model output/rope_local output/adape_local --data local
python -m tape.analysis.visualize --model output/adape_local --text "def f(x):" --out pictures

For two models also the difference of each pair of maps. Runs that differ only in their seed are
grouped. Curves are means over windows and seeds; maps show the first window of the first seed.
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
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from tape.analysis.inside import Inside, check_size, look_inside
from tape.analysis.texts import Model, Rows, carry_out, parser_of, tabulate, windows
from tape.command import integer
from tape.data.blocks import writable
from tape.evaluation.figures import write_figure
from tape.evaluation.tables import markdown_table, over_seeds
from tape.model.checkpoint import check_length, load
from tape.validation import encodable

PANEL = 1.9  # inches
ATTENTION = "attention weight"
DOTS = "positional dot product / frequencies"


Maps = dict[int, np.ndarray]  # (heads, T, T), by the number of the layer


def maps_of(inside: Inside) -> dict[str, Maps]:
    """Returns the maps of a text by label, for the layers that have them."""
    found: dict[str, Maps] = {ATTENTION: {}, DOTS: {}}
    for number, (weights, e) in enumerate(zip(inside.attention, inside.states, strict=True), 1):
        found[ATTENTION][number] = weights.numpy(force=True)
        if e is not None:
            found[DOTS][number] = (e @ e.mT / (e.shape[-1] / 2)).numpy(force=True)
    return found


def beyond_a_quarter(A_HTT: Tensor) -> float:
    """Returns the share of attention on tokens farther back than a quarter of the text, averaged
    over heads and the queries that have such tokens."""
    T = A_HTT.shape[-1]
    far = A_HTT.tril(-(T // 4) - 1).sum(-1)
    return far[:, T // 4 + 1 :].mean().item()


def entropy(A_HTT: Tensor) -> float:
    """Returns the entropy of the weights of a query in nats, averaged over heads and queries."""
    return -torch.special.xlogy(A_HTT, A_HTT).sum(-1).mean().item()


def by_distance(A_HTT: Tensor) -> Tensor:
    """Returns the mean weight at each distance, (T,), over heads and the queries of the second
    half, which all have half of the text before them."""
    T = A_HTT.shape[-1]
    means = [A_HTT.diagonal(-d, 1, 2)[:, max(0, T // 2 - d) :].mean() for d in range(T)]
    return torch.stack(means)


def magnitudes(e_KTF: Tensor) -> Tensor:
    """Returns |e| of every head, token and frequency of a state (K|1, T, 2 F)."""
    return e_KTF.unflatten(-1, (2, -1)).norm(dim=-2)


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


def largest(models: list[Maps]) -> float:
    """Returns the largest magnitude in the layers of several models."""
    return max(abs(layer).max() for layers in models for layer in layers.values())


def comparable(one: Maps, other: Maps) -> bool:
    """Returns whether layers, heads and tokens agree; a single map stands for all heads."""
    shapes = [layer.shape for layer in (*one.values(), *other.values())]
    heads, tokens, _ = map(set, zip(*shapes, strict=True))
    return one.keys() == other.keys() and len(heads - {1}) <= 1 and len(tokens) == 1


def differences(one: Maps, other: Maps) -> Maps:
    """Subtracts map by map; a single map of one model stands for all heads."""
    return {n: np.subtract(*np.broadcast_arrays(other[n], one[n])) for n in one}


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


def sizes(rows: dict[str, list[Inside]]) -> Figure:
    """Draws |e| over layers, a line per row of models with a state."""
    figure = Figure(figsize=(5, 3.6), layout="constrained")
    axes = figure.subplots()
    for name, texts in rows.items():
        layers = enumerate(zip(*(inside.states for inside in texts), strict=True), start=1)
        found = {
            number: np.concatenate([magnitudes(e).ravel() for e in layer])
            for number, layer in layers
            if layer[0] is not None
        }
        places = [*found]
        low, middle, high = np.transpose(
            [np.quantile(x, (0.05, 0.5, 0.95)) for x in found.values()]
        )
        (line,) = axes.plot(places, middle, "o-", label=name)
        axes.fill_between(places, low, high, alpha=0.2, color=line.get_color())
    axes.set(xlabel="layer at whose input", ylabel="|e|, median and 5 to 95 %")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.legend()
    return figure


def as_files(rows: list[str]) -> dict[str, str]:
    """Maps rows to distinct file names."""
    found: dict[str, str] = {}
    for row in rows:
        name = re.sub(r"[^\w.=,-]+", "_", row).strip("_")[:80]
        taken = {"difference", *found.values()}
        found[row] = f"{name}_{len(found) + 1}" if name in taken else name
    return found


def draw(rows: dict[str, list[Inside]], heads: int, out: Path) -> list[str]:
    """Writes all figures of the rows of models to a folder; returns their names."""
    figures: dict[str, Figure] = {}
    files = as_files(list(rows))
    all_maps = {row: maps_of(texts[0]) for row, texts in rows.items()}
    for label, stem in ((ATTENTION, "attention"), (DOTS, "dot_products")):
        for old in out.glob(f"{stem}_*.*"):  # of an earlier call
            if old.suffix in (".png", ".svg"):
                old.unlink()
        maps = {row: found[label] for row, found in all_maps.items() if found[label]}
        if not maps:
            continue
        most = largest([*maps.values()])
        colours, norm = "RdBu_r", Normalize(-most, most)
        if label == ATTENTION:
            colours, norm = "viridis", PowerNorm(0.5, 0, most)
        for row, layers in maps.items():
            figures[f"{stem}_{files[row]}"] = grid(row, layers, heads, label, norm, colours)
        if len(maps) == 2 and comparable(*maps.values()):
            between = differences(*maps.values())
            most = largest([between]) or 1.0
            title, norm = " - ".join(reversed(maps)), Normalize(-most, most)
            figures[f"{stem}_difference"] = grid(title, between, heads, label, norm, "RdBu_r")
    figures["distance"] = distances(rows)
    if stateful := {row: texts for row, texts in rows.items() if texts[0].has_states}:
        figures["magnitude"] = sizes(stateful)
    for name, figure in figures.items():
        write_figure(figure, out / name)
    return list(figures)


def look(arguments: argparse.Namespace, folder: Path) -> list[Inside]:
    """Inspects a model on each text."""
    model, tokenizer = load(folder)
    if arguments.text is not None:
        with writable():
            texts = [torch.tensor(tokenizer(arguments.text)["input_ids"])]
        check_size(model, "--text", len(texts[0]))
    else:
        given = f"--length {arguments.length} --windows {arguments.windows}"
        check_size(model, given, arguments.length, arguments.windows)
        _, texts = windows(arguments, folder, model, arguments.length)
    length = len(texts[0])
    if length < 8:
        raise ValueError(f"the text has {length} tokens; give 8 or more")
    check_length(model, length, f"a text of {length} tokens")
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


def utf8(text: str) -> str:
    """Parses a text for argparse, which passes invalid bytes as surrogates."""
    if not encodable(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not valid UTF-8")
    return text


def parse(given: list[str] | None = None) -> argparse.Namespace:
    about = "Figures of a model's attention and positions (Fig. 7)."
    parser = parser_of("visualize", about, windows=8, type=integer(8), default=256)
    add = parser.add_argument
    add("--text", type=utf8, help="text to show instead of --data")
    add("--heads", type=integer(1), default=4, help="heads to show per layer")
    arguments = parser.parse_args(given)
    if arguments.text is not None:
        for name in ("data", "files", "length", "windows"):
            if getattr(arguments, name) != parser.get_default(name):
                parser.error(f"--{name} goes with a text of --data, not with --text: give one")
    return arguments


def main() -> None:
    carry_out(run, parse())


if __name__ == "__main__":
    main()
