"""Cost of a training step on a base model by method: forward, backward and AdamW.

python benchmarks/adapters.py                                  # 4 layers of 256
python benchmarks/adapters.py --shape base --methods lora adape --out output/adapters

A method is a file of config/peft. Embeddings and norms train as in the paper's recipe, unless
--no-extra is given. Memory includes gradients and the state of AdamW.
"""

import argparse
from functools import partial

import torch

from benchmarks.harness import Comparison, parser, show
from benchmarks.models import DEVICE, TOKENS, build, random_tokens
from benchmarks.timing import Work
from benchmarks.train_step import add_tokens
from tape.command import expected_errors
from tape.model.adapters import Method, adapt
from tape.model.frozen import BFLOAT16, cast_frozen

LORA = {"rank": 8, "alpha": 16, "dropout": 0.0, "targets": ["q_proj", "k_proj", "v_proj", "o_proj"]}
PLAIN = {"everything": False, "lora": None, "groups": None}
METHODS = {
    "lora": PLAIN | {"lora": LORA},
    "longlora": PLAIN | {"lora": LORA, "groups": 4},
    "adape": PLAIN,
    "adape_lora": PLAIN | {"lora": LORA},
    "ft": PLAIN | {"everything": True},
}


def step_of(arguments: argparse.Namespace, method: str) -> Work:
    batch, length = arguments.tokens or TOKENS[arguments.shape]
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
    half = arguments.autocast is not None

    def step() -> None:
        with torch.autocast(DEVICE.type, dtype=torch.bfloat16, enabled=half):
            loss = model(input_ids=tokens, labels=tokens, use_cache=False, skip_logits=True).loss
        loss.backward()
        optimizer.step()
        model.zero_grad(set_to_none=True)

    return step


@expected_errors()
def main() -> None:
    found = parser(__doc__, ([*METHODS], [*METHODS]), "small", attention=True)
    add_tokens(found)
    found.add_argument("--no-extra", action="store_true", help="freeze embeddings and norms")
    found.add_argument("--checkpointing", action="store_true", help="gradient checkpointing")
    found.add_argument("--frozen", choices=[BFLOAT16], help="dtype of frozen weights")
    arguments = found.parse_args()
    if arguments.frozen and not arguments.autocast:
        found.error(f"--frozen {arguments.frozen} needs --autocast {BFLOAT16}")
    # Memory is counted from the first call, which creates the state of AdamW.
    prepare = partial(step_of, arguments)
    steps = Comparison("training step", arguments.methods, prepare, warm_up=0, calls=2)
    show("adapters", arguments, [steps])


if __name__ == "__main__":
    main()
