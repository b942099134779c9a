"""Performs a sweep as jobs of SLURM, or, as a rehearsal, of this machine.

An array has a job per run, which trains and evaluates it; another job, which depends on the array,
compares the runs. submitit starts the jobs, warns them before their time is up, and requeues them.
"""

import asyncio
import getpass
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

try:
    import submitit
    from submitit.core.utils import FailedJobError, FailedSubmissionError
except ModuleNotFoundError as missing:
    what = f"error: {missing.name} is missing: EXTRAS=launchers bash script/setup.sh"
    raise SystemExit(what) from missing

from tape.cli.sweep.compose import Run, Sweep, comparison
from tape.cli.sweep.engine import FORWARDED, JOBS, Engine, last_line
from tape.core.files import write_text
from tape.core.run_folder import locked
from tape.core.validation import look_up
from tape.training import settings as schema

WARNING = signal.SIGUSR2  # from submitit: the time is up, or the job has to make room
REQUEUES = 20  # of a job whose time is up; the same command continues those that need more
LOCAL = "submitit.local._local"  # the module whose process is a job of this machine
KINDS = {
    "timeout_min": schema.integer(1),
    "cpus_per_task": schema.optional(schema.integer(1)),
    "gpus_per_node": schema.optional(schema.integer(0, 1)),  # a run of a sweep is one process
}


@dataclass(frozen=True)
class RunJob:
    """Trains and evaluates a run.

    Attributes:
        cfg: settings of the sweep.
        bases: runs that this one may start from.
        after: ids of the jobs that have to end before, where the cluster has no dependencies.
    """

    cfg: Sweep
    run: Run
    bases: tuple[Run, ...]
    after: tuple[str, ...]

    def __call__(self) -> None:
        wait_for(self.after)
        for base in self.bases:
            if not base.finished():
                sys.exit(f"error: {base.folder}, the base model, did not finish, see {base.log}")
        requeue = signal.getsignal(WARNING)
        engine = Engine(self.cfg, [self.run], {**FORWARDED, WARNING: signal.SIGTERM})
        status = asyncio.run(engine.perform())
        if engine.received == WARNING:
            requeue(WARNING, None)
        if status:
            sys.exit(status)

    def checkpoint(self) -> submitit.helpers.DelayedSubmission:
        """Returns what submitit starts when the job is requeued: the same run, which resumes."""
        return submitit.helpers.DelayedSubmission(self)


@dataclass(frozen=True)
class ComparisonJob:
    """Compares the runs that have finished, and names the others."""

    cfg: Sweep
    runs: tuple[Run, ...]
    after: tuple[str, ...]

    def __call__(self) -> None:
        wait_for(self.after)
        if status := asyncio.run(Engine(self.cfg, self.runs).perform(train=False)):
            sys.exit(status)
        write_text(receipt_of(self.cfg), compared(self.cfg, self.runs))


def receipt_of(cfg: Sweep) -> Path:
    return Path(cfg["out"], "comparison.finished")


def compared(cfg: Sweep, runs: Sequence[Run]) -> str:
    """Returns what identifies the comparison of finished runs: its command and their receipts."""
    return json.dumps([comparison(cfg, runs), *(run.receipt.read_text() for run in runs)])


def work_of(run: Run) -> list[list[str]]:
    """Returns what the job of a run does, as JSON has it."""
    return [[*command] for command in run.commands]


