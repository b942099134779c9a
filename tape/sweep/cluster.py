"""Commands of a sweep as jobs of submitit: on a SLURM cluster, or in processes for a trial."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from submitit import AutoExecutor
from submitit.helpers import Checkpointable, DelayedSubmission

GENERAL = (
    "name, timeout_min, mem_gb, nodes, cpus_per_task, gpus_per_node, tasks_per_node, "
    "stderr_to_stdout"
)


def executor_of(kind: str, folder: Path, parameters: dict[str, Any]) -> AutoExecutor:
    """Returns the executor of a kind, slurm or local, with its files in `folder`.

    Args:
        parameters: of submitit's `update_parameters`, such as timeout_min and slurm_partition.

    Raises:
        ValueError: without SLURM.
    """
    try:
        executor = AutoExecutor(folder, cluster=kind)
    except RuntimeError as error:
        raise ValueError(f"cluster={kind}: {error}; take cluster=local, or null") from error
    executor.update_parameters(**parameters)
    return executor


def check_parameters(parameters: dict[str, Any]) -> None:
    """Raises a ValueError for the first parameter of submitit that does not exist or has a value
    of another type. Leaves nothing behind."""
    with tempfile.TemporaryDirectory() as folder:
        executor = AutoExecutor(folder, cluster="local")
        for name, value in parameters.items():
            try:
                executor.update_parameters(**{name: value})
            except NameError as error:
                raise ValueError(
                    f"submitit.{name}={value}: there is no such parameter; known: {GENERAL}, and "
                    "those of SLURM with the prefix slurm_, such as slurm_partition"
                ) from error
            except (AssertionError, TypeError) as error:
                raise ValueError(f"submitit.{name}={value} has the wrong type: {error}") from error


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


async def ended(job: Any) -> int:
    """Waits for the exit status of a job; 1 if the job was lost or cancelled."""
    while not job.done():
        await asyncio.sleep(1)
    return 1 if job.exception() else job.result()
