"""Runs of the addition experiment: what they watch, write, continue and refuse."""

import json
import shutil

import pytest
import torch
from commands import run_command
from conftest import composed, make_model, random_tokens
from test_training import assert_same_weights, losses, weights
from transformers import AutoTokenizer

from arithmetic import Problems, fault
from tape.commands import train
from tape.model import checkpoint
from tape.results.rows import check_given
from tape.results.runs import Run, settings_of
from tape.runs.metrics import read_metrics

SETTINGS = [
    "experiment=addition",
    "length=10",
    *("data.max_first=2", "data.max_second=2", "task.samples=2", "eval_blocks=8"),
    *("model.hidden_size=32", "model.intermediate_size=64", "model.num_hidden_layers=2"),
    *("trainer.max_steps=8", "trainer.save_steps=4", "trainer.eval_steps=4"),
    *("trainer.logging_steps=1", "trainer.per_device_train_batch_size=16"),
]


@pytest.fixture
def start(tmp_path):
    def start(*overrides, folder=tmp_path / "run"):
        train.run(composed(*SETTINGS, *overrides, f"output_dir={folder}"))
        return folder

    return start


@pytest.mark.parametrize("position", ["tape", "randpe"])
def test_a_run_ends_in_a_model_and_a_report(start, position, capsys):
    folder = start(f"position={position}")
    rows = [row for row in read_metrics(folder / "metrics.jsonl") if "eval_accuracy_in" in row]
    assert [row["step"] for row in rows] == [4, 8]
    assert "step 8/8  validation accuracy in " in capsys.readouterr().out
    summary = json.loads((folder / "report" / "report.json").read_text())
    assert summary["accuracy_in"] == rows[-1]["eval_accuracy_in"]
    assert summary["accuracy_out"] == rows[-1]["eval_accuracy_out"]
    assert (folder / "report" / "report.md").read_text().count("`") >= 20
    assert Problems.load(folder) == Problems(max_first=2, max_second=2)
    assert AutoTokenizer.from_pretrained(folder)("1+2=")["input_ids"] != []


@pytest.mark.parametrize("position", ["tape", "randpe"])
def test_a_continued_run_equals_an_uninterrupted_one(start, tmp_path, position):
    settings = [f"position={position}", "+model.num_recurrences=2", "+encodings.tape.sampler=shift"]
    whole = start(*settings, folder=tmp_path / "whole")
    parts = start(*settings)
    shutil.rmtree(parts / "checkpoint-8")
    start(*settings)
    assert_same_weights(weights(whole), weights(parts))
    assert losses(whole) == losses(parts)


def test_a_measurement_changes_nothing_that_is_trained(start, tmp_path):
    watched = start("position=randpe")
    alone = start("position=randpe", "trainer.eval_strategy=no", folder=tmp_path / "alone")
    assert_same_weights(weights(watched), weights(alone))


def test_a_model_learns_to_add_single_digits(start):
    """Cells of one digit are small enough to be learned by heart."""
    folder = start(
        *("position=tape", "length=7", "data.max_first=1", "data.max_second=1"),
        *("trainer.max_steps=400", "trainer.eval_steps=400", "trainer.save_steps=400"),
        *("trainer.learning_rate=5e-3", "trainer.per_device_train_batch_size=64"),
        *("model.hidden_size=64", "model.intermediate_size=128", "task.samples=50"),
    )
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
    folder = start(*abacus, "position.length=7")
    assert any("eval_accuracy_out" in row for row in read_metrics(folder / "metrics.jsonl"))
    short = folder.with_name("short")
    with pytest.raises(ValueError, match=r"training .* needs 7 positions, .* 'abacus' has 6"):
        start(*abacus, "position.length=6", folder=short)
    with pytest.raises(ValueError, match=r"twice the trained lengths needs 6 positions, .* has 5"):
        start("position=abacus", "position.offset=1", "position.length=5", folder=short)
    with pytest.raises(ValueError, match=r"spaces=0.1 with position=abacus: a space would end"):
        start(*abacus, "data.spaces=0.1", "length=19", folder=short)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["position=learned"], r"twice the .* needs 16 positions, .* 'learned' has 10"),
        (["eval_blocks=null"], r"eval_blocks=null: the number of problems is unlimited"),
        (["data.task=addition_"], r"unknown data\.task 'addition_'; did you mean 'addition'"),
        (["length=9"], r"length=9: these problems have 10 tokens; give length=10"),
        (["data.max_first=0"], r"max_first=0 must be an integer"),
        (["task.samples=0"], r"task\.samples=0 must be an integer"),
    ],
)
def test_bad_settings_are_refused(start, overrides, message):
    with pytest.raises(ValueError, match=message):
        start(*overrides)


def test_other_problems_in_the_same_folder_are_refused(start):
    start()
    with pytest.raises(ValueError, match=r"data\.reverse: True -> False"):
        start("data.reverse=false")


def test_with_the_fault_of_the_original_code_tape_is_nope(start, tmp_path):
    """The state has no effect, in training, in the report and in the evaluation; and other
    commands do not have the fault."""
    shape = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4}
    tape = make_model("tape", **shape).eval()
    nope = make_model("nope", **shape).eval()
    nope.load_state_dict(tape.state_dict(), strict=False)
    tokens = random_tokens(2, 12)
    with torch.no_grad():
        assert not torch.allclose(tape(tokens).logits, nope(tokens).logits, atol=1e-3)
        fault.leave_unrotated(tape)
        torch.testing.assert_close(tape(tokens).logits, nope(tokens).logits)
    folder = start("position=tape", "task.original_fault=true")
    trained, untouched = weights(folder), weights(folder / "checkpoint-4")
    idle = [name for name in trained if ".mix." in name or ".up." in name]
    assert idle and all(torch.equal(trained[name], untouched[name]) for name in idle)
    faulty, plain = fault.load(folder)[0], checkpoint.load(folder)[0]
    with torch.no_grad():
        tokens %= faulty.config.vocab_size
        assert not torch.allclose(faulty(tokens).logits, plain(tokens).logits, atol=1e-4)
    with pytest.raises(ValueError, match=r"trained with task\.original_fault=true: its attention"):
        fault.load(folder, "initial")
    grid = ["max_length=3", "samples=2", "processes=1"]
    outcome = run_command("-m", "arithmetic.evaluate", f"model={folder}", *grid, folder=tmp_path)
    assert outcome.status == 0, outcome.err
    without = start("position=nope", folder=tmp_path / "nope")
    with pytest.raises(ValueError, match=r"different settings: task\.original_fau"):
        check_given([settings_run(without), settings_run(folder)])


def settings_run(folder):
    return Run(folder, *settings_of(folder))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["position=alibi", "task.original_fault=true"], "position=alibi: only encodings that rot"),
        (["task.original_fault=1"], "task.original_fault=1 must be true or null"),
    ],
)
def test_the_fault_is_refused_where_it_cannot_be(start, overrides, message):
    with pytest.raises(ValueError, match=message):
        start(*overrides)
