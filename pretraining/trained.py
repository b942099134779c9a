"""What a run gave: perplexity by length, the loss while it trained, its speed and its memory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from tape.evaluation.compare import Run
from tape.evaluation.figures import Curve
from tape.evaluation.perplexities import Perplexities, read_perplexities
from tape.files import reading
from tape.training.progress import MetricsFile, read_metrics

TABLE = "perplexity.csv"


@dataclass(frozen=True)
class Trained:
    """
    Attributes:
        training, validation: steps and the loss (nats per token) there.
        speed: tokens per second, the median over the log of the training.
        memory: GiB at most, of the device or else of the process.
    """

    perplexities: Perplexities
    training: Curve
    validation: Curve
    speed: float
    memory: float

    @property
    def shortest(self) -> float:
        """The perplexity that a table is ordered by."""
        return next(iter(self.perplexities.at.values()))


def read_run(folder: Path, name: str) -> Run[Trained]:
    """The run in a folder, measured in its folder `name`.

    Raises:
        ValueError, OSError: if it was not trained to its end, or not measured since, or its files
            are damaged.
    """
    path = folder / name / TABLE
    if not path.is_file():
        raise ValueError(f"{path} is not there: the run did not finish, or was not measured")
    evaluated, perplexities = read_perplexities(path)
    rows = read_metrics(metrics := folder / MetricsFile.FILE)
    logged = [row for row in rows if "loss" in row]
    if not logged:
        raise ValueError(f"{metrics} has no loss of a training")
    with reading(metrics):
        results = Trained(
            perplexities,
            _curve(logged, "loss"),
            _curve([row for row in rows if "eval_loss" in row], "eval_loss"),
            median(_column(logged, "tokens_per_second")),
            max(_column(logged, "peak_memory_gib")),
        )
    return Run.read(folder, name, evaluated, results)


def _curve(rows: list[dict[str, float]], column: str) -> Curve:
    return _column(rows, "step"), _column(rows, column)


def _column(rows: list[dict[str, float]], column: str) -> list[float]:
    found = [float(row[column]) for row in rows]
    if not all(0 <= value < math.inf for value in found):
        raise ValueError(f"{column} must be finite and not negative")
    return found
