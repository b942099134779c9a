"""What one run was measured to have: perplexity by length, and the loss by position."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tape.evaluation.curves import ABOUT, position_table, read_curves
from tape.evaluation.picture import curve

# What has to be the same for runs that are compared, whatever they were trained with.
COMPARABILITY_KEYS = (*(c for c in ABOUT if c not in ("model", "model_hash", "length")), "lengths")


@dataclass(frozen=True)
class Perplexities:
    """
    Attributes:
        at: by length in tokens.
        losses: by length, the mean loss (nats per token).
        by_position: tokens before a token, and its mean loss (nats) in the longest windows.
    """

    at: dict[int, float]
    losses: dict[int, float]
    by_position: tuple[list[float], list[float]]


def read_perplexities(path: Path) -> tuple[dict[str, Any], Perplexities]:
    """The one measurement in a perplexity.csv: what was asked, and what came out.

    Raises:
        ValueError: if there is another number of them, or the file is another table.
    """
    rows, bins = read_curves(path)
    about = [column for column in ABOUT if column != "length"]
    if len({tuple(row[column] for column in about) for row in rows}) != 1:
        differing = [c for c in about if len({row[c] for row in rows}) > 1] or ["no row at all"]
        raise ValueError(
            f"{path} does not hold one measurement of one model ({', '.join(differing)}): remove "
            f"it and measure again"
        )
    rows.sort(key=lambda row: int(row["length"]))
    at, losses = (
        {int(row["length"]): float(row[column]) for row in rows} for column in ("perplexity", "nll")
    )
    if not bins:
        raise ValueError(f"{position_table(path)} is missing or empty: measure again")
    by_position = curve([b for b in bins if b["length"] == rows[-1]["length"]])
    evaluated = {**rows[0], "model": rows[0]["model_hash"], "lengths": list(at)}
    return evaluated, Perplexities(at, losses, by_position)
