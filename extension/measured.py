"""What runs were found to do with longer contexts: perplexities, and pass keys.

Both lie in a folder of the run, `extend` unless named otherwise: perplexity.csv, with the loss by
position beside it, and passkey.csv with its summary. A run has one of them, or both.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from retrieval.compare import COMPARABILITY_KEYS as QUESTIONS
from retrieval.results import read_results
from tape.evaluation.compare import Run
from tape.evaluation.perplexities import COMPARABILITY_KEYS as PERPLEXITIES
from tape.evaluation.perplexities import read_perplexities

Measure = Literal["perplexity", "passkey"]

# What has to be the same for all, whatever they were trained with.
COMPARABILITY_KEYS: dict[Measure, tuple[str, ...]] = {
    "perplexity": PERPLEXITIES,
    "passkey": tuple(name for name in QUESTIONS if name != "trained"),
}


@dataclass(frozen=True)
class Measured:
    """What came out of one measure of a run.

    Attributes:
        at: by length in tokens: perplexity, or the share of pass keys that were found.
        by_position: of perplexity, tokens before a token and its mean loss (nats) in the longest
            windows.
    """

    at: dict[int, float]
    by_position: tuple[list[float], list[float]] | None = None

    @property
    def at_longest(self) -> float:
        return self.at[max(self.at)]


def read_runs(folder: Path, name: str) -> dict[Measure, Run[Measured]]:
    """The run in a folder by what was measured in its folder `name`.

    Raises:
        ValueError: if nothing was, or not since it was trained, or the files are damaged.
    """
    found: dict[Measure, tuple[dict[str, Any], Measured]] = {}
    if (path := folder / name / "perplexity.csv").is_file():
        evaluated, perplexities = read_perplexities(path)
        found["perplexity"] = evaluated, Measured(perplexities.at, perplexities.by_position)
    if (folder / name / "passkey.csv").is_file():
        found["passkey"] = _pass_keys(folder / name)
    if not found:
        raise ValueError(
            f"{folder / name} has neither perplexity.csv nor passkey.csv: measure that run first, "
            f"with --out {path} or --name {name}"
        )
    return {measure: Run.read(folder, name, *results) for measure, results in found.items()}


def _pass_keys(folder: Path) -> tuple[dict[str, Any], Measured]:
    results = read_results(folder)
    shares = {length: results.at(length)["accuracy"] for length in results.lengths}
    return results.evaluated, Measured(shares)
