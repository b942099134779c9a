"""Commands of a sweep as jobs of submitit: on a SLURM cluster, or in processes for a trial."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from submitit import AutoExecutor, Job
from submitit.helpers import Checkpointable, DelayedSubmission


def executor_of(kind: str, folder: Path, parameters: Mapping[str, Any]) -> AutoExecutor:
    """Returns submitit's executor for a cluster (slurm, or local) with its files in a folder.

    Raises:
        ValueError: without SLURM; for parameters that submitit refuses.
    """
    try:
        executor = AutoExecutor(folder, cluster=kind)
        executor.update_parameters(**parameters)
    except (RuntimeError, NameError, AssertionError, TypeError) as error:
        raise ValueError(f"cluster={kind}, submitit.*: {error}") from error
    return executor


def exit_status(job: Job) -> int:
    """Waits for the end of a job; returns 1 if it was lost or cancelled."""
    while not job.done():
        time.sleep(1)
    return 1 if job.exception() else job.result()


class Command(Checkpointable):
    """A command as a job. Before the time limit, on preemption and when the job is cancelled, the
    command gets SIGTERM and saves; in the first two cases the job is queued again."""

    def __call__(self, words: Sequence[str], log: str) -> int:
        def ignore() -> None:  # SLURM sends it to all processes, and this one passes SIGTERM on
            signal.signal(signal.SIGUSR2, signal.SIG_IGN)

        with open(log, "ab") as output:
            self.process = subprocess.Popen(
                words, stdout=output, stderr=subprocess.STDOUT, preexec_fn=ignore
            )
        try:
            return self.process.wait()
        finally:
            self.save()

    def checkpoint(self, *arguments: Any) -> DelayedSubmission:
        self.save()
        return DelayedSubmission(Command(), *arguments)

    def save(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait()
