"""Cost of a training step by method: time and memory of a forward and backward pass.

python benchmarks/train_step.py --shape small
python benchmarks/train_step.py --shape base --methods rope tape llama --out benchmarks/results

A method is an encoding, or `llama`: the library's LlamaForCausalLM with the weights of `rope`. The
methods run alternately in one process, so that fluctuations of the machine affect all of them;
ratios are medians over the rounds. Memory is the peak above the loaded model, including gradients,
each method in its own process.
"""

import argparse
import json
from collections.abc import Callable

import torch
from measuring import (
    METHODS,
    SHAPES,
    arguments_of_steps,
    build,
    compare_steps,
    in_its_own_process,
    peak_memory,
    publish,
)
from torch import nn

from tape.analysis.decoders import random_tokens
from tape.analysis.measuring import in_turn, synchronize
from tape.command import Parser, expected_errors


def step(model: nn.Module, tokens: torch.Tensor, dtype: torch.dtype | None) -> None:
    model.zero_grad(set_to_none=True)
    with torch.autocast(tokens.device.type, dtype=dtype, enabled=dtype is not None):
        loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
    loss.backward()
    synchronize()


def prepare(method: str, arguments: argparse.Namespace) -> tuple[nn.Module, torch.Tensor]:
    model = build(method, arguments.shape, arguments.attention).train()
    if arguments.compile:
        model.forward = torch.compile(model.forward)
    batch, length = arguments.tokens or SHAPES[arguments.shape].tokens
    return model, random_tokens(model, batch, length)


@expected_errors()
def main(arguments: argparse.Namespace) -> None:
    methods = arguments.methods

    def step_of(method: str) -> Callable[[], None]:
        given = prepare(method, arguments)
        return lambda: step(*given, arguments.dtype)

    if arguments.memory_only:
        print(json.dumps(peak_memory(step_of(methods[0]))))
        return
    memory = {method: in_its_own_process(method, "--memory-only") for method in methods}
    seconds = in_turn({method: step_of(method) for method in methods}, arguments.repeats)
    publish("train_step", compare_steps(seconds, memory, methods), arguments.out)


def parse() -> argparse.Namespace:
    parser = Parser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=["rope", "tape", "llama"])
    parser.add_argument("--compile", action="store_true")
    return arguments_of_steps(parser)


if __name__ == "__main__":
    main(parse())
