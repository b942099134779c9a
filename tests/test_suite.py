"""The suite of synthetic tasks: training to a criterion, scoring, evaluation, table and picture."""

import csv
import doctest
import json
import shutil

import numpy as np
import pandas as pd
import pytest
from commands import run_command
from conftest import composed
from trained import assert_same_weights, losses, weights

from tape.commands import train
from tape.results.compare import compare
from tape.results.report import main as report
from tape.runs.metrics import read_metrics
from tape.settings.groups import options
from tape.tasks.synthetic import synthetic_task
from tape.tasks.synthetic.problems import TASKS, Synthetic
from tape.tasks.synthetic.suite import contrast, draw, predicted, suite
from tape.tasks.synthetic.synthetic_task import lengths_to, longest_solved
from tape.training import callbacks
from tape.training.callbacks import last_step, reached

SETTINGS = """experiment=synthetic data.min_length=1 data.max_length=2 length=4 eval_blocks=8
    position=rope model.hidden_size=32 model.intermediate_size=64 task.samples=8 task.criterion=0.3
    trainer.max_steps=100 trainer.eval_steps=10 trainer.save_steps=10 trainer.logging_steps=1
    trainer.per_device_train_batch_size=16 trainer.warmup_steps=0 trainer.learning_rate=5e-3
    trainer.lr_scheduler_type=constant"""


def start(folder, *overrides):
    train.run(composed(*SETTINGS.split(), *overrides, f"output_dir={folder}"))
    return folder


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory):
    """Two runs that reached their criterion, and one that did not."""
    place = tmp_path_factory.mktemp("suite")
    folders = [place / f"parity_rope_{seed}" for seed in range(3)]
    for seed, folder in enumerate(folders):
        start(folder, f"seed={seed}", f"trainer.max_steps={10 if seed == 2 else 100}")
    with (folders[2] / "metrics.jsonl").open("a") as file:  # a continuation, not saved yet
        file.writelines(f'{{"step": {n}, "eval_accuracy_in": 1.0}}\n' for n in (15, 20))
    for folder in folders:
        words = ("-m", "tape.tasks.evaluate", folder, "--task", "synthetic", "--samples", 10)
        done = run_command(*words, folder=place)
        assert done.status == 0, done.err
    return folders


def test_the_criterion_takes_two_successive_validations():
    assert doctest.testmod(callbacks).attempted == 2 and not doctest.testmod(callbacks).failed
    rows = [{"step": 10 * n, "eval_accuracy_in": x} for n, x in enumerate((1, 0.5, 1, 0.5, 0.9))]
    assert reached(rows, 0.95) is None
    assert reached([*rows, {"step": 50, "eval_accuracy_in": 0.9}], 0.9) == 50
    assert reached([*rows, rows[-1]], 0.9) is None  # the same validation, made up for
    assert reached(rows, None) is None
    assert [last_step(n, 100) for n in (None, 10, 11, 90)] == [100, 12, 14, 100]


def test_a_run_ends_soon_after_its_criterion(evaluated):
    folder = evaluated[0]
    rows = read_metrics(folder / "metrics.jsonl")
    step = json.loads((folder / "report" / "report.json").read_text())["criterion_step"]
    end = max(row["step"] for row in rows)
    assert step == reached(rows, 0.3) and end == last_step(step, 100) < 100
    told = f"Reached 30% right answers in the trained lengths at step {step}."
    assert told in (folder / "report" / "report.md").read_text()
    rates = {row["step"]: row["learning_rate"] for row in rows if "learning_rate" in row}
    assert all(rate == 5e-3 for n, rate in rates.items() if n <= step)
    for n in range(step, end):  # of the step that follows step n
        assert rates[n + 1] == pytest.approx(5e-3 * (end - n) / (end - step))
    assert Synthetic.load(folder) == Synthetic("parity", 1, 2)
    for setting in ("task.samples=5", "trainer.eval_steps=1"):  # they decide whether it is reached
        with pytest.raises(ValueError, match=setting.partition("=")[0]):
            start(folder, "seed=0", setting)


def test_a_finished_run_is_not_trained_again_and_a_continued_one_equals_it(evaluated, tmp_path):
    whole, parts = evaluated[0], shutil.copytree(evaluated[0], tmp_path / "parts")
    last = max(parts.glob("checkpoint-*"), key=lambda path: int(path.name[11:]))
    shutil.rmtree(last)
    (parts / "model.safetensors").unlink()
    begun = (whole / "metrics.jsonl").read_text()
    start(whole, "seed=0")
    assert (whole / "metrics.jsonl").read_text() == begun
    start(parts, "seed=0")
    assert_same_weights(weights(whole), weights(parts))
    assert losses(whole) == losses(parts)


def test_lengths_are_half_octaves_from_half_the_trained_length():
    found = doctest.testmod(synthetic_task)
    assert found.attempted and not found.failed
    assert lengths_to(Synthetic("parity", 8, 16), 40) == [8, 11, 16, 23, 32, 40]


