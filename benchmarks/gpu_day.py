"""All that needs a GPU, part by part, in slices that resume: bash script/gpu/all.sh [folder]

The parts come in the order of what they tell: whether kernels agree with eager attention, the
paper's attention layer, training steps of its model, decoding, Llama-2-7B's shape, the paper's
addition experiment, its model on text. Each slice ends with a report of all parts, and of goals
beside what was measured. Without a GPU all run at small sizes, as a rehearsal.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import NamedTuple

import pandas as pd
import torch

from benchmarks.harness import CONTINUES
from tape.command import Distinct, Parser, expected_errors, integer, result_folder
from tape.evaluation.tables import markdown_table
from tape.files import write_text
from tape.runs.metrics import MetricsFile, read_metrics

GPU = torch.cuda.is_available()
GRACE = 60  # seconds for a part to save
TEST = re.compile(r"^(tests/\S+?::.+?) (PASSED|FAILED|ERROR|SKIPPED)", re.MULTILINE)
LENGTHS = (1024, 4096, 8192) if GPU else (32,)
TOKENS = 16_384 if GPU else 128  # of a training step
MODEL = ["model=base", "vocab_size=32000"] if GPU else ["model=tiny", "vocab_size=300"]
SMALL = ["--layers", "2", "--hidden", "64", "--heads", "4", "--mlp", "128"]
SIZES = [] if GPU else [*SMALL, "--vocabulary", "256", "--new", "4"]
COMPILED = ("no", "yes") if GPU else ("no",)
PEERS = ["--peers", "transformers"]


class Part(NamedTuple):
    """A command that resumes.

    Attributes:
        words: of the command, after the interpreter; {left} stands for the seconds that are left.
        result: a file that exists once it is finished.
    """

    name: str
    words: list[str]
    result: Path


class Goal(NamedTuple):
    """A ratio or a share that was aimed at, and how it is read from the tables of speed.py."""

    what: str
    limit: float
    highest: bool  # whether the limit is the highest value
    value: Callable[[Path], float]


def speed(out: Path, name: str, *words: str) -> Part:
    folder = out / name
    command = ["benchmarks/speed.py", "--out", str(folder), "--seconds", "{left}"]
    return Part(name, [*command, *SIZES, *words], folder / "speed.md")


def steps(out: Path, encoding: str, optimizer: str, length: int, compiled: str) -> Part:
    """A training run of the paper's model for its speed."""
    name = f"{encoding}_{optimizer}_{length}" + "_compiled" * (compiled == "yes")
    words = [f"trainer.torch_compile={'true' if compiled == 'yes' else 'false'}"]
    words += ["trainer.max_steps=30", "trainer.logging_steps=5", "trainer.save_steps=30"]
    words += ["trainer.eval_steps=30", f"length={length}", f"optimizer={optimizer}"]
    return training(out / "steps" / name, encoding, length, *words)


def training(folder: Path, encoding: str, length: int, *words: str) -> Part:
    fixed = ["experiment=paper", "data=local", *MODEL, f"position={encoding}", "eval_blocks=8"]
    fixed += [f"output_dir={folder}", f"trainer.per_device_train_batch_size={TOKENS // length}"]
    fixed += ["trainer.gradient_accumulation_steps=1"]
    fixed += [] if GPU else ["trainer.bf16=false"]
    return Part(folder.name, ["train.py", *fixed, *words], folder / "model.safetensors")


def addition(folder: Path) -> Part:
    """The paper's addition experiment, with its heat maps."""
    maps = f"heatmap --name grid --out {folder / 'heatmaps'}"
    words = ["sweep=addition_gpu", "seconds={left}", f"compare='{maps}'"]
    words += [f"runs='{folder}/{{row}}_{{seed}}'"]
    if not GPU:
        words += ["vary.position=[rope,tape]", "evaluation='max_length=2 samples=1'", "--"]
        words += ["model=arithmetic_small", "trainer.max_steps=2"]
        words += ["trainer.logging_steps=1", "trainer.eval_steps=2", "trainer.bf16=false"]
        words += ["length=10", "data.max_first=2", "data.max_second=2", "task.samples=1"]
        words += ["eval_blocks=8", "trainer.per_device_train_batch_size=4"]
    return Part("addition_20", ["sweep.py", *words], folder / "heatmaps.png")


