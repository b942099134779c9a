"""Tasks of the Language Model Evaluation Harness (lm-eval), by default without examples.

tape lm-eval --model output/llama_adape --tasks mmlu,arc_challenge,arc_easy
tape lm-eval --model output/llama_lora --tasks ruler_vt --lengths 4096
tape lm-eval --table output/*/zero_shot.csv

zero_shot.csv has a row per model, task and metric; --table shows models beside the paper's.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any

import pandas as pd
import transformers

from tape import parsers
from tape.command import expected_errors
from tape.evaluation.extension import extended, extension
from tape.evaluation.scoring import DTYPES
from tape.evaluation.tables import Row, add_rows, check_addable, markdown_table, read_table
from tape.files import read_object
from tape.model.checkpoint import check_length, identified, load
from tape.runs.folder import locked
from tape.validation import suggestion

# What a row is about, then the result.
KEY = ("model", "model_hash", "task", "metric", "shots", "max_length", "dtype", "limit")
COLUMNS = (*KEY, "value", "stderr", "questions", "version", "lm_eval")
# Equal for all models in a table.
COMPARABILITY_KEYS = ("shots", "limit", "questions", "version")
SHARES = r"\d+|em|exact_match|(.+_)?acc(uracy)?(_.+)?"  # metrics of lm-eval, RULER's are lengths
PAPER = Path(__file__).with_name("zero_shot_paper.csv")
NOTE = "Accuracies in percent, with the standard error of lm-eval. The paper names no metric."
TOKENIZER = "tokenizer_config.json"
ANSWERS = 2  # changes where the same question has another answer than before


def run(arguments: argparse.Namespace) -> list[Row]:
    """Runs tasks on a model, adds the results to its table and returns them.

    Raises:
        ValueError, OSError: for settings, tasks or models that cannot be evaluated.
    """
    try:
        import lm_eval

        from tape.evaluation.harness import BABILONG, Harness, tasks_of
    except ModuleNotFoundError as error:
        raise ValueError(
            f"{error.name} is missing: install the extra `eval`, EXTRAS=eval bash script/setup.sh"
        ) from error
    if arguments.include_path is not None and not arguments.include_path.is_dir():
        raise ValueError(f"--include_path {arguments.include_path} is not a folder")
    check_addable(arguments.out, COLUMNS)
    settings = arguments.model / TOKENIZER
    # RULER's tasks load the tokenizer by themselves, and would run code that comes with it.
    if settings.is_file() and "auto_map" in read_object(settings):
        raise ValueError(f"{settings} requires custom code (auto_map), which is not run")
    position = extended(arguments, arguments.model)
    model, tokenizer = load(arguments.model, DTYPES[arguments.dtype], position)
    lengths = arguments.lengths or []
    longest = max(lengths, default=0)
    max_length = arguments.max_length or max(model.config.max_position_embeddings, longest)
    if longest > max_length:
        raise ValueError(f"--lengths {longest} is more than --max_length {max_length}")
    check_length(model, max_length, f"--max_length {max_length}")
    weights = identified(arguments.model)
    about = {
        "model": f"{arguments.model.resolve().name} {extension(arguments)}".strip(),
        "model_hash": weights["model"][:16],
        "max_length": max_length,
        "dtype": arguments.dtype,
        "lm_eval": lm_eval.__version__,
    }
    written = tokenizer.backend_tokenizer.to_str() + str(tokenizer.special_tokens_map)
    further = {"truncate": arguments.truncate, **weights, "answers": ANSWERS}
    further["tokenizer"] = hashlib.sha256(written.encode()).hexdigest()
    if position is not None:
        further["position"] = position
    digest = hashlib.sha256(json.dumps(about | further).encode()).hexdigest()[:12]
    # Not beside the model but where only this program writes: lm-eval unpickles them.
    cache = Path(os.environ.get("TAPE_CACHE", "cache"))
    answers = cache / "lm_eval" / f"{arguments.model.resolve().name}-{digest}"
    tasks = tasks_of(arguments.tasks, lengths, arguments.include_path, arguments.model)
    harness = Harness(model, tokenizer, max_length, arguments.batch_size, arguments.truncate)
    try:
        with locked(answers):
            found = lm_eval.simple_evaluate(
                model=harness,
                tasks=arguments.tasks,
                num_fewshot=arguments.num_fewshot,
                limit=arguments.limit,
                task_manager=tasks,
                use_cache=str(answers / "answers"),
                log_samples=False,
            )
    except (OSError, RuntimeError):
        raise
    except Exception as error:  # files of a task may hold anything
        what = error if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        raise ValueError(f"--tasks {','.join(arguments.tasks)}: {what}") from error
    rows = rows_of(found, about | {"limit": arguments.limit or ""})
    for row in rows:
        if lengths and row["task"].startswith(BABILONG):
            row["metric"] = str(longest)  # as RULER's metrics
    return add_rows(arguments.out, COLUMNS, len(KEY), rows)


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


def table(rows: list[Row], metric: str | None = None) -> str:
    """Tabulates models with standard errors, accuracies in percent; the paper's rows follow if they
    have one of the tasks.

    Args:
        metric: the metric to show; None: acc. Of a task without it, all metrics are shown.

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


@expected_errors(continues=True)
def main() -> None:
    arguments = parsers.lm_eval()
    transformers.logging.disable_progress_bar()
    if arguments.table:
        rows = [row for path in arguments.table for row in read_table(path, COLUMNS)]
        if not rows:
            raise ValueError(f"no results in {', '.join(map(str, arguments.table))}")
        print(table(rows, arguments.metric))
    else:
        print(f"{table(run(arguments), arguments.metric)}\n\nalso in {arguments.out}")


if __name__ == "__main__":
    main()
