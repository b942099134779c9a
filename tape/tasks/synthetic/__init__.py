"""Synthetic tasks that tell encodings apart by the longest problems that they solve."""

import argparse
from typing import Any

from tape.core.command import integer
from tape.evaluation.task import TaskRecord


def options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--max_length",
        type=integer(0),
        help="longest problems (default: the suite's, or 4 times the trained length)",
    )
    add("--samples", type=integer(1), default=100, help="problems per length")
    parser.set_defaults(processes=1)


def load() -> Any:
    from tape.tasks.synthetic.synthetic_task import SyntheticTask

    return SyntheticTask


TASK = TaskRecord(
    "synthetic", load, options, evaluation="synthetic", file="synthetic.csv", folder="synthetic"
)
