"""Accuracy over the length of the prompt as a figure."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from retrieval.results import Retrieval
from tape.evaluation.figures import write_figure


def draw(folder: Path, name: str, results: Retrieval) -> None:
    """Writes lengths.png and lengths.svg: accuracy with 95 % (Wilson) intervals."""
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    shares = [results.at(length) for length in results.lengths]
    accuracy, low, high = (
        np.array([s[key] for s in shares]) for key in ("accuracy", "low", "high")
    )
    spread = np.array([accuracy - low, high - accuracy]).clip(min=0)
    axes.errorbar(results.lengths, accuracy, spread, fmt="o-", capsize=3, markersize=4)
    trained = results.evaluated["trained"]
    axes.axvline(trained, color="tab:red", linestyle=":", label="trained up to here")
    axes.set(xlabel="tokens of the prompt", ylabel="accuracy", ylim=(-0.03, 1.03), title=name)
    axes.set_xlim(left=0)
    axes.grid(alpha=0.3)
    axes.legend()
    write_figure(figure, folder / "lengths")
