"""The results of an evaluation: accuracy by length and depth, in passkey.csv.

`accuracy` is the share of prompts answered with all values, `found` the share of values found, and
`tokens` the mean number of tokens of a prompt.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from tape.evaluation.accuracy import Accuracy, Measure
from tape.evaluation.figures import curve, write_figure
from tape.evaluation.view import (
    PERCENT,
    Asked,
    Column,
    Evaluation,
    HeatMap,
    Panel,
    View,
    select,
)

TIMES = (2, 4, 8)  # the trained length: columns of a comparison


HEAT = HeatMap(
    down="depth",
    across="length",
    labels=("depth of the key", "tokens of the prompt"),
    trained=lambda asked: (None, asked["trained"]),
)


def draw_lengths(folder: Path, name: str, evaluation: Evaluation) -> None:
    """Writes lengths.png, .svg: accuracy by length."""
    rows = select(evaluation.rows, "accuracy").assign(row=name, seed=0)
    figure = curve(rows, "length")
    (axes,) = figure.axes
    trained = evaluation.asked["trained"]
    axes.axvline(trained, color="tab:red", linestyle=":", label="trained up to here")
    axes.set(xlabel=HEAT.labels[1], ylabel="accuracy", ylim=(-0.03, 1.03), title=name)
    axes.set_xlim(left=0)
    axes.legend()
    write_figure(figure, folder / "lengths")


def _columns(asked: list[Asked], rows: pd.DataFrame) -> list[Column]:
    """Accuracy up to the trained length and at multiples of it; at every length if runs were
    trained on different lengths, as bases and their extensions are."""
    lengths = sorted({*rows["length"].dropna().astype(int)})
    trained = {each["trained"] for each in asked}
    if len(trained) > 1:
        columns = [_at(length, f"keys {length:,}, %") for length in lengths]
        return [*columns[:-1], columns[-1]._replace(compared=f"{lengths[-1]:,}")]
    (end,) = trained
    within = Column(
        f"up to {end:,} tokens, %", "accuracy", PERCENT, lambda rows: rows["length"] <= end
    )
    beyond = [_at(n * end, f"{n * end:,} ({n}x), %") for n in TIMES if n * end in lengths]
    return [within, *(column._replace(compared=column.title[:-3]) for column in beyond)]


def _at(length: int, title: str) -> Column:
    return Column(title, "accuracy", PERCENT, lambda rows: rows["length"] == length)


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
    best=lambda asked: lambda rows: rows["length"] > asked["trained"],
    panels=(
        Panel(
            lambda rows: select(rows, "accuracy"),
            "length",
            (HEAT.labels[1], "accuracy"),
            share=True,
        ),
    ),
    heatmap=HEAT,
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
