"""Figures of a model's attention and positions (the paper's Fig. 7).

python -m tape.analysis.visualize --model output/rope_c4 output/adape_c4 --data local
python -m tape.analysis.visualize --model output/adape_c4 --text "def f(x):" --out pictures

For two models also the difference of each pair of maps. Runs that differ only in their seed are
grouped. Curves are means over windows and seeds; maps show the first window of the first seed.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib import colormaps
from matplotlib.colors import Normalize, PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from tape import origin
from tape.analysis.inside import Inside, look_inside
from tape.analysis.texts import (
    Model,
    add_arguments,
    carry_out,
    measured,
    table,
    windows,
    with_refused,
)
from tape.command import Parser, integer, result_folder
from tape.data.blocks import writable
from tape.evaluation.checkpoint import check_length, load
from tape.evaluation.figures import write_figure
from tape.evaluation.tables import markdown_table, over_seeds
from tape.files import write_text

PANEL = 1.9  # inches
ATTENTION = "attention weight"
DOTS = "positional dot product / frequencies"


class ModelInspection(NamedTuple):
    """Inspections of a row of models: all texts of the first model, then of the next."""

    row: str
    inside: list[Inside]

    @property
    def maps(self) -> dict[str, list[np.ndarray]]:
        """Returns the maps of the first model and text by label: (heads, T, T) of every layer."""
        first = self.inside[0]
        found = {ATTENTION: [layer.numpy(force=True) for layer in first.attention]}
        if first.states is not None:
            frequencies = first.states[0].shape[-1] / 2
            dots = (layer / frequencies for layer in first.dot_products())
            found[DOTS] = [layer.numpy(force=True) for layer in dots]
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
        sizes = [magnitudes(x.states[layer]).mean().item() for x in texts if x.states]
        yield {
            **{"model": model.name, "row": model.row, "layer": layer + 1, "texts": len(texts)},
            "tokens": weights[0].shape[-1],
            "beyond_a_quarter": np.mean([beyond_a_quarter(A) for A in weights]),
            "entropy": np.mean([entropy(A) for A in weights]),
            "magnitude": np.mean(sizes) if sizes else "",
        }


def grid(
    name: str, layers: list[np.ndarray], heads: int, label: str, norm: Normalize, colours: str
) -> Figure:
    """Draws a row per layer and a column per head with one colour scale."""
    columns = min(heads, max(len(layer) for layer in layers))
    figure = Figure(
        figsize=(PANEL * columns + 1.4, PANEL * len(layers) + 0.6), layout="constrained"
    )
    panels = figure.subplots(len(layers), columns, squeeze=False, sharex=True, sharey=True)
    for number, (row, layer) in enumerate(zip(panels, layers, strict=True), start=1):
        row[0].set_ylabel(f"layer {number}\nquery")
        for head, axes in enumerate(row):
            if head >= len(layer):  # one state for all heads
                axes.axis("off")
                continue
            image = axes.imshow(layer[head], norm=norm, cmap=colours, interpolation="nearest")
            title = "all heads" if len(layer) == 1 else f"head {head + 1}"
            axes.set_title(title, fontsize=8)
    for axes in panels[-1]:
        axes.set_xlabel("key")
    figure.suptitle(name)
    figure.colorbar(image, ax=list(panels.flat), label=label, shrink=0.8)
    return figure


def norms(label: str, maps: list[list[np.ndarray]]) -> Normalize:
    """Returns one colour scale for all maps of a kind."""
    highest = max(layer.max() for layers in maps for layer in layers)
    if label == ATTENTION:
        return PowerNorm(0.5, 0, highest)
    size = max(abs(layer).max() for layers in maps for layer in layers)
    return Normalize(-size, size)


def comparable(one: list[np.ndarray], other: list[np.ndarray]) -> bool:
    """Returns whether layers, heads and tokens agree; a single map stands for all heads."""
    heads = {len(layer) for layers in (one, other) for layer in layers} - {1}
    tokens = {layer.shape[-1] for layers in (one, other) for layer in layers}
    return len(one) == len(other) and len(heads) <= 1 and len(tokens) == 1


def differences(one: list[np.ndarray], other: list[np.ndarray]) -> list[np.ndarray]:
    """Subtracts map by map; a single map of one model stands for all heads."""
    return [np.subtract(*np.broadcast_arrays(b, a)) for a, b in zip(one, other, strict=True)]


def curves(
    inspections: list[ModelInspection],
    of: Callable[[Inside, int], np.ndarray],
    title: str,
    **axes_settings: Any,
) -> Figure:
    """Draws a panel per row and a line per layer: the mean over models and texts of `of(inside,
    layer)` against 1, 2, 3 ... tokens."""
    figure = Figure(figsize=(4.6 * len(inspections) + 0.6, 3.8), layout="constrained")
    panels = figure.subplots(1, len(inspections), squeeze=False, sharey=True, sharex=True)[0]
    for axes, each in zip(panels, inspections, strict=True):
        inside = each.inside
        layers = len(inside[0].attention)
        for layer in range(layers):
            y = np.mean([of(one, layer) for one in inside], axis=0)
            colour = colormaps["viridis"](0.9 * layer / max(1, layers - 1))
            axes.plot(np.arange(1, len(y) + 1), y, color=colour, label=f"layer {layer + 1}")
        axes.set(title=each.row, xscale="log", **axes_settings)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7)
    figure.suptitle(title)
    return figure


def sizes(inspections: list[ModelInspection]) -> Figure | None:
    """Draws |e| over layers, a line per row; None if no model has a state."""
    stateful = [(row.row, row.inside) for row in inspections if row.inside[0].states is not None]
    if not stateful:
        return None
    figure = Figure(figsize=(5, 3.6), layout="constrained")
    axes = figure.subplots()
    for name, inside in stateful:
        layers = range(len(inside[0].states))
        found = [torch.cat([magnitudes(x.states[n]).flatten() for x in inside]) for n in layers]
        low, middle, high = (
            [torch.quantile(_some(values), share).item() for values in found]
            for share in (0.05, 0.5, 0.95)
        )
        places = np.arange(1, len(found) + 1)
        (line,) = axes.plot(places, middle, "o-", label=name)
        axes.fill_between(places, low, high, alpha=0.2, color=line.get_color())
    axes.set(xlabel="layer at whose input", ylabel="|e|, median and 5 to 95 %")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.legend()
    return figure


def _some(values: Tensor) -> Tensor:
    """Subsamples evenly to at most a million values, the limit of torch's quantiles."""
    return values[:: max(1, len(values) // 10**6)]


def as_files(rows: list[str]) -> dict[str, str]:
    """Maps rows to distinct file names."""
    found: dict[str, str] = {}
    for row in rows:
        name = re.sub(r"[^\w.=,-]+", "_", row).strip("_")[:80]
        taken = {"difference", *found.values()}
        found[row] = f"{name}_{len(found) + 1}" if name in taken else name
    return found


def draw(inspections: list[ModelInspection], heads: int, out: Path) -> list[str]:
    """Writes all figures to a folder; returns their names."""
    figures: dict[str, Figure] = {}
    all_maps = {each.row: each.maps for each in inspections}
    files = as_files(list(all_maps))
    for label, stem in ((ATTENTION, "attention"), (DOTS, "dot_products")):
        maps = {name: found[label] for name, found in all_maps.items() if label in found}
        if not maps:
            continue
        norm = norms(label, list(maps.values()))
        for name, layers in maps.items():
            colours = "viridis" if label == ATTENTION else "RdBu_r"
            figures[f"{stem}_{files[name]}"] = grid(name, layers, heads, label, norm, colours)
        if len(maps) == 2 and comparable(*maps.values()):
            (one, first), (other, second) = maps.items()
            between = differences(first, second)
            size = max(abs(layer).max() for layer in between) or 1.0
            title, scale = f"{other} - {one}", Normalize(-size, size)
            figures[f"{stem}_difference"] = grid(title, between, heads, label, scale, "RdBu_r")
    figures["distance"] = curves(
        inspections,
        lambda inside, layer: by_distance(inside.attention[layer])[1:].numpy(force=True),
        "Attention by distance",
        xlabel="tokens between query and key",
        ylabel="mean weight",
        yscale="log",
    )
    if (figure := sizes(inspections)) is not None:
        figures["magnitude"] = figure
    for kind in ("attention", "dot_products"):  # figures of an earlier call
        for old in [*out.glob(f"{kind}_*.png"), *out.glob(f"{kind}_*.svg")]:
            old.unlink()
    for name, figure in figures.items():
        write_figure(figure, out / name)
    return list(figures)


def look(arguments: argparse.Namespace, folder: Path) -> list[Inside]:
    """Inspects a model on each text."""
    model, tokenizer = load(folder)
    if arguments.text is not None:
        with writable():
            texts = [torch.tensor(tokenizer(arguments.text)["input_ids"])]
    else:
        _, texts = windows(arguments, folder, model, arguments.length)
    if len(texts[0]) < 8:
        raise ValueError(f"the text has {len(texts[0])} tokens; give 8 or more")
    check_length(model, len(texts[0]), f"a text of {len(texts[0])} tokens")
    with model.evaluation_length(len(texts[0])):
        return [look_inside(model, ids) for ids in texts]


def markdown(rows: list[dict[str, Any]]) -> str:
    """Tabulates by row and layer: means over models, with 95 % intervals."""
    groups: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["row"], row["layer"]), []).append(row)
    head = ["attention beyond a quarter of the text, %", "entropy, nats", r"\|e\|"]
    lines = [["model", "layer", "seeds", *head]]
    for (name, layer), group in groups.items():
        far = over_seeds([100 * row["beyond_a_quarter"] for row in group], 2)
        spread = over_seeds([row["entropy"] for row in group], 3)
        size = over_seeds([row["magnitude"] for row in group if row["magnitude"] != ""], 3)
        lines.append([name, str(layer), str(len(group)), far, spread, size])
    return markdown_table(lines)


