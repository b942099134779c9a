"""Performs a sweep: several runs at a time, restartable, then the comparison.

Each command is a process or a job of its own: it receives signals in its main thread, where it
saves, and its memory is free when it ends.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

from tqdm import tqdm

from tape.files import write_text
from tape.sweep.compose import Run, comparison

COMMAND = (sys.executable, "-m", "tape.commands")
STOPPED = os.EX_TEMPFAIL  # 75: stopped, and the same command continues
# Signal -> the signal for the runs, and the exit status of the sweep.
SIGNALS = {
    signal.SIGTERM: (signal.SIGTERM, STOPPED),
    signal.SIGHUP: (signal.SIGTERM, STOPPED),
    signal.SIGINT: (signal.SIGINT, 130),
}


def perform(cfg: Mapping[str, Any], runs: Sequence[Run]) -> int:
    """Trains and evaluates the runs that have not finished, and compares those that have.

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
        return asyncio.run(Engine(cfg, runs).perform())


class Engine:
    """One performance of a sweep."""

    def __init__(self, cfg: Mapping[str, Any], runs: Sequence[Run]):
        self.cfg, self.runs = cfg, runs
        self.left = [run for run in runs if not run.finished()]
        self.failed: list[Run] = []
        self.stopped: tuple[int, int] | None = None  # the signal for the runs, the exit status
        self.running: list[Callable[[int], None]] = []  # send a signal to a process or job
        self.begun, self.done = time.monotonic(), 0
        jobs = cfg["jobs"] or (len(runs) if cfg["cluster"] else 2)
        self.free = asyncio.Semaphore(jobs)
        cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
        self.environment = {"OMP_NUM_THREADS": str(max(1, cores // jobs)), **os.environ}
        self.executor = executor_of(cfg) if cfg["cluster"] else None

    async def perform(self) -> int:
        """Returns the exit status."""
        loop = asyncio.get_running_loop()
        for number, told in SIGNALS.items():
            if signal.getsignal(number) != signal.SIG_IGN:  # as nohup leaves SIGHUP
                loop.add_signal_handler(number, self.stop, *told)
        if self.cfg["seconds"]:
            loop.call_later(self.cfg["seconds"], self.stop, *SIGNALS[signal.SIGTERM])
        for run in self.runs:
            if run not in self.left:
                print(f"{run.name}: finished", flush=True)
        await self.learn_all([run for run in self.left if run.is_base])
        startable = not self.failed  # nothing starts from a base model that failed
        if startable:
            await self.learn_all([run for run in self.left if not run.is_base])
        status, count, failed = 0, len(self.runs), len(self.failed)
        words = comparison(self.cfg, self.runs, self.failed)
        if words and startable and failed < count and not self.stopped:
            print(flush=True)
            status = min(1, await self.execute(words))
        if self.stopped:
            rest = len(self.left) - self.done
            print(f"stopped: {rest} of {count} runs are left; the same command continues")
            return self.stopped[1]
        if failed:
            names = ", ".join(run.name for run in self.failed)
            print(f"error: {failed} of {count} runs did not finish: {names}", file=sys.stderr)
        return status or min(1, failed)

    async def learn_all(self, runs: Sequence[Run]) -> None:
        """Ends when all runs have; an error of one is raised then."""
        ended = await asyncio.gather(*map(self.learn, runs), return_exceptions=True)
        for error in (each for each in ended if each is not None):
            raise error

    def stop(self, forwarded: int, status: int) -> None:
        """Sends a signal to all runs, which save and end, and begins no others."""
        if not self.stopped:
            self.stopped = (forwarded, status)
            for send in self.running:
                send(forwarded)

    async def learn(self, run: Run) -> None:
        """Trains and evaluates a run when its turn comes, and says how it ended."""
        async with self.free:
            if self.stopped:
                return
            number = self.runs.index(run) + 1
            line = f"{run.name}: run {number} of {len(self.runs)} begins, see {run.log}"
            if self.done:
                left = len(self.left) - self.done
                seconds = (time.monotonic() - self.begun) / self.done * left
                line += f"; {left} left, about {tqdm.format_interval(seconds)}"
            print(line, flush=True)
            try:
                request, error = run.request(), ""
                for words in run.commands:
                    if not error and (self.stopped or await self.execute(words, run.log)):
                        error = last_line(run.log)
                if not error:
                    write_text(run.receipt, run.record(request))
            except (OSError, ValueError) as found:
                error = str(found)
            if not error:
                self.done += 1
                print(f"{run.name}: finished", flush=True)
            elif not self.stopped:
                self.failed.append(run)
                line = f"error: {run.name} did not finish, see {run.log}: {error}"
                print(line, file=sys.stderr, flush=True)

    async def execute(self, words: Sequence[str], log: Path | None = None) -> int:
        """Runs a command to its end, as a process group that receives signals as a whole, or on the
        cluster. Returns its exit status; its output goes to the log, or is shown."""
        words = [*COMMAND, *words]
        if self.executor and log:
            job = self.executor.submit(Job(), words, str(log.absolute()))
            send, ended = lambda _: job.cancel(check=False), status_of(job)
        else:
            with log.open("ab") if log else nullcontext() as output:
                process = await asyncio.create_subprocess_exec(
                    *words,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output and subprocess.STDOUT,
                    env=self.environment,
                    process_group=0,
                )
            send, ended = partial(send_to_group, process.pid), process.wait()
        self.running.append(send)
        if self.stopped:  # while it started
            send(self.stopped[0])
        status = await ended
        self.running.remove(send)
        return status


def send_to_group(group: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, number)


def last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").split("\n") if log.exists() else []
    return next((line.strip() for line in reversed(lines) if line.strip()), "it printed nothing")


def executor_of(cfg: Mapping[str, Any]) -> Any:
    """Returns submitit's executor, slurm or local. Raises a ValueError for what it refuses."""
    from submitit import AutoExecutor

    try:
        executor = AutoExecutor(Path(cfg["out"], ".jobs"), cluster=cfg["cluster"])
        executor.update_parameters(**cfg["submitit"])
    except (RuntimeError, NameError, AssertionError, TypeError) as error:
        raise ValueError(f"cluster={cfg['cluster']}, submitit.*: {error}") from error
    return executor


async def status_of(job: Any) -> int:
    """Waits for the end of a job; returns 1 if it was lost or cancelled."""
    while not job.done():
        await asyncio.sleep(1)
    return 1 if job.exception() else job.result()


class Job:
    """A command as a job of submitit. Before the time limit, on preemption and when it is
    cancelled, it gets SIGTERM and saves; in the first two cases it is queued again."""

    def __call__(self, words: Sequence[str], log: str) -> int:
        words = ["env", "--ignore-signal=USR2", *words]  # of SLURM to all processes, for this one
        with open(log, "ab") as output:
            self.process = subprocess.Popen(words, stdout=output, stderr=subprocess.STDOUT)
        try:
            return self.process.wait()
        finally:
            self.save()

    def checkpoint(self, *arguments: Any) -> Any:
        from submitit.helpers import DelayedSubmission

        self.save()
        return DelayedSubmission(Job(), *arguments)

    def save(self) -> None:
        self.process.terminate()  # nothing if it has ended
        self.process.wait()
