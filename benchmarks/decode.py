"""Cost of a generated token by method: greedy decoding with a KV cache.

python benchmarks/decode.py --shape small
python benchmarks/decode.py --shape base --methods rope tape llama fire --out benchmarks/results

A method is an encoding, or `llama`: the library's LlamaForCausalLM with the weights of `rope`. The
methods run alternately in one process; ratios of speeds are medians over the rounds.
"""

import argparse

import torch
from measuring import METHODS, SHAPES, build, publish, table, table_folder
from torch import nn

from tape.analysis.decoders import random_tokens
from tape.analysis.measuring import in_turn, synchronize
from tape.attention import KERNELS
from tape.command import Parser, expected_errors, integer


@torch.no_grad()
def generate(model: nn.Module, prompt: torch.Tensor, arguments: argparse.Namespace) -> torch.Tensor:
    output = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=arguments.new,
        min_new_tokens=arguments.new,
        do_sample=False,
        cache_implementation="static" if arguments.static else None,
    )
    synchronize()
    return output


@expected_errors()
def main(arguments: argparse.Namespace) -> None:
    length = arguments.prompt + arguments.new
    models = {
        method: build(method, arguments.shape, arguments.attention, length).eval()
        for method in arguments.methods
    }
    prompt = random_tokens(next(iter(models.values())), arguments.batch, arguments.prompt)
    seconds = in_turn(
        {
            method: lambda model=model: generate(model, prompt, arguments)
            for method, model in models.items()
        },
        arguments.repeats,
    )
    first, tokens = arguments.methods[0], arguments.batch * arguments.new
    rows = [
        {
            "method": method,
            "tokens/s": f"{tokens / seconds.median(method):.1f}",
            f"speed / {first}": f"{seconds.ratio(first, method):.3f}",
            "quartiles": "{:.3f} to {:.3f}".format(*seconds.quartiles(first, method)),
        }
        for method in arguments.methods
    ]
    publish("decode", table(rows), arguments.out)


def parse() -> argparse.Namespace:
    parser = Parser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--shape", choices=SHAPES, default="small")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=["rope", "tape", "llama"])
    parser.add_argument("--prompt", type=integer(1), default=256, help="tokens before")
    parser.add_argument("--new", type=integer(1), default=64, help="tokens to decode")
    parser.add_argument("--batch", type=integer(1), default=1)
    parser.add_argument("--repeats", type=integer(7), default=15, help="rounds; at least 7")
    parser.add_argument("--attention", choices=KERNELS, default="sdpa")
    parser.add_argument("--static", action="store_true", help="a static cache; compiled on a GPU")
    parser.add_argument(
        "--out", type=table_folder, help="folder for the table; printed only by default"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main(parse())
