"""Cost of scoring a text: by tape.evaluation, and by the loop in the library's guide.

python benchmarks/perplexity.py
python benchmarks/perplexity.py --shape base --tokens 8192 --methods rope tape alibi

`loop` is the sliding window of the perplexity guide in the library's documentation with its
LlamaForCausalLM: one window at a time, labels of -100 for tokens scored before, logits of all
tokens. A method is an encoding; `rope` has the weights of the Llama and must reproduce its loss.
"""

from functools import partial

import numpy as np
import torch
from torch import nn

from benchmarks.harness import Comparison, parser, show
from benchmarks.models import build, random_tokens
from benchmarks.timing import Work
from tape.command import expected_errors
from tape.evaluation.scoring import perplexity
from tape.evaluation.windows import strides_of, windows_of
from tape.positions import ENCODINGS


@torch.no_grad()
def loop(model: nn.Module, tokens: np.ndarray, length: int, stride: int) -> float:
    """Returns the mean loss: the windows' means weighted by their numbers of scored tokens."""
    ids = torch.from_numpy(tokens.astype(np.int64))[None].to(model.device)
    total, scored, before = 0.0, 0, 0
    for start in range(0, ids.shape[1], stride):
        stop = min(start + length, ids.shape[1])
        window = ids[:, start:stop]
        labels = window.clone()
        labels[:, : before - stop] = -100
        new = (labels[:, 1:] != -100).sum().item()
        total += model(window, labels=labels).loss.item() * new
        scored, before = scored + new, stop
        if stop == ids.shape[1]:
            break
    return total / scored


@expected_errors()
def main() -> None:
    counts = {
        "tokens": (65_536, 2, "of the text"),
        "length": (1024, 2, "of a window"),
        "stride": (256, 1, "tokens between windows"),
    }
    methods = [*ENCODINGS, "loop"], ["rope", "tape"]
    found = parser(__doc__, methods, "small_32k", attention=True, rounds=(3, 1), **counts)
    arguments = found.parse_args()
    length, stride = arguments.length, arguments.stride
    strides_of("sliding", [length], stride)  # refuses a stride that is too long
    windows = windows_of("sliding", arguments.tokens, length, stride)

    def prepare(method: str) -> Work:
        name = "llama" if method == "loop" else method
        model = build(name, arguments.shape, arguments.attention, length).eval()
        tokens = random_tokens(model, 1, arguments.tokens)[0].cpu().numpy().astype(np.uint16)
        if method == "loop":
            return lambda: f"{loop(model, tokens, length, stride):.6f}"
        return lambda: f"{perplexity(model, tokens, windows, length).nll:.6f}"

    names = dict.fromkeys(["loop", *arguments.methods])
    work = {method: partial(prepare, method) for method in names}
    scoring = Comparison("scoring", work, warm_up=0)
    show("perplexity", arguments, [scoring], amount=arguments.tokens, result="loss")


if __name__ == "__main__":
    main()
