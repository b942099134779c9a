"""Perplexity as a picture: by the length of the window, and the loss by the position in it."""

from __future__ import annotations

import io
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tape.evaluation.curves import read_curves
from tape.evaluation.tables import Row
from tape.files import write_bytes

# What a series is about: those columns first that name it best.
SERIES = (
    *("model", "data", "convention", "stride", "batch_size", "dtype"),
    *("model_hash", "data_hash"),
)


def draw(tables: list[Path], target: Path) -> None:
    """Write the picture of what is in one table, or in several.

    Raises:
        ValueError: if one of them is missing, or no such table, or all are empty.
    """
    if missing := [path for path in tables if not path.is_file()]:
        raise ValueError(f"{missing[0]} does not exist: measure perplexity first")
    found = [read_curves(path) for path in tables]
    rows, bins = ([row for each in found for row in each[n]] for n in range(2))
    if not rows:
        raise ValueError(f"nothing to draw in {', '.join(map(str, tables))}")
    content = io.BytesIO()
    figure_of(rows, bins).savefig(content, format=target.suffix[1:], dpi=150)
    write_bytes(target, content.getvalue())


def figure_of(rows: list[Row], bins: list[Row]) -> Figure:
    """Two panels with a line per series; a lone series has one per window in the second."""
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    series = sorted({_about(row) for row in rows})
    for about, name in zip(series, labels(series), strict=True):
        found = {
            int(row["length"]): float(row["perplexity"]) for row in rows if _about(row) == about
        }
        left.plot(*zip(*sorted(found.items()), strict=True), "o-", label=name, markersize=4)
        for length in sorted(found) if len(series) == 1 else [max(found)]:
            points = curve([b for b in bins if (_about(b), int(b["length"])) == (about, length)])
            label = f"{length:,}" if len(series) == 1 else f"{name}, {length:,}"
            right.plot(*points, "o-", label=label, markersize=3)
    _finish(left, "window (tokens)", "perplexity", None)
    _finish(right, "tokens before it in the window", "loss (nats per token)", "window")
    left.set_xticks(sorted({int(row["length"]) for row in rows}), minor=False)
    return figure


def _about(row: Row) -> tuple[str, ...]:
    return tuple(row[column] for column in SERIES)


def labels(series: list[tuple[str, ...]]) -> list[str]:
    """The model's name, and of what else differs as much as it takes to tell them apart."""
    chosen = [SERIES.index("model")]
    for k, values in enumerate(zip(*series, strict=True)):
        told_apart = len({tuple(about[c] for c in chosen) for about in series})
        if k not in chosen and told_apart < len(series) and len(set(values)) > 1:
            chosen.append(k)
    return [" ".join(about[k] for k in chosen if about[k]) for about in series]


def curve(bins: list[Row]) -> tuple[list[float], list[float]]:
    """Position and loss of the bins that are scored in at least half as many windows as any: under
    `sliding`, all but the last `stride` positions are those of a single window."""
    windows = [int(b["tokens"]) / (int(b["last"]) - int(b["first"]) + 1) for b in bins]
    shown = [b for b, n in zip(bins, windows, strict=True) if n >= max(windows) / 2]
    middles = [(int(b["first"]) * int(b["last"])) ** 0.5 for b in shown]
    return middles, [float(b["nll"]) for b in shown]


def _finish(axes: Axes, x: str, y: str, title: str | None) -> None:
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set(xlabel=x, ylabel=y)
    axes.grid(alpha=0.3)
    axes.legend(title=title)
