"""Cost of a Llama of 7 billion at 8,192 tokens: training steps by method, prompts and decoding.

python benchmarks/llama_step.py --out output/llama_step                    # on a GPU: minutes
python benchmarks/llama_step.py --shape small --length 256 --new 16        # a rehearsal anywhere

Weights are random, in bfloat16; trainable ones are float32, under autocast. Steps are those of
adapters.py, with gradient checkpointing and AdamW. Each model is measured alone and then deleted;
memory is the total in use, including weights.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Callable
from functools import partial

import torch
from adapters import step_of
from decode import generate
from measuring import SHAPES, build, publish, table, table_folder
from tqdm import tqdm

from tape.analysis.decoders import random_tokens
from tape.analysis.measuring import DEVICE, Seconds, in_turn, memory_in_use, reset_peak
from tape.attention import KERNELS
from tape.command import Parser, expected_errors, integer

STEPS = ["lora", "longlora", "adape"]
ENCODINGS = ["rope", "tape"]
Work = dict[str, Callable[[], object]]


def measured(prepare: Callable[[], Work], repeats: int) -> tuple[Seconds, dict[str, str]]:
    """Returns the times of some work, and the memory before it and at its peak. The prepared
    objects are local to this call, so that the next call has all of the memory."""
    gc.collect()
    work = prepare()
    reset_peak()
    before = memory_in_use(peak=False)
    seconds = in_turn(work, repeats)
    gib = [bytes_ / 2**30 for bytes_ in (before, memory_in_use(peak=True))]
    return seconds, {"loaded, GiB": f"{gib[0]:.2f}", "peak, GiB": f"{gib[1]:.2f}"}


def spread(seconds: Seconds, name: str) -> str:
    return f"{min(seconds.rounds[name]):.3f} to {max(seconds.rounds[name]):.3f}"


def training(method: str, arguments: argparse.Namespace) -> dict[str, str]:
    settings = argparse.Namespace(
        shape=arguments.shape,
        tokens=(1, arguments.length),
        attention=arguments.attention,
        no_extra=False,
        checkpointing=True,
        frozen="bfloat16",
        dtype=torch.bfloat16,
    )
    seconds, memory = measured(lambda: {method: step_of(method, settings)}, arguments.repeats)
    step = seconds.median(method)
    return {
        "method": method,
        "tokens/s": f"{arguments.length / step:,.0f}",
        "seconds per step": f"{step:.3f}",
        "least to most": spread(seconds, method),
        **memory,
    }


def inference(encoding: str, arguments: argparse.Namespace) -> dict[str, str]:
    """Measures a prompt with the first new token, and the remaining tokens."""

    def prepare() -> Work:
        length = arguments.length + arguments.new + 1
        model = build(encoding, arguments.shape, arguments.attention, length)
        model = model.to(torch.bfloat16).eval()
        prompt = random_tokens(model, 1, arguments.length)
        return {
            str(new): partial(generate, model, prompt, argparse.Namespace(new=new, static=False))
            for new in (1, arguments.new + 1)
        }

    seconds, memory = measured(prepare, arguments.repeats)
    prompt, whole = (seconds.rounds[str(new)] for new in (1, arguments.new + 1))
    decoding = Seconds({"rest": [b - a for a, b in zip(prompt, whole, strict=True)]})
    return {
        "encoding": encoding,
        "prompt, tokens/s": f"{arguments.length / seconds.median('1'):,.0f}",
        "seconds": f"{seconds.median('1'):.3f}",
        "decoding, tokens/s": f"{arguments.new / decoding.median('rest'):,.1f}",
        "seconds, least to most": spread(decoding, "rest"),
        **memory,
    }


@expected_errors()
def main(arguments: argparse.Namespace) -> None:
    about = f"{arguments.shape}, 1 x {arguments.length:,} tokens, bfloat16, {arguments.attention}"
    for title, measure, names in (
        ("a training step, gradient checkpointing", training, STEPS),
        (f"a prompt, then {arguments.new} tokens", inference, ENCODINGS),
    ):
        rows = [measure(name, arguments) for name in tqdm(names, title, disable=None)]
        publish("llama_step", f"{about}: {title}\n\n{table(rows)}", arguments.out)


def parse() -> argparse.Namespace:
    parser = Parser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--shape", choices=SHAPES, default="llama2_7b")
    parser.add_argument(
        "--length", type=integer(1), default=8192, help="tokens of a step, of a prompt"
    )
    parser.add_argument("--new", type=integer(1), default=64, help="tokens to decode")
    parser.add_argument("--attention", choices=KERNELS, default="sdpa")
    parser.add_argument("--repeats", type=integer(7), default=7, help="rounds; at least 7")
    parser.add_argument(
        "--out", type=table_folder, help="folder for the tables; printed only by default"
    )
    arguments = parser.parse_args()
    if arguments.length % 8:
        parser.error(f"--length {arguments.length}: longlora takes a multiple of 8")
    if arguments.shape == "llama2_7b" and DEVICE.type == "cpu":
        parser.error("--shape llama2_7b needs a GPU, and there is none; take --shape small")
    return arguments


if __name__ == "__main__":
    main(parse())