def queue(cluster: str) -> dict[str, str]:
    """Returns the user's jobs that have not ended: id -> state."""
    if cluster == "local":
        processes = psutil.process_iter(["cmdline"])
        jobs = (process for process in processes if LOCAL in (process.info["cmdline"] or ()))
        return {str(process.pid): "running" for process in jobs}
    command = ["squeue", "--noheader", "--array", "--user", getpass.getuser(), "--format=%i %T"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise ValueError(f"squeue cannot tell which jobs have ended: {done.stderr.strip()}")
    return dict(line.lower().split(maxsplit=1) for line in done.stdout.splitlines())


@contextmanager
def apart(log: Path) -> Iterator[None]:
    """Processes that start meanwhile write to a file: they would hold open the output of this one,
    and a pipe would not end with it."""
    before = [os.dup(number) for number in (1, 2)]
    log.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    try:
        with log.open("ab") as file:
            for number in (1, 2):
                os.dup2(file.fileno(), number)
            yield
    finally:
        for number, output in zip((1, 2), before, strict=True):
            os.dup2(output, number)
            os.close(output)


def wait_for(jobs: Sequence[str]) -> None:
    """Waits until jobs of this machine have ended."""
    while jobs and {*jobs} & queue("local").keys():
        time.sleep(2)


def check(cfg: Sweep) -> None:
    """Raises a ValueError for settings that jobs cannot follow, or for a machine without SLURM."""
    cluster = cfg["cluster"]
    look_up("cluster", cluster, dict.fromkeys(("slurm", "local")))
    for name, kind in KINDS.items():
        schema.check(f"submitit.{name}", cfg["submitit"][name], kind)
    if cfg["seconds"]:
        raise ValueError("seconds= stops a sweep on this machine; jobs have submitit.timeout_min")
    absent = [name for name in ("sbatch", "srun", "squeue") if not shutil.which(name)]
    if cluster == "slurm" and absent and not cfg["dry_run"]:
        what = f"cluster=slurm: this machine has no {', '.join(absent)}"
        raise ValueError(f"{what}; submit where SLURM is, or rehearse here with cluster=local")


def submit(cfg: Sweep, runs: Sequence[Run]) -> int:
    """Submits the runs that have neither finished nor a job in the queue, and their comparison.

    Returns:
        The exit status, 0.

    Raises:
        ValueError: if the cluster refuses, or another sweep is working in the same folder.
    """
    with locked(Path(cfg["out"])):
        Submission(cfg, runs).perform()
    return 0


class Submission:
    """The jobs of a sweep. The file jobs.json next to the comparison holds, by the folder to which
    a job writes, its id and what it does."""

    def __init__(self, cfg: Sweep, runs: Sequence[Run]):
        self.cfg, self.runs = cfg, runs
        self.out = Path(cfg["out"])
        self.record = self.out / "jobs.json"
        self.known = json.loads(self.record.read_text()) if self.record.exists() else {}
        self.queue = queue(cfg["cluster"])
        self.executor = self.make_executor()

    def make_executor(self) -> submitit.AutoExecutor:
        """Returns an executor of jobs with the parameters of the sweep. Raises a ValueError for
        those that submitit does not know."""
        given = {name: value for name, value in self.cfg["submitit"].items() if value is not None}
        usual = {"name": self.cfg["name"]}
        if "cpus_per_task" in given:  # srun does not inherit it
            usual["slurm_srun_args"] = [f"--cpus-per-task={given['cpus_per_task']}"]
        if self.cfg["jobs"]:
            usual["slurm_array_parallelism"] = self.cfg["jobs"]
        most = {f"{name}_max_num_timeout": REQUEUES for name in ("slurm", "local")}
        executor = submitit.AutoExecutor(self.out / "jobs", self.cfg["cluster"], **most)
        try:
            executor.update_parameters(**usual | given)
        except (NameError, AssertionError, TypeError) as error:
            raise ValueError(f"submitit: {error}") from error
        return executor

    def perform(self) -> None:
        jobs: dict[Run, str] = {}
        missing: list[Run] = []
        for run in self.runs:
            if job := self.job_of(run.folder, work_of(run)):
                jobs[run] = job
                print(f"{run.folder}: job {job}, {self.queue[job]}, see {run.log}")
            elif run.finished():
                print(f"{run.folder}: finished")
            else:
                missing.append(run)
                if str(run.folder) in self.known and not run.receipt.exists():
                    how = f"begin, see {self.out / 'jobs'}"
                    if run.log.exists():
                        how = f"finish, see {run.log}: {last_line(run.log)}"
                    print(f"{run.folder} did not {how}", file=sys.stderr)
        for is_base in (True, False):
            bases = () if is_base else tuple(run for run in self.runs if run.is_base)
            wave = [run for run in missing if run.is_base == is_base]
            jobs |= self.submit(wave, bases, [jobs[run] for run in bases if run in jobs])
        self.compare([*jobs.values()], more=bool(missing))

    def job_of(self, folder: Path, work: Sequence[Any]) -> str | None:
        """Returns the job in the queue that writes to a folder, if there is one. Raises a
        ValueError if it was submitted to do something else."""
        job, submitted = self.known.get(str(folder), (None, None))
        if job not in self.queue:
            return None
        if submitted != work:
            how = f"kill {job}" if self.cfg["cluster"] == "local" else f"scancel {job}"
            what = f"{folder}: job {job}, {self.queue[job]}, has other settings"
            raise ValueError(f"{what}; wait for it, or cancel it ({how})")
        return job

    def submit(
        self, runs: Sequence[Run], bases: tuple[Run, ...], after: Sequence[str]
    ) -> dict[Run, str]:
        """Submits an array of runs, which starts after other jobs."""
        cfg = self.cfg | {"jobs": 1, "seconds": None, "compare": None}
        if self.cfg["cluster"] == "slurm":
            work = [RunJob(cfg, run, bases, ()) for run in runs]
            jobs = self.send(work, after) if runs else []
        else:  # without arrays and dependencies, a job waits itself for others
            most, jobs = self.cfg["jobs"] or JOBS, []
            cfg["jobs"] = most
            for run in runs:
                earlier = [jobs[-most]] if len(jobs) >= most else []
                jobs += self.send([RunJob(cfg, run, bases, (*after, *earlier))], ())
        submitted = dict(zip(runs, jobs, strict=True))
        for run, job in submitted.items():
            self.known[str(run.folder)] = [job, work_of(run)]
            print(f"{run.folder}: job {job}, submitted, see {run.log}")
        self.save()
        return submitted

    def compare(self, after: Sequence[str], more: bool) -> None:
        """Submits the comparison, after other jobs, unless it is in the queue and there are no more
        runs, or those runs have been compared."""
        if not (command := comparison(self.cfg, self.runs)):
            return
        job = self.job_of(self.out, command)
        if job and not more:
            print(f"{self.out}: job {job}, {self.queue[job]}")
            return
        receipt = receipt_of(self.cfg)
        text = receipt.read_text() if receipt.exists() and not after else ""
        if text and text == compared(self.cfg, self.runs):
            print(f"{self.out}: compared")
            return
        if job:
            self.cancel(job)
        work = ComparisonJob(self.cfg, tuple(self.runs), tuple(after))
        (job,) = self.send([work], after)
        self.known[str(self.out)] = [job, command]
        self.save()
        print(f"{self.out}: job {job}, submitted, compares the runs when their jobs have ended")

    def send(self, work: Sequence[RunJob | ComparisonJob], after: Sequence[str]) -> list[str]:
        """Submits jobs that start after others; returns their ids."""
        if after:
            arrays = dict.fromkeys(job.partition("_")[0] for job in after)
            self.executor.update_parameters(slurm_dependency=":".join(["afterany", *arrays]))
        try:
            with apart(self.out / "jobs" / "submission.log"), self.executor.batch():
                jobs = [self.executor.submit(each) for each in work]
        except (FailedJobError, FailedSubmissionError) as error:
            raise ValueError(f"sbatch refuses: {error}") from error
        return [job.job_id for job in jobs]

    def cancel(self, job: str) -> None:
        if self.cfg["cluster"] == "local":
            os.kill(int(job), signal.SIGINT)
        else:
            subprocess.run(["scancel", job], check=False)

    def save(self) -> None:
        write_text(self.record, json.dumps(self.known, indent=1) + "\n")
