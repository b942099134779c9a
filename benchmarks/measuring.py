"""Shared by the benchmarks: the models, and the tables of their results."""

from __future__ import annotations

import argparse
import datetime
import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from torch import nn

from tape import TapeConfig
from tape.analysis.decoders import decoder, library_llama
from tape.analysis.measuring import Seconds, machine, memory_in_use, reset_peak
from tape.attention import KERNELS
from tape.command import integer, result_folder
from tape.evaluation.tables import markdown_table
from tape.positions import ENCODINGS

METHODS = [*ENCODINGS, "llama"]


class Shape(NamedTuple):
    layers: int
    hidden: int
    heads: int
    vocabulary: int
    tokens: tuple[int, int]  # sequences x length of a training step
    mlp: int | None = None  # 4 x hidden


SHAPES = {
    "small": Shape(4, 256, 4, 4096, (8, 256)),
    "small_32k": Shape(4, 256, 4, 32000, (1, 1024)),
    "base": Shape(12, 768, 12, 32000, (1, 1024)),
    "llama2_7b": Shape(32, 4096, 32, 32000, (1, 8192), mlp=11008),
}


def build(method: str, shape: str, attention: str = "sdpa", length: int | None = None) -> nn.Module:
    """A seeded model on the device; TAPE's own weights are perturbed."""
    sizes = SHAPES[shape]
    config = TapeConfig(
        vocab_size=sizes.vocabulary,
        hidden_size=sizes.hidden,
        intermediate_size=sizes.mlp or 4 * sizes.hidden,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        max_position_embeddings=length or sizes.tokens[1],
        bos_token_id=None,
        eos_token_id=None,
        position="rope" if method == "llama" else method,
    )
    model = decoder(config, attention)
    return library_llama(model) if method == "llama" else model


def peak_memory(work: Callable[[], object]) -> float:
    """Returns the peak memory of the work, repeated three times, in MiB above that in use."""
    reset_peak()
    before = memory_in_use(peak=False)
    for _ in range(3):
        work()
    return (memory_in_use(peak=True) - before) / 2**20


def in_its_own_process(method: str, flag: str) -> Any:
    """What this script prints for one method with a flag, in a process of its own, whose errors
    are those of this one."""
    command = [sys.executable, *sys.argv, "--methods", method, flag]
    outcome = subprocess.run(command, capture_output=True, text=True)
    if outcome.returncode:
        ended = f"error: the process of {method} ended with status {outcome.returncode}"
        sys.exit(outcome.stderr.strip() or ended)
    return json.loads(outcome.stdout.splitlines()[-1])


def compare_steps(seconds: Seconds, memory: dict[str, float], methods: list[str]) -> str:
    """Tabulates time and memory of a training step, relative to the first method."""
    first = methods[0]
    return table(
        [
            {
                "method": method,
                "ms per step": f"{1000 * seconds.median(method):.1f}",
                f"time / {first}": f"{seconds.ratio(method, first):.3f}",
                "quartiles": "{:.3f} to {:.3f}".format(*seconds.quartiles(method, first)),
                "peak memory, MiB": f"{memory[method]:.0f}",
                f"memory / {first}": f"{memory[method] / memory[first]:.3f}",
            }
            for method in methods
        ]
    )


def table_folder(text: str) -> Path:
    """A folder for tables, for argparse: refused before anything is measured."""
    folder = result_folder(text)
    if folder.is_file():
        raise argparse.ArgumentTypeError(f"{text} is a file; give a folder")
    return folder


def arguments_of_steps(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Adds the arguments of scripts that compare training steps."""
    parser.add_argument("--shape", choices=SHAPES, default="small")
    parser.add_argument("--repeats", type=integer(7), default=15, help="rounds; at least 7")
    parser.add_argument("--tokens", type=integer(1, 10**7), nargs=2, metavar=("BATCH", "LENGTH"))
    parser.add_argument("--attention", choices=KERNELS, default="sdpa")
    parser.add_argument("--autocast", choices=["bfloat16"], help="as trainer.bf16 does")
    parser.add_argument(
        "--out", type=table_folder, help="folder for the table; printed only by default"
    )
    parser.add_argument("--memory-only", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.dtype = arguments.autocast and getattr(torch, arguments.autocast)
    return arguments


def table(rows: list[dict[str, str]]) -> str:
    return markdown_table([list(rows[0]), *(list(row.values()) for row in rows)])


def publish(name: str, text: str, folder: str | None) -> None:
    """Prints the result with date, machine and command, and appends it to folder/<name>.md."""
    command = shlex.join(["python", *sys.argv])
    heading = (
        f"## {datetime.date.today()}: {machine()}, torch {torch.__version__}, "
        f"transformers {transformers.__version__}\n\n    {command}\n\n{text}\n\n"
    )
    print(heading)
    if folder is not None:
        path = Path(folder) / f"{name}.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write(heading)
