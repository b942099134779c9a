"""Accuracy over length and depth as a picture, of one run or of several side by side, and over
length alone as a curve.

    python -m retrieval.heatmap output/passkey_*

Columns are lengths, rows depths with the beginning of the prompt at the top. A red line is where
the lengths of the training end.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from retrieval.results import Retrieval, read_results
from tape.command import expected_errors, parser_of_runs, picture
from tape.evaluation.figures import side_by_side, write_figure

LABELS = 8  # of lengths below a panel, at most


def panel(axes: Axes, name: str, results: Retrieval) -> AxesImage:
    rows, columns = len(results.depths), len(results.lengths)
    image = axes.imshow(
        results.accuracy.T, cmap="viridis", vmin=0, vmax=1, aspect="auto", interpolation="nearest"
    )
    step = -(-columns // LABELS)
    axes.set_xticks(range(step - 1, columns, step), results.lengths[step - 1 :: step])
    shown = range(0, rows, 5 if rows > LABELS else 1)
    axes.set_yticks(shown, [depth_label(results.depths[row]) for row in shown])
    trained = results.evaluated["trained"]
    edge = sum(length <= trained for length in results.lengths) - 0.5
    axes.axvline(edge, color="tab:red", linewidth=2, clip_on=False)
    axes.set(
        xlabel="tokens of the prompt",
        ylabel="depth of the key",
        title=f"{textwrap.fill(name, 36)}\nmean {results.share()['accuracy']:.3f}",
    )
    return image


def depth_label(depth: float | None) -> str:
    return "any" if depth is None else f"{depth:.0%}"


def figure_of(results: list[tuple[str, Retrieval]]) -> Figure:
    """A panel per run, (name, results), on one scale of colours."""
    return side_by_side(results, panel, "accuracy (all values right)")


def curve_of(name: str, results: Retrieval) -> Figure:
    """Accuracy over length, with 95 % (Wilson) intervals."""
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    shares = [results.at(length) for length in results.lengths]
    accuracy = np.array([share["accuracy"] for share in shares])
    spread = np.array(
        [[s["accuracy"] - s["low"] for s in shares], [s["high"] - s["accuracy"] for s in shares]]
    )
    axes.errorbar(results.lengths, accuracy, spread.clip(min=0), fmt="o-", capsize=3, markersize=4)
    end_of_training(axes, results.evaluated["trained"])
    axes.set(title=name)
    return figure


def end_of_training(axes: Axes, trained: int) -> None:
    """What all curves over length have in common."""
    axes.axvline(trained, color="tab:red", linestyle="--", label="training ends")
    axes.set(
        xlabel="tokens of the prompt", ylabel="accuracy (all values right)", ylim=(-0.03, 1.03)
    )
    axes.set_xlim(left=0)
    axes.grid(alpha=0.3)
    axes.legend()


def draw(name: str, results: Retrieval, folder: Path) -> None:
    """Write heatmap and lengths into a folder, .png and .svg of each; there is no heatmap of
    prompts that have the key anywhere."""
    if results.depths != [None]:
        write_figure(figure_of([(name, results)]), folder / "heatmap")
    write_figure(curve_of(name, results), folder / "lengths")


@expected_errors()
def main() -> None:
    arguments = parser_of_runs(
        "retrieval.heatmap",
        "Draw evaluated runs side by side.",
        "passkey",
        "output/passkey_heatmaps",
        picture,
    ).parse_args()
    found = [(run.name, read_results(run / arguments.name)) for run in arguments.runs]
    write_figure(figure_of(found), arguments.out)
    print(f"{arguments.out}.png and {arguments.out}.svg")


if __name__ == "__main__":
    main()
