"""Cost of answering prompts of different lengths: in batches with a KV cache, or one by one.

python benchmarks/scrolls_generate.py --methods rope tape

Answers have a fixed length, because an untrained model rarely ends one; both variants agree.
"""

from __future__ import annotations

import argparse

import numpy as np
from measuring import SHAPES, build, publish, table, table_folder
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from scrolls.generation import Batch, answers
from scrolls.prompts import Budget
from tape import TapeForCausalLM
from tape.analysis.measuring import in_turn, synchronize
from tape.command import Parser, expected_errors, integer
from tape.positions import ENCODINGS


def words(count: int) -> PreTrainedTokenizerFast:
    """Returns a tokenizer of `count` words to decode random outputs; the last word is EOS."""
    vocabulary = {f"w{number}": number for number in range(count)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="w0"))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=f"w{count - 1}")


def prompts_of(lengths: np.ndarray, vocabulary: int) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [random.integers(0, vocabulary - 1, length) for length in lengths]


def batches_of(prompts: list[np.ndarray], budget: Budget, size: int) -> list[Batch]:
    """Groups prompts by length, `size` per batch."""
    ordered = sorted(prompts, key=len)
    groups = [ordered[first : first + size] for first in range(0, len(ordered), size)]
    return [
        Batch(number, [str(n) for n in range(len(group))], group, budget)
        for number, group in enumerate(groups)
    ]


@expected_errors()
def main(arguments: argparse.Namespace) -> None:
    vocabulary = SHAPES[arguments.shape].vocabulary
    tokenizer, rows = words(vocabulary), []
    shortest, longest = arguments.prompt
    lengths = np.linspace(shortest, longest, arguments.prompts).astype(int)
    prompts, budget = prompts_of(lengths, vocabulary), Budget(longest, arguments.new - 1)
    together, alone = (batches_of(prompts, budget, size) for size in (arguments.batch, 1))
    for method in arguments.methods:
        model = build(method, arguments.shape, length=budget.length).eval()
        model.lm_head.weight.data[-1] = 0.0  # EOS is never the likeliest: equal lengths

        def answer(
            batches: list[Batch], use_cache: bool, model: TapeForCausalLM = model
        ) -> list[str]:
            given = [
                text
                for batch in batches
                for text in answers(model, tokenizer, batch, use_cache=use_cache)
            ]
            synchronize()
            return given

        ways = {
            "batches, cache": lambda answer=answer: answer(together, True),
            "one by one, no cache": lambda answer=answer: answer(alone, False),
        }
        texts = {name: way() for name, way in ways.items()}  # also a warm-up
        same = sum(a == b for a, b in zip(*texts.values(), strict=True))
        seconds = in_turn(ways, arguments.repeats, warm_up=0)
        rows += [
            {
                "method": method,
                "answering": name,
                "seconds": f"{seconds.median(name):.1f}",
                "new tokens/s": f"{len(prompts) * arguments.new / seconds.median(name):.0f}",
                "speed": f"{seconds.ratio('one by one, no cache', name):.1f}",
                "same texts": f"{same} of {len(prompts)}",
            }
            for name in ways
        ]
    publish("scrolls_generate", table(rows), arguments.out)


def parse() -> argparse.Namespace:
    parser = Parser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--methods", nargs="+", choices=ENCODINGS, default=["rope", "tape"])
    parser.add_argument("--shape", choices=SHAPES, default="small")
    parser.add_argument("--prompts", type=integer(1), default=64)
    parser.add_argument(
        "--prompt",
        type=integer(1),
        nargs=2,
        default=[64, 823],
        help="the shortest and longest, tokens",
    )
    parser.add_argument("--new", type=integer(1), default=32, help="tokens of every answer")
    parser.add_argument("--batch", type=integer(1), default=16, help="prompts per batch")
    parser.add_argument("--repeats", type=integer(1), default=1, help="rounds")
    parser.add_argument(
        "--out", type=table_folder, help="folder for the table; printed only by default"
    )
    arguments = parser.parse_args()
    shortest, longest = arguments.prompt
    if shortest > longest:
        parser.error(f"--prompt {shortest} {longest}: give the shortest length first")
    return arguments


if __name__ == "__main__":
    main(parse())
