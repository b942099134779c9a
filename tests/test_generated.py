"""Runs of generated tasks: what they watch, write, continue and refuse, criteria, and the suite."""

import doctest
import shutil
import signal
from dataclasses import replace
from types import SimpleNamespace

import hydra
import numpy as np
import pandas as pd
import pytest
from commands import ROOT, run_command, tape
from conftest import composed, refuses
from test_training import report_of
from trained import assert_same_weights, losses, told_to_stop, weights
from transformers import AutoTokenizer

from arithmetic.problems import Problems
from tape.cli import train
from tape.core.metrics import read_metrics
from tape.evaluation.accuracy import effective_length
from tape.evaluation.tables import median_length
from tape.results.compare import compare, read
from tape.results.runs import read_saved
from tape.tasks.passkey.sequences import Passkeys
from tape.tasks.synthetic import synthetic_task
from tape.tasks.synthetic.problems import TASKS, Synthetic
from tape.tasks.synthetic.suite import contrast, draw, predicted, rows_of, suite
from tape.training import callbacks
from tape.training.callbacks import Stopped

STEPS = """trainer.max_steps=8 trainer.save_steps=4 trainer.eval_steps=4 trainer.logging_steps=1
    trainer.warmup_steps=0 trainer.per_device_train_batch_size=16 eval_blocks=8"""
SETTINGS = {
    "addition": """experiment=addition length=10 data.max_first=2 data.max_second=2 task.samples=2
        model.hidden_size=32 model.intermediate_size=64 model.num_hidden_layers=2""",
    "passkey": """experiment=passkey length=38 data.max_length=32 encodings.randpe.length=280
        task.samples=1 model.hidden_size=32 model.intermediate_size=48""",
    "synthetic": """experiment=synthetic data.min_length=1 data.max_length=2 length=4
        position=rope model.hidden_size=32 model.intermediate_size=64 task.samples=8
        task.criterion=0.3 trainer.max_steps=100 trainer.eval_steps=10 trainer.save_steps=10
        trainer.learning_rate=5e-3 trainer.lr_scheduler_type=constant""",
    "no task": "data=addition name=x",
}
ABACUS = "position=abacus position.offset"
RECURRENT = "position=tape +model.num_recurrences=2 +encodings.tape.sampler=shift"


def start(folder, name, overrides=""):
    train.run(composed(*f"{STEPS} {SETTINGS[name]} {overrides} output_dir={folder}".split()))
    return folder


@pytest.mark.parametrize(
    ("name", "source", "position", "flags"),
    [
        ("addition", Problems(2, 2), RECURRENT, "--max_length 3 --samples 1"),
        ("passkey", Passkeys(32), "position=randpe", "--num_tests 1 --depths 2"),
    ],
)
def test_a_run(name, source, position, flags, tmp_path, capsys):
    """It ends in a report and a model that can be asked; a continued one and one that is not
    watched equal it."""
    folder = start(tmp_path / "run", name, position)
    rows = [row for row in read_metrics(folder / "metrics.jsonl") if "eval_accuracy_in" in row]
    assert [row["step"] for row in rows] == [4, 8]
    assert "step 8/8  validation accuracy in " in capsys.readouterr().out
    for part in ("accuracy_in", "accuracy_out"):
        assert report_of(folder)[part] == rows[-1][f"eval_{part}"]
    assert "| length | right answers |" in (folder / "report" / "report.md").read_text()
    assert type(source).load(folder) == source
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.get_vocab() == source.tokenizer().get_vocab()
    words = [folder, "--task", name, "--processes", "1", *flags.split()]
    run_command("-m", "tape.cli", "evaluate", *words, folder=tmp_path, succeeds=True)
    (run,) = read([folder], "grid" if name == "addition" else name).runs
    assert run.settings["position.name"] in position and len(run.rows)
    parts = shutil.copytree(folder, tmp_path / "parts")
    shutil.rmtree(parts / "checkpoint-8")
    start(parts, name, position)
    assert (parts / "checkpoint-8").is_dir()
    alone = start(tmp_path / "alone", name, f"{position} trainer.eval_strategy=no")
    for other in (parts, alone):
        assert_same_weights(weights(folder), weights(other))
        assert losses(folder) == losses(other)


