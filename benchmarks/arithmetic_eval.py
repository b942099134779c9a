"""Cost of evaluating a grid: cached decoding of equal prompts in batches, or cell by cell.

python benchmarks/arithmetic_eval.py
python benchmarks/arithmetic_eval.py --samples 100 --only cached --repeats 1   # the grid of a run

The model is random (4 layers of 128, 4 heads) and rarely ends an answer by itself. The variants run
alternately on the same questions; ratios are medians over the rounds. Times of several processes
include their start of several seconds, so give them enough work.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import transformers
from measuring import publish, table, table_folder

from arithmetic import Problems, character_tokenizer
from arithmetic.decoding import answers
from arithmetic.plan import Batch, plan
from tape import TapeConfig, TapeForCausalLM
from tape.analysis.measuring import DEVICE, in_turn, synchronize
from tape.command import Parser, expected_errors, integer
from tape.evaluation.workers import side_by_side
from tape.positions import ENCODINGS


def build(position: str, digits: int) -> TapeForCausalLM:
    tokenizer = character_tokenizer()
    torch.manual_seed(0)
    config = TapeConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        max_position_embeddings=Problems(max_first=digits, max_second=digits).length,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        position=position,
    )
    return TapeForCausalLM(config).to(DEVICE).eval()


def cells(batches: list[Batch]) -> list[Batch]:
    """Returns the same questions, one cell per batch."""
    found: dict[tuple[int, int], list] = {}
    for batch in batches:
        for question in batch.questions:
            found.setdefault((question.n, question.m), []).append(question)
    return [
        Batch(
            questions, max(n, m) + 2, len(questions[0].prompt) + max(n, m) + 2, batches[0].problems
        )
        for (n, m), questions in found.items()
    ]


@expected_errors()
def main(arguments: argparse.Namespace, work: Path) -> None:
    tokenizer, problems = character_tokenizer(), Problems()
    batches = plan(problems, arguments.digits, arguments.samples, 0, arguments.batch)
    rows = []
    for method in arguments.methods:
        model = build(method, arguments.digits)
        folder = work / method
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)

        def decode(batches: list[Batch], use_cache: bool, model: TapeForCausalLM = model) -> None:
            for batch in batches:
                answers(model, tokenizer, batch, use_cache)
            synchronize()

        def share(folder: Path = folder) -> None:
            answered = side_by_side(folder, answers, arguments.processes)
            list(answered(dict(enumerate(batches))))

        ways = {
            "cached": lambda decode=decode: decode(batches, True),
            f"cached, {arguments.processes} processes": share,
            "cell by cell": lambda decode=decode: decode(cells(batches), False),
        }
        if not (chosen := [name for name in ways if name.startswith(arguments.only)]):
            raise ValueError(f"--only {arguments.only!r}: no way begins so: {', '.join(ways)}")
        ways = {name: ways[name] for name in chosen}
        seconds = in_turn(ways, arguments.repeats, warm_up=0)
        questions = sum(len(batch.questions) for batch in batches)
        rows += [
            {
                "method": method,
                "decoding": name,
                "seconds": f"{seconds.median(name):.1f}",
                "questions/s": f"{questions / seconds.median(name):.0f}",
                "speed": f"{seconds.ratio(next(reversed(ways)), name):.1f}",
            }
            for name in ways
        ]
    publish("arithmetic_eval", table(rows), arguments.out)


def parse() -> argparse.Namespace:
    parser = Parser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--methods", nargs="+", choices=ENCODINGS, default=["rope", "tape"])
    parser.add_argument("--digits", type=integer(1), default=20, help="the longest operands")
    parser.add_argument("--samples", type=integer(1), default=10, help="questions of each cell")
    parser.add_argument("--batch", type=integer(1), default=256, help="questions decoded together")
    parser.add_argument("--processes", type=integer(1), default=2, help="of the second way")
    parser.add_argument("--only", default="", help="ways whose name begins so")
    parser.add_argument("--repeats", type=integer(1), default=3, help="rounds")
    parser.add_argument(
        "--out", type=table_folder, help="folder for the table; printed only by default"
    )
    return parser.parse_args()


if __name__ == "__main__":
    transformers.logging.disable_progress_bar()
    with TemporaryDirectory() as work:
        main(parse(), Path(work))
