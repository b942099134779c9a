"""Sweeps as jobs: what is submitted to a SLURM that records it, and what the jobs do."""

import re
import signal
from pathlib import Path

import pytest
from conftest import refuses
from submitit.core.utils import DelayedSubmission
from test_sweep import OUT, folder, make_run, signal_when, trainings  # noqa: F401

from tape.cli.settings.composition import composed
from tape.cli.sweep import cluster
from tape.cli.sweep.dry_run import scripts_of

SBATCH = """#!/bin/sh
if grep -q 'partition=none' "$1"; then
    echo 'sbatch: error: invalid partition specified: none' >&2
    exit 1
fi
n=$(ls -d job_* 2>/dev/null | wc -l)
cp "$1" "job_$n"
echo "Submitted batch job $n"
"""
PROGRAMS = {"sbatch": SBATCH, "squeue": "#!/bin/sh\ncat queue\n", "srun": "#!/bin/sh\n"}
PROGRAMS["scancel"] = "#!/bin/sh\necho $1 >> cancelled\n"


@pytest.fixture(autouse=True)
def slurm(folder, monkeypatch):  # noqa: F811
    """Programs that record jobs as files `job_N`, and show the file `queue`."""
    programs = Path("bin").absolute()
    programs.mkdir()
    for name, text in PROGRAMS.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    Path("queue").touch()


def settings(**changes):
    parameters = dict(composed([], "sweep").submitit) | changes.pop("submitit", {})
    cfg = {"name": "e", "out": str(OUT), "jobs": None, "compare": "compare", "seconds": None}
    cfg |= {"baseline": None, "vary": {}, "cluster": "slurm", "submitit": parameters}
    cfg |= {"dry_run": False} | changes
    cluster.check(cfg)
    return cfg


def submitted(*runs, **changes):
    return cluster.submit(settings(**changes), runs)


def flags(number):
    """The flags of a job's script."""
    found = re.findall(r"#SBATCH --([\w-]+)(?:=(.*))?", Path(f"job_{number}").read_text())
    return {name: value.strip("'") for name, value in found}


def started(job):
    """Does in this process what a job does; returns its exit status."""
    try:
        DelayedSubmission.load(OUT / "jobs" / f"{job}_submitted.pkl").result()
    except SystemExit as end:
        return end.code
    return 0


def test_a_sweep_is_an_array_and_a_comparison(capfd):
    runs = [make_run("rope"), make_run("alibi", "fail train"), make_run("rope", seed=1)]
    parameters = {"timeout_min": 90, "gpus_per_node": 1, "cpus_per_task": 4, "mem_gb": 16}
    parameters |= {"slurm_partition": "gpu", "slurm_setup": ["module load cuda"]}
    parameters |= {"slurm_additional_parameters": {"reservation": "mine"}}
    assert submitted(*runs, jobs=2, submitit=parameters) == 0
    expected = {"array": "0-2%2", "time": "90", "gpus-per-node": "1", "cpus-per-task": "4"}
    expected |= {"mem": "16GB", "partition": "gpu", "reservation": "mine", "job-name": "e"}
    assert expected.items() <= (expected | {"signal": "USR2@90"}).items() <= flags(0).items()
    assert "dependency" not in flags(0)
    assert flags(1)["dependency"] == "afterany:0" and "array" not in flags(1)
    script = Path("job_0").read_text()
    assert "\nmodule load cuda\n" in script and re.search(r"\nsrun .*--cpus-per-task=4 ", script)

    capfd.readouterr()
    Path("queue").write_text("0_0 RUNNING\n0_1 PENDING\n0_2 PENDING\n1 PENDING\n7 RUNNING\n")
    assert submitted(*runs) == 0 and not Path("job_2").exists()  # nothing is missing
    out = capfd.readouterr().out
    assert "output/e_rope_0: job 0_0, running, see output/compare_e/e_rope_0.log\n" in out
    assert "output/compare_e: job 1, pending\n" in out
    longer = make_run("rope", "--longer")
    refuses("output/e_rope_0: job 0_0, running, has other set.*scancel 0_0", submitted, longer)

    assert [started("0_0"), started("0_1")] == [0, 1] and trainings(runs[0]) == 1
    Path("queue").write_text("0_2 PENDING\n1 PENDING\n")
    assert submitted(*runs) == 0
    out, err = capfd.readouterr()
    assert "output/e_alibi_0 did not finish, see " in err and "the loss is not finite" in err
    assert "output/e_rope_0: finished\n" in out and "output/e_alibi_0: job 2, submitted" in out
    assert Path("cancelled").read_text() == "1\n"  # another comparison waits for all jobs
    assert "array" not in flags(2) and flags(3)["dependency"] == "afterany:0:2"

    assert [started("0_2"), started("2"), started("3")] == [0, 1, 1]
    out = capfd.readouterr().out
    assert (
        f"compared output/e_rope_0 output/e_rope_1 --out {OUT} --failed output/e_alibi_0\n" in out
    )
    Path("queue").write_text("")
    assert submitted(*runs) == 0 and flags(5)["dependency"] == "afterany:4"
    assert not Path("job_6").exists()


