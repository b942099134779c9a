"""The rows of a comparison as figures: curves with bands over seeds, and mean heat maps."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator, NullLocator

from tape.evaluation.figures import write_figure
from tape.evaluation.view import HeatMap, Panel
from tape.results.rows import BASE, Row, kinds_of
from tape.results.runs import view_of
from tape.statistics import student

PER_ROW = 4  # heat maps side by side
SIDE = 3.6  # inches of a heat map
LABELS = 12  # ticks of an axis, at most


def curves(rows: Sequence[Row]) -> Figure | None:
    """Returns a panel per curve that was measured, with a line per row: the mean over seeds, its
    95 % interval as a band. A red line marks the end of the trained length. None without curves."""
    panels = [
        (kind, panel)
        for kind in kinds_of(rows)
        for panel in view_of(kind).panels
        if any(panel.points(run.of(kind))[0] for row in rows for run in row.runs.get(kind, []))
    ]
    if not panels:
        return None
    figure = Figure(figsize=(4.6 * len(panels) + 1.8, 4.3), layout="constrained")
    for axes, (kind, panel) in zip(
        figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True
    ):
        for n, row in enumerate(rows):
            style = (
                {"linestyle": "--", "color": "black"} if row.label == BASE else {"color": f"C{n}"}
            )
            line(
                axes,
                row.label,
                [panel.points(run.of(kind)) for run in row.runs.get(kind, [])],
                **style,
            )
        runs = [run.of(kind) for row in rows for run in row.runs.get(kind, [])]
        levels(axes, pd.concat(runs), panel.levels)
        _finish(axes, panel, _trained(rows, kind))
    handles = {h.get_label(): h for axes in figure.axes for h in axes.lines}
    figure.legend(handles=list(handles.values()), loc="outside right upper")
    return figure


def line(
    axes: Axes, label: str, points: list[tuple[list[float], list[float]]], **style: Any
) -> None:
    """Draws the mean over seeds where all have a value: a run that was continued may lack some."""
    values = [dict(zip(*each, strict=True)) for each in points if each[0]]
    if not values:
        return
    x = [place for place in values[0] if all(place in each for each in values)]
    middle = np.array([mean(each[place] for each in values) for place in x])
    (drawn,) = axes.plot(x, middle, "o", **{"linestyle": "-"} | style, markersize=3, label=label)
    if len(values) > 1:
        spread = np.array([student([each[place] for each in values]) for place in x])
        axes.fill_between(
            x, middle - spread, middle + spread, color=drawn.get_color(), alpha=0.15, linewidth=0
        )


def levels(axes: Axes, rows: pd.DataFrame, measures: Sequence[str]) -> None:
    """Draws the mean of each measure that there is as a horizontal line."""
    means = rows[rows["measure"].isin(measures)].groupby("measure")["value"].mean()
    for style, (measure, value) in zip((":", "-.", "--"), means.items(), strict=False):
        label = measure.removesuffix(" loss")
        axes.axhline(value, color="gray", linestyle=style, linewidth=1, label=label)


def _trained(rows: Sequence[Row], kind: str) -> int:
    """The trained length of the base of methods, else of all runs."""
    base = next((row for row in rows if row.label == BASE and kind in row.runs), rows[0])
    run = next(
        iter(base.runs.get(kind) or next(row.runs[kind] for row in rows if kind in row.runs))
    )
    return run.asked[kind].get("trained", run.settings["length"])


def _finish(axes: Axes, panel: Panel, trained: int) -> None:
    if panel.tokens:
        axes.axvline(trained, color="tab:red", linestyle=":", label="trained up to here")
    if panel.log_x:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:,.0f}")
    if panel.log_y:
        axes.set_yscale("log")
        low, high = axes.get_ylim()
        if high < 10 * low:  # the ticks of a log axis are too far apart
            axes.yaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10]))
            axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter("{x:,g}")
    if panel.share:
        axes.set_ylim(-0.03, 1.03)
        axes.set_xlim(left=0)
    axes.set(xlabel=panel.x, ylabel=panel.y)
    axes.grid(alpha=0.3)


class Map(NamedTuple):
    """A heat map: its title, the kind of evaluation, the evaluation's settings, and its rows."""

    name: str
    kind: str
    asked: dict[str, Any]
    rows: pd.DataFrame

    @property
    def is_there(self) -> bool:
        """Whether there are values over both conditions."""
        view = view_of(self.kind).heatmap
        if view is None or not {view.down, view.across} <= {*self.rows}:
            return False
        return self.rows[[view.down, view.across]].notna().all(axis=1).any()


