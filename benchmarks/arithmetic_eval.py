"""What evaluating a grid costs: cached decoding of equal prompts together, or cell by cell without.

python benchmarks/arithmetic_eval.py
python benchmarks/arithmetic_eval.py --samples 100 --only cached --repeats 1   # the grid of a run

The model is random, of 4 layers of 128 and 4 heads, and rarely ends an answer by itself. Both ways
take turns in one process, on the same questions; ratios are medians over the rounds.
"""

from __future__ import annotations

import argparse

import torch
from measuring import DEVICE, in_turn, publish, synchronize, table

from arithmetic import Problems, character_tokenizer
from arithmetic.decoding import answers
from arithmetic.plan import Batch, plan
from tape import TapeConfig, TapeForCausalLM
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
    """The same questions, one cell at a time."""
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


def main(arguments: argparse.Namespace) -> None:
    tokenizer, problems = character_tokenizer(), Problems()
    batches = plan(problems, arguments.digits, arguments.samples, 0, arguments.batch)
    ways = {"cached": (batches, True), "cell by cell": (cells(batches), False)}
    ways = {name: way for name, way in ways.items() if arguments.only in (None, name)}
    rows = []
    for method in arguments.methods:
        model = build(method, arguments.digits)

        def decode(batches: list[Batch], use_cache: bool, model: TapeForCausalLM = model) -> None:
            for batch in batches:
                answers(model, tokenizer, batch, use_cache)
            synchronize()

        seconds = in_turn(
            {name: lambda way=way, decode=decode: decode(*way) for name, way in ways.items()},
            arguments.repeats,
            warm_up=0,
        )
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
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--methods", nargs="+", choices=ENCODINGS, default=["rope", "tape"])
    parser.add_argument("--digits", type=int, default=20, help="the longest operands")
    parser.add_argument("--samples", type=int, default=10, help="questions of each cell")
    parser.add_argument("--batch", type=int, default=256, help="questions decoded together")
    parser.add_argument("--only", choices=["cached", "cell by cell"], help="one way alone")
    parser.add_argument("--repeats", type=int, default=3, help="rounds")
    parser.add_argument("--out", help="a folder for the table; on the console alone by default")
    return parser.parse_args()


if __name__ == "__main__":
    main(parse())