def test_a_comparison_is_repeated_where_its_runs_changed(capfd):
    runs = [make_run("rope"), make_run("tape")]
    for number in range(3):
        if number == 1:
            (runs[0].folder / "model.safetensors").write_text("changed")
        assert submitted(*runs) == 0
        for job in sorted(Path("output/compare_e/jobs").glob("*_submitted.pkl")):
            assert started(job.name.removesuffix("_submitted.pkl")) == 0
    assert "output/compare_e: compared\n" in capfd.readouterr().out
    assert len([*Path.cwd().glob("job_*")]) == 4  # an array, a run, and a comparison of each


def test_runs_start_after_their_base_model(capfd):
    base = make_run("base", "fail train", is_base=True)
    runs = [make_run("lora"), make_run("ft")]
    assert submitted(base, *runs) == 0
    assert flags(1)["dependency"] == "afterany:0" and flags(1)["array"].startswith("0-1%")
    assert flags(2)["dependency"] == "afterany:0:1"
    assert started("0") == 1 and re.search("base.* did not finish", started("1_0"))
    assert not any(run.folder.exists() for run in runs) and started("2") == 1
    assert "compared" not in capfd.readouterr().out
    assert submitted(base, *runs) == 0
    err = capfd.readouterr().err
    assert "e_base_0 did not finish, see output/compare_e/e_base_0.log: error: the loss" in err
    assert "output/e_lora_0 did not begin, see output/compare_e/jobs\n" in err


def test_a_job_whose_time_is_up_saves_and_is_requeued():
    run = make_run("rope", "wait")
    assert submitted(run) == 0
    asked = []
    before = signal.signal(cluster.WARNING, lambda number, frame: asked.append(number))
    try:
        signal_when(cluster.WARNING, run.folder / "begun", everywhere=True)
        assert started("0") == 75 and asked == [cluster.WARNING]
        assert (run.folder / "checkpoint").read_text() == str(int(signal.SIGTERM))
        assert started("0") == 0 and run.finished() and asked == [cluster.WARNING]
    finally:
        signal.signal(cluster.WARNING, before)


def test_a_dry_run_shows_the_scripts_and_submits_nothing(monkeypatch):
    """They are those that sbatch gets, also on a machine without SLURM."""
    runs = [make_run("base", is_base=True), make_run("rope"), make_run("tape")]
    changes = {"submitit": {"slurm_partition": "gpu", "gpus_per_node": 1}, "jobs": 2}
    before = {*Path.cwd().rglob("*")}
    with monkeypatch.context() as without:
        without.setenv("PATH", "/usr/bin:/bin")
        shown = scripts_of(settings(**changes, dry_run=True), runs)
    assert {*Path.cwd().rglob("*")} == before
    assert submitted(*runs, **changes) == 0
    scripts = [Path(f"job_{number}").read_text() for number in range(3)]
    scripts[1] = scripts[1].replace("afterany:0", "afterany:1")  # here, numbers begin at 0
    scripts[2] = scripts[2].replace("afterany:0:1", "afterany:1:2")
    heads = ["# job 1: output/e_base_0\n", f"# job 3: {OUT}\n"]
    heads[1:1] = ["# job 2_0: output/e_rope_0\n# job 2_1: output/e_tape_0\n"]
    assert shown == [head + script for head, script in zip(heads, scripts, strict=True)]


REFUSED = [
    ({"submitit": {"slurm_partition": "none"}}, "^sbatch refuses: .*invalid partition"),
    ({"submitit": {"gpus_per_node": 8}}, r"^submitit.gpus_per_node=8 must be an integer in 0\.\.1"),
    ({"submitit": {"mem_gb": "16GB"}}, "^submitit: .*mem_gb"),
    ({"cluster": "slrum"}, "^unknown cluster 'slrum'; did you mean 'slurm'"),
    ({"seconds": 9}, "^seconds= stops a sweep on this machine"),
]


def test_what_a_cluster_cannot_do_is_refused(monkeypatch):
    for changes, message in REFUSED:
        refuses(message, submitted, make_run("rope"), **changes)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    refuses(
        "^cluster=slurm: this machine has no sbatch, srun, squeue; submit where SLURM is", submitted
    )
