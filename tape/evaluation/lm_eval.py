"""Tasks of the Language Model Evaluation Harness (lm-eval), by default without examples.

tape lm-eval --model output/llama_adape --tasks mmlu,arc_challenge,arc_easy
tape lm-eval --model output/llama_lora --tasks ruler_vt --lengths 4096

zero_shot.csv has a row per model, task and metric.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import transformers

from tape import parsers
from tape.command import expected_errors
from tape.evaluation.extension import extended, extension
from tape.evaluation.scoring import DTYPES
from tape.evaluation.tables import Row, add_rows, check_addable, markdown_table
from tape.files import read_object
from tape.model.checkpoint import check_length, identified, load
from tape.runs.folder import locked

# What a row is about, then the result.
KEY = ("model", "model_hash", "task", "metric", "shots", "max_length", "dtype", "limit")
COLUMNS = (*KEY, "value", "stderr", "questions", "version", "lm_eval")
SHOWN = ("task", "metric", "shots", "questions", "value", "stderr")  # in the printed table
TOKENIZER = "tokenizer_config.json"
ANSWERS = 2  # changes where the same question has another answer than before


def run(arguments: argparse.Namespace) -> list[Row]:
    """Runs tasks on a model, adds the results to its table and returns them.

    Raises:
        ValueError, OSError: for settings, tasks or models that cannot be evaluated.
    """
    try:
        import lm_eval

        from tape.evaluation.harness import Harness, tasks_of
    except ModuleNotFoundError as error:
        raise ValueError(
            f"{error.name} is missing: install the extra `eval`, EXTRAS=eval bash script/setup.sh"
        ) from error
    folder, lengths = arguments.model, arguments.lengths or []
    check_files(arguments)
    position = extended(arguments, folder)
    model, tokenizer = load(folder, DTYPES[arguments.dtype], position)
    longest = max(lengths, default=0)
    max_length = arguments.max_length or max(model.config.max_position_embeddings, longest)
    if longest > max_length:
        raise ValueError(f"--lengths {longest} is more than --max_length {max_length}")
    check_length(model, max_length, f"--max_length {max_length}")
    weights = identified(folder)
    about = {
        "model": f"{folder.resolve().name} {extension(arguments)}".strip(),
        "model_hash": weights["model"][:16],
        "max_length": max_length,
        "dtype": arguments.dtype,
        "lm_eval": lm_eval.__version__,
    }
    written = tokenizer.backend_tokenizer.to_str() + str(tokenizer.special_tokens_map)
    settings = about | weights | {"answers": ANSWERS, "position": position}
    settings["tokenizer"] = hashlib.sha256(written.encode()).hexdigest()
    answers = place_of_answers(folder, settings)
    harness = Harness(model, tokenizer, max_length, arguments.batch_size)
    how = {"num_fewshot": arguments.num_fewshot, "limit": arguments.limit, "log_samples": False}
    how["use_cache"] = str(answers / "answers")
    try:
        how["task_manager"] = tasks_of(arguments.tasks, lengths, arguments.include_path, folder)
        with locked(answers):
            found = lm_eval.simple_evaluate(model=harness, tasks=arguments.tasks, **how)
    except (OSError, RuntimeError):
        raise
    except Exception as error:  # files of a task may hold anything
        what = error if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        raise ValueError(f"--tasks {','.join(arguments.tasks)}: {what}") from error
    rows = rows_of(found, about | {"limit": arguments.limit or ""})
    return add_rows(arguments.out, COLUMNS, len(KEY), rows)


def check_files(arguments: argparse.Namespace) -> None:
    """Raises a ValueError or an OSError for files that cannot be used."""
    check_addable(arguments.out, COLUMNS)
    if arguments.include_path is not None and not arguments.include_path.is_dir():
        raise ValueError(f"--include_path {arguments.include_path} is not a folder")
    # RULER's tasks load the tokenizer by themselves, and would run code that comes with it.
    settings = arguments.model / TOKENIZER
    if settings.is_file() and "auto_map" in read_object(settings):
        raise ValueError(f"{settings} requires custom code (auto_map), which is not run")


def place_of_answers(model: Path, settings: dict[str, Any]) -> Path:
    """Returns the folder of cached answers: not beside the model but where only this program
    writes, because lm-eval unpickles them."""
    digest = hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:12]
    cache = Path(os.environ.get("TAPE_CACHE", "cache"))
    return cache / "lm_eval" / f"{model.resolve().name}-{digest}"


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


@expected_errors(continues=True)
def main() -> None:
    arguments = parsers.lm_eval()
    transformers.logging.disable_progress_bar()
    rows = run(arguments)
    lines = [SHOWN, *([row[name] for name in SHOWN] for row in rows)]
    print(f"{markdown_table(lines)}\n\nalso in {arguments.out}")


if __name__ == "__main__":
    main()
