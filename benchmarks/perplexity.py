"""Cost of scoring a text: by tape.evaluation, and by the loop in the library's guide.

python benchmarks/perplexity.py
python benchmarks/perplexity.py --shape base --tokens 8192 --methods rope tape alibi

`loop` is the sliding window of the perplexity guide in the library's documentation with its
LlamaForCausalLM: one window at a time, labels of -100 for tokens scored before, logits of all
tokens. A method is an encoding; `rope` has the weights of the Llama and must reproduce its loss.
Each method runs in its own process, alternately; seconds and memory are from the same run and
exclude loading the model. Ratios are medians over the rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time

import numpy as np
import torch
from measuring import SHAPES, build, in_its_own_process, publish, table, table_folder
from torch import nn

from tape.analysis.decoders import random_tokens
from tape.analysis.measuring import Seconds, memory_in_use, reset_peak, synchronize
from tape.attention import KERNELS
from tape.command import Parser, expected_errors, integer
from tape.evaluation.scoring import perplexity
from tape.evaluation.windows import strides_of, windows_of
from tape.positions import ENCODINGS


@torch.no_grad()
def loop(model: nn.Module, tokens: np.ndarray, arguments: argparse.Namespace) -> float:
    """Returns the mean loss: the windows' means weighted by their numbers of scored tokens."""
    ids = torch.from_numpy(tokens.astype(np.int64))[None].to(model.device)
    total, scored, before = 0.0, 0, 0
    for start in range(0, ids.shape[1], arguments.stride):
        stop = min(start + arguments.length, ids.shape[1])
        window = ids[:, start:stop]
        labels = window.clone()
        labels[:, : before - stop] = -100
        new = (labels[:, 1:] != -100).sum().item()
        total += model(window, labels=labels).loss.item() * new
        scored, before = scored + new, stop
        if stop == ids.shape[1]:
            break
    return total / scored


def ours(model: nn.Module, tokens: np.ndarray, arguments: argparse.Namespace) -> float:
    windows = windows_of("sliding", len(tokens), arguments.length, arguments.stride)
    return perplexity(model, tokens, windows, arguments.length).nll


def measure(method: str, arguments: argparse.Namespace) -> dict[str, float]:
    """Returns seconds, MiB above the loaded model, and the loss; to be called in a new process."""
    score, name = (loop, "llama") if method == "loop" else (ours, method)
    model = build(name, arguments.shape, arguments.attention, arguments.length).eval()
    tokens = random_tokens(model, 1, arguments.tokens)[0].cpu().numpy().astype(np.uint16)
    reset_peak()
    before, start = memory_in_use(peak=False), time.perf_counter()
    loss = score(model, tokens, arguments)
    synchronize()
    seconds = time.perf_counter() - start
    peak = (memory_in_use(peak=True) - before) / 2**20
    return {"seconds": seconds, "peak": peak, "loss": loss}


@expected_errors()
def main(arguments: argparse.Namespace) -> None:
    if arguments.here:
        print(json.dumps(measure(arguments.methods[0], arguments)))
        return
    strides_of("sliding", [arguments.length], arguments.stride)  # refuses what is no stride
    methods = ["loop", *arguments.methods]
    found: dict[str, list[dict[str, float]]] = {method: [] for method in methods}
    for number in range(arguments.repeats):
        for method in methods if number % 2 else methods[::-1]:
            found[method].append(in_its_own_process(method, "--here"))
            print(method, found[method][-1], file=sys.stderr)
    seconds = Seconds({method: [run["seconds"] for run in runs] for method, runs in found.items()})
    memory = {
        method: statistics.median(run["peak"] for run in runs) for method, runs in found.items()
    }
    rows = [
        {
            "method": method,
            "seconds": f"{seconds.median(method):.1f}",
            "tokens/s": f"{arguments.tokens / seconds.median(method):.0f}",
            "throughput / loop": f"{seconds.ratio('loop', method):.2f}",
            "peak memory, MiB": f"{memory[method]:.0f}",
            "memory / loop": f"{memory[method] / memory['loop']:.2f}",
            "loss": f"{found[method][0]['loss']:.6f}",
        }
        for method in methods
    ]
    publish("perplexity", table(rows), arguments.out)


def parse() -> argparse.Namespace:
    parser = Parser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--shape", choices=SHAPES, default="small_32k")
    parser.add_argument(
        "--methods", nargs="+", choices=[*ENCODINGS, "loop"], default=["rope", "tape"]
    )
    parser.add_argument("--tokens", type=integer(2), default=65_536, help="of the text")
    parser.add_argument("--length", type=integer(2), default=1024, help="of a window")
    parser.add_argument("--stride", type=integer(1), default=256)
    parser.add_argument("--attention", choices=KERNELS, default="sdpa")
    parser.add_argument("--repeats", type=integer(1), default=3, help="rounds")
    parser.add_argument(
        "--out", type=table_folder, help="folder for the table; printed only by default"
    )
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main(parse())
