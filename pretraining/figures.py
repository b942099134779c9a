"""A comparison as a picture: the loss while training, by length, and by position."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from pretraining.rows import Compared
from pretraining.trained import Trained
from tape.evaluation.compare import Row
from tape.evaluation.figures import Curve, over_seeds


def validation(results: Trained) -> Curve:
    return results.validation if results.validation[0] else results.training


def by_length(results: Trained) -> Curve:
    at = results.perplexities.at
    return list(at), list(at.values())


def by_position(results: Trained) -> Curve:
    return results.perplexities.by_position


# What is drawn, the words below and beside it, and whether tokens are below.
PANELS = (
    (validation, "steps", "validation loss (nats per token)", False),
    (by_length, "window (tokens)", "perplexity", True),
    (by_position, "tokens before it in the longest windows", "loss (nats per token)", True),
)


def figure_of(found: Compared) -> Figure:
    """A line per row, the mean over seeds, with its 95 % interval as a band; a red line where the
    trained length ends."""
    figure = Figure(figsize=(15, 4.4), layout="constrained")
    trained = found.rows[0].runs[0].settings["length"]
    for axes, (curve, below, beside, tokens) in zip(
        figure.subplots(1, len(PANELS)), PANELS, strict=True
    ):
        for row in found.rows:
            over_seeds(axes, row.label, _shared(row, curve))
        if tokens:
            axes.axvline(trained, color="tab:red", linestyle=":", label="trained up to here")
            axes.set_xscale("log", base=2)
            axes.xaxis.set_major_formatter("{x:,.0f}")
        if curve is by_length:
            axes.set_xticks(found.lengths)
            axes.set_yscale("log")
            low, high = axes.get_ylim()
            if high < 10 * low:  # the ticks of a log axis are too far apart
                axes.yaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10]))
                axes.yaxis.set_minor_locator(NullLocator())
            axes.yaxis.set_major_formatter("{x:,g}")
        axes.set(xlabel=below, ylabel=beside)
        axes.grid(alpha=0.3)
    handles, labels = figure.axes[-1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper")
    return figure


def _shared(row: Row[Trained], curve) -> list[Curve]:
    """The curves of all seeds, where all of them have a value: a continued run may have fewer."""
    curves = [dict(zip(*curve(run.results), strict=True)) for run in row.runs]
    places = [x for x in curves[0] if all(x in each for each in curves)]
    return [(places, [each[x] for x in places]) for each in curves]
