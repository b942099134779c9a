"""Cost of a Llama of 7 billion at 8,192 tokens: training steps by method, prompts and decoding.

python benchmarks/llama_step.py --out output/llama_step                    # on a GPU: minutes
python benchmarks/llama_step.py --shape small --length 256 --new 16        # a rehearsal anywhere

Weights are random, in bfloat16; trainable ones are float32, under autocast. Steps are those of
adapters.py, with gradient checkpointing and AdamW. Each model is measured alone and then deleted;
memory is the total in use, including weights, and in decoding the prompt's cache.
"""

import argparse
from functools import partial

import pandas as pd
import torch

from benchmarks.adapters import step_of
from benchmarks.harness import Comparison, parser, publish, run, seconds_of
from benchmarks.models import DEVICE, build
from benchmarks.timing import Spread, Work
from benchmarks.workloads import Load, of_model
from tape.command import expected_errors
from tape.evaluation.tables import markdown_table

STEPS = ["lora", "longlora", "adape"]
ENCODINGS = ["rope", "tape"]
MEMORY = ["loaded, GiB", "peak, GiB"]


def row(name: str, works: list[tuple[int, pd.DataFrame]]) -> list[str]:
    """Returns for each work its tokens per second, and seconds with quartiles; then GiB in use
    before the first, and at most.

    Args:
        works: number of tokens and rows of each.
    """
    cells = [name]
    for tokens, rows in works:
        seconds = Spread.of(seconds_of(rows)[name])
        cells += [f"{tokens / seconds.median:,.1f}", "{:.3f} ({:.3f} to {:.3f})".format(*seconds)]
    loaded = works[0][1]["loaded"].iloc[0]
    peak = max((rows["loaded"] + rows["memory"]).iloc[0] for _, rows in works)
    return [*cells, f"{loaded / 2**30:.2f}", f"{peak / 2**30:.2f}"]


@expected_errors()
def main() -> None:
    length = (8192, 1, "tokens of a step and of a prompt")
    counts = {"length": length, "new": (64, 1, "tokens to decode")}
    found = parser(__doc__, shape="llama2_7b", attention=True, rounds=(7, 7), **counts)
    arguments = found.parse_args()
    if arguments.length % 8:
        found.error(f"--length {arguments.length}: longlora takes a multiple of 8")
    if arguments.shape == "llama2_7b" and DEVICE.type == "cpu":
        found.error("--shape llama2_7b needs a GPU, and there is none; use --shape small")

    steps = {"no_extra": False, "checkpointing": True, "frozen": "bfloat16", "autocast": "bfloat16"}
    steps = argparse.Namespace(**vars(arguments) | steps, tokens=(1, arguments.length))

    def inference(kind: str, encoding: str) -> Work:
        load = Load(kind, 1, arguments.length, arguments.new, torch.bfloat16, False)
        length = load.length + load.new
        model = build(encoding, arguments.shape, arguments.attention, length)
        return of_model(load.ready(model), load)

    works = [(name, "training", partial(step_of, steps)) for name in STEPS]
    for name in ENCODINGS:
        works += [(name, kind, partial(inference, kind)) for kind in ("prefill", "decoding")]
    alone = [
        Comparison(f"{name}, {kind}", [name], prepare, warm_up=0, calls=2)
        for name, kind, prepare in works
    ]
    found = run("llama_step", arguments, alone)
    size, new = arguments.length, arguments.new
    training = [["method", "tokens/s", "seconds per step", *MEMORY]]
    training += [row(name, [(size, found[f"{name}, training"])]) for name in STEPS]
    head = ["prompt, tokens/s", "seconds", "decoding, tokens/s", "seconds"]
    generation = [["encoding", *head, *MEMORY]]
    for name in ENCODINGS:
        both = [(size, found[f"{name}, prefill"]), (new, found[f"{name}, decoding"])]
        generation.append(row(name, both))
    text = [
        "a training step, gradient checkpointing",
        markdown_table(training),
        f"a prompt, then {new} tokens",
        markdown_table(generation),
    ]
    publish("llama_step", arguments, "\n\n".join(text))


if __name__ == "__main__":
    main()
