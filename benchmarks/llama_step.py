"""Cost of a Llama of 7 billion at 8,192 tokens: training steps by method, prompts and decoding.

python benchmarks/llama_step.py --out output/llama_step                    # on a GPU: minutes
python benchmarks/llama_step.py --shape small --length 256 --new 16        # a rehearsal anywhere

Weights are random, in bfloat16; trainable ones are float32, under autocast. Steps are those of
adapters.py, with gradient checkpointing and AdamW. Each model is measured alone and then deleted;
memory is the total in use, including weights, and in decoding the prompt's cache.
"""

import argparse
from functools import partial

import torch

from benchmarks.adapters import step_of
from benchmarks.harness import Comparison, Measured, heading, parser, publish, run
from benchmarks.models import DEVICE, build
from benchmarks.timing import Spread, Work
from benchmarks.workloads import Load, of_model
from tape.command import expected_errors
from tape.evaluation.tables import markdown_table

STEPS = ["lora", "longlora", "adape"]
ENCODINGS = ["rope", "tape"]


def inference(encoding: str, load: Load, arguments: argparse.Namespace) -> Work:
    length = load.length + load.new
    return of_model(load.ready(build(encoding, arguments.shape, arguments.attention, length)), load)


def speed(tokens: int, each: Measured) -> list[str]:
    """Returns tokens per second, and seconds with their quartiles."""
    seconds = Spread.of(each.seconds)
    shown = "{:.3f} ({:.3f} to {:.3f})".format(*seconds)
    return [f"{tokens / seconds.median:,.1f}", shown]


def memory(*parts: Measured) -> list[str]:
    """Returns GiB in use before the work, and at most."""
    peak = max(each.loaded + each.memory for each in parts)
    return [f"{bytes_ / 2**30:.2f}" for bytes_ in (parts[0].loaded, peak)]


@expected_errors()
def main() -> None:
    length = (8192, 1, "tokens of a step and of a prompt")
    counts = {"length": length, "new": (64, 1, "tokens to decode")}
    found = parser(__doc__, shape="llama2_7b", attention=True, rounds=(7, 7), **counts)
    arguments = found.parse_args()
    if arguments.length % 8:
        found.error(f"--length {arguments.length}: longlora takes a multiple of 8")
    if arguments.shape == "llama2_7b" and DEVICE.type == "cpu":
        found.error("--shape llama2_7b needs a GPU, and there is none; take --shape small")

    steps = {"no_extra": False, "checkpointing": True, "frozen": "bfloat16", "autocast": "bfloat16"}
    steps = argparse.Namespace(**vars(arguments) | steps, tokens=(1, arguments.length))
    work = {(name, "training"): partial(step_of, name, steps) for name in STEPS}
    for name in ENCODINGS:
        for kind in ("prefill", "decoding"):
            load = Load(kind, 1, arguments.length, arguments.new, torch.bfloat16, False)
            work[name, kind] = partial(inference, name, load, arguments)
    alone = {
        key: Comparison(", ".join(key), {key[0]: each}, warm_up=0, calls=2)
        for key, each in work.items()
    }
    measured = run("llama_step", arguments, [*alone.values()])
    each = {key: measured[comparison.name][key[0]] for key, comparison in alone.items()}
    training = [["method", "tokens/s", "seconds per step", "loaded, GiB", "peak, GiB"]]
    for name in STEPS:
        step = each[name, "training"]
        training.append([name, *speed(arguments.length, step), *memory(step)])
    head = ["prompt, tokens/s", "seconds", "decoding, tokens/s", "seconds"]
    generation = [["encoding", *head, "loaded, GiB", "peak, GiB"]]
    for name in ENCODINGS:
        prompt, rest = each[name, "prefill"], each[name, "decoding"]
        times = [*speed(arguments.length, prompt), *speed(arguments.new, rest)]
        generation.append([name, *times, *memory(prompt, rest)])
    text = [
        heading(arguments),
        "a training step, gradient checkpointing",
        markdown_table(training),
        f"a prompt, then {arguments.new} tokens",
        markdown_table(generation),
    ]
    publish("llama_step", arguments, "\n\n".join(text))


if __name__ == "__main__":
    main()
