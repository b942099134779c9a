"""Performs a sweep: several runs at a time, restartable, then the comparison.

Each command is a process of its own: it saves on signals, and its memory is free when it ends. It
is a fork of a worker, a process that has imported the libraries.
"""

import asyncio
import json
import os
import signal
import socket
import sys
import time
from asyncio import StreamReader, StreamWriter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from subprocess import Popen

from tqdm import tqdm

from tape import cli
from tape.cli.sweep import worker as program
from tape.cli.sweep.compose import Run, Sweep, comparison
from tape.core.files import write_text
from tape.core.provenance import cores
from tape.core.run_folder import locked

# Of all commands; none starts a thread, which a fork would lose, or uses a GPU.
LIBRARIES = ("torch", "transformers.models.llama.modeling_llama", "accelerate", "peft")
LIBRARIES += ("hydra.main", "matplotlib.figure", "scipy.stats")
WORKER = (sys.executable, "-m", program.__name__, cli.__name__, *LIBRARIES)
JOBS = 2  # at a time, if a sweep does not say
MEMORY = {"MALLOC_MMAP_THRESHOLD_": "33554432", "MALLOC_TRIM_THRESHOLD_": "4294967296"}
STOPPED = os.EX_TEMPFAIL  # 75: stopped, and the same command continues
FORWARDED = {  # signal of the user or the cluster -> that for the runs
    signal.SIGTERM: signal.SIGTERM,
    signal.SIGHUP: signal.SIGTERM,
    signal.SIGINT: signal.SIGINT,
}


def perform(cfg: Sweep, runs: Sequence[Run]) -> int:
    """Trains and evaluates the runs that have not finished, and compares those that have.

    Returns:
        The exit status: 0; 1 if a run or the comparison failed; 75 after SIGTERM, SIGHUP or
        `seconds` and 130 after SIGINT, when all runs have saved.

    Raises:
        ValueError: if another sweep is working in the same folder.
    """
    with locked(Path(cfg["out"])):
        return asyncio.run(Engine(cfg, runs).perform())


class Engine:
    """One performance of a sweep."""

    def __init__(self, cfg: Sweep, runs: Sequence[Run], forwarded: Mapping[int, int] = FORWARDED):
        self.cfg, self.runs, self.forwarded = cfg, runs, forwarded
        self.left = [run for run in runs if not run.finished()]
        self.failed: list[Run] = []
        self.received: int | None = None  # the signal that stopped the sweep
        self.stopped: int | None = None  # that for the runs
        self.workers: list[Popen] = []
        self.idle: list[tuple[StreamReader, StreamWriter]] = []  # connections to workers
        self.groups: set[int] = set()  # of the commands that run
        self.begun, self.done = time.monotonic(), 0
        jobs = cfg["jobs"] or JOBS
        self.free = asyncio.Semaphore(jobs)
        threads = max(1, cores() // jobs)
        # As in script/environment.sh.
        self.environment = {"OMP_NUM_THREADS": str(threads), **MEMORY, **os.environ}

    async def perform(self, train: bool = True) -> int:
        """Returns the exit status.

        Args:
            train: whether runs that have not finished are performed; else they count as failed.
        """
        loop = asyncio.get_running_loop()
        for number in self.forwarded:
            if signal.getsignal(number) != signal.SIG_IGN:  # as nohup leaves SIGHUP
                loop.add_signal_handler(number, self.stop, number)
        if self.cfg["seconds"]:
            loop.call_later(self.cfg["seconds"], self.stop, signal.SIGTERM)
        for run in self.runs:
            if run not in self.left:
                print(f"{run.folder}: finished", flush=True)
        if not train:
            self.failed = [*self.left]
        for is_base in (True, False):
            if not self.failed:  # nothing starts from a base model that failed
                wave = (self.learn(run) for run in self.left if run.is_base == is_base)
                await asyncio.gather(*wave)
        left, count, status = len(self.left) - self.done, len(self.runs), 0
        command = comparison(self.cfg, self.runs, self.failed)
        if command and left == len(self.failed) < count:
            print(flush=True)
            status = min(1, await self.execute(command))
        for _, writer in self.idle:
            writer.close()
            await writer.wait_closed()
        for worker in self.workers:
            worker.wait()
        if self.stopped:
            where = f"{left} of {count} runs are left" if left else "the comparison is left"
            print(f"stopped: {where}; the same command continues")
            return 130 if self.stopped == signal.SIGINT else STOPPED
        if self.failed:
            names = ", ".join(str(run.folder) for run in self.failed)
            print(f"error: {left} of {count} runs did not finish: {names}", file=sys.stderr)
        return status or min(1, left)

    def stop(self, number: int) -> None:
        """Forwards a signal to all runs, which save and end, and begins no others."""
        if not self.stopped:
            self.received, self.stopped = number, self.forwarded[number]
            for group in self.groups:
                send(group, self.stopped)

    async def learn(self, run: Run) -> None:
        """Trains and evaluates a run when its turn comes, and says how it ended."""
        async with self.free:
            if self.stopped:
                return
            number = self.runs.index(run) + 1
            line = f"{run.folder}: run {number} of {len(self.runs)} begins, see {run.log}"
            if self.done:
                left = len(self.left) - self.done
                seconds = (time.monotonic() - self.begun) / self.done * left
                line += f"; {left} left, about {tqdm.format_interval(seconds)}"
            print(line, flush=True)
            try:
                error = await self.carry_out(run)
            except OSError as found:
                error = str(found)
            if not error:
                self.done += 1
                print(f"{run.folder}: finished", flush=True)
            elif not self.stopped:
                self.failed.append(run)
                line = f"error: {run.folder} did not finish, see {run.log}: {error}"
                print(line, file=sys.stderr, flush=True)

    async def carry_out(self, run: Run) -> str | None:
        """Returns the reason if the run has not finished."""
        request = run.request()
        for command in run.commands:
            if self.stopped or await self.execute(command, run.log):
                return last_line(run.log)
        write_text(run.receipt, run.record(request))
        return None

    async def execute(self, command: Sequence[str], log: Path | None = None) -> int:
        """Runs a command to its end, as a process group that receives signals as a whole. Returns
        its exit status; its output goes to the log, or is shown."""
        reader, writer = self.idle.pop() if self.idle else await self.worker()
        writer.write(json.dumps([log and str(log), *command]).encode() + b"\n")
        group = await answer(reader)
        self.groups.add(group)
        if self.stopped:  # while it started
            send(group, self.stopped)
        try:
            status = await answer(reader)
        except ChildProcessError:  # of its worker; the command would go on, out of reach of `stop`
            send(group, signal.SIGTERM)
            raise
        finally:
            self.groups.remove(group)
        self.idle.append((reader, writer))
        return status

    async def worker(self) -> tuple[StreamReader, StreamWriter]:
        """Starts a worker and returns the connection to it, with whose end the worker ends."""
        ours, theirs = socket.socketpair()
        with theirs:
            self.workers.append(Popen(WORKER, stdin=theirs, env=self.environment, process_group=0))
        return await asyncio.open_connection(sock=ours)


def last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").split("\n")
    return next(filter(str.strip, reversed(lines)), "it printed nothing")


async def answer(reader: StreamReader) -> int:
    """Reads a number from a worker; raises a ChildProcessError if it has ended."""
    if line := await reader.readline():
        return int(line)
    raise ChildProcessError("the process that starts the commands was killed")


def send(group: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, number)
