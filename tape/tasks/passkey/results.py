"""The results of an evaluation: accuracy by length and depth, in passkey.csv.

`accuracy` is the share of prompts answered with all values, `found` the share of values found, and
`tokens` the mean number of tokens of a prompt.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from tape.evaluation.accuracy import Accuracy, Measure, ratio, share
from tape.evaluation.figures import write_figure
from tape.evaluation.view import PERCENT, Asked, Column, Evaluation, HeatMap, Panel, Points, View

TIMES = (2, 4, 8)  # the trained length: columns of a comparison


def draw_lengths(folder: Path, name: str, evaluation: Evaluation) -> None:
    """Writes lengths.png, .svg: accuracy with 95 % (Wilson) intervals."""
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    by_length = {length: share(rows) for length, rows in evaluation.rows.groupby("length")}
    accuracy, low, high = (
        np.array([each[key] for each in by_length.values()]) for key in ("accuracy", "low", "high")
    )
    spread = np.array([accuracy - low, high - accuracy]).clip(min=0)
    axes.errorbar([*by_length], accuracy, spread, fmt="o-", capsize=3, markersize=4)
    trained = evaluation.asked["trained"]
    axes.axvline(trained, color="tab:red", linestyle=":", label="trained up to here")
    axes.set(xlabel="tokens of the prompt", ylabel="accuracy", ylim=(-0.03, 1.03), title=name)
    axes.set_xlim(left=0)
    axes.grid(alpha=0.3)
    axes.legend()
    write_figure(figure, folder / "lengths")


def _columns(asked: list[Asked], tables: list[pd.DataFrame]) -> list[Column]:
    """Accuracy up to the trained length and at multiples of it; at every length if runs were
    trained on different lengths, as bases and their extensions are."""
    lengths = _lengths(tables)
    trained = {each["trained"] for each in asked}
    if len(trained) > 1:
        *shorter, longest = (_at(length, f"keys {length:,}, %") for length in lengths)
        return [*shorter, longest._replace(compared=f"{lengths[-1]:,}")]
    (end,) = trained
    within = Column(f"up to {end:,} tokens, %", "accuracy", PERCENT, lambda x: x["length"] <= end)
    beyond = [_at(n * end, f"{n * end:,} ({n}x), %") for n in TIMES if n * end in lengths]
    return [within, *(column._replace(compared=column.title[:-3]) for column in beyond)]


def _at(length: int, title: str) -> Column:
    return Column(title, "accuracy", PERCENT, lambda rows: rows["length"] == length)


def _lengths(tables: list[pd.DataFrame]) -> list[int]:
    return sorted({int(length) for table in tables for length in table["length"].dropna()})


def _best(asked: list[Asked], tables: list[pd.DataFrame]) -> Column:
    """Accuracy beyond the trained length; of all lengths if there are no others."""
    end = asked[0]["trained"]
    if _lengths(tables)[-1] <= end:
        return Column("", "accuracy", PERCENT)
    return Column("", "accuracy", PERCENT, lambda rows: rows["length"] > end)


def _points(rows: pd.DataFrame) -> Points:
    by_length = {length: ratio(group) for length, group in rows.groupby("length")}
    return [*by_length], [*by_length.values()]


VIEW = View(
    keys=(
        "max_tokens",
        "interval",
        "num_tests",
        "depths",
        "seed",
        "keys",
        "values",
        "plain",
        "original",
    ),
    columns=_columns,
    best=_best,
    about=lambda asked: {
        "keys x values": f"{asked['keys']} x {asked['values']}",
        "trained length": str(asked["trained"]),
    },
    panels=(Panel(_points, "tokens of the prompt", "accuracy", tokens=True, share=True),),
    heatmap=HeatMap(
        down="depth",
        across="length",
        down_label="depth of the key",
        across_label="tokens of the prompt",
        trained=lambda asked: (None, asked["trained"]),
    ),
)
PASSKEY = Accuracy(
    file="passkey.csv",
    cell={"length": "length", "depth": "depth"},
    counts=("prompts", "right", "found", "tokens"),
    measures={
        "accuracy": Measure("right", "prompts"),
        "found": Measure("found", "prompts", times="values"),
        "tokens": Measure("tokens", "prompts", unit="tokens"),
    },
    view=VIEW,
    listing="lengths",
    listed=lambda rows: rows["length"],
    line="{length} tokens",
)
read_evaluation = PASSKEY.read
