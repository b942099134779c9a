"""Accuracy over two conditions, such as the digits of both operands.

The results of an evaluation are a table in long form (measure, conditions, value, n, unit),
summary.json (accuracy within and beyond the trained conditions) and wrong.jsonl (a few wrong
answers of each cell).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from tape.evaluation.journal import join
from tape.evaluation.questions import Answer, Batch
from tape.evaluation.tables import read_table
from tape.evaluation.view import Asked, Evaluation, View
from tape.files import read_object, reading, write_text
from tape.statistics import with_interval
from tape.validation import check_integer

SUMMARY = "summary.json"


class Measure(NamedTuple):
    """The ratio of two counts; the divisor may be multiplied by a setting of the evaluation."""

    count: str
    of: str
    unit: str = "share"
    times: str | None = None


@dataclass(frozen=True)
class Accuracy:
    """A kind of evaluation.

    Attributes:
        file: name of the table.
        cell: by its name in journals, each condition as the table calls it.
        counts: the counts of a cell in journals.
        measures: by name; `accuracy` is one of them.
        listing: name of a list of accuracies in the summary.
        listed: from the rows, the condition that the list is over; NaN for rows that are left out.
        line: format of that condition in `describe`; empty to leave the list out.
    """

    file: str
    cell: dict[str, str]
    counts: tuple[str, ...]
    measures: dict[str, Measure]
    view: View
    listing: str
    listed: Callable[[pd.DataFrame], pd.Series]
    line: str = ""

    def record(self, batch: Batch, answers: Iterable[Answer], keep: int) -> dict[str, Any]:
        """Returns the journal's record of a batch: counts per cell, and the first `keep` wrong
        answers of each."""
        cells: dict[tuple[Any, ...], list[int]] = {}
        wrong = []
        for question, answer in zip(batch.questions, answers, strict=True):
            before = cells.get(question.cell, [0] * len(answer.counts))
            cells[question.cell] = [a + b for a, b in zip(before, answer.counts, strict=True)]
            if not answer.right:
                wrong.append(dict(zip(self.cell, question.cell, strict=True)) | answer.shown)
        return {
            "cells": [[*cell, *counts] for cell, counts in cells.items()],
            "wrong": self._first_of_each(wrong, keep),
        }

    def _first_of_each(self, answers: Iterable[dict[str, Any]], keep: int) -> list[dict[str, Any]]:
        """Returns up to `keep` wrong answers of each cell."""
        seen, found = Counter(), []
        for answer in answers:
            cell = tuple(answer[name] for name in self.cell)
            seen[cell] += 1
            if seen[cell] <= keep:
                found.append(answer)
        return found

    def gather(self, results: Path) -> Evaluation:
        """Writes the results of all shards in a folder.

        Raises:
            Incomplete: if batches are missing.
            ValueError: if the folder holds another evaluation.
        """
        asked, rows = join(results)
        if missing := {*self.view.keys} - asked.keys():
            raise ValueError(
                f"{results} holds an evaluation without {min(missing)}, not one for {self.file}"
            )
        return self.write(results, asked, rows)

    def write(self, folder: Path, asked: Asked, rows: list[dict[str, Any]]) -> Evaluation:
        """Writes the results from the records of all batches, in any order."""
        rows = sorted(rows, key=lambda row: row["batch"])
        with reading(folder):
            conditions = [*self.cell.values()]
            cells = pd.DataFrame(
                [cell for row in rows for cell in row["cells"]], columns=[*conditions, *self.counts]
            ).astype(float)
            cells[conditions] = cells[conditions].round(4)
            sums = cells.groupby(conditions, dropna=False).sum().reset_index()
            tables = []
            for name, (count, of, unit, times) in self.measures.items():
                n = sums[of] * (1 if times is None else asked[times])
                found = {"measure": name, "value": sums[count] / n, "n": n, "unit": unit}
                tables.append(sums[conditions].assign(**found))
            table = pd.concat(tables).sort_values(conditions, kind="stable", ignore_index=True)
            table = table[["measure", *conditions, "value", "n", "unit"]]
            _check(table)
            wrong = sorted(
                (answer for row in rows for answer in row["wrong"]),
                key=lambda answer: [answer[name] or 0.0 for name in self.cell],
            )
        whole = [*conditions, "n"]  # integers are written as such
        shown = table.assign(**table[whole].convert_dtypes())
        write_text(folder / self.file, shown.to_csv(index=False, lineterminator="\n"))
        evaluation = Evaluation(asked, table)
        summary = self.summary(evaluation) | {"evaluated": asked}
        write_text(folder / SUMMARY, json.dumps(summary, indent=1) + "\n")
        kept = self._first_of_each(wrong, asked["wrong"])  # of batches that share a cell
        write_text(folder / "wrong.jsonl", "".join(json.dumps(each) + "\n" for each in kept))
        return evaluation

    def read(self, folder: Path) -> Evaluation:
        """Reads the results that `write` wrote.

        Raises:
            ValueError, OSError: if there are none, or the files are damaged.
        """
        path, beside = folder / self.file, folder / SUMMARY
        if not path.is_file():
            raise ValueError(f"{folder} has no {self.file}: evaluate that run first")
        summary, conditions = read_object(beside), [*self.cell.values()]
        with reading(beside):
            asked, whole = summary["evaluated"], summary["all"]
            if not isinstance(asked["model"], str):
                raise ValueError(f"model={asked['model']!r} must be the hash of its weights")
            for last in self.view.heatmap.trained(asked):
                if last is not None:
                    check_integer("the last trained condition", last)
        columns = ("measure", *conditions, "value", "n", "unit")
        rows = read_table(path, columns, whole=("n",), real=("value",))
        with reading(path):
            table = pd.DataFrame(rows, columns=columns).astype({"value": float, "n": float})
            table[conditions] = table[conditions].apply(pd.to_numeric).astype(float)
            _check(table)
            if share(table) != whole:
                raise ValueError(f"its accuracy is not that of {SUMMARY}: evaluate again")
        return Evaluation(asked, table)

    def summary(self, evaluation: Evaluation) -> dict[str, Any]:
        """Returns the accuracy of the whole, of both parts, and along one condition."""
        asked, rows = evaluation
        inside = self.view.heatmap.within(asked, rows)
        key = self.listed(rows)
        listed = [
            {
                key.name: int(place),
                **{name: ratio(group, name) for name in self.measures if name != "accuracy"},
                **share(group),
            }
            for place, group in rows.groupby(key)
        ]
        parts = {"all": rows, "inside": rows[inside], "outside": rows[~inside]}
        return {name: share(part) for name, part in parts.items()} | {self.listing: listed}

    def describe(self, evaluation: Evaluation) -> str:
        """Formats a line per accuracy of the summary, with its interval and counts."""
        summary = self.summary(evaluation)
        listed = summary.pop(self.listing) if self.line else []
        shares = {self.line.format(**each): each for each in listed} | summary
        lines = []
        for name in (name for name in shares if name != self.listing and shares[name]):
            each = shares[name]
            lines.append(
                f"{name}: {each['accuracy']:.3f} ({each['low']:.3f} to {each['high']:.3f}), "
                f"{each['correct']:,} of {each['total']:,}"
            )
            if each.get("found", each["accuracy"]) != each["accuracy"]:
                lines[-1] += f", {each['found']:.3f} of the values"
        return "\n".join(lines)


def ratio(rows: pd.DataFrame, measure: str = "accuracy") -> float:
    """Returns a measure over several rows together."""
    rows = rows[rows["measure"] == measure]
    return float((rows["value"] * rows["n"]).round().sum() / rows["n"].sum())


def share(rows: pd.DataFrame) -> dict[str, float] | None:
    """Returns the accuracy over several rows with its interval and counts; None without rows."""
    rows = rows[rows["measure"] == "accuracy"]
    right = (rows["value"] * rows["n"]).round().sum()
    return with_interval(int(right), int(rows["n"].sum()))


def _check(table: pd.DataFrame) -> None:
    shares = table["unit"] == "share"
    if not ((table["n"] > 0) & (table["value"] >= 0)).all() or (table["value"][shares] > 1).any():
        raise ValueError("value must be >= 0, a share at most 1, and n > 0; evaluate again")
    if table.empty or table.duplicated([*table.columns[:-3]]).any():
        raise ValueError("the table is empty or has duplicate rows; evaluate again")