@pytest.mark.parametrize("task", TASKS)
def test_every_task_has_its_entry(task):
    assert task in options("data")
    cfg = composed("experiment=synthetic", f"data={task}")
    problems = Synthetic(cfg.data.task, cfg.data.min_length, cfg.data.max_length)
    assert cfg.length == problems.length and problems.max_length == TASKS[task].trained
    assert lengths_to(problems, None)[-1] == TASKS[task].tested
    assert cfg.longest == problems.positions(TASKS[task].tested)


@pytest.mark.parametrize(("values", "solved"), [((1, 0.9, 0.8, 1), 20), ((0.5, 1), 0)])
def test_the_longest_solved_length_ends_where_a_shorter_one_fails(values, solved):
    lengths = [10 * 2**n for n in range(len(values))]
    about = {"measure": "accuracy", "length": lengths, "value": values, "n": 10}
    assert longest_solved(pd.DataFrame(about)) == solved


def test_the_suite_leaves_failed_runs_out(evaluated, tmp_path):
    with pytest.raises(ValueError, match=r"different settings: trainer\.max_steps"):
        suite(evaluated, tmp_path / "unequal")
    with pytest.raises(ValueError, match="--contrasts copy:fire: give task:encoding:encoding"):
        suite(evaluated[:1], tmp_path / "contrast", ["copy:fire"])
    evaluated = [shutil.copytree(run, tmp_path / run.name) for run in evaluated]
    trained = evaluated[2] / "trained.json"  # for this test, of the same settings
    trained.write_text(trained.read_text().replace('"max_steps": 10,', '"max_steps": 100,'))
    out = tmp_path / "out"
    text, missing = suite(evaluated, out)
    assert not missing and (out / "heatmap.png").stat().st_size > 1000
    (row,) = csv.DictReader((out / "suite.csv").open(newline=""))
    assert (row["task"], row["encoding"], row["learned"]) == ("parity", "rope", "2 of 3")
    assert row["95 %"] == "0.09 to 0.99"  # Clopper and Pearson's for 2 of 3
    assert "below 0.1 (Fisher" in text and "With 3 runs" in text  # 2 / (6 choose 3), for three runs
    assert text.startswith("| encoding | parity |\n|---|---|\n| rope | ") and ", 2 of 3 |" in text
    tables = [pd.read_csv(run / "synthetic" / "synthetic.csv") for run in evaluated]
    assert [set(each["reached"]) for each in tables] == [{1}, {1}, {0}]
    failed = evaluated[2] / "report"
    assert json.loads((failed / "report.json").read_text())["criterion_step"] is None
    assert "Failed to reach 30% right" in (failed / "report.md").read_text()
    twice = np.mean([t.query("measure == 'accuracy' and length == 4")["value"] for t in tables[:2]])
    assert float(row["at twice, %"]) == pytest.approx(100 * twice, abs=0.05)
    report([str(tmp_path), "--out", str(tmp_path / "page")])
    page = (tmp_path / "page" / "index.html").read_text()
    assert "2 of 3" in page
    assert suite([out], tmp_path / "again")[0] == text  # from saved results
    table, _ = compare(evaluated, tmp_path / "compared", "synthetic")
    cells = next(line for line in table.splitlines() if line.startswith("| rope | 3 "))
    assert f"| {100 * twice:.1f} ±" in cells and cells.count(" (n = 2) |") == 3
    assert "(n = ...): the mean of fewer runs" in table


def test_predictions_are_tested_by_the_lengths_of_all_runs():
    lengths = {("copy", "fire"): [28] * 5, ("copy", "rope"): [20, 20, 20, 0, 0]}
    lengths |= {("add", "fire"): [10, 14, 10, 10, 14], ("add", "rope"): [14, 0]}
    given = ["copy:fire:rope", "add:fire:rope", "copy:fox:rope"]
    table = predicted(lengths, [*map(contrast, given)])
    assert table.splitlines()[4:7] == [
        "| copy | fire | rope | 28, 28, 28, 28, 28 against 0, 0, 20, 20, 20 "
        "| 0.0079 | 0.0079 | 0.024 |",
        "| add | fire | rope | 10, 10, 10, 14, 14 against 0, 14 | 1 | 0.048 | 1 |",
        "| copy | fox | rope | not run | - | - | - |",
    ]
    assert predicted(lengths, []) == ""


def test_the_picture_names_what_was_not_learned():
    about = {"task": "copy", "trained": 20, "measure": "accuracy", "n": 10, "seed": 0, "solved": 20}
    rows = pd.DataFrame(
        about | {"encoding": name, "run": name, "learned": name == "fox"} | values
        for name in ("fox", "rope")
        for values in ({"length": n, "times": n / 20, "value": 20 / n} for n in (20, 40))
    )
    fox, rope, _ = draw(rows).axes  # and the scale of colours
    assert [text.get_text() for text in rope.texts] == ["not learned"] and not fox.texts
    assert fox.images[0].get_array().filled(-1).tolist() == [[1, 0.5]]