def run(arguments: argparse.Namespace) -> tuple[str, bool]:
    inspections: dict[str, ModelInspection] = {}

    def of(model: Model) -> Iterator[dict[str, Any]]:
        inside = look(arguments, model.folder)
        inspections.setdefault(model.row, ModelInspection(model.row, [])).inside.extend(inside)
        return numbers(model, inside)

    rows, refused = measured(arguments.model, of)
    text = with_refused(markdown(rows), refused)
    write_text(arguments.out / "attention.csv", table(rows))
    write_text(arguments.out / "attention.md", text + "\n")
    drawn = draw(list(inspections.values()), arguments.heads, arguments.out)
    origin.record(arguments.out)
    return f"{text}\n\nPictures: {', '.join(drawn)}", not refused


def utf8(text: str) -> str:
    """Parses a text for argparse, which passes invalid bytes as surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not valid UTF-8") from error
    return text


def parse(given: list[str] | None = None) -> argparse.Namespace:
    parser = Parser(
        prog="python -m tape.analysis.visualize",
        description="Figures of a model's attention and positions (Fig. 7).",
    )
    add_arguments(parser)
    parser.add_argument("--text", type=utf8, help="text to show instead of --data")
    parser.add_argument("--length", type=integer(8), default=256, help="tokens per window")
    parser.add_argument("--windows", type=integer(1), default=8, help="number of windows")
    parser.add_argument("--heads", type=integer(1), default=4, help="heads to show per layer")
    parser.add_argument(
        "--out", type=result_folder, default=Path("output/visualize"), help="a folder"
    )
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
