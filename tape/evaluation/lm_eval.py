"""Tasks of the Language Model Evaluation Harness (lm-eval), by default without examples.

tape lm-eval --model output/llama_adape --tasks mmlu,arc_challenge,arc_easy
tape lm-eval --model output/llama_lora --tasks ruler_vt --lengths 4096
tape lm-eval --table output/*/zero_shot.csv
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
from pathlib import Path

import transformers

from tape.command import Distinct, Parser, expected_errors, integer, model_folder
from tape.evaluation import zero_shot
from tape.evaluation.scoring import DTYPES
from tape.evaluation.tables import Row, check_addable
from tape.files import read_object
from tape.model.checkpoint import check_length, identified, load
from tape.runs.folder import folder_for_results, locked

TOKENIZER = "tokenizer_config.json"
LONGEST = 10**7  # tokens
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
    check_addable(arguments.out, zero_shot.COLUMNS)
    settings = arguments.model / TOKENIZER
    # RULER's tasks load the tokenizer by themselves, and would run code that comes with it.
    if settings.is_file() and "auto_map" in read_object(settings):
        raise ValueError(f"{settings} requires custom code (auto_map), which is not run")
    model, tokenizer = load(arguments.model, DTYPES[arguments.dtype])
    lengths = arguments.lengths or []
    longest = max(lengths, default=0)
    max_length = arguments.max_length or max(model.config.max_position_embeddings, longest)
    if longest > max_length:
        raise ValueError(f"--lengths {longest} is more than --max_length {max_length}")
    check_length(model, max_length, f"--max_length {max_length}")
    weights = identified(arguments.model)
    about = {
        "model": arguments.model.resolve().name,
        "model_hash": weights["model"][:16],
        "max_length": max_length,
        "dtype": arguments.dtype,
        "lm_eval": lm_eval.__version__,
    }
    written = tokenizer.backend_tokenizer.to_str() + str(tokenizer.special_tokens_map)
    further = {"truncate": arguments.truncate, **weights, "answers": ANSWERS}
    further["tokenizer"] = hashlib.sha256(written.encode()).hexdigest()
    digest = hashlib.sha256(json.dumps(about | further).encode())
    # Not beside the model but where only this program writes: lm-eval unpickles them.
    answers = Path(os.environ.get("TAPE_CACHE", "cache"), "lm_eval")
    answers /= f"{about['model']}-{digest.hexdigest()[:12]}"
    tasks = tasks_of(arguments.tasks, lengths, arguments.include_path, arguments.model)
    harness = Harness(model, tokenizer, max_length, arguments.batch_size, arguments.truncate)
    answers.mkdir(parents=True, exist_ok=True)
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
    rows = zero_shot.rows_of(found, about | {"limit": arguments.limit or ""})
    for row in rows:
        if lengths and row["task"].startswith(BABILONG):
            row["metric"] = str(longest)  # as RULER's metrics
    return zero_shot.add(arguments.out, rows)


def names(text: str) -> list[str]:
    """Parses names between commas for argparse."""
    if not all(found := text.split(",")):
        raise argparse.ArgumentTypeError(f"{text!r} names no task before, between or behind commas")
    if twice := [name for name in found if found.count(name) > 1]:
        raise argparse.ArgumentTypeError(f"duplicate value {twice[0]}")
    return found


def parse(given: list[str] | None = None) -> argparse.Namespace:
    parser = Parser(
        prog="tape lm-eval",
        description="Tasks of the Language Model Evaluation Harness (lm-eval).",
    )
    what, tables = parser.add_mutually_exclusive_group(required=True), "compare these tables"
    what.add_argument("--model", type=model_folder, help="folder of a model of ours, or a Llama")
    what.add_argument("--table", type=Path, nargs="+", action=Distinct, help=tables)
    add, several = parser.add_argument, {"nargs": "+", "action": Distinct}
    add("--tasks", type=names, help="names of tasks or groups, a,b,c")
    add("--include_path", type=Path, help="a folder with more tasks, yaml files")
    add("--num_fewshot", type=integer(0), default=0, help="examples before a question (default: 0)")
    add("--batch_size", type=integer(1), default=8)
    length = "tokens of a prompt and its answer (default: the model's)"
    add("--max_length", type=integer(2, LONGEST), help=length)
    add("--truncate", action="store_true", help="leave out the beginning of longer prompts")
    lengths = "of the prompts of RULER or BABILong, in tokens"
    add("--lengths", type=integer(1, LONGEST), **several, help=lengths)
    add("--limit", type=integer(1), help="ask this many of each task, for a try")
    add("--dtype", choices=DTYPES, default="float32")
    add("--metric", help="that the printed table shows (default: acc, or all of a task without it)")
    out = "a table to add to (default: zero_shot.csv in the run's folder, or in output/)"
    add("--out", type=Path, help=out)
    arguments = parser.parse_args(given)
    if arguments.table:
        for name in vars(arguments).keys() - {"table", "metric"}:
            if getattr(arguments, name) != parser.get_default(name):
                parser.error(f"--table takes --metric and nothing else, not --{name}")
    elif not arguments.tasks:
        parser.error("--model needs --tasks")
    else:
        arguments.out = arguments.out or folder_for_results(arguments.model) / "zero_shot.csv"
    return arguments


@expected_errors(continues=True)
def main() -> None:
    arguments = parse()
    transformers.logging.disable_progress_bar()
    rows = zero_shot.read(arguments.table) if arguments.table else run(arguments)
    print(zero_shot.table(rows, arguments.metric))
    if not arguments.table:
        print(f"\nalso in {arguments.out}")


if __name__ == "__main__":
    main()
