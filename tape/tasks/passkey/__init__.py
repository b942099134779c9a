"""Passkey retrieval: accuracy by the length of the prompt and the depth of the key."""

import argparse
from typing import Any

from tape.core.command import integer
from tape.evaluation.task import TaskRecord


def options(parser: argparse.ArgumentParser) -> None:
    add, whole = parser.add_argument, integer(1)
    add("--max_tokens", type=whole, help="tokens in the longest prompt")
    add("--interval", type=whole, help="prompt lengths are multiples of this number of tokens")
    add("--num_tests", type=whole, default=20, help="prompts per length and depth")
    add("--depths", type=whole, default=11, help="number of depths from 0 to 1")
    add("--keys", type=whole, help="number of names with pass keys; the prompt asks for one")
    add("--values", type=whole, help="pass keys of each name; the prompt asks for all")
    add(
        "--original",
        action="store_true",
        help="use lengths, depths and scoring of the original code",
    )


def load() -> Any:
    from tape.tasks.passkey.passkey_task import PasskeyTask

    return PasskeyTask


TASK = TaskRecord(
    "passkey", load, options, evaluation="passkey", file="passkey.csv", folder="passkey"
)