@pytest.mark.parametrize(
    "words",
    ["addition", "addition_20", "addition_40", "passkey", *(f"synthetic data={x}" for x in TASKS)],
)
def test_recipes_have_the_length_of_their_data(words):
    cfg = composed(*f"experiment={words}".split())
    source = hydra.utils.instantiate(cfg.data)
    assert cfg.length == source.length
    if isinstance(source, Synthetic):
        assert source.max_length == source.of.trained
        assert synthetic_task.lengths_to(source, None)[-1] == source.of.tested
        assert cfg.longest == replace(source, max_length=source.of.tested).length


def test_abacus_positions_reach_as_far_as_they_were_moved(tmp_path):
    """Answers have up to 3 digits, which are moved by up to 3: positions 0..6. Those of operands
    of 4 digits, up to which the accuracy is measured, have 5, which are not moved."""
    folder = start(tmp_path, "addition", f"{ABACUS}=3 position.length=7")
    assert any("eval_accuracy_out" in row for row in read_metrics(folder / "metrics.jsonl"))


@pytest.mark.parametrize(
    ("name", "overrides", "message"),
    [
        ("addition", f"{ABACUS}=3 position.length=6", "max_length=4 needs 7 .* 'abacus' has 6"),
        ("addition", f"{ABACUS}=1 position.length=5", "validation with max_length=4 needs 6 .* 5"),
        ("addition", "position=learned position.length=10", r"max_length=4 needs 16 .* has 10"),
        ("addition", "length=9", r"length=9: these problems have 10 tokens; give length=10"),
        ("passkey", "eval_blocks=null", "eval_blocks=null: the number of prompts is unlimited"),
        ("passkey", "position=randpe position.length=200", "max_tokens=256 needs 265 .* has 200"),
        ("synthetic", "data=parity position=abacus", "max_length=4 needs 5 .* 'abacus' has 4"),
        ("synthetic", "task.samples=0", r"task\.samples=0 must be an integer"),
        ("synthetic", "task.criterion=2.0", r"task\.criterion=2\.0 must lie in \(0, 1\)"),
        ("synthetic", "longest=0", r"longest=0 must be an integer in 2\.\."),
        ("no task", "experiment=synthetic", "data makes Problems: this task needs Synthetic; choo"),
        ("no task", "experiment=quick", "task=text with Problems, which is no text: choose"),
    ],
)
def test_bad_settings_are_refused(name, overrides, message, tmp_path):
    refuses(message, start, tmp_path / "run", name, overrides)


# ---- criteria and the suite


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory):
    """Two runs that reached their criterion, and one that did not."""
    place = tmp_path_factory.mktemp("suite")
    folders = [place / f"parity_rope_{seed}" for seed in range(3)]
    for seed, folder in enumerate(folders):
        start(folder, "synthetic", f"seed={seed} trainer.max_steps={10 if seed == 2 else 100}")
    with (folders[2] / "metrics.jsonl").open("a") as file:  # a continuation, not saved yet
        file.writelines(f'{{"step": {n}, "eval_accuracy_in": 1.0}}\n' for n in (15, 20))
    for folder in folders:
        words = ("-m", "tape.cli", "evaluate", folder, "--task", "synthetic", "--samples", 10)
        run_command(*words, folder=place, succeeds=True)
    return folders


