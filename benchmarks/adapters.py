"""Cost of a training step on a base model by method: forward, backward and AdamW.

python benchmarks/adapters.py                                  # 4 layers of 256
python benchmarks/adapters.py --shape base --methods lora adape --out benchmarks/results

A method is a file of config/peft. Embeddings and norms train as in the paper's recipe, unless
--no-extra is given. Times and memory are measured as in train_step.py.
"""

import argparse
import json
from collections.abc import Callable

import torch
from measuring import (
    SHAPES,
    arguments_of_steps,
    build,
    compare_steps,
    in_its_own_process,
    peak_memory,
    publish,
)
from train_step import step

from tape.adapters import Method, adapt
from tape.analysis.decoders import random_tokens
from tape.analysis.measuring import in_turn
from tape.command import Parser, expected_errors
from tape.frozen import BFLOAT16, cast_frozen

LORA = {"rank": 8, "alpha": 16, "dropout": 0.0, "targets": ["q_proj", "k_proj", "v_proj", "o_proj"]}
PLAIN = {"everything": False, "lora": None, "groups": None}
METHODS = {
    "lora": PLAIN | {"lora": LORA},
    "longlora": PLAIN | {"lora": LORA, "groups": 4},
    "adape": PLAIN,
    "adape_lora": PLAIN | {"lora": LORA},
    "ft": PLAIN | {"everything": True},
}


def step_of(method: str, arguments: argparse.Namespace) -> Callable[[], None]:
    batch, length = arguments.tokens or SHAPES[arguments.shape].tokens
    position = "tape" if method.startswith("adape") else "rope"
    base = build(position, arguments.shape, arguments.attention, length)
    tokens = random_tokens(base, batch, length)
    settings = {"name": method, "extra": not arguments.no_extra} | METHODS[method]
    model = adapt(base, Method.of(settings), "base", "").train()
    cast_frozen(model, arguments.frozen)
    if arguments.checkpointing:
        model.activation_checkpointing_enable()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, 1e-5)

    def one() -> None:
        step(model, tokens, arguments.dtype)
        optimizer.step()

    return one


@expected_errors()
def main(arguments: argparse.Namespace) -> None:
    methods = arguments.methods
    if arguments.memory_only:
        print(json.dumps(peak_memory(step_of(methods[0], arguments))))
        return
    memory = {method: in_its_own_process(method, "--memory-only") for method in methods}
    work = {method: step_of(method, arguments) for method in methods}
    publish(
        "adapters",
        compare_steps(in_turn(work, arguments.repeats), memory, methods),
        arguments.out,
    )


if __name__ == "__main__":
    parser = Parser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=[*METHODS])
    parser.add_argument("--no-extra", action="store_true", help="freeze embeddings and norms")
    parser.add_argument("--checkpointing", action="store_true", help="gradient checkpointing")
    parser.add_argument("--frozen", choices=[BFLOAT16], help="dtype of frozen weights")
    arguments = arguments_of_steps(parser)
    if arguments.frozen and not arguments.autocast:
        parser.error(f"--frozen {arguments.frozen} needs --autocast {BFLOAT16}")
    main(arguments)
