"""Accuracy of a model on a generated task, by greedy decoding: tape evaluate RUN --task TASK.

tape evaluate output/add_adape --task addition --max_length 10 --shard 1/4
tape evaluate output/passkey_tape_0 --task passkey
tape evaluate output/parity_tape --task synthetic --samples 500

The run's task of SCROLLS has options, answers and metrics of its own (scrolls/generate.py):

tape evaluate output/scrolls/quality/tape --task scrolls
"""

from __future__ import annotations

import argparse
import logging
import re
import sys
from functools import partial
from pkgutil import resolve_name

import transformers

from tape.analysis.state import INTERVENTIONS, load
from tape.command import Parser, expected_errors, folder_name, integer, model_folder
from tape.evaluation.extension import add_options, extended, extension
from tape.evaluation.figures import heat_map, write_figure
from tape.evaluation.journal import Incomplete, Shard, answering, complete_shard, place_of
from tape.evaluation.questions import Batch, Questions
from tape.evaluation.view import Evaluation
from tape.model.checkpoint import identified
from tape.runs.folder import folder_for_results
from tape.tasks.generated import GeneratedTask

# By name, because addition builds on this package.
TASKS = {
    "addition": "arithmetic.addition_task:ArithmeticTask",
    "passkey": "tape.tasks.passkey.passkey_task:PasskeyTask",
    "synthetic": "tape.tasks.synthetic.synthetic_task:SyntheticTask",
}
SCROLLS = "scrolls"
log = logging.getLogger(__name__)


def task_of(name: str) -> type[GeneratedTask]:
    return resolve_name(TASKS[name])


def evaluate(given: argparse.Namespace) -> Evaluation | None:
    """Answers the questions of one shard that are not in its journal yet; writes the results and
    returns them if all other shards are complete."""
    task, folder, shard = task_of(given.task), given.run, Shard.parse(given.shard)
    position = extended(given, folder)
    from_folder = partial(load, intervention=given.intervention, position=position)
    model, tokenizer = from_folder(folder)
    questions, name = task.asked(given, folder, model)
    batching = {task.batching[0]: getattr(given, task.batching[0])}
    batches = questions.plan(tokenizer, **batching)
    check_context(given.context_size, questions, batches)
    questions.check(model, batches)
    header = identified(folder) | questions.settings() | batching
    header |= {"wrong": given.wrong, "batches": len(batches)}
    if given.intervention is not None:
        header["intervention"] = given.intervention
        name += f"_{given.intervention}"
    if position is not None:
        header["extend"] = extension(given)
        name += f"_{header['extend'].replace(' ', '_')}"
    results = place_of(folder_for_results(folder), "--name", given.name or name)
    complete_shard(
        results,
        shard,
        header,
        batches,
        answering(folder, model, tokenizer, questions.answers, given.processes, from_folder),
        partial(task.results.record, keep=given.wrong),
    )
    try:
        evaluation = task.results.gather(results)
    except Incomplete as missing:
        log.info("shard %s is done; %s", shard, missing)
        return None
    run = results.parent.resolve().name
    view, asked = task.results.view.heatmap, {run: evaluation.asked}
    if (figure := heat_map(view, evaluation.rows.assign(row=run), asked)) is not None:
        write_figure(figure, results / "heatmap")
    task.draw(results, run, evaluation)
    pictures = ", ".join(path.name for path in sorted(results.glob("*.png")))
    table = task.results.describe(evaluation)
    log.info("%s\nresults are in %s%s", table, results, pictures and f", with {pictures}")
    return evaluation


def check_context(size: int | None, questions: Questions, batches: list[Batch]) -> None:
    """Raises a ValueError if prompts and answers are longer than the tokens that are available."""
    needed, new = max((batch.length, batch.new_tokens) for batch in batches)
    if size is not None and needed > size:
        raise ValueError(
            f"context_size={size} is shorter than the longest prompt and its answer, "
            f"{needed - new} + {new} tokens: raise it, or lower {questions.LIMIT}"
        )


def parsed(words: list[str]) -> argparse.Namespace:
    """Parses a command line. The first word is the folder of the model, as is the value of --model
    and --base_model; `samples=10` is short for `--samples=10`."""
    words = [f"--{word}" if re.match(r"\w+=", word) else word for word in words]
    if words and not words[0].startswith("-"):
        words.insert(0, "--model")
    parser = Parser(
        prog="tape evaluate RUN",
        description="Accuracy on a generated task.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        add_help=False,
    )
    add = parser.add_argument
    add("--task", choices=[*TASKS, SCROLLS], help="what is asked: each has options of its own")
    found, others = parser.parse_known_args(words)
    if (name := found.task) == SCROLLS:
        return argparse.Namespace(task=name, words=others)
    add("-h", "--help", action="help", help="show this message")
    add("--model", "--base_model", dest="run", type=model_folder, required=True)
    add("--name", type=folder_name, help="name of the results folder, in the run's or in output/")
    add("--seed", type=integer(0), default=0, help="seed of the questions")
    about = "a change of the state of a model with tape (docs/inside.md)"
    add("--intervention", choices=[*INTERVENTIONS], help=about)
    add_options(parser)
    about = "worker processes; by default one per torch thread, on a GPU one"
    add("--processes", type=integer(1), help=about)
    add("--shard", default="1/1", help="i/n: the i-th of n shards; the last one writes the results")
    add("--wrong", type=integer(0), default=3, help="wrong answers of each cell to keep")
    add("--context_size", type=integer(1), help="tokens available for prompt and answer")
    if name is not None:
        task = task_of(name)
        option, usual = task.batching
        about = f"{option.removeprefix('batch_')} of a batch; a GPU takes thousands of questions"
        add(f"--{option}", type=integer(1), default=usual, help=about)
        task.add_options(parser)
    given = parser.parse_args(words)
    if name is None:
        parser.error(f"give --task, one of {', '.join((*TASKS, SCROLLS))}")
    return given


@expected_errors(continues=True)
def main(words: list[str] | None = None) -> None:
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    transformers.logging.disable_progress_bar()
    given = parsed(sys.argv[1:] if words is None else words)
    if given.task == SCROLLS:
        resolve_name("scrolls.generate:evaluate_run")(given.words)
    else:
        evaluate(given)


if __name__ == "__main__":
    main()
