"""Accuracy over the lengths of both operands as a picture, of one run or of several side by side.

    python -m arithmetic.heatmap output/add_*

As in a matrix, row n is the length n of the first operand and column m that of the second, and
(1, 1) is at the top left. A frame is around the lengths of the training.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle

from arithmetic.grid import Grid, read_grid
from tape.command import expected_errors, parser_of_runs, picture
from tape.evaluation.figures import side_by_side, write_figure


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
    return side_by_side(grids, panel, "accuracy (exact match)")


def draw(grids: list[tuple[str, Grid]], target: Path) -> None:
    """Write the picture as target.png and target.svg."""
    write_figure(figure_of(grids), target)


@expected_errors()
def main() -> None:
    arguments = parser_of_runs(
        "arithmetic.heatmap",
        "Draw evaluated runs side by side.",
        "grid",
        "output/heatmaps",
        picture,
    ).parse_args()
    draw([(run.name, read_grid(run / arguments.name)) for run in arguments.runs], arguments.out)
    print(f"{arguments.out}.png and {arguments.out}.svg")


if __name__ == "__main__":
    main()
