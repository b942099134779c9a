"""Tables of zero-shot tasks: one per model, and one over models beside the paper's."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pandas as pd

from tape.evaluation.tables import Row, add_rows, markdown_table, read_table
from tape.validation import suggestion

# What a row is about, then the result.
KEY = ("model", "model_hash", "task", "metric", "shots", "max_length", "dtype", "limit")
COLUMNS = (*KEY, "value", "stderr", "questions", "version", "lm_eval")
# Equal for all models in a table.
COMPARABILITY_KEYS = ("shots", "limit", "questions", "version")
SHARES = r"\d+|em|exact_match|(.+_)?acc(uracy)?(_.+)?"  # metrics of lm-eval, RULER's are lengths
PAPER = Path(__file__).with_name("zero_shot_paper.csv")
NOTE = "Accuracies in percent, with the standard error of lm-eval. The paper names no metric."


def rows_of(found: dict[str, Any], about: dict[str, Any]) -> list[dict[str, Any]]:
    """Converts results of lm-eval to rows: every metric of every task and group.

    Args:
        about: columns that all rows share.
    """
    counts, shots = found["n-samples"], found["n-shot"]
    rows = []
    for task, metrics in found["results"].items():
        members = [task, *_leaves(found, task)]
        of_members = {shots[member] for member in members if member in shots}
        common = of_members.pop() if len(of_members) == 1 else ""
        for name, value in metrics.items():
            metric, _, kind = name.partition(",")  # and the filter that the answers passed
            if not kind or metric.endswith("_stderr"):
                continue  # no metric
            if metric.isdecimal() and value == -1:
                continue  # RULER's for a length that was not asked for
            stderr = metrics.get(f"{metric}_stderr,{kind}", "")
            row = {
                "task": task,
                "metric": metric if kind == "none" else f"{metric}:{kind}",
                "shots": shots.get(task, common),
                "value": value,
                "stderr": "" if stderr == "N/A" else stderr,
                "questions": sum(counts[m]["effective"] for m in members if m in counts),
                "version": found["versions"].get(task, ""),
            }
            rows.append(about | row)
    return rows


def _leaves(found: dict[str, Any], group: str) -> list[str]:
    """Returns the tasks in a group and in its subgroups."""
    members = found.get("group_subtasks", {}).get(group, [])
    return [leaf for member in members for leaf in (_leaves(found, member) or [member])]


def add(path: Path, rows: list[dict[str, Any]]) -> list[Row]:
    """Adds rows to a model's table, or replaces those of the same measurement; returns them."""
    return add_rows(path, COLUMNS, len(KEY), rows)


def read(paths: list[Path]) -> list[Row]:
    """Returns the rows of tables.

    Raises:
        ValueError: if there are none.
    """
    rows = [row for path in paths for row in read_table(path, COLUMNS)]
    if not rows:
        raise ValueError(f"no results in {', '.join(map(str, paths))}")
    return rows


def table(rows: list[Row], metric: str | None = None) -> str:
    """Tabulates models with standard errors, accuracies in percent; the paper's rows follow if they
    have one of the tasks.

    Args:
        metric: the metric to show, which a row must have; None: acc. Of a task without it, all
            metrics are shown.

    Raises:
        ValueError: if models were evaluated differently, or one has two results for a task; for an
            unknown metric.
    """
    frame = pd.DataFrame(rows, columns=COLUMNS)
    if metric is not None and metric not in {*frame["metric"]}:
        raise ValueError(f"unknown --metric {metric!r}{suggestion(metric, {*frame['metric']})}")
    with_metric = frame["metric"] == (metric or "acc")
    frame = frame[with_metric | ~frame["task"].isin(frame["task"][with_metric])]
    _check_comparable(frame)
    lines = []
    for (model, _), found in frame.groupby(["model", "model_hash"], sort=False):
        first, line = found.iloc[0], {"model": model}
        for row in found.to_dict("records"):
            line[_column(row, metric)] = _cell(row)
        line["from"] = f"{first['shots']} shots, {first['dtype']}, up to {first['max_length']}"
        line["from"] += f" tokens, the first {first['limit']}" if first["limit"] else " tokens"
        lines.append(line)
    paper = pd.read_csv(PAPER, dtype=str)
    names = [*dict.fromkeys(_column(row, metric) for row in frame.to_dict("records"))]
    order = [*paper.columns]
    names.sort(key=lambda name: order.index(name) if name in order else len(order))
    if {*names} & {*order}:
        lines += paper.rename(columns={"method": "model", "source": "from"}).to_dict("records")
    cells = pd.DataFrame(lines).reindex(columns=["model", *names, "from"]).fillna("-")
    return f"{markdown_table([cells.columns, *cells.to_numpy()])}\n\n{NOTE}"


def _column(row: Row, metric: str | None) -> str:
    """Returns the head of a column; the paper's have no metric."""
    plain = row["metric"] == (metric or "acc") and _is_share(row["metric"])
    return row["task"] if plain else f"{row['task']} {row['metric']}"


def _is_share(metric: str) -> bool:
    return re.fullmatch(SHARES, metric.partition(":")[0]) is not None


def _check_comparable(frame: pd.DataFrame) -> None:
    """Raises a ValueError if a model has two results for a task, or models differ in settings."""
    for (task, _), rows in frame.groupby(["task", "metric"], sort=False):
        twice = rows[rows.duplicated(["model", "model_hash"], keep=False)]
        for name in COMPARABILITY_KEYS if twice.empty else COLUMNS:
            if len(values := (rows if twice.empty else twice)[name].unique()) > 1:
                one, other = (value or "none" for value in values[:2])
                kind = "different settings" if twice.empty else "two results of one model"
                raise ValueError(
                    f"{task} has {kind}: {name}={one} and {other}; delete rows, or compare others"
                )


def _cell(row: Row) -> str:
    """Formats a value and its error, of accuracies from 0 to 1 in percent."""
    value, error = float(row["value"]), row["stderr"] and float(row["stderr"])
    scale, digits = (100, 2) if _is_share(row["metric"]) and 0 <= value <= 1 else (1, 4)
    shown = f"{scale * value:.{digits}f}"
    return f"{shown} ± {scale * error:.{digits}f}" if row["stderr"] else shown
