"""Figures of rows in long form (tape/core/statistics.py): curves and heat maps; as files."""

import io
import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator, NullLocator

from tape.core.files import write_bytes
from tape.core.statistics import per_seed, table, weighted_mean
from tape.evaluation.view import Asked, HeatMap, Limits, Panel, select

PER_ROW = 4  # heat maps side by side
SIDE = 3.6  # inches of a heat map
LABELS = 12  # ticks of an axis, at most
FEWEST_OF_A_BAND = 4  # of two or three values, Student's interval is wider than any axis
# Of lines, 40 different ones.
STYLES = [{"ls": line, "color": f"C{n}"} for line in ("-", "--", ":", "-.") for n in range(10)]


def write_figure(figure: Figure, target: Path, kinds: Sequence[str] = ("png", "svg")) -> None:
    """Writes the picture as target.png and target.svg."""
    with matplotlib.rc_context({"svg.hashsalt": "tape"}):  # the same picture is the same file
        for kind in kinds:
            content = io.BytesIO()
            how = {"format": kind, "metadata": {"Date": None} if kind == "svg" else None}
            figure.savefig(content, dpi=150, bbox_inches="tight", **how)
            write_bytes(target.with_name(f"{target.name}.{kind}"), content.getvalue())


def curve(
    rows: pd.DataFrame,
    x: str,
    by: str = "row",
    over: str = "seed",
    axes: Axes | None = None,
    styles: Mapping[str, dict[str, Any]] | None = None,
) -> Figure:
    """Draws a line of means over seeds for each group against the column `x`, where all of its
    seeds have a value (a run that was continued may lack some), in `axes` or a new figure. A band
    is the 95 % interval of four or more seeds; of two or three, each is a dot. `styles` are those
    of the lines, by group."""
    alone, axes = axes is None, axes or Figure(layout="constrained").subplots()
    values = per_seed(rows, [by, x], over)
    for name, line in table(rows, [by, x], over).groupby(level=by, sort=False):
        line = line[line["n"] == line["n"].max()].droplevel(by).sort_index()
        style = {"marker": "o", "markersize": 3, "label": name} | (styles or {}).get(name, {})
        (drawn,) = axes.plot(line.index, line["mean"], **style)
        if line["n"].max() >= FEWEST_OF_A_BAND:
            low, high = line["mean"] - line["half_width"], line["mean"] + line["half_width"]
            style = {"color": drawn.get_color(), "alpha": 0.15, "linewidth": 0}
            axes.fill_between(line.index, low, high, **style)
        elif line["n"].max() > 1:
            dots = values[name].reset_index(name="value")
            dots = dots[dots[x].isin(line.index)]
            axes.scatter(dots[x], dots["value"], s=9, color=drawn.get_color(), alpha=0.6)
    axes.grid(alpha=0.3)
    if alone:
        axes.set(xlabel=x)
        axes.legend()
    return axes.figure


def log_axes(axes: Axes, log: str) -> None:
    """Makes axes with lines logarithmic: "x", "xy" or none."""
    if "x" in log:
        axes.set_xscale("log", base=2)
    if "y" in log:
        axes.set_yscale("log")
    for axis, shown in ((axes.xaxis, "x" in log), (axes.yaxis, "y" in log)):
        low, high = sorted(axis.get_view_interval())
        if shown and high < 10 * low:  # the ticks of a log axis are too far apart
            axis.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10]))
            axis.set_minor_locator(NullLocator())
        if shown:
            axis.set_major_formatter("{x:,g}")


def draw_panel(
    axes: Axes,
    panel: Panel,
    rows: pd.DataFrame,
    trained: Mapping[str, int] = {},
    styles: Mapping[str, dict[str, Any]] | None = None,
) -> None:
    """Draws the curves of a panel, and lines at the `trained` lengths, by what they mean."""
    curve(rows, panel.x, axes=axes, styles=styles)
    for (label, length), style in zip(trained.items(), (":", "-."), strict=False):
        axes.axvline(length, color="tab:red", linestyle=style, label=label)
    log_axes(axes, panel.log)
    if panel.share:
        axes.set_ylim(-0.03, 1.03)
        axes.set_xlim(left=0)
    axes.set(xlabel=panel.labels[0], ylabel=panel.labels[1])


