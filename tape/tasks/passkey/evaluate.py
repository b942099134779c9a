"""Passkey retrieval of a trained model over lengths and depths; implements eval_retrieval.py."""

from __future__ import annotations

import argparse
import logging
import sys
from dataclasses import asdict
from functools import partial

import transformers

from tape.analysis.intervene import INTERVENTIONS, load
from tape.command import Parser, expected_errors, model_folder
from tape.evaluation.journal import Shard, place_of
from tape.evaluation.view import Evaluation
from tape.evaluation.workers import answering
from tape.model.checkpoint import check_length, identified
from tape.runs.folder import folder_for_results
from tape.tasks.passkey.decoding import answers
from tape.tasks.passkey.passkey_plan import ONE, Questions, plan
from tape.tasks.passkey.prompts import Needles
from tape.tasks.passkey.results import PASSKEY, WRONG, mark
from tape.tasks.passkey.sequences import Passkeys
from tape.validation import check_integer

LENGTHS = 8  # default multiple of the trained length, for models trained on plain prompts


def questions_for(arguments: argparse.Namespace, trained: Passkeys | None) -> Questions:
    """Returns the questions: plain prompts for models trained on them, else the benchmark's."""
    needles = Needles(
        arguments.keys or (trained.keys if trained else 1),
        arguments.values or (trained.values if trained else 1),
    )
    max_tokens = arguments.max_tokens
    if max_tokens is None:
        if trained is None:
            raise ValueError("give --max_tokens, the length of the longest prompts")
        max_tokens = LENGTHS * trained.max_length
    interval = arguments.interval
    if interval is None:
        interval = trained.max_length if trained else max(1, max_tokens // LENGTHS)
    return Questions(
        max_tokens,
        interval,
        arguments.num_tests,
        arguments.depths,
        arguments.seed,
        needles,
        plain=trained is not None,
        original=arguments.original,
    )


def evaluate(arguments: argparse.Namespace) -> Evaluation | None:
    """Evaluates one shard; returns the results if all others are complete."""
    shard, folder = Shard.parse(arguments.shard), arguments.base_model
    for name in ("keys", "values", "context_size", "processes"):
        if getattr(arguments, name) is not None:
            check_integer(name, getattr(arguments, name))
    changed = partial(load, intervention=arguments.intervention)
    model, tokenizer = changed(folder)
    trained = Passkeys.load(folder)
    questions = questions_for(arguments, trained)
    batches = plan(questions, tokenizer, arguments.batch_tokens)
    needed, new = max((batch.positions, batch.new_tokens) for batch in batches)
    if arguments.context_size is not None and needed > arguments.context_size:
        raise ValueError(
            f"context_size={arguments.context_size} is shorter than the longest prompt and its "
            f"answer, {needed - new} + {new} tokens: raise it, or lower max_tokens"
        )
    check_length(model, needed, f"max_tokens={questions.max_tokens}")
    asked = asdict(questions)
    header = {
        **identified(folder),
        "trained": trained.max_length if trained else model.config.max_position_embeddings,
        **asked.pop("needles"),
        **asked,
        "wrong": WRONG,
        "batch_tokens": arguments.batch_tokens,
        "batches": len(batches),
    }
    if arguments.intervention is not None:
        header["intervention"] = arguments.intervention
    name = arguments.name
    if name is None:  # passkey, and the settings that differ from the defaults
        needles = questions.needles
        name = "passkey_original" if questions.original else "passkey"
        if needles != (trained.needles if trained else ONE):
            name += f"_{needles.keys}x{needles.values}"
        if arguments.intervention is not None:
            name += f"_{arguments.intervention}"
    results = place_of(folder_for_results(folder), "--name", name)
    answer = partial(answers, original=questions.original)
    return PASSKEY.evaluate(
        results,
        shard,
        header,
        batches,
        answering(folder, model, tokenizer, answer, arguments.processes, changed),
        mark,
        title=lambda batch: f"{batch.questions[0].length} tokens",
    )


def parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="eval_retrieval.py",
        description="Passkey retrieval over lengths and depths.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--base_model", type=model_folder, required=True, help="folder of the model")
    add("--context_size", type=int, help="tokens available for prompt and answer")
    add("--max_tokens", type=int, help="tokens of the longest prompts")
    add("--interval", type=int, help="prompts have 1, 2, ... times this number of tokens")
    add("--num_tests", type=int, default=20, help="prompts per length and depth")
    add("--depths", type=int, default=11, help="number of depths from 0 to 1")
    add("--keys", type=int, help="number of names with pass keys; one is asked for")
    add("--values", type=int, help="pass keys per name; all are asked for")
    add("--original", action="store_true", help="lengths, depths and scoring of the original code")
    add("--seed", type=int, default=0, help="seed of the prompts")
    about = "a change of the state of a model with tape (docs/inside.md)"
    add("--intervention", choices=[*INTERVENTIONS], help=about)
    add("--batch_tokens", type=int, default=16384, help="tokens per batch")
    add("--processes", type=int, help="worker processes; by default one per torch thread")
    add("--shard", default="1/1", help="i/n: the i-th of n shards")
    add("--name", help="name of the results folder, in the run's or in output/")
    return parser


@expected_errors(continues=True)
def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    transformers.logging.disable_progress_bar()
    evaluate(parser().parse_args())


if __name__ == "__main__":
    main()
