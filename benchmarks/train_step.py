"""Cost of a training step by method: time and memory of a forward and backward pass.

python benchmarks/train_step.py --shape small
python benchmarks/train_step.py --shape base --methods rope tape llama --out output/train_step

A method is an encoding, or `llama`: transformers' LlamaForCausalLM with the weights of `rope`.
Memory is the peak of tensors above the loaded model, including gradients.
"""

import torch

from benchmarks.harness import Comparison, parser, show
from benchmarks.models import METHODS, TOKENS, build
from benchmarks.timing import Work
from benchmarks.workloads import Load, of_model
from tape.command import Parser, expected_errors, integer


def add_tokens(found: Parser) -> None:
    """Adds the flags of a training step's input."""
    found.add_argument("--tokens", type=integer(1, 10**7), nargs=2, metavar=("BATCH", "LENGTH"))
    found.add_argument("--autocast", choices=["bfloat16"], help="as trainer.bf16 does")


@expected_errors()
def main() -> None:
    found = parser(__doc__, (METHODS, ["rope", "tape", "llama"]), "small", attention=True)
    add_tokens(found)
    found.add_argument("--compile", action="store_true", help="with torch.compile")
    arguments = found.parse_args()
    batch, length = arguments.tokens or TOKENS[arguments.shape]
    dtype = torch.bfloat16 if arguments.autocast else torch.float32
    load = Load("training", batch, length, 1, dtype, arguments.compile)

    def prepare(method: str) -> Work:
        return of_model(build(method, arguments.shape, arguments.attention, length).train(), load)

    show("train_step", arguments, [Comparison("training step", arguments.methods, prepare)])


if __name__ == "__main__":
    main()
