"""Loss against compute for models of several sizes, and the compute that an encoding saves.

    python sweep.py sweep=scaling
    python -m tape.results.scaling output/scaling_*_[0-9] --baseline rope

The fit is L = E + b C^-a over all runs, with C the FLOPs of training, E and a shared by the
encodings and b an encoding's own. Its gain over the baseline, (b_baseline / b)^(1/a), is how many
times as much compute the baseline needs for the same loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy.optimize import least_squares

from tape.command import Parser, expected_errors, integer, result_folder
from tape.evaluation.figures import write_figure
from tape.evaluation.tables import markdown_table
from tape.files import write_text
from tape.results.finals import COMPUTE, LOSS, end, read_all, value
from tape.results.rows import NAMED, check_given, row_labels
from tape.results.runs import Run, write_runs

# What may differ between sizes, beside the encoding, its learning rate and the seed.
OF_A_SIZE = ("model.*", "trainer.max_steps", "sequences_per_step")
BOOTSTRAP = 1000
NOTE = """\
L = {floor:.3f} + b C^-{exponent:.3f}, L in nats per token and C in FLOPs; E and the exponent are
shared. Gain: how many times as much compute {baseline} needs for the same loss.
{intervals}
Residual: root mean square of the losses around the fit; the largest deviation of a size's mean is
{worst:+.4f} nats ({where})."""

INTERVALS = """\
Intervals: the 2.5th to 97.5th percentile of {:,} fits to seeds drawn again within each encoding and
size."""
NO_INTERVALS = "No intervals: they need --samples, and two seeds of each encoding and size."


class Fit(NamedTuple):
    """
    Attributes:
        floor: E, the loss that no compute removes.
        exponent: a.
        scales: b by encoding, for compute in units of the geometric mean.
        unit: FLOPs.
    """

    floor: float
    exponent: float
    scales: dict[str, float]
    unit: float

    def loss(self, label: str, compute: np.ndarray) -> np.ndarray:
        return self.floor + self.scales[label] * (compute / self.unit) ** -self.exponent

    def gain(self, label: str, baseline: str) -> float:
        return (self.scales[baseline] / self.scales[label]) ** (1 / self.exponent)


def points_of(runs: Sequence[Run]) -> pd.DataFrame:
    """Returns the columns label, compute, seed and loss, a row per run.

    Raises:
        ValueError: if runs differ in more than size, encoding, learning rate and seed, or there are
            fewer than three sizes.
    """
    check_given(runs, OF_A_SIZE)
    own = [
        {k: v for k, v in run.settings.items() if k.startswith("position.") or k in NAMED}
        for run in runs
    ]
    kinds = [x for n, x in enumerate(own) if x not in own[:n]]
    labels = row_labels(kinds)
    points = pd.DataFrame(
        {
            "label": [labels[kinds.index(x)] for x in own],
            "size": [_size(run) for run in runs],
            "compute": [value(run, COMPUTE) for run in runs],
            "seed": [run.seed for run in runs],
            "loss": [value(run, LOSS) for run in runs],
        }
    )
    if twice := points[points.duplicated(["label", "size", "seed"])].index.tolist():
        raise ValueError(f"{runs[twice[0]].folder} is given twice, or is as another run")
    if (sizes := points["size"].nunique()) < 3:
        raise ValueError(f"{sizes} sizes of models: a fit of loss against compute needs three")
    return points


def _size(run: Run) -> str:
    """The settings that tell sizes apart, as text."""
    names = ("model.hidden_size", "model.num_hidden_layers", "model.intermediate_size")
    given = [run.settings.get(name) for name in (*names, "trainer.max_steps")]
    return " x ".join(map(str, given))


def fit(points: pd.DataFrame) -> Fit:
    """Fits the curve by least squares."""
    labels = list(dict.fromkeys(points["label"]))
    unit = float(np.exp(np.log(points["compute"]).mean()))
    x = np.log(points["compute"].to_numpy() / unit)
    which = points["label"].map(labels.index).to_numpy()
    loss = points["loss"].to_numpy()

    def residuals(parameters: np.ndarray) -> np.ndarray:
        floor, exponent, *scales = parameters
        return floor + np.exp(np.array(scales)[which] - exponent * x) - loss

    lowest = loss.min()
    start = [lowest / 2, 0.2, *[np.log(lowest / 2)] * len(labels)]
    low = [0, 0.01, *[-10.0] * len(labels)]
    high = [lowest, 2, *[10.0] * len(labels)]
    found = least_squares(residuals, start, bounds=(low, high), x_scale="jac").x
    scales = dict(zip(labels, np.exp(found[2:]).tolist(), strict=True))
    return Fit(float(found[0]), float(found[1]), scales, unit)


def drawn_again(points: pd.DataFrame, random: np.random.Generator) -> pd.DataFrame:
    """Returns as many runs of each encoding and size, drawn with replacement."""
    groups = points.groupby(["label", "size"], sort=False).indices.values()
    return points.iloc[np.concatenate([random.choice(each, len(each)) for each in groups])]


def table(points: pd.DataFrame, baseline: str, samples: int) -> tuple[str, Fit]:
    """Returns gains over the baseline as markdown, and the fit.

    Raises:
        ValueError: if the baseline is none of the encodings.
    """
    found = fit(points)
    if baseline not in found.scales:
        raise ValueError(f"--baseline {baseline!r} is none of {', '.join(found.scales)}")
    random = np.random.Generator(np.random.PCG64(0))
    if points.groupby(["label", "size"]).size().min() < 2:
        samples = 0  # a group of one run has nothing to draw from
    again = [fit(drawn_again(points, random)) for _ in range(samples)]
    errors = points["loss"] - np.concatenate(
        [found.loss(row.label, np.array([row.compute])) for row in points.itertuples()]
    )
    lines = [["encoding", "n", "gain", "95 % interval", "residual"]]
    for label in sorted(found.scales, key=lambda x: -found.gain(x, baseline)):
        own = points["label"] == label
        gains = [each.gain(label, baseline) for each in again]
        low, high = np.percentile(gains, [2.5, 97.5]) if samples else (np.nan, np.nan)
        spread = "-" if label == baseline or not samples else f"{low:.2f} to {high:.2f}"
        residual = f"{float(np.sqrt((errors[own] ** 2).mean())):.4f}"
        lines.append(
            [label, str(own.sum()), f"{found.gain(label, baseline):.2f}", spread, residual]
        )
    means = errors.groupby([points["label"], points["size"]]).mean()
    where = means.abs().idxmax()
    note = NOTE.format(
        floor=found.floor,
        exponent=found.exponent,
        baseline=baseline,
        intervals=INTERVALS.format(samples) if samples else NO_INTERVALS,
        worst=means[where],
        where=f"{where[0]}, {where[1]}",
    )
    return f"{markdown_table(lines)}\n\n{note}", found


def draw(points: pd.DataFrame, found: Fit) -> Figure:
    """Returns losses against compute, a point per run, and the fitted curve of each encoding."""
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.subplots()
    for n, (label, own) in enumerate(points.groupby("label", sort=False)):
        compute = np.geomspace(points["compute"].min(), points["compute"].max())
        axes.plot(own["compute"], own["loss"], "o", ms=4, color=f"C{n}", label=label)
        axes.plot(compute, found.loss(label, compute), color=f"C{n}")
    axes.set_xscale("log")
    axes.set_xlabel("FLOPs of training")
    axes.set_ylabel("validation loss, nats per token")
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper")
    return figure


@expected_errors()
def main(given: list[str] | None = None) -> None:
    description = "Fit loss against compute over sizes of models, and compare encodings by it."
    parser = Parser(prog="python -m tape.results.scaling", description=description)
    add = parser.add_argument
    add("runs", type=Path, nargs="+", help="folders of runs, or of results of this command")
    add("--baseline", default="rope", help="the encoding whose compute is the unit")
    add("--samples", type=integer(0), default=BOOTSTRAP, help="of the bootstrap")
    add("--out", type=result_folder, default="output/scaling", help="for the results")
    arguments = parser.parse_args(given)
    runs, missing = read_all(arguments.runs)
    points = points_of(runs)
    text, found = table(points, arguments.baseline, arguments.samples)
    write_runs(arguments.out, runs)
    write_text(arguments.out / "table.md", text + "\n")
    write_figure(draw(points, found), arguments.out / "scaling")
    print(text)
    print(f"\nalso in {arguments.out}, with a picture and the rows of each run")
    end(arguments.runs, missing)


if __name__ == "__main__":
    main()
