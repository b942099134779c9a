"""Runs of addition, passkey and synthetic tasks: what they watch, write, continue and refuse."""

import json
import shutil

import pytest
from commands import run_command
from conftest import composed
from trained import assert_same_weights, losses, weights
from transformers import AutoTokenizer

from arithmetic.problems import Problems
from tape.commands import train
from tape.results.compare import read
from tape.runs.metrics import read_metrics
from tape.tasks.passkey.sequences import Passkeys
from tape.tasks.synthetic.problems import Synthetic

STEPS = """trainer.max_steps=8 trainer.save_steps=4 trainer.eval_steps=4 trainer.logging_steps=1
    eval_blocks=8 model.hidden_size=32"""
SETTINGS = {
    "addition": """experiment=addition length=10 data.max_first=2 data.max_second=2 task.samples=2
        model.intermediate_size=64 model.num_hidden_layers=2
        trainer.per_device_train_batch_size=16""",
    "passkey": """experiment=passkey length=38 data.max_length=32 encodings.randpe.length=280
        task.samples=1 model.intermediate_size=48 trainer.per_device_train_batch_size=4""",
    "synthetic": """experiment=synthetic data.min_length=1 data.max_length=2 length=4 longest=10
        task.samples=2 task.criterion=null model.intermediate_size=64 trainer.warmup_steps=0
        trainer.per_device_train_batch_size=16""",
}
SETTINGS = {name: [*each.split(), *STEPS.split()] for name, each in SETTINGS.items()}
SOURCES = {
    "addition": Problems(max_first=2, max_second=2),
    "passkey": Passkeys(max_length=32),
    "synthetic": Synthetic("parity", 1, 2),
}
FLAGS = {
    "addition": "--max_length 3 --samples 1",
    "passkey": "--num_tests 1 --depths 2",
    "synthetic": "--samples 2",
}
each_task = pytest.mark.parametrize("name", SETTINGS)


@pytest.fixture
def start(tmp_path):
    def start(name, *overrides, folder=tmp_path / "run"):
        train.run(composed(*SETTINGS[name], *overrides, f"output_dir={folder}"))
        return folder

    return start


@each_task
def test_a_run_ends_in_a_report_and_a_model_that_can_be_asked(name, start, tmp_path, capsys):
    folder = start(name, "position=randpe")
    rows = [row for row in read_metrics(folder / "metrics.jsonl") if "eval_accuracy_in" in row]
    assert [row["step"] for row in rows] == [4, 8] and "eval_accuracy_out" in rows[0]
    assert "step 8/8  validation accuracy in " in capsys.readouterr().out
    summary = json.loads((folder / "report" / "report.json").read_text())
    assert summary["accuracy_in"] == rows[-1]["eval_accuracy_in"]
    assert summary["accuracy_out"] == rows[-1]["eval_accuracy_out"]
    told = (folder / "report" / "report.md").read_text()
    assert "| length | right answers |" in told
    assert type(SOURCES[name]).load(folder) == SOURCES[name]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.get_vocab() == SOURCES[name].tokenizer().get_vocab()
    words = [folder, "--task", name, "--processes", "1", *FLAGS[name].split()]
    done = run_command("-m", "tape.tasks.evaluate", *words, folder=tmp_path)
    assert done.status == 0, done.err
    place = "grid" if name == "addition" else name
    (run,) = read([folder], place).runs
    assert run.settings["position.name"] == "randpe" and len(run.rows)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("addition", "position=tape +model.num_recurrences=2 +encodings.tape.sampler=shift"),
        ("passkey", "position=randpe"),
        ("synthetic", "position=randpe"),
    ],
)
def test_a_continued_run_equals_an_uninterrupted_one(name, settings, start, tmp_path):
    whole = start(name, *settings.split(), folder=tmp_path / "whole")
    parts = start(name, *settings.split())
    shutil.rmtree(parts / "checkpoint-8")
    start(name, *settings.split())
    assert_same_weights(weights(whole), weights(parts))
    assert losses(whole) == losses(parts)


@each_task
def test_a_measurement_changes_nothing_that_is_trained(name, start, tmp_path):
    watched = start(name, "position=randpe")
    alone = start(name, "position=randpe", "trainer.eval_strategy=no", folder=tmp_path / "alone")
    assert_same_weights(weights(watched), weights(alone))


