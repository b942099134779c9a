"""Shared by the benchmarks: the models, the clock, the memory and the table of the results."""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import resource
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
import transformers
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from tape import TapeConfig, TapeForCausalLM
from tape.positions import ENCODINGS

METHODS = [*ENCODINGS, "llama"]
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


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
    """A seeded model on the device. TAPE's own weights are perturbed: at zero it would be RoPE."""
    sizes = SHAPES[shape]
    settings = {
        "vocab_size": sizes.vocabulary,
        "hidden_size": sizes.hidden,
        "intermediate_size": sizes.mlp or 4 * sizes.hidden,
        "num_hidden_layers": sizes.layers,
        "num_attention_heads": sizes.heads,
        "max_position_embeddings": length or sizes.tokens[1],
        "attn_implementation": attention,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    torch.manual_seed(0)
    rope_or_other = "rope" if method == "llama" else method
    with DEVICE:  # seven billion weights are drawn there in seconds
        model = TapeForCausalLM(TapeConfig(**settings, position=rope_or_other))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".context." in name:
                parameter.add_(0.02 * torch.randn_like(parameter))
    if method == "llama":
        library = LlamaForCausalLM(LlamaConfig(**settings))
        library.load_state_dict(model.state_dict())
        model = library
    return model.to(DEVICE)


def random_tokens(model: nn.Module, batch: int, length: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(model.config.vocab_size, (batch, length), generator=generator).to(DEVICE)


def synchronize() -> None:
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


class Seconds:
    """Times of several methods, round by round."""

    def __init__(self, rounds: dict[str, list[float]]):
        self.rounds = rounds

    def median(self, method: str) -> float:
        return statistics.median(self.rounds[method])

    def _ratios(self, method: str, base: str) -> list[float]:
        return [a / b for a, b in zip(self.rounds[method], self.rounds[base], strict=True)]

    def ratio(self, method: str, base: str) -> float:
        """Median over the rounds of the ratio within a round."""
        return statistics.median(self._ratios(method, base))

    def quartiles(self, method: str, base: str) -> tuple[float, float]:
        low, _, high = statistics.quantiles(self._ratios(method, base), n=4)
        return low, high


def in_turn(work: dict[str, Callable[[], object]], repeats: int, warm_up: int = 2) -> Seconds:
    """Time each piece of work `repeats` times, one after the other in alternating order."""
    rounds: dict[str, list[float]] = {method: [] for method in work}
    for number in range(-warm_up, repeats):
        for method in list(work) if number % 2 else list(work)[::-1]:
            start = time.perf_counter()
            work[method]()
            if number >= 0:
                rounds[method].append(time.perf_counter() - start)
    return Seconds(rounds)


def reset_peak() -> None:
    if DEVICE.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    elif sys.platform == "linux":
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from what is in use


def memory_in_use(peak: bool) -> int:
    """Bytes: on the device, or resident in this process; now, or at most so far."""
    if DEVICE.type == "cuda":
        return torch.cuda.max_memory_allocated() if peak else torch.cuda.memory_allocated()
    if sys.platform == "linux":
        key = "VmHWM" if peak else "VmRSS"
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * int(next(line for line in lines if line.startswith(key)).split()[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def peak_memory(work: Callable[[], object]) -> float:
    """MiB above what is in use, at most while the work is done three times."""
    reset_peak()
    before = memory_in_use(peak=False)
    for _ in range(3):
        work()
    return (memory_in_use(peak=True) - before) / 2**20


def in_its_own_process(method: str) -> float:
    """What this script prints for one method with --memory-only, in a process of its own."""
    command = [sys.executable, *sys.argv, "--methods", method, "--memory-only"]
    outcome = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(outcome.stdout.splitlines()[-1])


def compare_steps(seconds: Seconds, memory: dict[str, float], methods: list[str]) -> str:
    """The table of time and memory of a training step, next to those of the first method."""
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


def rounds(text: str) -> int:
    """A number of rounds for argparse."""
    if not text.isdecimal() or int(text) < 7:
        raise argparse.ArgumentTypeError(f"medians of {text!r} say nothing; give 7 or more")
    return int(text)


def arguments_of_steps(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The arguments of scripts that compare training steps, besides their own."""
    parser.add_argument("--shape", choices=SHAPES, default="small")
    parser.add_argument("--repeats", type=rounds, default=15, help="rounds; at least 7")
    parser.add_argument("--tokens", type=int, nargs=2, metavar=("BATCH", "LENGTH"))
    parser.add_argument("--attention", default="sdpa")
    parser.add_argument("--autocast", choices=["bfloat16"], help="as trainer.bf16 does")
    parser.add_argument("--out", help="a folder for the table; on the console alone by default")
    parser.add_argument("--memory-only", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.dtype = arguments.autocast and getattr(torch, arguments.autocast)
    return arguments


def table(rows: list[dict[str, str]]) -> str:
    lines = [list(rows[0]), ["---"] * len(rows[0]), *(list(row.values()) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def machine() -> str:
    if DEVICE.type == "cuda":
        return f"one {torch.cuda.get_device_name()}"
    return f"{torch.get_num_threads()} threads on {platform.machine()}"


def publish(name: str, text: str, folder: str | None) -> None:
    """Print the result with date, machine and command, and add it to folder/<name>.md."""
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
