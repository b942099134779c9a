"""Cost of answering prompts of different lengths: in batches with a KV cache, or one by one.

python benchmarks/scrolls_generate.py --methods rope tape

Answers have a fixed length, because an untrained model rarely ends one; both variants agree.
"""

from functools import partial

import numpy as np
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from benchmarks.harness import Comparison, parser, show
from benchmarks.models import SHAPES, build
from benchmarks.timing import Work
from scrolls.generation import Batch, answers
from scrolls.prompts import Budget
from tape.command import expected_errors, integer
from tape.positions import ENCODINGS


def words(count: int) -> PreTrainedTokenizerFast:
    """Returns a tokenizer of `count` words to decode random outputs; the last word is EOS."""
    vocabulary = {f"w{number}": number for number in range(count)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="w0"))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=f"w{count - 1}")


def batches_of(prompts: list[np.ndarray], budget: Budget, size: int) -> list[Batch]:
    """Groups prompts of increasing length, `size` per batch."""
    groups = [prompts[first : first + size] for first in range(0, len(prompts), size)]
    return [
        Batch(number, [str(n) for n in range(len(group))], group, budget)
        for number, group in enumerate(groups)
    ]


@expected_errors()
def main() -> None:
    counts = {
        "prompts": (64, 1, "questions"),
        "new": (32, 1, "tokens of every answer"),
        "batch": (16, 1, "prompts per batch"),
    }
    found = parser(__doc__, ([*ENCODINGS], ["rope", "tape"]), "small", rounds=(1, 1), **counts)
    about = "the shortest and longest, tokens"
    found.add_argument("--prompt", type=integer(1), nargs=2, default=[64, 823], help=about)
    arguments = found.parse_args()
    shortest, longest = arguments.prompt
    if shortest > longest:
        found.error(f"--prompt {shortest} {longest}: give the shortest length first")
    vocabulary = SHAPES[arguments.shape]["vocabulary"]
    tokenizer, random = words(vocabulary), np.random.default_rng(0)
    lengths = np.linspace(shortest, longest, arguments.prompts).astype(int)
    prompts = [random.integers(0, vocabulary - 1, length) for length in lengths]
    budget, expected = Budget(longest, arguments.new - 1), {}

    def prepare(method: str, size: int, cached: bool) -> Work:
        model = build(method, arguments.shape, "sdpa", budget.length).eval()
        model.lm_head.weight.data[-1] = 0.0  # EOS is never the likeliest: equal lengths
        batches = batches_of(prompts, budget, size)

        def work() -> str:
            given = [
                text
                for batch in batches
                for text in answers(model, tokenizer, batch, use_cache=cached)
            ]
            first = expected.setdefault(method, given)
            same = sum(a == b for a, b in zip(first, given, strict=True))
            return f"{same} of {len(prompts)}"

        return work

    ways = {"one by one, no cache": (1, False), "batches, cache": (arguments.batch, True)}
    comparisons = [
        Comparison(
            method, {way: partial(prepare, method, *how) for way, how in ways.items()}, warm_up=0
        )
        for method in arguments.methods
    ]
    amount = len(prompts) * arguments.new
    show(
        "scrolls_generate",
        arguments,
        comparisons,
        title="answering",
        amount=amount,
        unit="new tokens",
        result="same texts",
    )


if __name__ == "__main__":
    main()
