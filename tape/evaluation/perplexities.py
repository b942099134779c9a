"""Perplexity of a run in long form, and how it is compared: by window length and by position."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from tape.evaluation.curves import ABOUT, position_table, read_curves
from tape.evaluation.picture import curve
from tape.evaluation.scoring import exp
from tape.evaluation.view import (
    AS_IT_IS,
    PERPLEXITY,
    WHOLE,
    Asked,
    Column,
    Evaluation,
    Panel,
    Points,
    View,
)


def read_evaluation(folder: Path) -> Evaluation:
    """The one measurement in a folder's perplexity.csv: the loss of whole windows by their length,
    and of the longest windows by the number of tokens before (from `first` to `last`).

    Raises:
        ValueError: if there are several measurements or none, or a file is damaged.
    """
    rows, bins = read_curves(path := folder / "perplexity.csv")
    about = [column for column in ABOUT if column != "length"]
    if len({tuple(row[column] for column in about) for row in rows}) != 1:
        differing = [c for c in about if len({row[c] for row in rows}) > 1] or ["no row at all"]
        raise ValueError(
            f"{path} does not hold one measurement of one model ({', '.join(differing)}): remove "
            f"it and measure again"
        )
    if not bins:
        raise ValueError(f"{position_table(path)} is missing or empty: measure again")
    rows.sort(key=lambda row: int(row["length"]))
    lengths = [int(row["length"]) for row in rows]
    asked = {name: rows[0][name] for name in about} | {"lengths": lengths}
    asked["model"] = asked.pop("model_hash")
    longest = [row for row in bins if int(row["length"]) == lengths[-1]]
    found = [
        {
            **{"measure": "loss", **{name: int(row[name]) for name in places}},
            **{"value": float(row["nll"]), "n": int(row["tokens"]), "unit": "nats"},
        }
        for table, places in ((rows, ("length",)), (longest, ("length", "first", "last")))
        for row in table
    ]
    return Evaluation(asked, found)


def _windows(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of whole windows."""
    return rows[(rows["measure"] == "loss") & rows["first"].isna()].sort_values("length")


def _at(length: int, compared: str = "") -> Column:
    def where(rows: pd.DataFrame) -> pd.Series:
        return (rows["length"] == length) & rows["first"].isna()

    return Column(f"perplexity {length:,}", "loss", PERPLEXITY, where, compared)


def _columns(asked: list[Asked], tables: list[pd.DataFrame]) -> list[Column]:
    lengths = asked[0]["lengths"]
    compared = {length: f"{length:,}" for length in (lengths[0], lengths[-1])}
    columns = [_at(length, compared.get(length, "")) for length in lengths]
    if any((table["measure"] == "speed").any() for table in tables):
        columns.append(Column("tokens/s", "speed", WHOLE))
        columns.append(Column("memory, GiB", "peak memory", AS_IT_IS))
    return columns


def _best(asked: list[Asked], tables: list[pd.DataFrame]) -> Column:
    return _at(asked[0]["lengths"][-1])


def _validation(rows: pd.DataFrame) -> Points:
    for measure in ("validation loss", "training loss"):
        if (found := rows[rows["measure"] == measure]).size:
            return list(found["step"]), list(found["value"])
    return [], []


def _by_length(rows: pd.DataFrame) -> Points:
    rows = _windows(rows)
    return list(rows["length"]), [exp(loss) for loss in rows["value"]]


def _by_position(rows: pd.DataFrame) -> Points:
    return curve(
        [
            {"first": row.first, "last": row.last, "tokens": row.n, "nll": row.value}
            for row in rows[(rows["measure"] == "loss") & rows["first"].notna()].itertuples()
        ]
    )


VIEW = View(
    keys=(*(name for name in ABOUT if name not in ("model", "model_hash", "length")), "lengths"),
    columns=_columns,
    best=_best,
    descending=False,
    panels=(
        Panel(_validation, "steps", "validation loss (nats per token)"),
        Panel(_by_length, "window (tokens)", "perplexity", tokens=True, log_x=True, log_y=True),
        Panel(
            _by_position,
            "tokens before it in the longest windows",
            "loss (nats per token)",
            tokens=True,
            log_x=True,
        ),
    ),
)