def test_the_criterion_takes_two_successive_validations():
    assert doctest.testmod(callbacks).attempted == 2 and not doctest.testmod(callbacks).failed
    rows = [{"step": 10 * n, "eval_accuracy_in": x} for n, x in enumerate((1, 0.5, 1, 0.5, 0.9))]
    assert callbacks.reached(rows, 0.95) is None
    assert callbacks.reached([*rows, {"step": 50, "eval_accuracy_in": 0.9}], 0.9) == 50
    assert callbacks.reached([*rows, rows[-1]], 0.9) is None  # the same validation, made up for
    assert callbacks.reached(rows, None) is None
    assert [callbacks.last_step(n, 100) for n in (None, 10, 11, 90)] == [100, 12, 14, 100]


def test_a_run_ends_soon_after_its_criterion(evaluated, tmp_path):
    """It is not trained again, and a continued one equals it."""
    folder = evaluated[0]
    rows = read_metrics(folder / "metrics.jsonl")
    step, end = report_of(folder)["criterion_step"], max(row["step"] for row in rows)
    assert step == callbacks.reached(rows, 0.3) and end == callbacks.last_step(step, 100) < 100
    told = f"Reached 30% right answers in the trained lengths at step {step}."
    assert told in (folder / "report" / "report.md").read_text()
    rates = {row["step"]: row["learning_rate"] for row in rows if "learning_rate" in row}
    assert all(rate == 5e-3 for n, rate in rates.items() if n <= step)
    for n in range(step, end):  # of the step that follows step n
        assert rates[n + 1] == pytest.approx(5e-3 * (end - n) / (end - step))
    for setting in ("task.samples=5", "trainer.eval_steps=1"):  # they decide whether it is reached
        refuses(setting.partition("=")[0], start, folder, "synthetic", f"seed=0 {setting}")
    parts = shutil.copytree(folder, tmp_path / "parts")
    shutil.rmtree(max(parts.glob("checkpoint-*"), key=lambda path: int(path.name[11:])))
    (parts / "model.safetensors").unlink()
    for each in (folder, parts):
        start(each, "synthetic", "seed=0")
    # Stopped where it reached the criterion, before that validation, and killed soon after it.
    stopped = tmp_path / "stopped"
    for n, how, told in ((step, signal.SIGTERM, Stopped), (step + 1, SystemExit(), SystemExit)):
        with told_to_stop(n, how), pytest.raises(told):
            start(stopped, "synthetic", "seed=0")
    start(stopped, "synthetic", "seed=0")
    assert_same_weights(weights(folder), weights(stopped))
    assert losses(folder, "eval_accuracy_in") == losses(stopped, "eval_accuracy_in")
    assert read_metrics(folder / "metrics.jsonl") == rows
    assert_same_weights(weights(folder), weights(parts))
    assert losses(folder) == losses(parts)


def test_a_task_whose_problems_end_is_asked_no_longer_ones():
    for longest, beyond in ((400, True), (1000, True), (1039, False)):
        task = SimpleNamespace(source=Synthetic("recall", 4, longest))
        (questions,) = synthetic_task.SyntheticTask.questions(task, samples=1)
        assert (max(questions.lengths) > longest) == beyond and max(questions.lengths) <= 1039


def test_lengths_are_half_octaves_and_solved_up_to_the_first_that_fails():
    found = doctest.testmod(synthetic_task)
    assert found.attempted and not found.failed
    assert synthetic_task.lengths_to(Synthetic("parity", 8, 16), 40) == [8, 11, 16, 23, 32, 40]
    each = {(1, 0.9, 0.8, 1): (20, 80), (0.5, 1, 1, 0.42): (0, 40)}
    for values, expected in (each | {(0, 1, 1, 1): (0, 0), (1, 0.85, 0.84, 0): (10, 20)}).items():
        about = {"measure": "accuracy", "length": [10, 20, 40, 80], "value": values, "n": 100}
        rows = pd.DataFrame(about)
        assert (synthetic_task.longest_solved(rows), effective_length(rows)) == expected
    given = ([20, 80], [80, 0, 80], [0, 0, 1280], [])
    assert [median_length(each, 80) for each in given] == ["20", ">= 80", "-", "-"]


