"""What a training step costs: forward and backward pass, time and memory, method against method.

python benchmarks/train_step.py --shape small
python benchmarks/train_step.py --shape base --methods rope tape llama --out benchmarks/results

A method is an encoding, or `llama`: the library's LlamaForCausalLM with the weights of `rope`.
Times are taken in one process, the methods in turn, so that a slow minute of the machine hits all
of them; the ratios are medians over the rounds. Memory is the peak above the loaded model,
gradients included, each method in a process of its own.
"""

import argparse
import json
import subprocess
import sys

import torch
from measuring import (
    METHODS,
    SHAPES,
    build,
    in_turn,
    memory_in_use,
    publish,
    random_tokens,
    reset_peak,
    synchronize,
    table,
)
from torch import nn


def step(model: nn.Module, tokens: torch.Tensor, dtype: torch.dtype | None) -> None:
    model.zero_grad(set_to_none=True)
    with torch.autocast(tokens.device.type, dtype=dtype, enabled=dtype is not None):
        loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
    loss.backward()
    synchronize()


def peak_memory(method: str, arguments: argparse.Namespace) -> float:
    """MiB above the loaded model, in this process: call it in a fresh one."""
    model, tokens = prepare(method, arguments)
    reset_peak()
    before = memory_in_use(peak=False)
    for _ in range(3):
        step(model, tokens, arguments.dtype)
    return (memory_in_use(peak=True) - before) / 2**20


def prepare(method: str, arguments: argparse.Namespace) -> tuple[nn.Module, torch.Tensor]:
    model = build(method, arguments.shape, arguments.attention).train()
    if arguments.compile:
        model.forward = torch.compile(model.forward)
    batch, length = arguments.tokens or SHAPES[arguments.shape].tokens
    return model, random_tokens(model, batch, length)


def memory_of(method: str) -> float:
    """`peak_memory` of a method in a process of its own."""
    command = [sys.executable, __file__, *sys.argv[1:], "--methods", method, "--memory-only"]
    outcome = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(outcome.stdout.splitlines()[-1])


def main(arguments: argparse.Namespace) -> None:
    if arguments.memory_only:
        print(json.dumps(peak_memory(arguments.methods[0], arguments)))
        return
    memory = {method: memory_of(method) for method in arguments.methods}
    prepared = {method: prepare(method, arguments) for method in arguments.methods}
    seconds = in_turn(
        {
            method: lambda given=given: step(*given, arguments.dtype)
            for method, given in prepared.items()
        },
        arguments.repeats,
    )
    first = arguments.methods[0]
    rows = [
        {
            "method": method,
            "ms per step": f"{1000 * seconds.median(method):.1f}",
            f"time / {first}": f"{seconds.ratio(method, first):.3f}",
            "quartiles": "{:.3f} to {:.3f}".format(*seconds.quartiles(method, first)),
            "peak memory, MiB": f"{memory[method]:.0f}",
            f"memory / {first}": f"{memory[method] / memory[first]:.3f}",
        }
        for method in arguments.methods
    ]
    publish("train_step", table(rows), arguments.out)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--shape", choices=SHAPES, default="small")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=["rope", "tape", "llama"])
    parser.add_argument("--repeats", type=int, default=15, help="rounds; at least 7")
    parser.add_argument("--tokens", type=int, nargs=2, metavar=("BATCH", "LENGTH"))
    parser.add_argument("--attention", default="sdpa")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--autocast", choices=["bfloat16"], help="as trainer.bf16 does")
    parser.add_argument("--out", help="a folder for the table; on the console alone by default")
    parser.add_argument("--memory-only", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.repeats < 7:
        parser.error(f"--repeats {arguments.repeats}: medians of less than 7 say nothing")
    arguments.dtype = arguments.autocast and getattr(torch, arguments.autocast)
    return arguments


if __name__ == "__main__":
    main(parse())
