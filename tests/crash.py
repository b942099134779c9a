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
from collections import Counter
from pathlib import Path

import torch
from safetensors.torch import load_file

from tape.commands.train import STOPPED
from tape.runs.folder import checkpoints, unfinished

ROOT = Path(__file__).parent.parent
SETTINGS = [
    "experiment=quick",
    "trainer.save_steps=1",
    "trainer.logging_steps=1",
]


class Run:
    """One run, as often as it is started."""

    def __init__(self, folder: Path, settings: list[str]):
        self.folder, self.settings = folder, settings

    def start(self) -> subprocess.Popen:
        """The process, at the moment when its training begins."""
        command = [sys.executable, "train.py", *self.settings, f"output_dir={self.folder}"]
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.said = []
        for line in process.stdout:
            self.said.append(line)
            if line.startswith(("continuing from", "position")):
                break
        return process

    def finish(self, process: subprocess.Popen) -> int:
        """Its exit status, when it has ended."""
        for line in process.stdout:
            self.said.append(line)
            if line.startswith("step"):
                self.last_step = time.perf_counter()
        return process.wait()


def kill_until_done(
    run: Run, name: str, kills: Counter, steps: int, seconds: float, random_: random.Random
):
    """Start the run and kill it, again and again, until it ends or the kills are used up. What has
    trained to the end is left alone: there would be nothing more to see."""
    trained = False
    while True:
        process = run.start()
        wanted = next((kind for kind in sorted(kills, key=kills.get)[::-1] if kills[kind]), None)
        if trained:
            wanted = None
        if wanted is not None:
            time.sleep(random_.uniform(0, seconds))
            process.send_signal(wanted)
        status = run.finish(process)
        if status == 0:
            return
        if wanted is None or status not in (-wanted, STOPPED):
            sys.exit(f"{name}: unexpected exit status {status}\n{''.join(run.said)}")
        kills[wanted] -= 1
        saved = [path.name for path in checkpoints(run.folder)]
        trained = f"checkpoint-{steps}" in saved
        half = unfinished(run.folder).exists()
        print(
            f"{name}: {signal.Signals(wanted).name} -> status {status}, has "
            f"{', '.join(saved) or 'no checkpoint'}{', and one half-written' if half else ''}",
            flush=True,
        )


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
        whole = Run(Path(work) / "whole", settings)
        began = whole.start()
        start = time.perf_counter()
        if whole.finish(began) != 0:
            sys.exit("".join(whole.said))
        seconds = 1.1 * (whole.last_step - start)  # a few of the moments are after training
        expected = load_file(whole.folder / "model.safetensors")
        left = Counter({signal.SIGKILL: (kills + 1) // 2, signal.SIGTERM: kills // 2})
        number = 0
        while any(left.values()):
            number += 1
            run = Run(Path(work) / f"run{number}", settings)
            before = left.total()
            kill_until_done(run, f"run {number}", left, steps, seconds, random_)
            if left.total() == before:  # too late: the machine has become faster
                seconds *= 0.8
            found = load_file(run.folder / "model.safetensors")
            differing = [name for name in expected if not torch.equal(expected[name], found[name])]
            if differing or losses(run.folder) != losses(whole.folder):
                sys.exit(
                    f"run {number} differs from the uninterrupted one: {differing or 'losses'}"
                )
            print(f"run {number}: weights and losses equal the uninterrupted run's", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("settings", nargs="*", help="of train.py")
    arguments = parser.parse_args()
    main(arguments.kills, arguments.steps, arguments.settings, arguments.seed)
