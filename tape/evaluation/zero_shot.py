"""Tables of zero-shot tasks: one per model, and one over models in the shape of the paper's."""

from __future__ import annotations

import math
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

SHARES = r"\d+|em|exact_match|(.+_)?acc(uracy)?(_.+)?"  # metrics of lm-eval

PAPER = Path(__file__).with_name("zero_shot_paper.csv")
TABLE_9 = {
    "mmlu_humanities": "MMLU humanities",
    "mmlu_social_sciences": "MMLU social sciences",
    "mmlu_stem": "MMLU STEM",
    "mmlu_other": "MMLU other",
    "arc_challenge": "ARC challenge",
    "arc_easy": "ARC easy",
}


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
            metric, _, kind = name.partition(",")
            if not kind or metric.endswith("_stderr"):
                continue  # no metric
            if metric.isdecimal() and value == -1:
                continue  # RULER's for a length that was not asked for
            stderr = metrics.get(f"{metric}_stderr,{kind}", "")
            rows.append(
                about
                | {"task": task, "metric": metric_name(metric, kind)}
                | {"shots": shots.get(task, common)}
                | {"value": value, "stderr": "" if stderr == "N/A" else stderr}
                | {"questions": sum(counts[m]["effective"] for m in members if m in counts)}
                | {"version": found["versions"].get(task, "")}
            )
    return rows


def metric_name(metric: str, kind: str) -> str:
    """Returns the name of a metric of answers that passed a filter of lm-eval."""
    return metric if kind == "none" else f"{metric}:{kind}"


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
    """Tabulates models with standard errors, shares in percent; the paper's rows follow if they
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
    metric = metric or "acc"
    with_metric = frame["metric"] == metric
    frame = frame[with_metric | ~frame["task"].isin(frame["task"][with_metric])]
    _check_asked(frame)
    columns = sorted({*zip(frame["task"], frame["metric"], strict=True)}, key=_place)
    titles = [TABLE_9.get(task, task) + f" {of}" * (of != metric) for task, of in columns]
    shares = {
        column: _are_shares(column[1], same["value"].astype(float))
        for column, same in frame.groupby(["task", "metric"])
    }
    lines = [["", *titles, "from"]]
    for (model, _), found in frame.groupby(["model", "model_hash"], sort=False):
        by_column = {(row["task"], row["metric"]): row for row in found.to_dict("records")}
        cells = [
            _cell(by_column[column], shares[column]) if column in by_column else "-"
            for column in columns
        ]
        first = found.iloc[0]
        asked = f"{first['shots']} shots, {first['dtype']}, up to {first['max_length']} tokens"
        asked += f", the first {first['limit']}" if first["limit"] else ""
        lines.append([model, *cells, asked])
    if any(task in TABLE_9 for task, _ in columns):
        for row in pd.read_csv(PAPER, dtype=str).to_dict("records"):
            cells = (row.get(task, "-") if shares[task, of] else "-" for task, of in columns)
            lines.append([row["method"], *cells, row["source"]])
    others = ", ".join(dict.fromkeys(of for task, of in columns if not shares[task, of]))
    units = ["Percent"] * any(shares.values()) + [f"{others} as lm-eval gives it"] * bool(others)
    note = f"{'; '.join(units)}. With the standard error of lm-eval. The paper does not name its "
    note += "metric."
    return f"|{markdown_table(lines)[2:]}\n\n{note}"  # the head begins with an empty cell


def _check_asked(frame: pd.DataFrame) -> None:
    """Raises a ValueError if a model has two results for a task, or models differ in settings."""
    for (task, _), rows in frame.groupby(["task", "metric"], sort=False):
        for (model, _), same in rows.groupby(["model", "model_hash"], sort=False):
            if len(same) > 1:
                one, other = (same.iloc[n] for n in (0, 1))
                name = next((name for name in COLUMNS if one[name] != other[name]), "task")
                raise ValueError(
                    f"{model} has two results for {task}, with {name}={one[name] or 'none'} and "
                    f"{other[name] or 'none'}: delete one row"
                )
        for name in COMPARABILITY_KEYS:
            values = dict(zip(rows[name], rows["model"], strict=True))
            if len(values) > 1:
                (a, one), (b, other), *_ = values.items()
                raise ValueError(
                    f"{task} was evaluated with different settings: {name}={a or 'none'} for "
                    f"{one}, {b or 'none'} for {other}; they must be the same within a table"
                )


def _place(column: tuple[str, str]) -> tuple[int, str, int, str]:
    task, metric = column
    names = list(TABLE_9)
    first = names.index(task) if task in names else len(names)
    return first, task, int(metric) if metric.isdecimal() else 0, metric


def _are_shares(metric: str, values: pd.Series) -> bool:
    """Returns whether values of a metric are shares: accuracies from 0 to 1, also RULER's, whose
    metrics are lengths."""
    return re.fullmatch(SHARES, metric.partition(":")[0]) is not None and values.between(0, 1).all()


def _cell(row: Row, share: bool) -> str:
    value, error = (float(row[name] or 0) for name in ("value", "stderr"))
    if not math.isfinite(value + error):
        raise ValueError(f"{row['model']}, {row['task']}: value={row['value']} is not finite")
    scale, digits = (100, 2) if share else (1, 4)
    shown = (f"{scale * each:.{digits}f}" for each in (value, error)[: 1 + bool(row["stderr"])])
    return " ± ".join(shown)
