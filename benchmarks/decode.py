"""Cost of a generated token by method: greedy decoding with a KV cache.

python benchmarks/decode.py --shape small
python benchmarks/decode.py --shape base --methods rope tape llama fire --out output/decode

A method is an encoding, or `llama`: transformers' LlamaForCausalLM with the weights of `rope`.
Tokens per second include the prompt's time.
"""

import torch

from benchmarks.harness import Comparison, parser, show
from benchmarks.models import METHODS, build, random_tokens
from benchmarks.timing import Work
from tape.command import expected_errors


@expected_errors()
def main() -> None:
    counts = {
        "prompt": (256, 1, "tokens before"),
        "new": (64, 1, "tokens to decode"),
        "batch": (1, 1, "sequences"),
    }
    found = parser(__doc__, (METHODS, ["rope", "tape", "llama"]), "small", attention=True, **counts)
    found.add_argument("--static", action="store_true", help="a static cache; compiled on a GPU")
    arguments = found.parse_args()
    new = arguments.new

    def prepare(method: str) -> Work:
        length = arguments.prompt + new
        model = build(method, arguments.shape, arguments.attention, length).eval()
        prompt = random_tokens(model, arguments.batch, arguments.prompt)
        return lambda: model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=new,
            min_new_tokens=new,
            do_sample=False,
            cache_implementation="static" if arguments.static else None,
        ).shape[1]

    decoding = Comparison("decoding", arguments.methods, prepare)
    show("decode", arguments, [decoding], amount=arguments.batch * new)


if __name__ == "__main__":
    main()
