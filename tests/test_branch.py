"""One trunk gives runs of several lengths, each as if it had been trained alone."""

import shutil

import pytest
from test_training import assert_same_weights, checkpoint_names, weights

from tape.runs.metrics import read_metrics
from tape.training.branch import learning_rates

TRUNK = [
    *("schedule=wsd", "trainer.warmup_steps=2", "trainer.max_steps=8", "trainer.logging_steps=3"),
    *("trainer.lr_scheduler_kwargs.num_decay_steps=3", "trainer.save_total_limit=null"),
    *("position=rope", "optimizer=muon"),
]
BUDGET = [*TRUNK, "trainer.max_steps=6", "trainer.lr_scheduler_kwargs.num_decay_steps=2"]


@pytest.fixture(scope="module")
def trunk(run_quick, tmp_path_factory):
    return run_quick(*TRUNK, folder=tmp_path_factory.mktemp("trunk") / "run")


def rows(folder):
    # `epoch` is relative to the planned number of steps.
    timed = {"epoch", "eval_runtime", "eval_samples_per_second", "eval_steps_per_second"}
    timed |= {"tokens_per_second", "peak_memory_gib", "total_flos", "data_share"}
    timed |= {"mfu", "product_share"}
    return [
        {key: value for key, value in row.items() if key not in timed}
        for row in read_metrics(folder / "metrics.jsonl")
    ]


def test_a_branch_equals_an_uninterrupted_run(start, trunk, tmp_path):
    whole = start(*BUDGET, folder=tmp_path / "whole")
    branched = start(*BUDGET, f"trunk={trunk / 'checkpoint-4'}")
    assert_same_weights(weights(whole), weights(branched))
    assert rows(branched) == rows(whole) and len(rows(whole)) >= 4
    assert checkpoint_names(branched) == ["checkpoint-4", "checkpoint-6"]
    shutil.rmtree(branched / "checkpoint-6")  # it resumes as any run does, without the trunk
    (branched / "model.safetensors").unlink()
    start(*BUDGET)
    assert_same_weights(weights(whole), weights(branched))


@pytest.mark.parametrize(
    ("checkpoint", "settings", "message"),
    [
        ("checkpoint-8", ["trainer.max_steps=12"], "must be equal before step 8"),
        ("checkpoint-4", ["trainer.warmup_steps=0.5"], "must be equal before step 4"),
        ("checkpoint-4", ["trainer.learning_rate=1"], "other settings .trainer.learning_rate: 0"),
        ("checkpoint-4", ["trainer.max_steps=4"], "trainer.max_steps=4: must be more than 4"),
        ("checkpoint-3", [], "checkpoint-3: must be a checkpoint; give"),
        ("report", [], "report: must be a checkpoint; give"),
    ],
)
def test_a_trunk_that_is_not_the_beginning_of_the_run_is_refused(
    start, trunk, tmp_path, checkpoint, settings, message
):
    with pytest.raises(ValueError, match=message):
        start(*BUDGET, f"trunk={trunk / checkpoint}", *settings)
    assert not (tmp_path / "run").exists()


def test_a_decay_longer_than_the_run_is_refused(start):
    with pytest.raises(ValueError, match=r"num_decay_steps=7 with .*: must be at most 6,"):
        start(*BUDGET, "trainer.lr_scheduler_kwargs.num_decay_steps=7", "trainer.max_steps=8")


def test_the_rates_of_wsd_are_warmup_stable_decay():
    settings = {"lr_scheduler_type": "warmup_stable_decay", "warmup_steps": 2, "learning_rate": 3}
    settings |= {
        "lr_scheduler_kwargs.num_decay_steps": 4,
        "lr_scheduler_kwargs.decay_type": "linear",
    }
    flat = {f"trainer.{key}": value for key, value in settings.items()}
    assert learning_rates(flat, 10, 10) == [0, 0.5, 1, 1, 1, 1, 1, 0.75, 0.5, 0.25]
