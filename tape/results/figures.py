"""The figures of a comparison: curves with bands over seeds, and mean heat maps."""

from itertools import cycle
from pathlib import Path

from matplotlib.figure import Figure

from tape.evaluation.figures import STYLES, draw_panel, heat_map, write_figure
from tape.evaluation.view import select
from tape.results.rows import BASE, Comparison
from tape.results.runs import view_of


def curves(found: Comparison) -> Figure | None:
    """Returns a panel per curve that was measured, with a line per row. A red line marks the end of
    the trained length if all rows have one. None without curves."""
    panels = [
        (kind, panel, rows)
        for kind in found.groups
        for panel in view_of(kind).panels
        if len(rows := panel.of(found.rows[kind]))
    ]
    if not panels:
        return None
    styles = dict(zip(found.labels, cycle(STYLES), strict=False))
    styles |= {BASE: {"color": "black", "ls": "--"}}
    figure = Figure(figsize=(4.6 * len(panels) + 1.8, 4.3), layout="constrained")
    every = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, (kind, panel, rows) in zip(every, panels, strict=True):
        trained = {} if panel.x == "step" else _trained(found, kind)
        draw_panel(axes, panel, rows, trained, styles)
        if panel.title is not None:
            asked = next(iter(found.groups[kind].values()))[0].asked[kind]
            axes.set_title(panel.title(asked, rows), fontsize="small")
        for style, measure in zip((":", "-.", "--"), panel.levels, strict=False):
            if len(level := select(found.rows[kind], measure)):
                look = {"color": "gray", "linestyle": style, "linewidth": 1}
                axes.axhline(level["value"].mean(), label=measure.removesuffix(" loss"), **look)
    handles = {line.get_label(): line for axes in figure.axes for line in axes.lines}
    figure.legend(handles=list(handles.values()), loc="outside right upper")
    return figure


def _trained(found: Comparison, kind: str) -> dict[str, int]:
    """The trained length, if all rows have the same; with methods, also that of their base."""
    lengths = {
        label: runs[0].asked[kind].get("trained", runs[0].settings["length"])
        for label, runs in found.groups[kind].items()
    }
    marks = {"base trained up to here": lengths.pop(BASE)} if BASE in lengths else {}
    own, what = {*lengths.values()}, "extended" if marks else "trained"
    return marks | ({f"{what} up to here": own.pop()} if len(own) == 1 else {})


def write_figures(found: Comparison, out: Path) -> None:
    """Writes curves.png and .svg, and heatmaps.png and .svg, if there are rows for them.

    If a second evaluation has heat maps, they are heatmaps_<evaluation>. Figures of an earlier
    comparison in `out` are deleted first.
    """
    for old in (*out.glob("curves.*"), *out.glob("heatmaps*.*")):
        old.unlink()
    if (figure := curves(found)) is not None:
        write_figure(figure, out / "curves")
    name = "heatmaps"
    for kind, groups in found.groups.items():
        asked = {label: runs[0].asked[kind] for label, runs in groups.items()}
        if (figure := heat_map(view_of(kind).heatmap, found.rows[kind], asked)) is not None:
            write_figure(figure, out / name)
            name = f"heatmaps_{kind}"
