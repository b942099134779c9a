"""Shows the jobs of a sweep on SLURM and submits none: the same code submits them to programs that
stand in for SLURM's and record scripts."""

import os
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

from tape.cli.sweep.cluster import Submission
from tape.cli.sweep.compose import Run, Sweep

# Scripts are named by the number of the job, 1 and so on.
SBATCH = """#!/bin/sh
cd "$(dirname "$0")/../scripts"
n=$(($(ls | wc -l) + 1))
cat "$1" > "$n"
echo "Submitted batch job $n"
"""
PROGRAMS = {"sbatch": SBATCH, "srun": "#!/bin/sh\n", "squeue": "#!/bin/sh\n"}


def scripts_of(cfg: Sweep, runs: list[Run]) -> list[str]:
    """Returns the scripts that a sweep would give to sbatch if none of its jobs were in the queue:
    each after lines that say where its jobs write. Ids of jobs are numbers from 1. Raises a
    ValueError for parameters that submitit does not know."""
    with TemporaryDirectory() as name:
        folder = Path(name).resolve()
        out = str(folder / "out")
        (folder / "scripts").mkdir()
        (folder / "bin").mkdir()
        for program, text in PROGRAMS.items():
            (folder / "bin" / program).write_text(text)
            (folder / "bin" / program).chmod(0o755)
        path = os.environ.get("PATH", os.defpath)
        os.environ["PATH"] = os.pathsep.join((str(folder / "bin"), path))
        try:
            with redirect_stdout(StringIO()):
                submission = Submission(cfg | {"out": out}, runs)
                submission.perform()
        finally:
            os.environ["PATH"] = path
        works = {job: writes for writes, (job, _) in submission.known.items()}
        works = {job: cfg["out"] if out == writes else writes for job, writes in works.items()}
        texts = []
        for number in range(1, len([*(folder / "scripts").iterdir()]) + 1):
            own = (job for job in works if job.partition("_")[0] == str(number))
            told = [f"# job {job}: {works[job]}" for job in own]
            script = (folder / "scripts" / str(number)).read_text()
            texts.append("\n".join([*told, script.replace(out, str(Path(cfg["out"]).absolute()))]))
    return texts