def heat_maps(rows: Sequence[Row]) -> Figure | None:
    """Returns a heat map per row, of all seeds together; None if there are none."""
    found = [
        Map(row.label, kind, runs[0].asked[kind], pd.concat([run.of(kind) for run in runs]))
        for row in rows
        for kind, runs in row.runs.items()
    ]
    found = [each for each in found if each.is_there]
    return side_by_side(found) if found else None


def side_by_side(found: Sequence[Map]) -> Figure:
    """Returns heat maps on one colour scale."""
    columns = min(PER_ROW, len(found))
    lines = math.ceil(len(found) / columns)
    figure = Figure(figsize=(SIDE * columns + 0.9, SIDE * lines + 0.3), layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False)
    for axes, each in zip(panels.flat, found, strict=False):
        image = heat_map(axes, each)
    for axes in panels.flat[len(found) :]:
        axes.remove()
    figure.colorbar(image, ax=list(panels.flat[: len(found)]), label="accuracy")
    return figure


def grid_of(view: HeatMap, rows: pd.DataFrame) -> pd.DataFrame:
    """Returns the accuracy over all observations, conditions as index and columns."""
    rows = rows[rows["measure"] == "accuracy"].assign(right=lambda x: x["value"] * x["n"])
    cells = rows.groupby([view.down, view.across])[["right", "n"]].sum()
    return (cells["right"] / cells["n"]).unstack()


def heat_map(axes: Axes, drawn: Map) -> AxesImage:
    """Draws one heat map; a red frame is around the trained conditions."""
    view = view_of(drawn.kind).heatmap
    grid, trained = grid_of(view, drawn.rows), view.trained(drawn.asked)
    image = axes.imshow(
        grid, cmap="viridis", vmin=0, vmax=1, aspect="auto", interpolation="nearest"
    )
    ends = []
    for values, last in ((grid.index, trained[0]), (grid.columns, trained[1])):
        ends.append(len(values) if last is None else int((values <= last).sum()))
    frame = Rectangle((-0.5, -0.5), ends[1], ends[0], fill=False, edgecolor="tab:red", linewidth=2)
    frame.set(clip_on=False, zorder=3)  # above the border of the panel
    axes.add_patch(frame)
    for values, ticks in ((grid.index, axes.set_yticks), (grid.columns, axes.set_xticks)):
        step = next(s for s in (1, 5, 10, 20, 50, len(values)) if len(values) <= LABELS * s)
        places = sorted({0, *range(step - 1, len(values), step)})
        ticks(places, [f"{values[place]:g}" for place in places])
    axes.set(
        xlabel=view.across_label,
        ylabel=view.down_label,
        title=f"{textwrap.fill(drawn.name, 36)}\nmean {np.nanmean(grid):.3f}",
    )
    return image


def write_figures(rows: Sequence[Row], out: Path) -> list[str]:
    """Writes curves and heatmaps as png and svg; returns the names of those that there are."""
    drawn = {"curves": curves(rows), "heatmaps": heat_maps(rows)}
    for name, figure in drawn.items():
        if figure is not None:
            write_figure(figure, out / name)
    return [name for name, figure in drawn.items() if figure is not None]