def parts(out: Path) -> dict[str, list[Part]]:
    """All but the tests, by group."""
    model = ["--scopes", "model", "--lengths", str(LENGTHS[0])]
    batch = ["--batch", str(TOKENS // LENGTHS[0])]
    compiled = ["--compiled", COMPILED[-1]]
    layers = ["32", "--encodings", "rope", "tape", "fire", "t5"]
    layers = ["1024", "8192", "32768"] if GPU else layers
    text = ["trainer.max_steps=2000" if GPU else "trainer.max_steps=4", f"length={LENGTHS[0]}"]
    text += ["trainer.learning_rate=1.0e-3", "optimizer=muon"]
    llama = [] if GPU else ["--shape", "small", "--length", "64", "--new", "3"]
    every = itertools.product(LENGTHS, ("adamw", "muon"), COMPILED, ("rope", "tape"))
    return {
        "layer": [
            speed(
                out,
                "layer",
                "--scopes",
                "layer",
                "--work",
                "forward",
                "training",
                "--compiled",
                "no",
                "--lengths",
                *layers,
            )
        ],
        "training": [
            speed(
                out,
                "training",
                *model,
                *batch,
                "--work",
                "training",
                *compiled,
                "--backends",
                "sdpa",
                "flex_attention",
                "--encodings",
                "rope",
                "tape",
                *PEERS,
            ),
            speed(
                out,
                "biases",
                *model,
                *batch,
                "--work",
                "training",
                *compiled,
                "--backends",
                "flex_attention",
                "--encodings",
                "rope",
                "fire",
                "t5",
                "--peers",
            ),
        ],
        "steps": [steps(out, *(each[3], each[1], each[0], each[2])) for each in every],
        "decoding": [
            speed(
                out,
                "decoding",
                *model,
                "--work",
                "prefill",
                "decoding",
                "--compiled",
                *COMPILED,
                "--backends",
                "sdpa",
                "--encodings",
                "rope",
                "tape",
                "fire",
                "t5",
                *PEERS,
            )
        ],
        "llama": [
            Part(
                "llama_step",
                ["benchmarks/llama_step.py", *llama, "--out", str(out / "llama_step")],
                out / "llama_step" / "llama_step.md",
            )
        ],
        "addition": [addition(out / "addition")],
        "text": [
            training(out / "text" / encoding, encoding, LENGTHS[0], *text)
            for encoding in ("rope", "tape")
        ],
    }


def divides(words: list[str]) -> bool:
    """Whether a command stops by itself after the seconds it is given."""
    return any("{left}" in word for word in words)


def perform(words: list[str], seconds: float, log: Path) -> int:
    """Runs a command for at most this time, its output in a log; returns its status, 75 if time ran
    out."""
    # A command that takes {left} stops by itself; the rest of the time is its margin.
    own = max(1, int(seconds) - GRACE)
    limit = own + GRACE if divides(words) else max(1.0, seconds)
    filled = [word.replace("{left}", str(own)) for word in words]
    log.parent.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    with log.open("a") as file:
        process = subprocess.Popen(
            [sys.executable, *filled], stdout=file, stderr=subprocess.STDOUT, env=environment
        )
        try:
            return process.wait(limit)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGTERM)
        try:
            status = process.wait(GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return CONTINUES
    return status if status == 0 else CONTINUES


def outcomes(log: Path) -> dict[str, str]:
    """Outcomes of the tests that a log tells of, by test."""
    return dict(TEST.findall(log.read_text(errors="replace"))) if log.exists() else {}


def test(log: Path, chosen: str, end: float) -> str:
    """Runs the tests that have not passed; returns the state of this part.

    Raises:
        ValueError: if there are no tests.
    """
    words = [sys.executable, "-m", "pytest", "-q", "--collect-only", *chosen.split()]
    collected = subprocess.run(words, capture_output=True, text=True)
    names = [line for line in collected.stdout.splitlines() if "::" in line]
    if collected.returncode != 0 or not names:
        raise ValueError(f"pytest {chosen} finds no tests: {collected.stdout.strip()[-200:]}")
    before = outcomes(log)
    left = [name for name in names if before.get(name) not in ("PASSED", "SKIPPED")]
    if left:
        chosen_file = log.with_name("left.txt")
        write_text(chosen_file, "\n".join(left) + "\n")
        if log.exists():  # of those that run again
            log.rename(log.with_suffix(".before.txt"))
            kept = [f"{name} {end}" for name, end in before.items() if name not in left]
            write_text(log, "\n".join(kept) + "\n")
        words = ["-m", "pytest", "-v", "--tb=short", "-p", "no:cacheprovider", f"@{chosen_file}"]
        status = perform(words, end - time.monotonic(), log)
        silent = [name for name in left if name not in outcomes(log)]
        if silent and status not in (0, 1, CONTINUES):  # the interpreter died in this one
            with log.open("a") as file:
                file.write(f"\n{silent[0]} ERROR\n")
    found = outcomes(log)
    if any(name not in found for name in names):
        return "goes on"
    bad = any(found[name] not in ("PASSED", "SKIPPED") for name in names)
    return f"failed, see {log}" if bad else "finished"


def _fastest(table: pd.DataFrame, encoding: str, work: str, length: int) -> pd.Series:
    rows = table[(table["encoding"] == encoding) & (table["implementation"] == "here")]
    rows = rows[(rows["work"] == work) & (rows["length"] == length)].dropna(subset="milliseconds")
    return rows.loc[rows["milliseconds"].idxmin()]


def ratio(name: str, encoding: str) -> Callable[[Path], float]:
    """Time of an encoding over that of rope, each with the backend that is fastest for it."""

    def read(out: Path) -> float:
        table = pd.read_csv(out / name / "speed.csv")
        both = (_fastest(table, each, "training", LENGTHS[0]) for each in (encoding, "rope"))
        one, rope = (row["milliseconds"] for row in both)
        return one / rope

    return read


def utilization(encoding: str) -> Callable[[Path], float]:
    """The share of the GPU's peak that the fastest training steps reach."""

    def read(out: Path) -> float:
        table = pd.read_csv(out / "training" / "speed.csv")
        return _fastest(table, encoding, "training", LENGTHS[0])["share"]

    return read


GOALS = [
    Goal("attention layer, forward and backward: tape / rope", 1.20, True, ratio("layer", "tape")),
    Goal("attention layer, forward and backward: fire / rope", 1.40, True, ratio("layer", "fire")),
    Goal("attention layer, forward and backward: t5 / rope", 1.40, True, ratio("layer", "t5")),
    Goal("training step: tape / rope", 1.12, True, ratio("training", "tape")),
    Goal("training step: share of the peak, rope", 0.50, False, utilization("rope")),
    Goal("training step: share of the peak, tape", 0.45, False, utilization("tape")),
]


def goals(out: Path) -> list[list[str]]:
    rows = [[f"at {LENGTHS[0]:,} tokens", "goal", "measured", "reached"]]
    for goal in GOALS:
        try:
            value = goal.value(out)
        except (OSError, ValueError, KeyError):  # not measured yet, or nothing ran
            value = float("nan")
        reached = value <= goal.limit if goal.highest else value >= goal.limit
        sign = "at most" if goal.highest else "at least"
        measured = ["-", "-"] if value != value else [f"{value:.2f}", "yes" if reached else "no"]
        rows.append([goal.what, f"{sign} {goal.limit:.2f}", *measured])
    return rows


def speeds(out: Path) -> list[list[str]]:
    """The training runs that were made for their speed."""
    rows = [["training run", "tokens/s", "MFU", "peak memory, GiB"]]
    for file in sorted((out / "steps").glob(f"*/{MetricsFile.FILE}")):
        found = [row for row in read_metrics(file) if "tokens_per_second" in row][1:]
        if found:
            cells = [f"{median(row['tokens_per_second'] for row in found):,.0f}"]
            shares = [row["mfu"] for row in found if "mfu" in row]
            cells.append(f"{median(shares):.1%}" if shares else "-")
            cells.append(f"{max(row['peak_memory_gib'] for row in found):.1f}")
            rows.append([file.parent.name, *cells])
    return rows


def report(out: Path, log: Path, status: dict[str, str]) -> str:
    device = torch.cuda.get_device_name() if GPU else "a CPU: a rehearsal at small sizes"
    counts = pd.Series(outcomes(log)).value_counts().to_dict()
    tests = ", ".join(f"{count} {name.lower()}" for name, count in counts.items()) or "none yet"
    failed = [f"* {name}" for name, end in outcomes(log).items() if end in ("FAILED", "ERROR")]
    return "\n\n".join(
        [
            f"# What ran on {device}",
            f"Tests of the kernels: {tests}.",
            *(["\n".join(failed)] if failed else []),
            markdown_table([["part", "state"], *map(list, status.items())]),
            markdown_table(goals(out)),
            markdown_table(speeds(out)),
        ]
    )


@expected_errors(continues=True)
def main(given: list[str] | None = None) -> None:
    parser = Parser(prog="bash script/gpu/all.sh", description=__doc__.splitlines()[0])
    add = parser.add_argument
    default = "output/gpu" if GPU else "output/gpu_rehearsal"
    add("out", type=result_folder, nargs="?", default=default, help="for all results")
    add("--seconds", type=integer(1), default=540, help="until everything is saved (status 75)")
    names = ["tests", *parts(Path())]
    add("--parts", nargs="+", choices=names, action=Distinct, default=names, help="all by default")
    add("--tests", default="-m gpu tests/test_gpu.py", help=argparse.SUPPRESS)
    arguments = parser.parse_args(given)
    out, end = arguments.out, time.monotonic() + arguments.seconds
    status, log, begun = {}, out / "tests" / "log.txt", False
    if "tests" in arguments.parts:
        status["tests"] = test(log, arguments.tests, end)
        begun = True
    for group, found in parts(out).items():
        for part in found if group in arguments.parts else ():
            key, ended = f"{group}: {part.name}", out / "logs" / f"{part.name}.txt"
            left = end - time.monotonic()
            if part.result.exists() and part.words[0] != "benchmarks/speed.py":
                status[key] = "finished"
            elif begun and left <= (GRACE if divides(part.words) else 0):
                status[key] = "waits"
            else:  # a slice does something, however slowly it starts
                begun = True
                print(key, flush=True)
                code = perform(part.words, left, ended)
                status[key] = {0: "finished", CONTINUES: "goes on"}.get(
                    code, f"failed, see {ended}"
                )
    text = report(out, log, status)
    write_text(out / "report.md", text + "\n")
    print(f"{text}\n\nalso in {out / 'report.md'}")
    if any(state in ("goes on", "waits") for state in status.values()):
        print("work is left: the same command continues")
        sys.exit(CONTINUES)
    if failed := [key for key, state in status.items() if state.startswith("failed")]:
        sys.exit(f"error: failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
