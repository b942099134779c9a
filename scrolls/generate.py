"""Generates a model's answers to a task, one per id, by greedy decoding."""

import argparse
import json
import logging
import sys
from pathlib import Path

import transformers
from transformers import PreTrainedTokenizerBase

from scrolls.examples import BUDGETS, Examples, Prompts, tokenize_split, trained_for
from scrolls.rows import limited
from scrolls.score import evaluate_task
from scrolls.tasks import TASKS
from tape.core.files import write_text
from tape.core.provenance import TRAINED
from tape.core.run_folder import folder_for_results, read_configuration
from tape.evaluation.journal import Incomplete, Shard, answering, complete_shard, join, journals
from tape.evaluation.questions import Batch, Question, greedy, of_texts
from tape.model.checkpoint import check_length, identified, load
from tape.model.generation import end_tokens
from tape.model.modeling import TapeForCausalLM

# Some tokenizers would remove spaces, as in "it 's", which make other words for the scores.
AS_WRITTEN = {"clean_up_tokenization_spaces": False}
log = logging.getLogger(__name__)


def plan(examples: Examples, rows: list[int], max_batch_tokens: int) -> list[Batch]:
    """Groups the questions of rows into batches of at most `max_batch_tokens` tokens, with padding
    and room for answers. The longest come first: if memory runs out, it does so early."""
    budget = examples.prompts.budget
    if max_batch_tokens < budget.length:
        least = f"{budget.length:,}, which one prompt and its answer may take"
        raise ValueError(f"max_batch_tokens={max_batch_tokens:,} must be at least {least}")
    size, room = max_batch_tokens // budget.length, budget.answer + 1
    prompts = {examples.ids[row]: examples.tokens("prompt", row) for row in rows}
    questions = [Question((id_,), text, None, len(text), room) for id_, text in prompts.items()]
    questions.sort(key=lambda question: -question.tokens)
    starts = range(0, len(questions), size)
    return [Batch(questions[n : n + size], room, budget.length) for n in starts]


def answers(
    model: TapeForCausalLM, tokenizer: PreTrainedTokenizerBase, batch: Batch
) -> dict[str, str]:
    """Generates a text after each prompt, up to an end token or the budget; returns them by id.
    Random positions are drawn for the budget's length, so no answer depends on other batches."""
    ends, prompts = end_tokens(model, tokenizer), [question.prompt for question in batch.questions]
    written = greedy(model, prompts, ends, batch.new_tokens, batch.length)
    texts = {}
    for question, tokens in zip(batch.questions, written, strict=True):
        tokens = tokens[:-1] if tokens[-1] == ends[0] else tokens[: batch.new_tokens - 1]
        text = tokenizer.decode(tokens, skip_special_tokens=True, **AS_WRITTEN)
        texts[question.cell[0]] = text.strip()
    return texts


def generate(given: argparse.Namespace) -> None:
    """Generates one shard, and writes the output if all others are complete; answers to some
    questions (`limit`) to a folder of their own."""
    shard, folder, output = Shard.parse(given.shard), given.model, given.output
    output = limited(output.parent, given.limit) / output.name
    results = output.with_suffix(".parts")
    if results == output:
        raise ValueError(f"{output} would be its own journal: give an output with another suffix")
    task = TASKS[given.task]
    name = given.budget or trained_for(folder, "budget")
    budget = BUDGETS[name][task.kind]
    model, tokenizer = load(folder)
    check_length(model, budget.length, f"budget={name}")
    prompts = Prompts(tokenizer, task, budget)
    examples = tokenize_split(prompts, given.split, given.data_dir, given.cache_dir)
    rows = examples.questions_spread(given.limit)
    batches = plan(examples, rows, given.max_batch_tokens)
    if output.exists() and not journals(results):
        raise ValueError(f"{output} exists without its journal {results}: give another output=...")
    header = {
        **identified(folder, model),
        **of_texts(model, tokenizer),
        "encoding": model.config.position["name"],
        "task": task.name,
        "split": given.split,
        "tokens": examples.fingerprint,
        "budget": [name, *budget],
        "limit": given.limit,
        "max_batch_tokens": given.max_batch_tokens,
        "batches": len(batches),
    }
    log.info("%s: %s questions, shard %s", task.name, f"{len(rows):,}", shard)
    answer = answering(folder, model, tokenizer, answers, given.processes)
    complete_shard(results, shard, header, batches, answer, lambda batch, texts: {"answers": texts})
    try:
        _, records = join(results)
    except Incomplete:
        log.info("shard %s is done; the last one to finish writes %s", shard, output)
        return
    texts = {id_: text for record in records for id_, text in record["answers"].items()}
    ordered = {examples.ids[row]: texts[examples.ids[row]] for row in rows}
    write_text(output, json.dumps(ordered, indent=1, ensure_ascii=False) + "\n")
    log.info("answers are in %s", output)


def evaluate_run(given: argparse.Namespace) -> None:
    """Generates the answers of a fine-tuned run to the validation set of its task, of its own data
    unless others are given, and scores them, in the folder `scrolls` of the run."""
    given.task = trained_for(given.model, "task")
    if given.data_dir is None:
        own = read_configuration(given.model, TRAINED).get("data.data_dir")
        given.data_dir = own and Path(own)
    given.metrics_output_dir = folder_for_results(given.model) / "scrolls"
    given.output = given.metrics_output_dir / f"{given.task}.json"
    generate(given)
    if given.output.exists():  # all shards are complete
        (report,) = evaluate_task(given.task, {"": given.output}, given).values()
        log.info("%s\nresults are in %s", json.dumps(report, indent=4), given.metrics_output_dir)


def main(given: argparse.Namespace) -> None:
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    transformers.logging.disable_progress_bar()
    generate(given)
