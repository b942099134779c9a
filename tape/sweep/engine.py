"""Performs a sweep: several runs at a time, restartable, then the comparison.

Each command is a process of its own: it receives signals in its main thread, where it saves, and
its memory is free when it ends. (Workers of joblib are reused, and a signal breaks all of them.)
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

from tqdm import tqdm

from tape.sweep.compose import comparison
from tape.sweep.receipt import Run

COMMAND = (sys.executable, "-m", "tape.commands")
STOPPED = os.EX_TEMPFAIL  # 75: stopped, and the same command continues
# Signal -> the signal for the runs, and the exit status of the sweep.
SIGNALS = {
    signal.SIGTERM: (signal.SIGTERM, STOPPED),
    signal.SIGHUP: (signal.SIGTERM, STOPPED),
    signal.SIGINT: (signal.SIGINT, 130),
}


def perform(cfg: Mapping[str, Any], runs: Sequence[Run]) -> int:
    """Trains and evaluates the runs that have not finished, and compares all.

    Args:
        cfg: settings of the sweep (config/sweep.yaml).

    Returns:
        The exit status: 0; 1 if a run or the comparison failed; 75 after SIGTERM, SIGHUP or
        `seconds` and 130 after SIGINT, when all runs have saved.

    Raises:
        ValueError: if another sweep is working in the same folder; for what submitit refuses.
    """
    out = Path(cfg["out"])
    out.mkdir(parents=True, exist_ok=True)
    with (out / ".lock").open("w") as lock:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ValueError(
                f"{out}: another sweep is running there; wait for it, or give name=..."
            ) from error
        return Engine(cfg, runs).perform()


class Engine:
    """One performance of a sweep.

    Attributes:
        stopped: after a signal, the one for the runs and the exit status; None before.
        failed: runs that did not finish.
        running: process or job -> sends it a signal.
    """

    def __init__(self, cfg: Mapping[str, Any], runs: Sequence[Run]):
        self.cfg, self.runs = cfg, runs
        self.stopped: tuple[int, int] | None = None
        self.failed: list[Run] = []
        self.running: dict[object, Callable[[int], None]] = {}
        self.lock = threading.RLock()
        self.begun, self.done = time.monotonic(), 0
        cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
        self.environment = {"OMP_NUM_THREADS": str(max(1, cores // cfg["jobs"])), **os.environ}
        self.executor = None
        if cfg["cluster"] in ("slurm", "local"):
            from tape.sweep.cluster import executor_of

            self.executor = executor_of(cfg["cluster"], Path(cfg["out"], ".jobs"), cfg["submitit"])

    def perform(self) -> int:
        """Returns the exit status."""
        status, count = 0, len(self.runs)
        self.left = [run for run in self.runs if not run.finished()]
        finished = [run for run in self.runs if run not in self.left]
        print("".join(f"{run.name}: finished\n" for run in finished), end="", flush=True)
        with self.signals():
            with tqdm(total=count, initial=len(finished), unit="run", disable=None) as self.bar:
                self.learn_all([run for run in self.left if run.is_base])
                partial_table = self.cfg["partial"] and not self.failed
                if not self.failed:
                    self.learn_all([run for run in self.left if not run.is_base])
            comparable = not self.failed or (partial_table and len(self.failed) < count)
            words = comparison(self.cfg, self.runs, self.failed)
            if words and comparable and not self.stopped:
                print(flush=True)
                status = min(1, self.execute(words, None))
        if self.stopped:
            rest = len(self.left) - self.done
            print(f"stopped: {rest} of {count} runs are left; the same command continues")
            return self.stopped[1]
        if self.failed:
            names = ", ".join(run.name for run in self.failed)
            told = f"error: {len(self.failed)} of {count} runs did not finish: {names}"
            print(told, file=sys.stderr)
        return status or min(1, len(self.failed))

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Stops on SIGNALS and after `seconds`."""
        before = {}
        for number, told in SIGNALS.items():
            if signal.getsignal(number) != signal.SIG_IGN:  # as nohup leaves SIGHUP
                before[number] = signal.signal(number, lambda *_, told=told: self.stop(*told))
        timer = threading.Timer(self.cfg["seconds"] or 0, self.stop, SIGNALS[signal.SIGTERM])
        if self.cfg["seconds"] is not None:
            timer.start()
        try:
            yield
        finally:
            timer.cancel()
            for number, handler in before.items():
                signal.signal(number, handler)

    def stop(self, forwarded: int, status: int) -> None:
        """Sends a signal to all runs, which save and end, and begins no others."""
        with self.lock:
            if not self.stopped:
                self.stopped = (forwarded, status)
                for send in [*self.running.values()]:
                    send(forwarded)

    def learn_all(self, runs: Sequence[Run]) -> None:
        with ThreadPoolExecutor(self.cfg["jobs"]) as pool:
            learned = [pool.submit(self.learn, run) for run in runs]
            while wait(learned, timeout=1).not_done:  # signals are handled in between
                pass
        for each in learned:
            each.result()

    def learn(self, run: Run) -> None:
        """Trains and evaluates a run, and says how it ended."""
        if self.stopped:
            return
        number = self.runs.index(run) + 1
        line = f"{run.name}: run {number} of {len(self.runs)} begins, see {run.log}"
        with self.lock:
            if self.done:
                left = len(self.left) - self.done
                seconds = (time.monotonic() - self.begun) / self.done * left
                line += f"; {left} left, about {tqdm.format_interval(seconds)}"
            self.say(line)
        try:
            request = run.request()
            failed = any(self.stopped or self.execute(words, run.log) for words in run.commands)
            error = last_line(run.log) if failed else None
            if not failed:
                run.write_receipt(request)
        except (OSError, ValueError) as found:
            error = str(found)
        with self.lock:
            if error is None:
                self.done += 1
                self.bar.update()
                self.say(f"{run.name}: finished")
            elif not self.stopped:
                self.failed.append(run)
                line = f"error: {run.name} did not finish, see {run.log}: {error}"
                self.bar.write(line, file=sys.stderr)

    def execute(self, words: Sequence[str], log: Path | None) -> int:
        """Runs a command to its end, as a process group that receives signals as a whole, or on the
        cluster. Returns its exit status; its output goes to the log, or is shown."""
        if self.executor and log:
            from tape.sweep.cluster import Command, exit_status

            job = self.executor.submit(Command(), [*COMMAND, *words], str(log.absolute()))
            send, end = lambda _: job.cancel(check=False), partial(exit_status, job)
        else:
            with log.open("ab") if log else nullcontext() as output:
                job = subprocess.Popen(
                    [*COMMAND, *words],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output and subprocess.STDOUT,
                    env=self.environment,
                    process_group=0,
                )
            send, end = partial(send_to_group, job.pid), job.wait
        with self.lock:
            self.running[job] = send
            if self.stopped:  # while it started
                send(self.stopped[0])
        status = end()
        with self.lock:
            del self.running[job]
        return status

    def say(self, line: str) -> None:
        self.bar.write(line)
        sys.stdout.flush()


def send_to_group(group: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, number)


def last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").split("\n") if log.exists() else []
    return next((line.strip() for line in reversed(lines) if line.strip()), "it printed nothing")
