"""The results of an evaluation: what was right at each length and depth, and what that says.

passkey.csv has a row per length and depth; summary.json holds the accuracy of each length,
wrong.jsonl some of the wrong answers of each cell.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tape.evaluation.journal import read_evaluated, some_of_each
from tape.evaluation.tables import csv_table, read_table
from tape.evaluation.view import (
    PERCENT,
    Asked,
    Column,
    Evaluation,
    HeatMap,
    Panel,
    Points,
    View,
)
from tape.files import reading, write_text
from tape.statistics import wilson, with_interval

FIELDS = ("length", "depth", "prompts", "right", "found", "tokens")
COLUMNS = (*FIELDS[:2], "tokens", "right", "prompts", "accuracy", "low", "high", "found", "values")
TIMES = (2, 4, 8)  # the trained length: columns of a comparison
NOT_GIVEN = ""  # the depth of prompts that have the key anywhere


@dataclass(frozen=True)
class Retrieval:
    """Counts of each cell, a length (rows) and a depth (columns).

    Args:
        lengths, depths: ascending; the only depth is None if the key was anywhere.
        prompts: how many were asked.
        right: how many were answered with all values that were asked for.
        found: how many of these values were given, all prompts together.
        tokens: of all prompts together.
        evaluated: the model and the settings; among them the length it was `trained` with and the
            number of `values` that each prompt asks for.
    """

    lengths: list[int]
    depths: list[float | None]
    prompts: np.ndarray
    right: np.ndarray
    found: np.ndarray
    tokens: np.ndarray
    evaluated: dict[str, Any]

    @classmethod
    def of(cls, cells: list[list[Any]], evaluated: dict[str, Any]) -> Retrieval:
        """From rows of FIELDS, which add up, and what was evaluated.

        Raises:
            ValueError: if they are not those of every length and depth.
        """
        lengths = sorted({cell[0] for cell in cells})
        depths = sorted({cell[1] for cell in cells}, key=lambda depth: depth or 0.0)
        counts = np.zeros((4, len(lengths), len(depths)), dtype=np.int64)
        for length, depth, *numbers in cells:
            counts[:, lengths.index(length), depths.index(depth)] += numbers
        prompts, right, found, _ = counts
        fitting = (right >= 0) & (right <= prompts) & (found >= right) & (prompts > 0)
        if not cells or not fitting.all():
            raise ValueError("these are not valid counts of correct answers: evaluate again")
        return cls(lengths, depths, *counts, evaluated)

    @property
    def accuracy(self) -> np.ndarray:
        return self.right / self.prompts

    def share(self, chosen: Any = ...) -> dict[str, float] | None:
        """The accuracy at some lengths together, by an index or a mask; None if there are none."""
        return with_interval(*(int(counts[chosen].sum()) for counts in (self.right, self.prompts)))

    def at(self, length: int) -> dict[str, float] | None:
        """The accuracy at a length; None if it was not asked."""
        return self.share(np.array(self.lengths) == length)

    def within(self) -> dict[str, float] | None:
        """The accuracy at the lengths of the training."""
        return self.share(np.array(self.lengths) <= self.evaluated["trained"])

    def summary(self) -> dict[str, Any]:
        asked = self.prompts.sum(axis=1)
        lengths = [
            {
                "length": length,
                "tokens": self.tokens[n].sum() / asked[n],
                **self.share(n),
                "found": self.found[n].sum() / (asked[n] * self.evaluated["values"]),
            }
            for n, length in enumerate(self.lengths)
        ]
        beyond = self.share(np.array(self.lengths) > self.evaluated["trained"])
        parts = {"all": self.share(), "inside": self.within(), "outside": beyond}
        return {**parts, "lengths": lengths}

    def table(self) -> str:
        """passkey.csv: mean tokens of a prompt, right answers, prompts, their share with its
        interval, and how many values were found of how many."""
        lines: list[Iterable[object]] = [COLUMNS]
        for (row, column), prompts in np.ndenumerate(self.prompts):
            right, depth = self.right[row, column], self.depths[column]
            lines.append(
                [
                    self.lengths[row],
                    NOT_GIVEN if depth is None else round(depth, 4),
                    round(self.tokens[row, column] / prompts, 1),
                    right,
                    prompts,
                    *(round(float(x), 4) for x in (right / prompts, *wilson(right, prompts))),
                    self.found[row, column],
                    prompts * self.evaluated["values"],
                ]
            )
        return csv_table(lines)


def write_results(folder: Path, evaluated: dict[str, Any], rows: list[dict[str, Any]]) -> Retrieval:
    """Write the files above from all batches of an evaluation.

    Args:
        evaluated: the model and the settings that parts begin with.
        rows: the parts, in any order.
    """
    rows = sorted(rows, key=lambda row: row["batch"])
    with reading(folder):
        results = Retrieval.of([cell for row in rows for cell in row["cells"]], evaluated)
        wrong = some_of_each(
            rows, evaluated["wrong"], lambda answer: (answer["length"], answer["depth"] or 0.0)
        )
    write_text(folder / "passkey.csv", results.table())
    summary = {**results.summary(), "evaluated": evaluated}
    write_text(folder / "summary.json", json.dumps(summary, indent=1) + "\n")
    write_text(folder / "wrong.jsonl", wrong)
    return results


def read_results(folder: Path) -> Retrieval:
    """What `write_results` wrote.

    Raises:
        ValueError: if it has not, or the files are damaged.
    """
    if not (path := folder / "passkey.csv").is_file():
        raise ValueError(f"{folder} has no passkey.csv: evaluate that run first")
    evaluated = read_evaluated(folder, "trained", "keys", "values")
    rows = read_table(path, COLUMNS, ("length", "prompts"), ("tokens",), ("right", "found"))
    with reading(path):
        if len({(row["length"], row["depth"]) for row in rows}) < len(rows):
            raise ValueError("a pair of length and depth occurs twice: evaluate again")
        return Retrieval.of([_cell(row) for row in rows], evaluated)


def _cell(row: dict[str, str]) -> list[Any]:
    depth = None if row["depth"] == NOT_GIVEN else float(row["depth"])
    prompts, right, found = (int(row[name]) for name in ("prompts", "right", "found"))
    return [int(row["length"]), depth, prompts, right, found, round(float(row["tokens"]) * prompts)]


def read_evaluation(folder: Path) -> Evaluation:
    """The results in long form, by length and depth: the share of prompts answered with all
    values, the share of values found, and the tokens of a prompt."""
    results = read_results(folder)
    rows = []
    for (row, column), prompts in np.ndenumerate(results.prompts):
        values = int(prompts * results.evaluated["values"])
        for measure, total, n, unit in (
            ("accuracy", results.right, int(prompts), "share"),
            ("found", results.found, values, "share"),
            ("tokens", results.tokens, int(prompts), "tokens"),
        ):
            place = {"length": results.lengths[row], "depth": results.depths[column]}
            value = {"value": total[row, column] / n, "n": n, "unit": unit}
            rows.append({"measure": measure, **place, **value})
    return Evaluation(results.evaluated, rows)


def _columns(asked: list[Asked], tables: list[pd.DataFrame]) -> list[Column]:
    """Accuracy up to the trained length and at multiples of it; at every length if runs were
    trained on different lengths, as bases and their extensions are."""
    lengths = _lengths(tables)
    trained = {each["trained"] for each in asked}
    if len(trained) > 1:
        return [_at(length, f"keys {length:,}, %") for length in lengths]
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
    rows = rows[rows["measure"] == "accuracy"].assign(right=lambda x: x["value"] * x["n"])
    sums = rows.groupby("length")[["right", "n"]].sum()
    return list(sums.index), list(sums["right"] / sums["n"])


VIEW = View(
    keys=(
        *("max_tokens", "interval", "num_tests", "depths", "seed"),
        *("keys", "values", "plain", "original"),
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
