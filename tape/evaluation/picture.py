"""Perplexity as a picture: by the length of the window, and the loss by the position in it."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from tape.evaluation.curves import by_middle, read_curves
from tape.evaluation.figures import curve, write_figure
from tape.evaluation.tables import Row

# What a series is about: those columns first that name it best.
SERIES = [
    "model",
    "data",
    "convention",
    "stride",
    "batch_size",
    "dtype",
    "model_hash",
    "data_hash",
]


def draw(tables: list[Path], target: Path) -> None:
    """Writes the picture of one table, or of several.

    Raises:
        ValueError: if one of them is missing, or no such table, or all are empty.
    """
    if missing := [path for path in tables if not path.is_file()]:
        raise ValueError(f"{missing[0]} does not exist: measure perplexity first")
    found = [read_curves(path) for path in tables]
    rows, bins = ([row for each in found for row in each[n]] for n in range(2))
    if not rows:
        raise ValueError(f"nothing to draw in {', '.join(map(str, tables))}")
    write_figure(figure_of(rows, bins), target.with_suffix(""), [target.suffix[1:]])


def figure_of(rows: list[Row], bins: list[Row]) -> Figure:
    """Returns two panels with a line per series; a lone series has one per window in the second."""
    windows, places = map(pd.DataFrame, (rows, bins))
    series = [*dict.fromkeys(windows[SERIES].itertuples(index=False, name=None))]
    names = dict(zip(series, labels(series), strict=True))
    numbers = {"length": int, "tokens": int, "nll": float}
    windows = windows.astype({**numbers, "perplexity": float})
    windows = windows.assign(value=windows["perplexity"], n=1, seed=0, measure="loss")
    places = places.astype({**numbers, "first": int, "last": int})
    places = places.assign(value=places["nll"], n=places["tokens"], seed=0, measure="loss")
    for each in (windows, places):
        each["row"] = [names[key] for key in each[SERIES].itertuples(index=False, name=None)]
    lengths = places["length"].map("{:,}".format)
    if len(series) > 1:
        places = places[places["length"] == places.groupby("row")["length"].transform("max")]
        lengths = places["row"] + ", " + lengths
    places["row"] = places["run"] = lengths
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    curve(windows, "length", axes=left)
    curve(by_middle(places), "position", axes=right)
    left.set(xlabel="window (tokens)", ylabel="perplexity")
    right.set(xlabel="tokens before it in the window", ylabel="loss (nats per token)")
    for axes, title in ((left, None), (right, "window")):
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.legend(title=title)
    left.set_xticks(sorted({*windows["length"]}), minor=False)
    return figure


def labels(series: list[tuple[str, ...]]) -> list[str]:
    """Returns the model's name, and of other differences as much as it takes to tell them apart."""
    chosen = [SERIES.index("model")]
    for k, values in enumerate(zip(*series, strict=True)):
        told_apart = len({tuple(about[c] for c in chosen) for about in series})
        if k not in chosen and told_apart < len(series) and len(set(values)) > 1:
            chosen.append(k)
    return [" ".join(about[k] for k in chosen if about[k]) for about in series]
