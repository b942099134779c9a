"""Tables of zero-shot tasks: one per model, and one over models in the shape of the paper's."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

from tape.evaluation.tables import Row, add_rows, read_table

# What a row is about, then what was found.
KEY = ("model", "model_hash", "task", "metric", "shots", "max_length", "dtype", "limit")
COLUMNS = (*KEY, "value", "stderr", "questions", "version", "lm_eval")
# What has to be the same for all models.
COMPARABILITY_KEYS = ("shots", "limit", "questions", "version")

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
    """The rows of what lm-eval returns: every metric of every task and group.

    Args:
        about: the columns that are the same for all.
    """
    rows = []
    for task, metrics in found["results"].items():
        for name, value in metrics.items():
            metric, _, kind = name.partition(",")
            if not kind or metric.endswith("_stderr"):
                continue  # no metric
            if metric.isdecimal() and value == -1:
                continue  # RULER's for a length that was not asked for
            members = [task, *_leaves(found, task)]
            counts = [
                found["n-samples"][m]["effective"] for m in members if m in found["n-samples"]
            ]
            stderr = metrics.get(f"{metric}_stderr,{kind}", "")
            rows.append(
                about
                | {"task": task, "metric": metric if kind == "none" else f"{metric}:{kind}"}
                | {"shots": found["n-shot"].get(task, _of_members(found, "n-shot", members))}
                | {"value": value, "stderr": "" if stderr == "N/A" else stderr}
                | {"questions": sum(counts), "version": found["versions"].get(task, "")}
            )
    return rows


def _leaves(found: dict[str, Any], group: str) -> list[str]:
    """The tasks in a group, those of groups in it too."""
    members = found.get("group_subtasks", {}).get(group, [])
    return [leaf for member in members for leaf in (_leaves(found, member) or [member])]


def _of_members(found: dict[str, Any], what: str, members: list[str]) -> Any:
    """What all tasks of a group have in common."""
    values = {found[what][member] for member in members if member in found[what]}
    return values.pop() if len(values) == 1 else ""


def check(path: Path) -> None:
    """Raise a ValueError or an OSError if rows cannot be added to a table."""
    if path.suffix != ".csv":
        raise ValueError(f"--out {path} must end in .csv")
    read_table(path, COLUMNS)
    path.parent.mkdir(parents=True, exist_ok=True)


def add(path: Path, rows: list[dict[str, Any]]) -> list[Row]:
    """Add rows to a model's table; the same measurement again takes the place of its row.

    Returns:
        The rows as they are in the table.
    """
    add_rows(path, COLUMNS, len(KEY), rows)
    return [{column: str(row[column]) for column in COLUMNS} for row in rows]


def read(paths: list[Path]) -> list[Row]:
    """The rows of tables.

    Raises:
        ValueError: if there are none.
    """
    rows = [row for path in paths for row in read_table(path, COLUMNS)]
    if not rows:
        raise ValueError(f"no results in {', '.join(map(str, paths))}")
    return rows


def table(rows: list[Row], metric: str = "acc") -> str:
    """A row per model in percent, with standard errors, the paper's below if one of its tasks is
    among them.

    Args:
        metric: what to show of a task that has it; of another all of its metrics.

    Raises:
        ValueError: if models were asked otherwise, or one was asked twice.
    """
    with_metric = {row["task"] for row in rows if row["metric"] == metric}
    shown = [row for row in rows if row["metric"] == metric or row["task"] not in with_metric]
    cells: dict[tuple[str, str], dict[tuple[str, str], Row]] = {}
    for row in shown:
        column = row["task"], row["metric"]
        found = cells.setdefault((row["model"], row["model_hash"]), {})
        other = found.setdefault(column, row)
        if other is not row:
            different = next((n for n in COLUMNS if other[n] != row[n]), "task")
            raise ValueError(
                f"{row['model']} has two results for {row['task']}, with {different}="
                f"{other[different] or 'none'} and {row[different] or 'none'}: delete one row"
            )
    columns = {column for found in cells.values() for column in found}
    for column in columns:
        _check_asked([found[column] for found in cells.values() if column in found])
    order = sorted(columns, key=_place)
    lines = [
        "| | " + " | ".join(_title(column, metric) for column in order) + " | from |",
        "|---|" + "---|" * len(order) + "---|",
    ]
    for (model, _), found in cells.items():
        values = [_cell(found.get(column)) for column in order]
        lines.append(f"| {' | '.join([model, *values])} | {_asked(found)} |")
    if any(task in TABLE_9 for task, _ in order):
        with PAPER.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                values = [row.get(task) or "-" for task, _ in order]
                lines.append(f"| {' | '.join([row['method'], *values])} | {row['source']} |")
    note = "Percent, with the standard error of lm-eval. The paper does not name its metric."
    return "\n".join([*lines, "", note])


def _check_asked(rows: list[Row]) -> None:
    for name in COMPARABILITY_KEYS:
        if len(values := {row[name]: row["model"] for row in rows}) > 1:
            (a, one), (b, other), *_ = values.items()
            raise ValueError(
                f"{rows[0]['task']} was asked otherwise: {name}={a or 'none'} for {one}, "
                f"{b or 'none'} for {other}; a table has one"
            )


def _place(column: tuple[str, str]) -> tuple[int, str, int, str]:
    task, metric = column
    names = list(TABLE_9)
    first = names.index(task) if task in names else len(names)
    return first, task, int(metric) if metric.isdecimal() else 0, metric


def _title(column: tuple[str, str], metric: str) -> str:
    task, found = column
    return TABLE_9.get(task, task) + ("" if found == metric else f" {found}")


def _cell(row: Row | None) -> str:
    if row is None:
        return "-"
    value, error = (float(row[name] or 0) for name in ("value", "stderr"))
    if not math.isfinite(value + error):
        raise ValueError(f"{row['model']}, {row['task']}: value={row['value']} is not finite")
    return f"{100 * value:.2f}" + (f" ± {100 * error:.2f}" if row["stderr"] else "")


def _asked(found: dict[tuple[str, str], Row]) -> str:
    """What the row's results have in common, and what else may matter."""
    first = next(iter(found.values()))
    limit = f", the first {first['limit']}" if first["limit"] else ""
    return f"{first['shots']} shots, {first['dtype']}, up to {first['max_length']} tokens{limit}"
