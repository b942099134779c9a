"""The speed of encodings as pictures: a line per encoding, a panel per quantity and work."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tape.analysis.comparison import THIS_PACKAGE
from tape.analysis.speed_table import Result
from tape.evaluation.figures import write_figure
from tape.positions import ENCODINGS

QUANTITIES = {
    "milliseconds": "ms",
    "ratio": "time / rope",
    "memory_mib": "memory (MiB)",
}
COLOURS = dict(zip(ENCODINGS, matplotlib.colormaps["tab20"].colors, strict=False))
# By who implements it; TAPE without its update, too.
STYLES = {THIS_PACKAGE: "o-", "transformers": "x--", "torch": "+--", "x-transformers": "1:"}


def draw(found: list[Result], folder: Path) -> None:
    """Write speed_<scope>_<kernel>.png and .svg, of what is compiled and what is not."""

    def kind(result: Result) -> tuple[str, str, str]:
        return result.scope, result.backend, result.compiled

    timed = sorted((r for r in found if r.milliseconds is not None), key=kind)
    for (scope, backend, compiled), group in groupby(timed, kind):
        name = f"speed_{scope}_{backend}" + ("_compiled" if compiled == "yes" else "")
        title = f"{scope}, {backend}" + (", compiled" if compiled == "yes" else "")
        write_figure(figure_of(list(group), title), folder / name)


def figure_of(group: list[Result], title: str) -> Figure:
    """A row of panels per quantity, a column per work; the length in tokens to the right."""
    kinds = list(dict.fromkeys(result.work for result in group))
    names = list(dict.fromkeys(result.method for result in group))
    figure = Figure(figsize=(3.6 * len(kinds) + 2.4, 8.4), layout="constrained")
    panels = figure.subplots(len(QUANTITIES), len(kinds), squeeze=False, sharex=True)
    for row, (quantity, label) in zip(panels, QUANTITIES.items(), strict=True):
        for axes, work in zip(row, kinds, strict=True):
            shown = [result for result in group if result.work == work]
            panel(axes, shown, names, quantity)
            per = " per token" if quantity == "milliseconds" and work == "decoding" else ""
            axes.set_ylabel(label + per)
    for axes, work in zip(panels[0], kinds, strict=True):
        axes.set_title(work)
    for axes in panels[-1]:
        axes.set_xlabel("tokens")
    lines = {line.get_label(): line for axes in panels.flat for line in axes.get_lines()}
    figure.legend([lines[name] for name in names], names, loc="outside right upper")
    figure.suptitle(title)
    return figure


def panel(axes: Axes, shown: list[Result], names: list[str], quantity: str) -> None:
    """A line per method; the methods of an encoding have one colour."""
    for name in names:
        line = [result for result in shown if result.method == name]
        points = [(result.length, getattr(result, quantity)) for result in line]
        points = sorted((x, y) for x, y in points if y is not None)
        if points:
            encoding, _, without = line[0].encoding.partition(" ")
            style = "s:" if without else STYLES[line[0].implementation]
            axes.plot(
                *zip(*points, strict=True),
                style,
                color=COLOURS[encoding],
                markersize=4,
                label=name,
            )
    axes.set_xscale("log", base=2)
    lengths = sorted({result.length for result in shown})
    axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
    if quantity != "ratio":
        axes.set_yscale("log")
    axes.grid(alpha=0.3)
