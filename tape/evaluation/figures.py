"""Pictures of results: heatmaps on one scale of colours, and files that are the same again."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from tape.files import write_bytes

PER_ROW = 4
SIDE = 3.6  # inches of a panel
Results = TypeVar("Results")


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


def write_figure(figure: Figure, target: Path) -> None:
    """Write the picture as target.png and target.svg."""
    with matplotlib.rc_context({"svg.hashsalt": "tape"}):  # the same picture is the same file
        for kind, metadata in (("png", None), ("svg", {"Date": None})):
            content = io.BytesIO()
            figure.savefig(content, format=kind, dpi=150, metadata=metadata)
            write_bytes(target.with_name(f"{target.name}.{kind}"), content.getvalue())
