"""The commands on SCROLLS and their arguments, and SCROLLS as a task of `tape evaluate`."""

import argparse
import os
from collections.abc import Callable
from pathlib import Path

from scrolls.tasks import BUDGETS, FOLDER, SPLITS, TASKS, VARIABLE
from tape.core.command import (
    Command,
    Defaults,
    Parser,
    integer,
    model_folder,
    result_folder,
    with_dashes,
)
from tape.evaluation.task import TaskRecord


def scrolls_generate(given: list[str]) -> argparse.Namespace:
    """Generate the answers to a SCROLLS task."""
    parser = of_generation("scrolls-generate", "Generate a model's answers to a SCROLLS task.")
    add = parser.add_argument
    add("--task", choices=TASKS, required=True, help="a task of SCROLLS, or sample")
    about = "the file to write, {id: text}; its journal is a folder beside it; with a limit, both "
    about += "are in a folder limit_N there"
    add("--output", type=Path, required=True, help=about)
    add("--split", choices=SPLITS, default="validation")
    add(
        "--limit",
        type=integer(1),
        help="answer only this many questions, spread evenly over the split",
    )
    return parser.parse_args(with_dashes(given))


def evaluate(words: list[str]) -> argparse.Namespace:
    """Parses `tape evaluate RUN --task scrolls`."""
    about = "Answer the validation set of the run's SCROLLS task, and score the answers."
    fixed = {"task": "scrolls", "split": "validation", "limit": None, "verify_only": False}
    parser = of_generation("evaluate RUN --task scrolls", about)
    return parser.parse_args(words, argparse.Namespace(**fixed))


def of_generation(command: str, about: str) -> Parser:
    about += " The same command resumes after an interruption."
    parser = Parser(command, about, formatter_class=Defaults)
    add = parser.add_argument
    add("--model", type=model_folder, required=True, help="the folder of a fine-tuned model")
    about = "tokens of prompts and answers; default: as in training"
    add("--budget", choices=BUDGETS, help=about)
    about = "tokens in a batch, with padding and room for answers; a GPU can take more"
    add("--max_batch_tokens", type=integer(1), default=16384, help=about)
    about = "number of processes (default: one per torch thread; on a GPU 1)"
    add("--processes", type=integer(1), help=about)
    about = "i/n: do the i-th of n shares; the last one writes the output"
    add("--shard", default="1/1", help=about)
    add_data(parser)
    return parser


def add_data(parser: argparse.ArgumentParser) -> None:
    zips = f"folder of the official zips or their contents (default: {VARIABLE} or {FOLDER})"
    parser.add_argument("--data_dir", type=Path, help=zips)
    cache = os.environ.get("TAPE_CACHE", "cache")
    about = "folder for tokens and the sample (default: %(default)s)"
    parser.add_argument("--cache_dir", type=Path, default=cache, help=about)


def scrolls_score(given: list[str]) -> argparse.Namespace:
    """Verify and score predictions for SCROLLS."""
    about = "Verify and score predictions for SCROLLS. Predictions that are not valid exit with "
    about += "65, and have their errors in the file of their metrics."
    parser = Parser("scrolls-score", about)
    add = parser.add_argument
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--dataset_name", choices=TASKS, help="score the predictions of one task")
    about = "score all <task>/<TYPE>.json in the folder of predictions, and write a table of them"
    what.add_argument("--all", action="store_true", help=about)
    about = "a file {id: text}, or a folder of files <TYPE>.json; with --all of such folders"
    add("--predictions", type=Path, required=True, help=about)
    add("--metrics_output_dir", type=result_folder, required=True, help="a folder for the results")
    add("--split", choices=SPLITS, help="default: test, as officially; with --all validation")
    about = "score answers that were generated with the same limit; answers and "
    about += "results are in folders limit_N"
    add("--limit", type=integer(1), help=about)
    add("--verify_only", action="store_true", help="check the form and the ids only")
    add_data(parser)
    arguments = parser.parse_args(given)
    if not arguments.predictions.exists():
        raise ValueError(f"{arguments.predictions} has no predictions: it does not exist")
    arguments.split = arguments.split or ("validation" if arguments.all else "test")
    return arguments


def load() -> Callable[[argparse.Namespace], None]:
    from scrolls.generate import evaluate_run

    return evaluate_run


TASK = TaskRecord("scrolls", load, arguments=evaluate)
GENERATE = Command("evaluate", scrolls_generate, "scrolls.generate", resumes=True)
SCORE = Command("evaluate", scrolls_score, "scrolls.score")
