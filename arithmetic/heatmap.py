"""Accuracy over the lengths of both operands as a picture, of one run or of several side by side.

    python -m arithmetic.heatmap output/add_*

As in a matrix, row n is the length n of the first operand and column m that of the second, and
(1, 1) is at the top left. A frame is around the lengths of the training.
"""

from __future__ import annotations

import argparse
import io
import math
import sys
import textwrap
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle

from arithmetic.grid import Grid, read_grid
from tape.files import write_bytes

PER_ROW = 4
SIDE = 3.6  # inches of a panel


def panel(axes: Axes, name: str, grid: Grid) -> AxesImage:
    size = len(grid.total)
    edges = (0.5, size + 0.5)  # lengths are whole numbers, in the middle of their cells
    image = axes.imshow(
        grid.accuracy, cmap="viridis", vmin=0, vmax=1, extent=(*edges, *reversed(edges))
    )
    first, second = (min(longest, size) for longest in grid.trained)
    frame = Rectangle((0.5, 0.5), second, first, fill=False, edgecolor="tab:red", linewidth=2)
    frame.set(clip_on=False, zorder=3)  # above the border of the panel
    axes.add_patch(frame)
    step = next(step for step in (1, 5, 10, 20, 50, size) if size <= 10 * step)
    ticks = sorted({1, *range(step, size + 1, step)})
    axes.set_xticks(ticks)
    axes.set_yticks(ticks)
    axes.set(
        xlabel="digits of the second operand",
        ylabel="digits of the first operand",
        title=f"{textwrap.fill(name, 36)}\nmean {grid.share()['accuracy']:.3f}",
    )
    return image


def figure_of(grids: list[tuple[str, Grid]]) -> Figure:
    """A panel per run, (name, grid), on one scale of colours."""
    columns = min(PER_ROW, len(grids))
    rows = math.ceil(len(grids) / columns)
    figure = Figure(figsize=(SIDE * columns + 0.9, SIDE * rows + 0.3), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False)
    for axes, (name, grid) in zip(panels.flat, grids, strict=False):
        image = panel(axes, name, grid)
    for axes in panels.flat[len(grids) :]:
        axes.remove()
    figure.colorbar(image, ax=list(panels.flat[: len(grids)]), label="accuracy (exact match)")
    return figure


def draw(grids: list[tuple[str, Grid]], target: Path) -> None:
    """Write the picture as target.png and target.svg."""
    figure = figure_of(grids)
    with matplotlib.rc_context({"svg.hashsalt": "tape"}):  # the same picture is the same file
        for kind, metadata in (("png", None), ("svg", {"Date": None})):
            content = io.BytesIO()
            figure.savefig(content, format=kind, dpi=150, metadata=metadata)
            write_bytes(target.with_name(f"{target.name}.{kind}"), content.getvalue())


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m arithmetic.heatmap", description="Draw evaluated runs side by side."
    )
    parser.add_argument("runs", type=Path, nargs="+", help="folders of runs")
    parser.add_argument("--name", default="grid", help="of the evaluation in them (default: grid)")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("output/heatmaps"),
        help="without .png and .svg, which are both written (default: output/heatmaps)",
    )
    arguments = parser.parse_args()
    out = (
        arguments.out.with_suffix("") if arguments.out.suffix in (".png", ".svg") else arguments.out
    )
    try:
        draw([(run.name, read_grid(run / arguments.name)) for run in arguments.runs], out)
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")
    print(f"{out}.png and {out}.svg")


if __name__ == "__main__":
    main()