def side_by_side(number: int, wide: int, size: tuple[float, float]) -> tuple[Figure, list[Axes]]:
    """Returns a figure with some panels of `size` inches, up to `wide` side by side; and these."""
    columns = min(wide, number)
    lines = math.ceil(number / columns)
    inches = (size[0] * columns + 0.9, size[1] * lines + 0.3)
    figure = Figure(figsize=inches, layout="constrained")
    panels = [*figure.subplots(lines, columns, squeeze=False).flat]
    for axes in panels[number:]:
        axes.remove()
    return figure, panels[:number]


def heat(
    rows: pd.DataFrame,
    down: str,
    across: str,
    by: str = "row",
    trained: Mapping[str, Limits] | None = None,
    labels: tuple[str, str] | None = None,
    empty: str = "",
) -> Figure:
    """Draws a heat map of the means over all seeds for each group, on one scale from 0 to 1.

    Args:
        trained: by group, the last trained value of each axis, for a red frame; None: no limit.
        labels: of the axes; by default the names of the columns.
        empty: is written across lines whose rows have no value.
    """
    labels = labels or (down, across)
    groups = dict(iter(rows.groupby(by, sort=False)))
    places = [rows[name].dropna().drop_duplicates().sort_values() for name in (down, across)]
    figure, panels = side_by_side(len(groups), PER_ROW, (SIDE, SIDE))
    for axes, (name, group) in zip(panels, groups.items(), strict=True):
        grid = weighted_mean(group, [down, across]).unstack()
        grid = grid.reindex(index=places[0], columns=places[1])
        image = _panel(axes, grid, (trained or {}).get(name, (None, None)))
        known = grid.notna().any(axis=1)
        # Means over other lines than those of the next panel could not be compared.
        mean = f"\nmean {np.nanmean(grid):.3f}" if known.all() else ""
        axes.set_title(f"{textwrap.fill(str(name), 36)}{mean}")
        axes.set(xlabel=labels[1], ylabel=labels[0])
        for place, value in enumerate(grid.index):
            if not known[value] and value in {*group[down]}:
                axes.text((grid.shape[1] - 1) / 2, place, empty, ha="center", va="center")
    lines = math.ceil(len(panels) / PER_ROW)
    figure.colorbar(image, ax=panels, label="accuracy", shrink=1 / lines, anchor=(0, 1))
    return figure


def _panel(axes: Axes, grid: pd.DataFrame, trained: Limits) -> AxesImage:
    style = {"cmap": "viridis", "vmin": 0, "vmax": 1, "interpolation": "nearest"}
    image = axes.imshow(grid, aspect="auto", **style)
    axes.set_facecolor("0.85")  # of cells without a value
    ends = []
    for values, last in zip((grid.index, grid.columns), trained, strict=True):
        ends.append(len(values) if last is None else int((values <= last).sum()))
    if trained != (None, None):
        frame = Rectangle((-0.5, -0.5), ends[1], ends[0], fill=False, edgecolor="tab:red")
        frame.set(linewidth=2, clip_on=False, zorder=3)  # above the border of the panel
        axes.add_patch(frame)
    for values, ticks in ((grid.index, axes.set_yticks), (grid.columns, axes.set_xticks)):
        step = next(s for s in (1, 5, 10, 20, 50, len(values)) if len(values) <= LABELS * s)
        shown = sorted({0, *range(step - 1, len(values), step)})
        texts = [f"{v}" if isinstance(v, str) else f"{v:g}" for v in values[shown]]
        ticks(shown, texts, fontsize="small")
    return image


def heat_map(view: HeatMap | None, rows: pd.DataFrame, asked: Mapping[str, Asked]) -> Figure | None:
    """Returns the heat maps of an evaluation, whose settings are `asked` by row; None if each
    would have a single line, or rows are not over both conditions."""
    if view is None or not {view.down, view.across} <= {*rows}:
        return None
    cells = select(rows, "accuracy").dropna(subset=[view.down, view.across])
    if cells[view.down].nunique() < 2:  # a curve shows it
        return None
    trained = {name: view.trained(each) for name, each in asked.items()}
    return heat(cells, view.down, view.across, trained=trained, labels=view.labels)
