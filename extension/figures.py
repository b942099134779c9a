"""What methods of extension give, as a picture: perplexity by length, the loss by position in the
longest windows, and pass keys by length."""

from __future__ import annotations

from collections.abc import Callable

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from extension.measured import Measure, Measured
from extension.methods import BASE, Method, lengths_of
from tape.evaluation.compare import Run
from tape.evaluation.figures import Curve, over_seeds


def by_length(run: Run[Measured]) -> Curve:
    return list(run.results.at), list(run.results.at.values())


def by_position(run: Run[Measured]) -> Curve:
    return run.results.by_position


# What is drawn, where the curve is found, and the words below and beside it.
PANELS: list[tuple[Measure, Callable[[Run[Measured]], Curve], str, str]] = [
    ("perplexity", by_length, "window (tokens)", "perplexity"),
    ("perplexity", by_position, "tokens before it in the longest windows", "loss (nats per token)"),
    ("passkey", by_length, "prompt (tokens)", "share of pass keys found"),
]


def figure_of(methods: list[Method]) -> Figure:
    """A panel for each of PANELS that was measured, with a line per method: the mean over seeds,
    and its 95 % interval as a band. The base is dashed; a red line is where its training ended."""
    panels = [panel for panel in PANELS if any(panel[0] in method.rows for method in methods)]
    figure = Figure(figsize=(4.5 * len(panels) + 1.8, 4.2), layout="constrained")
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        draw(axes, methods, *panel)
    lines = {line.get_label(): line for axes in figure.axes for line in axes.lines}
    figure.legend(handles=list(lines.values()), loc="outside right upper")
    return figure


def draw(
    axes: Axes,
    methods: list[Method],
    measure: Measure,
    curve: Callable[[Run[Measured]], Curve],
    below: str,
    beside: str,
) -> None:
    for n, method in enumerate(methods):
        if measure not in method.rows:
            continue
        runs = method.rows[measure].runs
        style = ("--", "black") if method.label == BASE else ("-", f"C{n}")
        over_seeds(axes, method.label, [curve(run) for run in runs], *style)
        if method.label == BASE:
            end = runs[0].evaluated.get("trained", runs[0].settings["length"])
            axes.axvline(end, color="tab:red", linestyle=":", label="base trained up to here")
    if measure == "perplexity":
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:,.0f}")
    else:
        axes.set_ylim(-0.03, 1.03)
    if curve is by_length:
        axes.set_xticks(lengths_of(methods, measure))
    axes.set(xlabel=below, ylabel=beside)
    axes.grid(alpha=0.3)
