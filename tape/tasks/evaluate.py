"""Accuracy of a model on a generated task, by greedy decoding: tape evaluate RUN --task TASK."""

import argparse
import logging
import sys
from functools import partial

import torch
import transformers
from matplotlib.figure import Figure

from tape.analysis.state import load
from tape.core.run_folder import folder_for_results
from tape.evaluation.chat import ChatQuestions
from tape.evaluation.extension import extended, extension
from tape.evaluation.figures import draw_panel, heat_map, write_figure
from tape.evaluation.journal import OF_THE_RUN, Incomplete, Shard, answering, complete_shard, join
from tape.evaluation.questions import of_texts
from tape.evaluation.task import tasks_by_name
from tape.evaluation.view import Evaluation
from tape.model.checkpoint import identified
from tape.tasks.generated import GeneratedTask

log = logging.getLogger(__name__)


def evaluate(given: argparse.Namespace) -> Evaluation | None:
    """Answers the questions of one shard that are not in its journal yet; writes the results and
    returns them if all other shards are complete."""
    record = tasks_by_name()[given.task]
    task: type[GeneratedTask] = record.load()
    folder, shard = given.run, Shard.parse(given.shard)
    position = extended(given, folder)
    dtype = given.dtype and getattr(torch, given.dtype)
    from_folder = partial(load, intervention=given.intervention, dtype=dtype, position=position)
    model, tokenizer = from_folder(folder)
    questions, name = task.asked(given, folder, model)
    if given.chat:
        questions, name = ChatQuestions(questions, tokenizer), f"{name}_chat"
    size, _ = record.batches
    batching = {size: getattr(given, size)}
    batches = questions.plan(tokenizer, **batching)
    needed, new = max((batch.length, batch.new_tokens) for batch in batches)
    if given.context_size is not None and needed > given.context_size:
        what = f"the longest prompt and its answer, {needed - new} + {new} tokens"
        shorter = f"context_size={given.context_size} is shorter than {what}"
        raise ValueError(f"{shorter}: raise it, or lower {questions.LIMIT}")
    questions.check(model, batches)
    header = identified(folder, model) | questions.settings() | batching
    header |= of_texts(model, tokenizer) | {"wrong": given.wrong, "batches": len(batches)}
    if given.intervention is not None:
        header["intervention"] = given.intervention
        name += f"_{given.intervention}"
    if position is not None:
        header["extend"] = extension(given)
        name += f"_{header['extend'].replace(' ', '_')}"
    if given.dtype is not None:
        header["dtype"] = given.dtype
        name += f"_{given.dtype}"
    results = folder_for_results(folder) / (given.name or name)
    if OF_THE_RUN.fullmatch(results.name) or (results.exists() and not results.is_dir()):
        taken = f"--name={results.name!r} is used by {results.parent} itself"
        raise ValueError(f"{taken}; choose another")
    answered = answering(folder, model, tokenizer, questions.answers, given.processes, from_folder)
    keep = partial(task.results.record, keep=given.wrong)
    complete_shard(results, shard, header, batches, answered, keep)
    try:
        evaluation = task.results.write(results, *join(results))
    except Incomplete as missing:
        log.info("shard %s is done; %s", shard, missing)
        return None
    run = results.parent.resolve().name
    view, rows = task.results.view, evaluation.rows.assign(row=run, run=run, seed=0)
    if (figure := heat_map(view.heatmap, rows, {run: evaluation.asked})) is not None:
        write_figure(figure, results / "heatmap")
    for panel in view.panels:  # at most one
        axes = Figure(layout="constrained").subplots()
        trained = {"trained up to here": evaluation.asked["trained"]}
        draw_panel(axes, panel, panel.of(rows), trained)
        axes.legend()
        write_figure(axes.figure, results / "lengths")
    pictures = ", ".join(path.name for path in sorted(results.glob("*.png")))
    table = task.results.describe(evaluation)
    log.info("%s\nresults are in %s%s", table, results, pictures and f", with {pictures}")
    return evaluation


def main(given: argparse.Namespace) -> None:
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    transformers.logging.disable_progress_bar()
    task = tasks_by_name()[given.task]
    if task.arguments:
        task.load()(given)
    else:
        evaluate(given)
