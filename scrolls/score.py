"""Verifies and scores predictions for SCROLLS by the rules of its evaluator."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from pathlib import Path

from scrolls.benchmark import SUBMITTED, Submission, evaluate_all
from scrolls.scoring import Golds, evaluate_file, read_predictions
from scrolls.tasks import SPLITS, TASKS
from tape.command import Parser, expected_errors, result_folder
from tape.files import check_replaceable


def parser() -> argparse.ArgumentParser:
    parser = Parser(
        description="Verify and score predictions for SCROLLS. Predictions that are not valid exit "
        "with 65, and have their errors in the file of their metrics."
    )
    add = parser.add_argument
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--dataset_name", choices=TASKS, help="score the predictions of one task")
    what.add_argument(
        "--all",
        action="store_true",
        help="score all <task>/<TYPE>.json in the folder of predictions, and write a table of them",
    )
    add("--predictions", type=Path, required=True, help="a file {id: text}; with --all a folder")
    add("--metrics_output_dir", type=result_folder, required=True, help="a folder for the results")
    add("--split", choices=SPLITS, help="default: test, as officially; with --all validation")
    zips = "folder of the official zips or their contents (default: SCROLLS_DIR or data/scrolls)"
    add("--data_dir", type=Path, help=zips)
    add("--test_data_file", type=Path, help="the test split with answers, as .jsonl")
    add(
        "--cache_dir",
        type=Path,
        default=os.environ.get("TAPE_CACHE", "cache"),
        help="a folder for what is made on the way (default: %(default)s)",
    )
    add("--verify_only", action="store_true", help="check form and ids, and score nothing")
    add("--submission", type=Path, help="with --all: write the benchmark's submission to this csv")
    add("--type", help="with --submission: whose predictions are submitted, such as adape")
    return parser


def check(arguments: argparse.Namespace) -> None:
    """Raises a ValueError for settings that do not go together."""
    if (arguments.submission is None) != (arguments.type is None):
        raise ValueError("--submission and --type go together: the file, and whose predictions")
    if arguments.submission is not None and not arguments.all:
        raise ValueError("--submission needs --all: it holds the predictions for all tasks")
    if arguments.submission is not None:
        check_replaceable("--submission", arguments.submission, '","'.join(SUBMITTED))
    if arguments.test_data_file is not None and (arguments.all or arguments.split != "test"):
        raise ValueError("--test_data_file is the test split of one --dataset_name")


def run(arguments: argparse.Namespace) -> bool:
    """Whether all predictions are valid."""
    arguments.split = arguments.split or ("validation" if arguments.all else "test")
    check(arguments)
    out, needed = arguments.metrics_output_dir, not arguments.verify_only
    golds = Golds(arguments.split, arguments.data_dir, arguments.cache_dir, needed)
    if not arguments.all:
        predictions = read_predictions(arguments.predictions)
        reference = golds.of(TASKS[arguments.dataset_name], arguments.test_data_file)
        return evaluate_file(reference, predictions, out, golds)
    submission = arguments.submission and Submission(arguments.type, arguments.submission)
    errors = evaluate_all(arguments.predictions, out, golds, submission)
    for path, faults in errors.items():
        print(f"error: {' '.join(faults)} See details in: {path}", file=sys.stderr)
    return not errors


def main() -> None:
    logging.basicConfig(format="%(message)s")
    logging.getLogger("scrolls").setLevel(logging.INFO)
    with expected_errors():
        valid = run(parser().parse_args())
    if not valid:
        sys.exit(os.EX_DATAERR)


if __name__ == "__main__":
    main()
