"""Pictures of results: heatmaps on one scale of colours, and files that are the same again."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import TypeVar

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from tape.evaluation.intervals import student
from tape.files import write_bytes

PER_ROW = 4
SIDE = 3.6  # inches of a panel
Results = TypeVar("Results")
Curve = tuple[list[float], list[float]]


def side_by_side(
    results: list[tuple[str, Results]],
    panel: Callable[[Axes, str, Results], AxesImage],
    label: str,
) -> Figure:
    """A panel per run, (name, results), and one bar of colours for all, with a label."""
    columns = min(PER_ROW, len(results))
    rows = math.ceil(len(results) / columns)
    figure = Figure(figsize=(SIDE * columns + 0.9, SIDE * rows + 0.3), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False)
    for axes, (name, result) in zip(panels.flat, results, strict=False):
        image = panel(axes, name, result)
    for axes in panels.flat[len(results) :]:
        axes.remove()
    figure.colorbar(image, ax=list(panels.flat[: len(results)]), label=label)
    return figure


def over_seeds(
    axes: Axes, label: str, curves: list[Curve], dashes: str = "-", color: str | None = None
) -> None:
    """A line for the mean of curves, one for each seed over the same places, and a band for its
    95 % interval."""
    values = list(zip(*(y for _, y in curves), strict=True))
    middle, x = np.array([mean(of) for of in values]), curves[0][0]
    (line,) = axes.plot(x, middle, "o", linestyle=dashes, color=color, markersize=3, label=label)
    if len(curves) > 1:
        spread = np.array([student(list(of)) for of in values])
        axes.fill_between(
            x, middle - spread, middle + spread, color=line.get_color(), alpha=0.15, linewidth=0
        )


def write_figure(figure: Figure, target: Path) -> None:
    """Write the picture as target.png and target.svg."""
    with matplotlib.rc_context({"svg.hashsalt": "tape"}):  # the same picture is the same file
        for kind, metadata in (("png", None), ("svg", {"Date": None})):
            content = io.BytesIO()
            figure.savefig(content, format=kind, dpi=150, metadata=metadata)
            write_bytes(target.with_name(f"{target.name}.{kind}"), content.getvalue())
