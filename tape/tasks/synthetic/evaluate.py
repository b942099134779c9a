"""Accuracy of a trained model on synthetic problems by length.

python -m tape.tasks.synthetic.evaluate --model output/parity_adape --samples 200
"""

from __future__ import annotations

import argparse
import logging
import sys
from dataclasses import asdict
from functools import partial

import transformers

from tape.command import Parser, expected_errors, folder_name, model_folder
from tape.evaluation.journal import Shard, place_of
from tape.evaluation.workers import answering
from tape.model.checkpoint import check_length, identified, load
from tape.runs.folder import TRAINED, read_configuration
from tape.runs.metrics import MetricsFile, read_metrics
from tape.tasks.synthetic.problems import Synthetic
from tape.tasks.synthetic.results import FOLDER, SYNTHETIC, mark
from tape.tasks.synthetic.scoring import lengths_to, plan, score
from tape.training.criterion import reached
from tape.validation import check_integer

WRONG = 3  # wrong answers kept per length


def evaluate(arguments: argparse.Namespace) -> None:
    """Evaluates one shard; writes the results if all others are complete."""
    shard, folder = Shard.parse(arguments.shard), arguments.model
    for name, least in {"samples": 1, "seed": 0, "batch_tokens": 1}.items():
        check_integer(name, getattr(arguments, name), least)
    problems = Synthetic.load(folder)
    model, tokenizer = load(folder)
    lengths = lengths_to(problems, arguments.max_length)
    batches = plan(problems, lengths, arguments.samples, arguments.seed, arguments.batch_tokens)
    needed = max(batch.tokens.shape[1] for batch in batches)
    check_length(model, needed, f"max_length={lengths[-1]}")
    trained = read_configuration(folder, TRAINED)
    criterion, most = trained["task.criterion"], trained["trainer.max_steps"]
    rows = read_metrics(folder / MetricsFile.FILE)  # some may be of a continuation
    step = reached((row for row in rows if row["step"] <= most), criterion)
    header = {
        **identified(folder),
        **asdict(problems),
        "trained": problems.max_length,
        "max_length": lengths[-1],
        "criterion": criterion,
        "criterion_step": step,
        "samples": arguments.samples,
        "seed": arguments.seed,
        "wrong": WRONG,
        "batch_tokens": arguments.batch_tokens,
        "batches": len(batches),
    }
    SYNTHETIC.evaluate(
        place_of(folder, "--name", arguments.name),
        shard,
        header,
        batches,
        answering(folder, model, tokenizer, score, arguments.processes),
        partial(mark, reached=criterion is None or step is not None, keep=WRONG),
        title=lambda batch: f"length {batch.length}",
    )


def parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python -m tape.tasks.synthetic.evaluate",
        description="Accuracy on synthetic problems by length.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--model", type=model_folder, required=True, help="folder of a trained run")
    add("--max_length", type=int, help="of the problems; the suite's, or 4 times the trained one")
    add("--samples", type=int, default=100, help="problems per length")
    add("--seed", type=int, default=0, help="seed of the problems")
    add("--batch_tokens", type=int, default=16384, help="tokens per batch")
    add("--processes", type=int, default=1, help="worker processes")
    add("--shard", default="1/1", help="i/n: the i-th of n shards")
    add("--name", type=folder_name, default=FOLDER, help="name of the folder for the results")
    return parser


@expected_errors(continues=True)
def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    transformers.logging.disable_progress_bar()
    evaluate(parser().parse_args())


if __name__ == "__main__":
    main()
