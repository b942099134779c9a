"""Commands of a sweep as jobs of submitit: a SLURM cluster, or processes for a trial."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import submitit
from submitit.helpers import Checkpointable


def executor_of(kind: str, folder: Path, parameters: dict[str, Any]) -> Any:
    """Returns the executor of a kind, slurm or local, with its files in `folder`.

    Args:
        parameters: of submitit's `update_parameters`, such as timeout_min and slurm_partition.
    """
    executor = submitit.AutoExecutor(folder, cluster=kind)
    executor.update_parameters(**parameters)
    return executor


class Command(Checkpointable):
    """A command as a job. Before the time limit, on preemption and when it is cancelled, the
    command gets SIGTERM and time to save; then submitit queues the job again, or it ends."""

    def __call__(self, words: Sequence[str], log: str) -> int:
        with open(log, "ab") as output:
            # SLURM signals all processes of a job; this one passes the signal on.
            self.process = subprocess.Popen(
                words,
                stdout=output,
                stderr=subprocess.STDOUT,
                preexec_fn=lambda: signal.signal(signal.SIGUSR2, signal.SIG_IGN),
            )
        try:
            return self.process.wait()
        finally:
            self.save()

    def save(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait()

    def checkpoint(self, *arguments: Any) -> Any:
        self.save()
        return submitit.helpers.DelayedSubmission(Command(), *arguments)


class Job:
    """A submitted command."""

    def __init__(self, job: Any):
        self.job = job

    async def wait(self) -> int:
        """Returns its exit status; 1 if the job was lost."""
        while not self.job.done():
            await asyncio.sleep(1)
        return self.job.result() if self.job.exception() is None else os.EX_TEMPFAIL


def submit(executor: Any, words: Sequence[str], log: Path) -> tuple[Job, Callable[[int], None]]:
    """Returns a job, and a function that cancels it, which any signal does."""
    job = executor.submit(Command(), [*words], str(log.absolute()))
    return Job(job), lambda number: job.cancel(check=False)