def test_the_suite_leaves_failed_runs_out(evaluated, tmp_path):
    refuses(r"different settings: trainer\.max_steps", suite, evaluated, tmp_path / "unequal")
    for given, message in (
        ("copy:fire", "--contrasts copy:fire: give task:encoding:encoding"),
        ("copy:rope:rope", "--contrasts copy:rope:rope: give task:encoding:encoding"),
        ("copy:adape:tape", "--contrasts copy:adape:tape: give task:encoding:encoding"),
        ("copy:tpe sampler=subset:rope", "unknown position encoding 'tpe'; did you mean 'tape'"),
    ):
        refuses(message, suite, evaluated[:1], tmp_path / "contrast", [given])
    evaluated = [shutil.copytree(run, tmp_path / run.name) for run in evaluated]
    trained = evaluated[2] / "trained.json"  # for this test, of the same settings
    trained.write_text(trained.read_text().replace('"max_steps": 10,', '"max_steps": 100,'))
    out = tmp_path / "out"
    text, missing = suite(evaluated, out)
    assert not missing and (out / "heatmap.png").stat().st_size > 1000
    (row,) = pd.read_csv(out / "suite.csv").to_dict("records")
    assert (row["task"], row["encoding"], row["learned"]) == ("parity", "rope", "2 of 3")
    assert row["95 %"] == "0.09 to 0.99"  # Clopper and Pearson's for 2 of 3
    assert "below 0.1 (Fisher" in text and "runs of each: 3" in text  # 2 / (6 choose 3)
    assert text.startswith("| encoding | parity |\n|---|---|\n| rope | ") and ", 2 of 3 |" in text
    tables = [pd.read_csv(run / "synthetic" / "synthetic.csv") for run in evaluated]
    assert [set(each["reached"]) for each in tables] == [{1}, {1}, {0}]
    assert report_of(evaluated[2])["criterion_step"] is None
    assert "Failed to reach 30%" in (evaluated[2] / "report" / "report.md").read_text()
    twice = np.mean([t.query("measure == 'accuracy' and length == 4")["value"] for t in tables[:2]])
    assert float(row["at twice, %"]) == pytest.approx(100 * twice, abs=0.05)
    tape("report", tmp_path, "--out", tmp_path / "page")
    assert "2 of 3" in (tmp_path / "page" / "index.html").read_text()
    assert suite([out], tmp_path / "again")[0] == text  # from saved results
    table, _ = compare(evaluated, tmp_path / "compared", "synthetic")
    cells = next(line for line in table.splitlines() if line.startswith("| rope | 3 "))
    assert f"| {100 * twice:.1f} ±" in cells and cells.count(" (n = 2) |") == 4


def test_a_label_of_the_suite_stands_for_one_encoding():
    runs = [run for run in read_saved(ROOT / "docs/results/tasks") if run.encoding == "xpos"]
    for n, run in enumerate(runs):
        if run.settings["data.task"] == "copy":
            runs[n] = replace(run, settings=run.settings | {"position.scale_base": 1.0})
    refuses(r"both xpos, .* \(position\.scale_base: ", rows_of, runs)


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
    assert contrast("copy:t5rb:randrope sampler=subset") == ["copy", "t5", "randpe sampler=subset"]


def test_the_picture_names_what_was_not_learned():
    about = {"task": "copy", "trained": 20, "measure": "accuracy", "n": 10, "seed": 0, "solved": 20}
    rows = pd.DataFrame(
        about | {"encoding": name, "run": name, "learned": name == "fox"} | values
        for name in ("fox", "rope")
        for values in ({"length": n, "times": n / 20, "value": 20 / n} for n in (20, 40))
    )
    fox, rope, _ = draw(rows, ["fox", "rope"]).axes  # and the scale of colours
    assert (fox.get_title(), rope.get_title()) == ("fox\nmean 0.750", "rope")
    assert [text.get_text() for text in rope.texts] == ["not learned"] and not fox.texts
    assert fox.images[0].get_array().filled(-1).tolist() == [[1, 0.5]]
