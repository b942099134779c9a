"""Accuracy over two conditions, such as the digits of both operands.

The results of an evaluation are a table in long form (measure, conditions, value, n, unit),
summary.json (accuracy within and beyond the trained conditions) and wrong.jsonl (a few wrong
answers of each cell).
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from tape.core.files import read_object, reading, write_text
from tape.core.statistics import of_share, weighted_mean
from tape.evaluation.questions import Answer, Batch
from tape.evaluation.tables import median_length, read_table, write_rows
from tape.evaluation.view import Asked, Evaluation, View, select

SUMMARY = "summary.json"
EFFECTIVE = 0.85  # of the accuracy at the shortest length


class Measure(NamedTuple):
    """The ratio of two counts; the divisor may be multiplied by a setting of the evaluation."""

    count: str
    of: str
    unit: str = "share"
    times: str | None = None


@dataclass(frozen=True)
class Accuracy:
    """A kind of evaluation."""

    file: str  # name of the table
    cell: dict[str, str]  # by its name in journals, each condition as the table calls it
    counts: tuple[str, ...]  # of a cell, in journals
    measures: dict[str, Measure]  # `accuracy`, and others
    view: View
    listing: str = "lengths"  # name of a list of accuracies in the summary
    listed: Callable[[pd.DataFrame], pd.Series] = lambda rows: rows["length"]  # NaN: left out
    line: str = ""  # format of that condition in `describe`; empty to leave the list out

    @property
    def columns(self) -> list[str]:
        return ["measure", *self.cell.values(), "value", "n", "unit"]

    def record(self, batch: Batch, answers: Iterable[Answer], keep: int) -> dict[str, Any]:
        """Returns the journal's record of a batch: counts per cell, and the first `keep` wrong
        answers of each."""
        cells: dict[tuple[Any, ...], list[tuple[int, ...]]] = {}
        wrong = []
        for question, answer in zip(batch.questions, answers, strict=True):
            cells.setdefault(question.cell, []).append(answer.counts)
            if not answer.right:
                wrong.append(dict(zip(self.cell, question.cell, strict=True)) | answer.shown)
        sums = [[*cell, *map(sum, zip(*each, strict=True))] for cell, each in cells.items()]
        return {"cells": sums, "wrong": self._first_of_each(wrong, keep)}

    def _first_of_each(self, answers: list[dict[str, Any]], keep: int) -> list[dict[str, Any]]:
        cells = pd.Series([str([each[name] for name in self.cell]) for each in answers], dtype=str)
        return [*compress(answers, cells.groupby(cells).cumcount() < keep)]

    def write(self, folder: Path, asked: Asked, rows: list[dict[str, Any]]) -> Evaluation:
        """Writes the results in a folder, from what was asked and the records of all batches."""
        with reading(folder):
            evaluation = Evaluation(asked, self._table(asked, rows))
            wrong = [answer for row in rows for answer in row["wrong"]]
            wrong.sort(key=lambda answer: [answer[name] or 0.0 for name in self.cell])
        kept = self._first_of_each(wrong, asked["wrong"])  # of batches that share a cell
        write_rows(folder / self.file, evaluation.rows, [*self.cell.values(), "n"])
        summary = self.summary(evaluation) | {"evaluated": asked}
        write_text(folder / SUMMARY, json.dumps(summary, indent=1) + "\n")
        write_text(folder / "wrong.jsonl", "".join(json.dumps(each) + "\n" for each in kept))
        return evaluation

    def _table(self, asked: Asked, rows: list[dict[str, Any]]) -> pd.DataFrame:
        conditions, cells = [*self.cell.values()], [cell for row in rows for cell in row["cells"]]
        counts = pd.DataFrame(cells, columns=[*conditions, *self.counts]).astype(float)
        counts[conditions] = counts[conditions].round(4)
        sums = counts.groupby(conditions, dropna=False).sum().reset_index()
        tables = []
        for name, (count, of, unit, times) in self.measures.items():
            n = sums[of] * (1 if times is None else asked[times])
            found = sums[conditions].assign(measure=name, value=sums[count] / n, n=n, unit=unit)
            tables.append(found)
        table = pd.concat(tables).sort_values(conditions, kind="stable", ignore_index=True)
        return _checked(table[self.columns])

    def read(self, folder: Path) -> Evaluation:
        """Reads the results that `write` wrote; raises a ValueError or an OSError without them."""
        path, beside = folder / self.file, folder / SUMMARY
        if not path.is_file():
            raise ValueError(f"{folder} has no {self.file}: evaluate that run first")
        summary = read_object(beside)
        with reading(beside):
            asked, whole, _ = summary["evaluated"], summary["all"], summary["evaluated"]["model"]
        numbers = [*self.cell.values(), "value", "n"]
        table = read_table(path, self.columns, numbers)
        with reading(path):
            table[numbers] = table[numbers].astype(float)
            found = share(_checked(table)) or {}
            if any(found.get(name) != (whole or {}).get(name) for name in ("correct", "total")):
                raise ValueError(f"its accuracy is not that of {SUMMARY}: evaluate again")
        return Evaluation(asked, table)

    def summary(self, evaluation: Evaluation) -> dict[str, Any]:
        """Returns the accuracy of the whole, of both parts, and along one condition."""
        asked, rows = evaluation
        inside = self.view.heatmap.within(asked, rows)
        key, listed = self.listed(rows), []
        for place, group in rows.groupby(key):
            others = {name: ratio(group, name) for name in self.measures if name != "accuracy"}
            listed.append({key.name: int(place), **others, **share(group)})
        parts = {"all": rows, "inside": rows[inside], "outside": rows[~inside]}
        return {name: share(part) for name, part in parts.items()} | {self.listing: listed}

    def describe(self, evaluation: Evaluation) -> str:
        """Formats a line per accuracy of the summary, with its interval and counts."""
        summary, lines = self.summary(evaluation), []
        listed = summary[self.listing] if self.line else []
        shares = {self.line.format(**each): each for each in listed}
        shares |= {name: summary[name] for name in ("all", "inside", "outside") if summary[name]}
        for name, each in shares.items():
            lines.append(
                f"{name}: {each['accuracy']:.3f} ({each['low']:.3f} to {each['high']:.3f}), "
                f"{each['correct']:,} of {each['total']:,}"
            )
            if each.get("found", each["accuracy"]) != each["accuracy"]:
                lines[-1] += f", {each['found']:.3f} of the values"
        if "length" in self.cell:
            of, longest = effective_length(evaluation.rows), evaluation.rows["length"].max()
            lines.append(f"effective length: {median_length([of], longest)}")
        return "\n".join(lines)


def ratio(rows: pd.DataFrame, measure: str = "accuracy") -> float:
    """Returns a measure over several rows together."""
    count, n = _counts(rows, measure)
    return float(count / n)


def effective_length(rows: pd.DataFrame) -> float:
    """Returns the largest length at which a run has at least 85 % of its accuracy at the shortest;
    0 if it has none there. After NoLiMa (arXiv 2502.05167), which takes the best of three short
    lengths for each question."""
    at = weighted_mean(select(rows, "accuracy"), ["length"])
    base = at[at.index.min()]
    return at.index[at >= EFFECTIVE * base - 1e-9].max() * (base > 0)  # but for rounding


def share(rows: pd.DataFrame) -> dict[str, float] | None:
    """Returns the accuracy over several rows, its Wilson interval and counts; None without rows."""
    correct, total = map(int, _counts(rows, "accuracy"))
    if not total:
        return None
    low, high = of_share(correct, total)
    found = {"accuracy": correct / total, "low": low, "high": high}
    return found | {"correct": correct, "total": total}


def _counts(rows: pd.DataFrame, measure: str) -> tuple[float, float]:
    rows = select(rows, measure)
    return (rows["value"] * rows["n"]).round().sum(), rows["n"].sum()


def _checked(table: pd.DataFrame) -> pd.DataFrame:
    shares = table["unit"] == "share"
    possible = (table["n"] > 0) & (table["value"] >= 0) & ~(shares & (table["value"] > 1))
    if table.empty or not possible.all() or table.duplicated([*table.columns[:-3]]).any():
        what = "distinct rows with value >= 0, shares <= 1, and n > 0"
        raise ValueError(f"it must have {what}; evaluate again")
    return table
