"""The engine of sweeps, with a stand-in for train.py that takes milliseconds."""

import doctest
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tape.sweep import engine, plan
from tape.sweep.engine import perform
from tape.sweep.plan import Run, Sweep

STAND_IN = """
import json, pathlib, signal, sys, time
run, *told = sys.argv[1:]
run = pathlib.Path(run)
run.mkdir(parents=True, exist_ok=True)
def save(number, frame):
    (run / "checkpoint").write_text(str(number))
    sys.exit(75)
if "fail" in told:
    sys.exit("error: the loss is not finite")
if "wait" in told and not (run / "checkpoint").exists():
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, save)
    (run / "begun").touch()
    time.sleep(60)
files = "files" in told
data = {"_target_": "tape.data.TextFiles" if files else "tape.data.LocalCorpus"}
base = next((word for word in told if "/" in word), None)
(run / "trained.json").write_text(json.dumps({"data": data, "base_model": base, "tokenizer": None}))
(run / "config.json").write_text(json.dumps({"max_position_embeddings": 64}))
(run / "model.safetensors").write_text("weights")
print("trained", flush=True)
"""
PYTHON = (sys.executable, "-I", "-S", "stand_in.py")
EVALUATE = "sh -c 'echo perplexity of {run} at {length*2}; echo OMP $OMP_NUM_THREADS' {evaluation}"
OUT = Path("output/compare_e")


@pytest.fixture(autouse=True)
def signals():
    """Under nohup and in the background of a shell, these are ignored from the start."""
    before = {
        signal.SIGHUP: signal.signal(signal.SIGHUP, signal.SIG_DFL),
        signal.SIGINT: signal.signal(signal.SIGINT, signal.default_int_handler),
    }
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("stand_in.py").write_text(STAND_IN)
    Path("config").mkdir()
    Path("config/train.yaml").write_text("length: 64\n")
    return tmp_path


def make_run(row, *told, seed=0, **changes):
    folder = Path(f"output/e_{row}_{seed}")
    run = Run(row, folder, OUT / f"{folder.name}.log", (*PYTHON, str(folder), *told), (EVALUATE,))
    return replace(run, find=r"^perplexity of \S+ at (\d+)", show=r"evaluated at \1", **changes)


def make_sweep(*runs, **changes):
    given = {"compare": "echo compared {runs} {baseline} in {out}", "jobs": 2}
    return Sweep(runs, OUT, Path("config"), **given | changes)


def trainings(run):
    return run.log.read_text().count("trained") if run.log.exists() else 0


def test_words_of_commands():
    assert doctest.testmod(plan).attempted and not doctest.testmod(plan).failed


def test_runs_are_trained_evaluated_and_compared(capfd, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(engine, "cores", lambda: 7)
    runs = [make_run(row, seed=seed) for seed in range(2) for row in ("rope", "tape")]
    assert perform(make_sweep(*runs, baseline="rope")) == 0
    out, err = capfd.readouterr()
    for number, run in enumerate(runs, 1):
        assert f"{run.name}: run {number} of 4 begins, see {run.log}" in out
        assert f"\n{run.name}: evaluated at 128\n" in out
        assert "OMP 3" in run.log.read_text()  # the cores are shared
    folders = [f"output/e_{row}_{seed}" for row in ("rope", "tape") for seed in range(2)]
    assert out.endswith(f"compared {' '.join(folders)} --baseline {folders[0]} in {OUT}\n")
    assert re.search(r"see \S+; 2 left, about \d+ \w+$", out, re.MULTILINE) and not err


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        *((0.2, "1 second"), (59.6, "60 seconds"), (150, "2 minutes"), (2520, "42 minutes")),
        *((7200, "2 hours"), (9000, "2.5 hours"), (300_000, "3.5 days")),
    ],
)
def test_durations_are_words(seconds, words):
    assert plan.duration(seconds) == words


def test_finished_runs_only_print(capfd):
    sweep = make_sweep(make_run("rope"), make_run("tape"))
    assert perform(sweep) == 0
    first = capfd.readouterr().out
    assert perform(sweep) == 0
    again = capfd.readouterr().out
    assert "begins" not in again and [trainings(run) for run in sweep.runs] == [1, 1]
    assert {*again.splitlines()} < {*first.splitlines()}


