"""The results of perplexity: by the length of the window, and by the position in it.

perplexity.csv has a row per model, text, convention and length: how many tokens were scored, the
mean loss `nll` (nats), and perplexity = exp(nll). perplexity_by_position.csv has the mean loss of
the tokens with first..last tokens before them in their window.
"""

from __future__ import annotations

import math
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from tape.evaluation.scoring import Perplexity, exp
from tape.evaluation.tables import Row, add_rows, read_table

# What a row is about: it is there once.
ABOUT = (
    *("model", "model_hash", "data", "data_hash"),
    *("convention", "length", "stride", "batch_size", "dtype"),
)
COLUMNS = (*ABOUT, "tokens", "nll", "perplexity")
POSITION_COLUMNS = (*ABOUT, "first", "last", "tokens", "nll")

# Where bins of positions begin: four in an octave, as far as whole numbers allow.
BINS = np.unique(np.rint(2 ** (np.arange(120) / 4)).astype(np.int64))

Binned = list[tuple[int, int, float]]  # bin, tokens, their summed loss


def binned(positions: np.ndarray, losses: np.ndarray) -> Binned:
    """The losses of tokens, by how many tokens were before them in the window."""
    bins = np.searchsorted(BINS, positions, side="right") - 1
    tokens, sums = np.bincount(bins), np.bincount(bins, losses)
    return [(int(k), int(tokens[k]), float(sums[k])) for k in tokens.nonzero()[0]]


def average(length: int, batches: list[Binned], by_batch: bool) -> Perplexity:
    """Over all tokens alike; or the mean of the means of batches, whose number of tokens may
    differ."""
    counts = [(sum(n for _, n, _ in batch), math.fsum(x for *_, x in batch)) for batch in batches]
    tokens = sum(n for n, _ in counts)
    if by_batch:
        nll = math.fsum(x / n for n, x in counts) / len(counts)
    else:
        nll = math.fsum(x for _, x in counts) / tokens
    if not math.isfinite(nll):
        raise ValueError(f"the mean loss in windows of {length:,} is not finite")
    return Perplexity(length, tokens, nll)


def by_position(length: int, batches: list[Binned]) -> list[dict[str, Any]]:
    """The mean loss in each bin of positions in a window of this length."""
    found: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for k, tokens, loss in (part for batch in batches for part in batch):
        found[k].append((tokens, loss))
    rows = []
    for k, parts in sorted(found.items()):
        tokens = sum(n for n, _ in parts)
        bounds = {"first": int(BINS[k]), "last": min(int(BINS[k + 1]), length) - 1}
        rows.append({**bounds, "tokens": tokens, "nll": math.fsum(x for _, x in parts) / tokens})
    return rows


def position_table(path: Path) -> Path:
    return path.with_name(f"{path.stem}_by_position.csv")


def read_curves(path: Path) -> tuple[list[Row], list[Row]]:
    """The rows of a table, and of that by position beside it; none if they are not there.

    Raises:
        ValueError: if one of them is another table, or damaged.
    """
    rows = read_table(path, COLUMNS, ("length", "tokens"), ("nll", "perplexity"))
    for n, row in enumerate(rows, start=2):
        if not math.isclose(float(row["perplexity"]), exp(float(row["nll"])), rel_tol=1e-6):
            raise ValueError(f"{path}, line {n}: perplexity={row['perplexity']} is not exp(nll)")
    beside = position_table(path)
    bins = read_table(beside, POSITION_COLUMNS, ("length", "first", "last", "tokens"), ("nll",))
    for n, row in enumerate(bins, start=2):
        if int(row["last"]) < int(row["first"]):
            raise ValueError(f"{beside}, line {n}: the last position is before the first")
    return rows, bins


def check_tables(path: Path) -> None:
    """Raise a ValueError if results cannot be added to these tables."""
    if path.suffix != ".csv":
        raise ValueError(f"--out {path} must end in .csv")
    read_curves(path)


def write(path: Path, about: dict[str, Any], batches: dict[int, list[Binned]]) -> list[Perplexity]:
    """Add the results at several lengths to the tables.

    Args:
        about: a value for each of ABOUT but the length, empty where it does not apply.
        batches: by length, what was found in each.
    """
    found, rows, bins = [], [], []
    for length, parts in sorted(batches.items()):
        found.append(average(length, parts, by_batch=about["convention"] == "longlora"))
        key = about | {"length": length}
        scores = {name: getattr(found[-1], name) for name in ("tokens", "nll", "perplexity")}
        rows.append(key | scores)
        bins += [key | row for row in by_position(length, parts)]
    add_rows(position_table(path), POSITION_COLUMNS, len(ABOUT) + 2, bins)
    add_rows(path, COLUMNS, len(ABOUT), rows)
    return found
