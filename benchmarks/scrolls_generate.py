"""Cost of answering prompts of different lengths: in batches with a KV cache, or one by one.

python benchmarks/scrolls_generate.py --methods rope tape

Answers have a fixed length, because an untrained model rarely ends one; both variants agree.
"""

from functools import partial

import numpy as np
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from benchmarks.harness import Comparison, parser, show
from benchmarks.models import SHAPES, build
from benchmarks.timing import Work
from scrolls.generation import Batch, answers
from scrolls.prompts import Budget
from tape.command import expected_errors, integer
from tape.positions import ENCODINGS

BATCHES = "batches, cache"


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
    count, random = SHAPES[arguments.shape]["vocabulary"], np.random.default_rng(0)
    words = WordLevel({f"w{number}": number for number in range(count)}, unk_token="w0")
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(words), eos_token=f"w{count - 1}"
    )
    lengths = np.linspace(shortest, longest, arguments.prompts).astype(int)
    prompts = [random.integers(0, count - 1, length) for length in lengths]
    budget, expected = Budget(longest, arguments.new - 1), {}

    def prepare(method: str, way: str) -> Work:
        model = build(method, arguments.shape, "sdpa", budget.length).eval()
        model.lm_head.weight.data[-1] = 0.0  # EOS is never the likeliest: equal lengths
        cached = way == BATCHES
        size = arguments.batch if cached else 1
        groups = [prompts[first : first + size] for first in range(0, len(prompts), size)]
        batches = [Batch(n, [*map(str, range(len(g)))], g, budget) for n, g in enumerate(groups)]

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

    comparisons = [
        Comparison(method, ["one by one, no cache", BATCHES], partial(prepare, method), warm_up=0)
        for method in arguments.methods
    ]
    amount = {"amount": len(prompts) * arguments.new, "unit": "new tokens"}
    columns = {"title": "answering", "result": "same texts", **amount}
    show("scrolls_generate", arguments, comparisons, **columns)


if __name__ == "__main__":
    main()
