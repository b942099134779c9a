"""Kill a run at random moments, continue it with the same command, and compare its weights.

python tests/crash.py --kills 20
python tests/crash.py --kills 20 data=text data.files=corpus/ trainer.dataloader_num_workers=1

A short run that saves after every step goes on uninterrupted first. Then runs with the same
settings get SIGKILL and SIGTERM in turn, each at a random moment between the start of training and
its end; when one has come to its end, its weights must be those of the first, bit by bit.
"""

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import load_file

from tape.commands.train import STOPPED
from tape.runs.folder import checkpoints, unfinished

ROOT = Path(__file__).parent.parent
SETTINGS = ["experiment=quick", "trainer.save_steps=1", "trainer.logging_steps=1"]


def start(folder: Path, settings: list[str]) -> tuple[subprocess.Popen, list[str]]:
    """The process of a run when its training begins, and what it has said."""
    command = [sys.executable, "train.py", *settings, f"output_dir={folder}"]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    said = []
    for line in process.stdout:
        said.append(line)
        if line.startswith(("continuing from", "position")):
            break
    return process, said


def kill_until_done(
    folder: Path, settings: list[str], left: list[signal.Signals], wait: Callable[[], float]
) -> None:
    """Starts the run and kills it, again and again, until it ends or no signals are left."""
    while True:
        process, said = start(folder, settings)
        wanted = left[-1] if left else None
        if wanted is not None:
            time.sleep(wait())
            process.send_signal(wanted)
        said += process.stdout
        status = process.wait()
        if status == 0:
            return
        if wanted is None or status not in (-wanted, STOPPED):
            sys.exit(f"{folder.name}: unexpected exit status {status}\n{''.join(said)}")
        left.pop()
        saved = ", ".join(path.name for path in checkpoints(folder)) or "no checkpoint"
        half = ", and one half-written" if unfinished(folder).exists() else ""
        print(f"{folder.name}: {wanted.name} -> status {status}, has {saved}{half}", flush=True)


def losses(folder: Path) -> list[tuple[int, float]]:
    rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [(row["step"], row["loss"]) for row in rows if "loss" in row]


def main(kills: int, steps: int, settings: list[str], seed: int = 0) -> None:
    random_ = random.Random(seed)
    settings = [
        *SETTINGS,
        f"trainer.max_steps={steps}",
        f"trainer.eval_steps={steps // 2}",
        *settings,
    ]
    with tempfile.TemporaryDirectory() as work:
        whole = Path(work) / "whole"
        process, said = start(whole, settings)
        began = time.perf_counter()
        for line in process.stdout:
            said.append(line)
            if line.startswith("step"):
                seconds = 1.1 * (time.perf_counter() - began)  # some moments are after training
        if process.wait() != 0:
            sys.exit("".join(said))
        expected = load_file(whole / "model.safetensors")
        left, number = [(signal.SIGKILL, signal.SIGTERM)[n % 2] for n in range(kills)][::-1], 0
        while left:
            before, number = len(left), number + 1
            folder = Path(work) / f"run{number}"
            kill_until_done(folder, settings, left, partial(random_.uniform, 0, seconds))
            if len(left) == before:  # too late: the machine has become faster
                seconds *= 0.8
            found = load_file(folder / "model.safetensors")
            differing = [name for name in expected if not torch.equal(expected[name], found[name])]
            if differing or losses(folder) != losses(whole):
                sys.exit(f"run {number} differs from the whole one: {differing or 'losses'}")
            print(f"run {number}: weights and losses equal the uninterrupted run's", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("settings", nargs="*", help="of train.py")
    arguments = parser.parse_args()
    main(arguments.kills, arguments.steps, arguments.settings, arguments.seed)
