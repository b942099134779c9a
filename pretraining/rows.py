"""The rows of a table of encodings, and how far each is from one of them, seed by seed."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from scipy.stats import ttest_1samp

from pretraining.trained import Trained, read_run
from tape.command import in_one_line
from tape.evaluation import compare as comparison
from tape.evaluation.compare import DERIVED_SETTINGS, Row, Run
from tape.evaluation.intervals import student
from tape.evaluation.perplexities import COMPARABILITY_KEYS
from tape.training.runs import differences

ENCODING_SETTINGS = rf"position\..*|{DERIVED_SETTINGS}"  # what rows may differ in


class Difference(NamedTuple):
    """Of the loss (nats per token) to that of another row with the same seeds."""

    mean: float
    half_width: float  # of its 95 % interval
    p: float  # of Student's t-test of no difference, in pairs


@dataclass(frozen=True)
class Compared:
    """
    Attributes:
        rows: the best in the shortest windows first.
        missing: what cannot be compared, and why.
    """

    rows: list[Row[Trained]]
    missing: dict[Path, str]

    def row(self, name: str) -> Row[Trained] | None:
        """By its label, or by the folder of one of its runs; None if there is none."""
        for row in self.rows:
            if name == row.label or Path(name) in [run.folder for run in row.runs]:
                return row
        return None

    @property
    def lengths(self) -> list[int]:
        return list(self.rows[0].runs[0].results.perplexities.at)


def compared(folders: Iterable[Path], name: str) -> Compared:
    """Runs that differ in their encoding and seed.

    Raises:
        ValueError: if none was measured; if they were not given, or not asked, the same.
    """
    runs: list[Run[Trained]] = []
    missing: dict[Path, str] = {}
    for folder in folders:
        try:
            runs.append(read_run(folder, name))
        except (ValueError, OSError) as error:
            missing[folder] = in_one_line(error)
    if not runs:
        raise ValueError("; ".join(missing.values()) or "no runs were given")
    for run in runs[1:]:
        if changes := differences(*(_given(of.settings) for of in (runs[0], run))):
            raise ValueError(
                f"{runs[0].folder} and {run.folder} were not given the same: {'; '.join(changes)}; "
                f"compare runs of one budget"
            )
    rows = comparison.rows_of(runs, COMPARABILITY_KEYS)
    rows.sort(key=lambda row: mean(run.results.shortest for run in row.runs))
    return Compared(rows, missing)


def _given(settings: dict[str, Any]) -> dict[str, Any]:
    return {
        key: value for key, value in settings.items() if not re.fullmatch(ENCODING_SETTINGS, key)
    }


def difference(row: Row[Trained], baseline: Row[Trained], length: int) -> Difference | None:
    """Of a row to the baseline, over the seeds that both have; None of less than two."""
    losses, others = (
        {run.seed: run.results.perplexities.losses[length] for run in each.runs}
        for each in (row, baseline)
    )
    pairs = [losses[seed] - others[seed] for seed in sorted(losses.keys() & others.keys())]
    if len(pairs) < 2 or row is baseline:
        return None
    p = float(ttest_1samp(pairs, 0).pvalue) if len(set(pairs)) > 1 else float(pairs[0] == 0)
    return Difference(mean(pairs), student(pairs), p)
