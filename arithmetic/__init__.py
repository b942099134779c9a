"""Addition of numbers longer than those of the training: problems, made on the fly."""

import argparse
from typing import Any

from tape.core.command import integer
from tape.evaluation.task import TaskRecord


def options(parser: argparse.ArgumentParser) -> None:
    add, whole = parser.add_argument, integer(1)
    add(
        "--max_length",
        type=whole,
        help="most digits of an operand (default: twice as many as in training)",
    )
    add("--samples", type=whole, default=100, help="problems of each pair of lengths")


def load() -> Any:
    from arithmetic.addition_task import ArithmeticTask

    return ArithmeticTask


TASK = TaskRecord(
    name="addition",
    load=load,
    options=options,
    batches=("batch_size", 256),
    evaluation="arithmetic",
    file="grid.csv",
    folder="grid",
)
