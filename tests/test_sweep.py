"""The engine of sweeps, with a stand-in for the commands of tape that takes milliseconds; and a
sweep from training to the comparison, with a tiny run and all processes."""

import inspect
import json
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path

import psutil
import pytest
from commands import ROOT
from omegaconf import OmegaConf
from trained import locked

from tape.cli.sweep import compose, engine
from tape.cli.sweep.compose import Run
from tape.cli.sweep.engine import perform
from tape.core.files import write_text
from tape.encodings import ENCODINGS

STAND_IN = """
import os, pathlib, signal, sys, time
command, run, *told = sys.argv[1:]
if command == "compare":
    print("compared", run, *told)
    sys.exit(3 if "refused" in run else 0)
run = pathlib.Path(run)
run.mkdir(parents=True, exist_ok=True)
def save(number, frame):
    time.sleep(0.2)
    (run / "checkpoint").write_text(str(number))
    sys.exit(75)
if "orphan" in told and command == "train" and not (run / "begun").exists():
    def end(number, frame):
        (run / "told").touch()
        sys.exit(75)
    signal.signal(signal.SIGTERM, end)
    (run / "begun").touch()
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)
if "die" in told:
    os.kill(os.getppid() if "worker" in told else os.getpid(), signal.SIGKILL)
if f"fail {command}" in told:
    sys.exit("error: the loss is not finite")
if "wait" in told and not (run / "checkpoint").exists():
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, save)
    (run / "begun").touch()
    time.sleep(60)
(run / "model.safetensors").touch()
print(command, "OMP", os.environ.get("OMP_NUM_THREADS"), flush=True)
assert os.environ["MALLOC_TRIM_THRESHOLD_"]
"""
OUT = Path("output/compare_e")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """With signals that do as usual, also under nohup and in the background of a shell."""
    monkeypatch.chdir(tmp_path)
    Path("stand_in.py").write_text(STAND_IN)
    Path("config").mkdir()
    Path("config/train.yaml").write_text("length: 64\n")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    worker = (sys.executable, "-S", "-m", "tape.cli.sweep.worker", "stand_in")
    monkeypatch.setattr(engine, "WORKER", worker)
    monkeypatch.setattr(compose, "CONFIG", Path("config"))
    monkeypatch.setattr(compose, "CODE", [Path("positions"), Path("model")])
    usual = {signal.SIGHUP: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def make_run(row, *told, seed=0, **changes):
    folder = Path(f"output/e_{row}_{seed}")
    commands = tuple((name, str(folder), *told) for name in ("train", "evaluate"))
    return replace(Run(row, folder, OUT / f"{folder.name}.log", commands), **changes)


def performed(*runs, **changes):
    cfg = {"out": str(OUT), "jobs": 2, "compare": "compare", "seconds": None}
    return perform(cfg | {"baseline": None, "vary": {}} | changes, runs)


def trainings(run):
    return run.log.read_text().count("train OMP") if run.log.exists() else 0


def test_runs_are_trained_evaluated_and_compared(capfd, monkeypatch):
    for name in ("OMP_NUM_THREADS", "MALLOC_TRIM_THRESHOLD_"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(engine, "cores", lambda: 7)
    runs = [make_run(row, seed=seed) for seed in range(2) for row in ("rope", "tape")]
    assert performed(*runs, baseline="rope") == 0
    out, err = capfd.readouterr()
    for number, run in enumerate(runs, 1):
        assert f"{run.folder}: run {number} of 4 begins, see {run.log}" in out
        assert f"\n{run.folder}: finished\n" in out
        assert run.log.read_text() == "train OMP 3\nevaluate OMP 3\n"  # the cores are shared
    folders = [f"output/e_{row}_{seed}" for row in ("rope", "tape") for seed in range(2)]
    assert out.endswith(f"compared {' '.join(folders)} --out {OUT} --baseline {folders[0]}\n")
    assert not err
    finished = 0
    for line in out.splitlines():
        told = rf"; {4 - finished} left, about \d+:\d+" if finished else ""
        assert " begins" not in line or re.search(rf"\.log{told}$", line), line
        finished += line.endswith(": finished")
    assert finished == 4
    assert performed(*runs, baseline="rope") == 0
    again = capfd.readouterr().out
    assert "begins" not in again and {*again.splitlines()} < {*out.splitlines()}
    assert [trainings(run) for run in runs] == [1] * 4


def test_a_run_is_checked_again_where_something_changed(capfd):
    changed = ("texts/text.txt", "date=2024/text.txt", "mine.bin", "config/a", "positions/a")
    changed += ("model/layer.py", "more/a.txt", "my own/a.txt")
    for path in (*changed, "tape/code.py"):
        write_text(Path(path), "")
    files = ["texts/", "date=2024/text.txt", "other", "more/*.txt", "my own/a.txt"]
    cfg = {"out": OUT, "evaluation": ["output/e_rope_0", "--data=mine.bin"]}
    settings = {"data": {"files": files}, "position": {"name": "tape"}}
    settings |= {"output_dir": "output/e_rope_0", "evaluate": {"evaluate": {}}}
    settings["trainer"] = {"learning_rate": 1e-3}
    run = compose.run_of(cfg, ["output/e_rope_0"], OmegaConf.create(settings), "rope")
    for path in (*changed, run.folder / "model.safetensors", run.receipt, None):
        assert not run.finished()
        assert performed(run) == 0 and run.finished()
        write_text(Path("tape/code.py"), f"changed after {path}")  # the encoding is no folder
        assert performed(run) == 0 and capfd.readouterr().out.count("begins") == 1
        if path:
            write_text(Path(path), "changed")
    assert not replace(run, commands=(("train", "--stride", "3"),)).finished()


def test_the_code_of_encodings_is_part_of_a_receipt(monkeypatch):
    monkeypatch.undo()
    files = {Path(inspect.getfile(encoding)).resolve() for encoding in ENCODINGS.values()}
    assert all(any(path.is_relative_to(part) for part in compose.CODE) for path in files)


def test_a_new_encoding_leaves_finished_runs_finished(monkeypatch):
    monkeypatch.setattr(compose, "REGISTRY", compose.CODE[0] / "__init__.py")
    write_text(Path("config/position/rope.yaml"), "name: rope\n")
    write_text(compose.REGISTRY, "rope\n")
    assert performed(run := make_run("rope")) == 0 and run.finished()
    write_text(Path("config/position/mine.yaml"), "name: mine\n")
    write_text(compose.CODE[0] / "mine.py", "SLOPE = 1\n")
    write_text(compose.REGISTRY, "rope\nmine\n")
    assert run.finished()
    Path("config/position/rope.yaml").unlink()
    assert not run.finished()


def test_an_encoding_of_another_package_is_part_of_a_receipt(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "halves.py").write_text("SLOPE = 1\n")
    entry = EntryPoint("halves", "halves:Halves", "tape.encodings")
    monkeypatch.setattr(compose, "entry_points", lambda group: [entry])
    assert performed(run := make_run("halves")) == 0 and run.finished()
    (tmp_path / "halves.py").write_text("SLOPE = 12\n")
    assert not run.finished()


def test_the_request_of_a_receipt_is_that_of_the_beginning():
    program = Path("stand_in.py")
    write_text(Path("config/a"), "")
    program.write_text(f"open('config/a', 'a').write('b'){program.read_text()}")
    assert performed(run := make_run("rope")) == 0
    assert run.receipt.exists() and not run.finished()


def test_a_run_that_is_killed_fails_and_the_others_go_on(capfd):
    runs = [make_run("rope", "die"), make_run("alibi", "die", "worker"), make_run("tape")]
    assert performed(*runs, jobs=1) == 1
    err = capfd.readouterr().err
    assert "e_rope_0 did not finish" in err and "the process that starts the commands" in err
    assert runs[2].finished() and not any(run.finished() for run in runs[:2])


def test_a_run_without_its_worker_is_told_to_end():
    run = make_run("rope", "orphan")
    assert performed(run) == 1
    waits = iter(range(1000))
    while not (run.folder / "told").exists() and next(waits, None) is not None:
        time.sleep(0.02)
    assert (run.folder / "told").exists() and performed(run) == 0


@pytest.mark.parametrize("command", ["train", "evaluate"])
def test_a_run_that_fails_is_named_and_the_others_are_compared(command, capfd):
    runs = [make_run("rope", f"fail {command}"), make_run("tape"), make_run("rope", seed=1)]
    for _ in range(2):
        assert performed(*runs, jobs=1, baseline="rope") == 1
        out, err = capfd.readouterr()
        told = f"output/e_rope_0 did not finish, see {runs[0].log}: error: the loss is not finite"
        last = "error: 1 of 3 runs did not finish: output/e_rope_0"
        assert err.splitlines() == [f"error: {told}", last]
        assert "--baseline output/e_rope_1" in out and "compared output/e_rope_1 " in out
        assert "--failed output/e_rope_0\n" in out
        assert [trainings(run) for run in runs[1:]] == [1, 1]


def signal_when(number, *paths, everywhere=False):
    """Sends a signal to this process when files are there, in the thread that is returned; before,
    `everywhere`, to all of its descendants, as a cluster does."""

    def wait():
        while not all(path.exists() for path in paths):
            time.sleep(0.01)
        this = psutil.Process()
        for process in [*everywhere * this.children(recursive=True), this]:
            process.send_signal(number)

    sender = threading.Thread(target=wait, daemon=True)
    sender.start()
    return sender


STOPS = [*((number, False) for number in engine.FORWARDED), (signal.SIGTERM, True)]


@pytest.mark.parametrize(("number", "everywhere"), STOPS)
def test_a_stopped_sweep_saves_and_resumes(number, everywhere, capfd):
    is_ctrl_c = number == signal.SIGINT
    received = signal.SIGINT if is_ctrl_c else signal.SIGTERM
    runs = [make_run("rope", "wait"), make_run("alibi", "wait"), make_run("tape")]
    signal_when(number, *(run.folder / "begun" for run in runs[:2]), everywhere=everywhere)
    assert performed(*runs) == (130 if is_ctrl_c else 75)
    out = capfd.readouterr().out
    assert "stopped: 3 of 3 runs are left" in out and "compared" not in out
    for run in runs[:2]:
        assert (run.folder / "checkpoint").read_text() == str(int(received))
        assert trainings(run) == 0
    assert not runs[2].folder.exists()
    assert performed(*runs) == 0 and "compared" in capfd.readouterr().out


def test_a_sweep_under_nohup_goes_on():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    run = make_run("rope")
    sender = signal_when(signal.SIGHUP, run.folder / "model.safetensors")
    assert performed(run) == 0
    sender.join()  # it may be late, and must not find the signal's usual effect again


def test_a_sweep_has_time_slices():
    runs = [make_run("rope", "wait"), make_run("tape")]
    assert performed(*runs, jobs=1, seconds=0.5) == 75
    assert not runs[1].folder.exists()
    write_text(runs[0].folder / "checkpoint", "")  # the signal may come before it can save
    assert performed(*runs) == 0


def test_a_refused_comparison_and_two_sweeps_in_one_folder():
    assert performed(make_run("refused")) == 1
    shutil.rmtree(OUT)
    with locked(OUT), pytest.raises(ValueError, match="another process is using output/compare_e"):
        performed(make_run("rope"))


def test_a_base_model_is_trained_first(capfd):
    base = make_run("base", "fail train", is_base=True)
    run = make_run("lora", f"base_model={base.folder}")
    assert performed(base, run) == 1
    out, err = capfd.readouterr()
    assert "the loss is not finite" in err and "compared" not in out and not run.folder.exists()
    base = make_run("base", is_base=True)
    for _ in range(2):
        assert performed(base, run) == 0
        out = capfd.readouterr().out
        assert out.index("e_base_0: finished") < out.index("e_lora_0: run 2 of 2 begins")
        write_text(base.folder / "model.safetensors", "others")


TEXT = ["vocab_size=300", "length=32", "trainer.max_steps=8", "trainer.save_steps=2"]
TEXT += ["model.hidden_size=32", "model.intermediate_size=64", "model.num_hidden_layers=2"]
TEXT += ["eval_blocks=8", "report.tokens=512", "trainer.eval_steps=1000", "data=text"]


def processes_in(folder):
    """The processes that work in a folder."""
    each = psutil.process_iter(["cwd"])
    return [process for process in each if process.info["cwd"] == str(folder)]


@pytest.mark.slow
@pytest.mark.parametrize("cluster", ["null", "local"])
def test_a_killed_sweep_ends_as_an_undisturbed_one(cluster, tmp_path, text):
    """SIGKILL to the sweep, its jobs and all their processes when a run has saved."""
    words = ["sweep=encodings", "name=e", "recipe=quick", "seeds=[0]", "vary.position=[alibi]"]
    words += [f"cluster={cluster}", "evaluation='--max_tokens 3000'", "--", *TEXT]
    command, results = [sys.executable, ROOT / "sweep.py", *words, f"data.files={text}"], []

    def ended(folder):
        done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
        if "submitted" in done.stdout:  # jobs go on without the command, and do not hold its output
            assert processes_in(folder)
        while processes_in(folder):
            time.sleep(0.1)
        return done.stdout

    for name in ("whole", "killed"):
        folder = tmp_path / name
        folder.mkdir()
        if name == "killed":
            sweep = psutil.Popen(command, cwd=folder, stdout=subprocess.DEVNULL)
            while not any(folder.glob("output/e_*/checkpoint-*")):
                assert processes_in(folder)
                time.sleep(0.01)
            for process in processes_in(folder):
                process.kill()
            assert sweep.wait() == (0 if cluster == "local" else -signal.SIGKILL)
            assert not [*folder.rglob("perplexity.csv")]
        out = ended(folder)
        table = (folder / "output" / "compare_e" / "table.md").read_text()
        assert "| alibi | 1 | " in table and (cluster == "local" or table in out)
        found = [*folder.rglob("model.safetensors"), *folder.rglob("perplexity.csv")]
        results.append({path.relative_to(folder): path.read_bytes() for path in found})
    assert len(results[0]) >= 2 and results[0] == results[1]
    again = ended(folder)
    assert not re.search(r": run . of \d begins|submitted", again)
    assert ("output/compare_e: compared\n" if cluster == "local" else table) in again
    recorded = (folder / "output" / "e_alibi_0" / "run.json").read_text()
    assert "evaluate" not in recorded  # it has no influence on the weights
    *_, origin = json.loads((folder / "output" / "e_alibi_0" / "origin.json").read_text())
    assert "-m tape.cli train experiment=quick " in origin["command"]
