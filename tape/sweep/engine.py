"""Performs a sweep: several runs at a time, restartable, then the comparison."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path

from tqdm import tqdm

from tape.sweep.plan import Run, Sweep, duration

STOPPED = os.EX_TEMPFAIL  # 75: stopped, and the same command continues
# Signal -> the signal for the runs, and the exit status of the sweep.
SIGNALS = {
    signal.SIGTERM: (signal.SIGTERM, STOPPED),
    signal.SIGHUP: (signal.SIGTERM, STOPPED),
    signal.SIGINT: (signal.SIGINT, 130),
}


def perform(sweep: Sweep) -> int:
    """Trains and evaluates the runs that have not finished, and compares all.

    Returns:
        The exit status: 0; 1 if a run or the comparison failed; 75 after SIGTERM, SIGHUP or
        `sweep.seconds` and 130 after SIGINT, when all runs have saved.

    Raises:
        ValueError: if another sweep is working in the same folder.
    """
    sweep.out.mkdir(parents=True, exist_ok=True)
    with (sweep.out / ".lock").open("w") as lock:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ValueError(
                f"{sweep.out}: another sweep is running there; wait for it, or give name=..."
            ) from error
        return asyncio.run(Engine(sweep).perform())


class Engine:
    """One performance of a sweep.

    Attributes:
        stopped: the exit status after a signal; 0 before.
        failed: runs that did not finish.
    """

    def __init__(self, sweep: Sweep):
        self.sweep = sweep
        self.stopped = 0
        self.signal = signal.SIGTERM
        self.failed: list[Run] = []
        self.running: dict[object, Callable[[int], None]] = {}  # job -> sends it a signal
        self.slots = asyncio.Semaphore(sweep.jobs)
        share = str(max(1, cores() // sweep.jobs))
        self.environment = {"OMP_NUM_THREADS": share, **os.environ}
        self.begun, self.done, self.left = time.monotonic(), 0, 0

    async def perform(self) -> int:
        """Returns the exit status."""
        loop, runs = asyncio.get_running_loop(), self.sweep.runs
        for number, (forwarded, status) in SIGNALS.items():
            if signal.getsignal(number) != signal.SIG_IGN:  # as nohup leaves SIGHUP
                loop.add_signal_handler(number, self.stop, forwarded, status)
        if self.sweep.seconds is not None:
            loop.call_later(self.sweep.seconds, self.stop, *SIGNALS[signal.SIGTERM])
        left = []
        for run in runs:
            if (measures := run.finished(self.sweep.config)) is None:
                left.append(run)
            else:
                print(f"{run.name}: {measures}", flush=True)
        self.left, status = len(left), 0
        stages = [[run for run in left if (run.length is None) is later] for later in (False, True)]
        done = len(runs) - self.left
        with tqdm(total=len(runs), initial=done, unit="run", disable=None) as self.bar:
            for stage in stages:  # base models first
                await asyncio.gather(*map(self.learn, stage))
                if self.stopped or (self.failed and (stage is stages[0] or not self.sweep.partial)):
                    break
            else:
                self.bar.close()
                status = await self.compare()
        if self.stopped:
            rest = self.left - self.done
            print(f"stopped: {rest} of {len(runs)} runs are left; the same command continues")
            return self.stopped
        if self.failed:
            names = ", ".join(run.name for run in self.failed)
            self.complain(f"{len(self.failed)} of {len(runs)} runs did not finish: {names}")
            return 1
        return status

    def stop(self, forwarded: int, status: int) -> None:
        """Sends a signal to all runs, which save and end, and begins no others."""
        if not self.stopped:
            self.stopped, self.signal = status, forwarded
            for send in [*self.running.values()]:
                send(forwarded)

    async def learn(self, run: Run) -> None:
        """Trains and evaluates a run, and prints its measures."""
        async with self.slots:
            if self.stopped:
                return
            self.announce(run)
            error = None
            try:
                request = run.request(self.sweep.config)
                measures = await self.train_and_evaluate(run)
                if measures is None:
                    error = last_error(run.log)
                elif request == run.request(self.sweep.config) and not run.reads_files():
                    run.write_receipt(request, measures)
            except (OSError, ValueError, LookupError) as found:
                error = repr(found) if isinstance(found, LookupError) else str(found)
            if error is None and measures is not None:
                self.done += 1
                self.bar.update()
                self.say(f"{run.name}: {measures}")
            elif not self.stopped:
                self.failed.append(run)
                self.complain(f"{run.name} did not finish, see {run.log}: {error}")

    async def train_and_evaluate(self, run: Run) -> str | None:
        """Returns the measures of the evaluation; None if a command failed or was stopped."""
        missing = run.length is None or not (run.folder / "model.safetensors").is_file()
        if missing and (await self.execute(run.train, run.log) or self.stopped):
            return None
        if run.length is not None:
            check_base(run)
        begin = run.log.stat().st_size if run.log.exists() else 0
        for words in run.evaluations(length=run.trained_length()):
            if await self.execute(words, run.log) or self.stopped:
                return None
        with suppress(FileNotFoundError), run.log.open("rb") as log:
            log.seek(begin)
            return run.measures(log.read().decode(errors="replace"))
        return ""

    async def compare(self) -> int:
        """Returns 0, or the exit status of the last comparison that failed."""
        status = 0
        if len(self.failed) == len(self.sweep.runs):  # nothing to compare
            return status
        for words in self.sweep.comparisons(self.failed):
            print(flush=True)
            status = await self.execute(words, None) or status
            if self.stopped:
                break
        return min(status, 1)

    async def execute(self, words: Sequence[str], log: Path | None) -> int:
        """Runs a command to its end, as a process group that receives signals as a whole, or on the
        cluster. Returns its exit status; its output goes to the log, or is shown."""
        if self.sweep.cluster is not None and log is not None:
            from tape.sweep.cluster import Command, ended

            job = self.sweep.cluster.submit(Command(), [*words], str(log.absolute()))
            send, end = lambda number: job.cancel(check=False), ended(job)
        else:
            with log.open("ab") if log else nullcontext() as output:
                job = await asyncio.create_subprocess_exec(
                    *words,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=output,
                    stderr=output and asyncio.subprocess.STDOUT,
                    env=self.environment,
                    process_group=0,
                )
            send, end = partial(send_to_group, job.pid), job.wait()
        self.running[job] = send
        try:
            if self.stopped:  # while it started
                send(self.signal)
            return await end
        except asyncio.CancelledError:  # the sweep has failed, and the run saves
            send(signal.SIGTERM)
            raise
        finally:
            del self.running[job]

    def announce(self, run: Run) -> None:
        runs = self.sweep.runs
        line = f"{run.name}: run {runs.index(run) + 1} of {len(runs)} begins, see {run.log}"
        if self.done:
            left = self.left - self.done
            seconds = (time.monotonic() - self.begun) / self.done * left
            line += f"; {left} left, about {duration(seconds)}"
        self.say(line)

    def say(self, line: str) -> None:
        self.bar.write(line)
        sys.stdout.flush()

    def complain(self, line: str) -> None:
        self.bar.write(f"error: {line}", file=sys.stderr)


def cores() -> int:
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def send_to_group(group: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, number)


def last_error(log: Path) -> str:
    """Returns the last line of a log."""
    lines = log.read_text(errors="replace").split("\n") if log.exists() else []
    return next((line.strip() for line in reversed(lines) if line.strip()), "it printed nothing")


def check_base(run: Run) -> None:
    """Raises a ValueError for a base model that is missing or was trained with another length."""
    if not (run.folder / "model.safetensors").is_file():
        raise ValueError(f"{run.folder}: this run has not finished; finish it, or rename it")
    if (length := run.trained_length()) != run.length:
        raise ValueError(
            f"{run.folder} was trained on {length} tokens: the sweep extends models of "
            f"{run.length}; rename it, so that a model of {run.length} is trained (for your own "
            "base model, use script/train_llama.sh)"
        )
