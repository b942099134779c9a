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
RECURRENT = "position=tape +model.num_recurrences=2 +encodings.tape.sampler=shift"
TASKS = [  # a source, random positions, and what is asked
    ("addition", Problems(max_first=2, max_second=2), RECURRENT, "--max_length 3 --samples 1"),
    ("passkey", Passkeys(max_length=32), "position=randpe", "--num_tests 1 --depths 2"),
    ("synthetic", Synthetic("parity", 1, 2), "position=randpe", "--samples 2"),
]


@pytest.fixture
def start(tmp_path):
    def start(name, *overrides, folder=tmp_path / "run"):
        settings = f"{SETTINGS[name]} {STEPS} {' '.join(overrides)} output_dir={folder}"
        train.run(composed(*settings.split()))
        return folder

    return start


@pytest.mark.parametrize(("name", "source", "position", "flags"), TASKS)
def test_a_run(name, source, position, flags, start, tmp_path, capsys):
    """It ends in a report and a model that can be asked; a continued one and one that is not
    watched equal it."""
    folder = start(name, position)
    rows = [row for row in read_metrics(folder / "metrics.jsonl") if "eval_accuracy_in" in row]
    assert [row["step"] for row in rows] == [4, 8] and "eval_accuracy_out" in rows[0]
    assert "step 8/8  validation accuracy in " in capsys.readouterr().out
    summary = json.loads((folder / "report" / "report.json").read_text())
    assert summary["accuracy_in"] == rows[-1]["eval_accuracy_in"]
    assert summary["accuracy_out"] == rows[-1]["eval_accuracy_out"]
    assert "| length | right answers |" in (folder / "report" / "report.md").read_text()
    assert type(source).load(folder) == source
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.get_vocab() == source.tokenizer().get_vocab()
    words = [folder, "--task", name, "--processes", "1", *flags.split()]
    done = run_command("-m", "tape.tasks.evaluate", *words, folder=tmp_path)
    assert done.status == 0, done.err
    (run,) = read([folder], "grid" if name == "addition" else name).runs
    assert run.settings["position.name"] in position and len(run.rows)
    parts = shutil.copytree(folder, tmp_path / "parts")
    shutil.rmtree(parts / "checkpoint-8")
    start(name, position, folder=parts)
    assert (parts / "checkpoint-8").is_dir()
    alone = start(name, position, "trainer.eval_strategy=no", folder=tmp_path / "alone")
    for other in (parts, alone):
        assert_same_weights(weights(folder), weights(other))
        assert losses(folder) == losses(other)


@pytest.mark.slow
def test_a_model_learns_to_add_single_digits(start):
    """Cells of one digit are small enough to be learned by heart."""
    settings = """position=tape length=7 data.max_first=1 data.max_second=1 task.samples=50
        model.hidden_size=64 model.intermediate_size=128 trainer.per_device_train_batch_size=64
        trainer.max_steps=400 trainer.eval_steps=400 trainer.save_steps=400
        trainer.learning_rate=5e-3"""
    folder = start("addition", settings)
    summary = json.loads((folder / "report" / "report.json").read_text())
    assert summary["accuracy_in"] > 0.9


def test_the_recipes_compose():
    for digits in (5, 20, 40):
        name = "addition" if digits == 5 else f"addition_{digits}"
        cfg = composed(f"experiment={name}")
        assert cfg.length == Problems(max_first=digits, max_second=digits).length
        assert cfg.data.max_first == cfg.data.max_second == digits
    assert cfg.model.num_recurrences == 4 and cfg.trainer.per_device_train_batch_size == 512
    assert cfg.name == "add_tape_0"
    cfg = composed("experiment=passkey", "position=randpe")
    assert cfg.length == Passkeys(max_length=cfg.data.max_length).length
    assert cfg.position.length == cfg.encodings.randpe.length >= 8 * cfg.data.max_length + 9
    assert cfg.name == "passkey_randpe_0"


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
        ("synthetic", "longest=0", r"longest=0 must be an integer in 2\.\."),
    ],
)
def test_bad_settings_are_refused(name, overrides, message, start):
    with pytest.raises(ValueError, match=message):
        start(name, overrides)


@pytest.mark.parametrize(
    ("experiment", "message"),
    [
        ("synthetic", "data makes Problems: this task needs Synthetic; choose"),
        ("quick", "task=text with Problems, which is no text: choose"),
    ],
)
def test_data_of_another_task_are_refused(experiment, message, tmp_path):
    settings = [f"experiment={experiment}", "data=addition", f"output_dir={tmp_path}/run", "name=x"]
    with pytest.raises(ValueError, match=message):
        train.run(composed(*settings))