@pytest.mark.parametrize(
    "change",
    [
        lambda run: (run.folder / "model.safetensors").write_text("others"),
        lambda run: (run.folder / "config.json").touch() or (run.folder / "notes").touch(),
        lambda run: run.log.unlink(),
        lambda run: run.receipt.write_text("{}"),
        lambda run: run.receipt.write_text('{"req'),
        lambda run: Path("config/train.yaml").write_text("length: 65\n"),
        lambda run: replace(run, evaluation=("--stride", "3")),
        lambda run: replace(run, train=(*run.train, "seed=1")),
    ],
)
def test_a_run_is_checked_again_where_something_changed(change, capfd):
    run = make_run("rope")
    assert perform(make_sweep(run)) == 0 and "begins" in capfd.readouterr().out
    changed = change(run)
    run = changed if isinstance(changed, Run) else run
    assert perform(make_sweep(run)) == 0 and "begins" in capfd.readouterr().out
    assert perform(make_sweep(run)) == 0 and "begins" not in capfd.readouterr().out


@pytest.mark.parametrize(
    "run",
    [
        lambda: make_run("rope", "files"),
        lambda: make_run("rope", "output/base"),  # the weights of another run
        lambda: make_run("rope", evaluation=("--data", "text")),
        lambda: make_run("rope", evaluation=("texts/",)),
        lambda: make_run("rope", evaluation=("--data=mine.bin",)),
        lambda: make_run("rope", evaluate=(f"{EVALUATE} --data mine.bin",)),
    ],
)
def test_runs_that_read_files_are_always_checked(run):
    perform(make_sweep(run()))
    assert run().log.exists() and not run().receipt.exists()


def test_a_receipt_is_not_written_where_the_settings_changed_meanwhile():
    run = make_run("rope", evaluation=())
    run = replace(run, evaluate=("sh -c 'echo a: 1 > config/new.yaml'",))
    assert perform(make_sweep(run)) == 0 and not run.receipt.exists()


@pytest.mark.parametrize("partial", [True, False])
def test_a_run_that_fails_is_named_and_the_others_go_on(partial, capfd):
    runs = [make_run("rope", "fail"), make_run("tape"), make_run("rope", seed=1)]
    assert perform(make_sweep(*runs, jobs=1, partial=partial, baseline="rope")) == 1
    out, err = capfd.readouterr()
    told = f"e_rope_0 did not finish, see {runs[0].log}: error: the loss is not finite"
    assert err.splitlines() == [f"error: {told}", "error: 1 of 3 runs did not finish: e_rope_0"]
    assert ("--baseline output/e_rope_1" in out) == partial
    assert [trainings(run) for run in runs] == [0, 1, 1]
    assert perform(make_sweep(*runs, partial=partial)) == 1
    assert [trainings(run) for run in runs] == [0, 1, 1]


def test_nothing_is_compared_where_all_runs_failed(capfd):
    assert perform(make_sweep(make_run("rope", "fail"), partial=True)) == 1
    assert "compared" not in capfd.readouterr().out


def test_a_failing_evaluation_or_comparison_is_an_error(capfd):
    run = replace(make_run("rope"), evaluate=("sh -c 'echo no; exit 3'",))
    assert perform(make_sweep(run)) == 1
    assert f"e_rope_0 did not finish, see {run.log}: no" in capfd.readouterr().err
    assert perform(make_sweep(make_run("tape"), compare="sh -c 'exit 2'")) == 1


def signal_when(path, number):
    """Sends a signal to this process when a file is there, in the thread that is returned."""

    def wait():
        while not path.exists():
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    sender = threading.Thread(target=wait, daemon=True)
    sender.start()
    return sender


@pytest.mark.parametrize(
    ("number", "received", "status"),
    [
        (signal.SIGTERM, signal.SIGTERM, 75),
        (signal.SIGHUP, signal.SIGTERM, 75),
        (signal.SIGINT, signal.SIGINT, 130),
    ],
)
def test_a_stopped_sweep_saves_and_resumes(number, received, status, capfd):
    run, other = make_run("rope", "wait"), make_run("tape")
    sweep = make_sweep(run, other, jobs=1)
    signal_when(run.folder / "begun", number)
    assert perform(sweep) == status
    out = capfd.readouterr().out
    assert "stopped: 2 of 2 runs are left" in out and "compared" not in out
    assert (run.folder / "checkpoint").read_text() == str(int(received))
    assert trainings(run) == 0 and not other.folder.exists()
    assert perform(sweep) == 0 and "compared" in capfd.readouterr().out