@pytest.mark.slow
def test_a_model_learns_to_add_single_digits(start):
    """Cells of one digit are small enough to be learned by heart."""
    settings = """position=tape length=7 data.max_first=1 data.max_second=1 task.samples=50
        model.hidden_size=64 model.intermediate_size=128 trainer.per_device_train_batch_size=64
        trainer.max_steps=400 trainer.eval_steps=400 trainer.save_steps=400
        trainer.learning_rate=5e-3"""
    folder = start("addition", *settings.split())
    summary = json.loads((folder / "report" / "report.json").read_text())
    assert summary["accuracy_in"] > 0.9


def test_the_papers_recipes_compose():
    for digits in (5, 20, 40):
        name = "addition" if digits == 5 else f"addition_{digits}"
        cfg = composed(f"experiment={name}")
        assert cfg.length == Problems(max_first=digits, max_second=digits).length
        assert cfg.data.max_first == cfg.data.max_second == digits
    assert cfg.model.num_recurrences == 4 and cfg.trainer.per_device_train_batch_size == 512
    assert cfg.name == "add_tape_0"


def test_abacus_positions_reach_as_far_as_they_were_moved(start):
    """Answers have up to 3 digits, which are moved by up to 3: positions 0..6. Those of operands
    of 4 digits, up to which the accuracy is measured, have 5, which are not moved."""
    abacus = ("position=abacus", "position.offset=3")
    folder = start("addition", *abacus, "position.length=7")
    assert any("eval_accuracy_out" in row for row in read_metrics(folder / "metrics.jsonl"))
    short = folder.with_name("short")
    with pytest.raises(ValueError, match=r"max_length=4 needs 7 positions, .* 'abacus' has 6"):
        start("addition", *abacus, "position.length=6", folder=short)
    with pytest.raises(ValueError, match=r"validation with max_length=4 needs 6 .* has 5"):
        start("addition", "position=abacus", "position.offset=1", "position.length=5", folder=short)


def test_the_passkey_experiment_composes():
    cfg = composed("experiment=passkey", "position=randpe")
    assert cfg.length == Passkeys(max_length=cfg.data.max_length).length
    assert cfg.position.length == cfg.encodings.randpe.length >= 8 * cfg.data.max_length + 9
    assert cfg.name == "passkey_randpe_0"
    assert composed("position=randpe").position.length is None


@pytest.mark.parametrize(
    ("name", "overrides", "message"),
    [
        ("addition", "position=learned", r"max_length=4 needs 16 positions, .* 'learned' has 10"),
        ("addition", "length=9", r"length=9: these problems have 10 tokens; give length=10"),
        ("passkey", "length=40", r"length=40: these prompts have 38 tokens"),
        ("passkey", "eval_blocks=null", "eval_blocks=null: the number of prompts is unlimited"),
        (
            "passkey",
            "position=randpe position.length=200",
            r"validation with max_tokens=256 needs 265 positions, .* 'randpe' has 200",
        ),
        ("synthetic", "task.samples=0", r"task\.samples=0 must be an integer"),
        ("synthetic", "task.criterion=2.0", r"task\.criterion=2\.0 must lie in \(0, 1\)"),
        (
            "synthetic",
            "task.criterion=0.3 trainer.lr_scheduler_type=reduce_lr_on_plateau",
            r"the rate must follow from the step",
        ),
        ("synthetic", "longest=0", r"longest=0 must be an integer in 2\.\."),
    ],
)
def test_bad_settings_are_refused(name, overrides, message, start):
    with pytest.raises(ValueError, match=message):
        start(name, *overrides.split())


@pytest.mark.parametrize(
    ("experiment", "message"),
    [
        ("synthetic", "data makes Problems: this task needs Synthetic; choose"),
        ("quick", "task=text with Problems, which is no text: choose"),
    ],
)
def test_data_of_another_task_are_refused(experiment, message, tmp_path):
    settings = [f"experiment={experiment}", "data=addition", f"output_dir={tmp_path / 'run'}"]
    with pytest.raises(ValueError, match=message):
        train.run(composed(*settings, "name=x"))