def test_a_sweep_under_nohup_goes_on(monkeypatch):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        run = make_run("rope")
        sender = signal_when(run.folder / "config.json", signal.SIGHUP)
        assert perform(make_sweep(run)) == 0
        sender.join()  # it may be late, and must not find the signal's usual effect again
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_sweep_has_time_slices():
    run = make_run("rope", "wait")
    sweep = make_sweep(run, make_run("tape"), jobs=1)
    assert [perform(replace(sweep, seconds=seconds)) for seconds in (0, 1)] == [75, 75]
    assert perform(sweep) == 0


def test_two_sweeps_in_one_folder_are_refused():
    OUT.mkdir(parents=True)
    code = f"import fcntl; f = open('{OUT}/.lock', 'w'); fcntl.lockf(f, fcntl.LOCK_EX); "
    code += "print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        other.stdout.readline()
        with pytest.raises(ValueError, match="compare_e: another sweep is running there; wait"):
            perform(make_sweep(make_run("rope")))
        other.communicate(b"\n")


def test_tables_share_runs_and_have_a_folder_each(capfd):
    rows = {"both": ["rope", "tape"], "one": ["tape"]}
    assert perform(make_sweep(make_run("rope"), make_run("tape"), tables=rows)) == 0
    compared = re.findall(r"^compared .*", capfd.readouterr().out, re.MULTILINE)
    assert compared == [
        f"compared output/e_rope_0 output/e_tape_0 in {OUT}/both",
        f"compared output/e_tape_0 in {OUT}/one",
    ]


def extended(length=64, *told):
    base = make_run("base", *told, length=length)
    return base, make_run("lora", str(base.folder), base=base)


def test_a_base_model_is_trained_once_and_first(capfd):
    base, run = extended()
    assert perform(make_sweep(run, base)) == 0
    out = capfd.readouterr().out
    assert out.index("e_base_0: evaluated") < out.index("e_lora_0: run 1 of 2 begins")
    base.receipt.unlink()
    assert perform(make_sweep(run, base)) == 0 and trainings(base) == 1
    assert re.findall(r"(\w+): run", capfd.readouterr().out) == ["e_base_0"]
    (base.folder / "model.safetensors").write_text("others")
    assert perform(make_sweep(run, base)) == 0 and trainings(base) == 1
    assert re.findall(r"(\w+): run", capfd.readouterr().out) == ["e_base_0", "e_lora_0"]


@pytest.mark.parametrize(
    ("length", "told", "message"),
    [
        (32, [], "output/e_base_0 was trained on 64 tokens: the sweep extends models of 32"),
        (64, ["fail"], "the loss is not finite"),
    ],
)
def test_nothing_starts_from_a_base_model_that_does_not_fit(length, told, message, capfd):
    base, run = extended(length, *told)
    assert perform(make_sweep(base, run, partial=True)) == 1
    out, err = capfd.readouterr()
    assert message in err and "compared" not in out and not run.folder.exists()


def test_runs_are_jobs_of_a_cluster(capfd):
    from tape.sweep.cluster import executor_of

    cluster = executor_of("local", Path("jobs"), {"timeout_min": 1})
    runs = [make_run("rope"), make_run("tape", "fail")]
    assert perform(make_sweep(*runs, cluster=cluster, partial=True)) == 1
    out, err = capfd.readouterr()
    assert "e_rope_0: evaluated at 128" in out and "compared" in out
    assert f"e_tape_0 did not finish, see {runs[1].log}: error: the loss" in err
    assert json.loads(runs[0].receipt.read_text())["measures"] == "evaluated at 128"


@pytest.mark.slow
def test_a_cancelled_job_saves(capfd):
    from tape.sweep.cluster import executor_of

    run = make_run("rope", "wait")
    signal_when(run.folder / "begun", signal.SIGTERM)
    cluster = executor_of("local", Path("jobs"), {"timeout_min": 1})
    assert perform(make_sweep(run, cluster=cluster)) == 75
    while not (run.folder / "checkpoint").exists():
        time.sleep(0.01)
