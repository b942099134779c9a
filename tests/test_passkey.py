"""Runs of the passkey experiment, what they write, continue and refuse, and their comparison."""

import csv
import json
import shutil

import pytest
from conftest import composed
from test_training import assert_same_weights, losses, weights

from tape.commands import train
from tape.files import write_text
from tape.results.compare import compare, read
from tape.results.figures import curves
from tape.runs.folder import TRAINED, register_run
from tape.runs.metrics import read_metrics
from tape.tasks.passkey import Passkeys
from tape.tasks.passkey import evaluate as entry
from tape.tasks.passkey.results import PASSKEY

SETTINGS = [
    *("experiment=passkey", "length=38", "data.max_length=32", "encodings.randpe.length=280"),
    *("task.samples=1", "eval_blocks=8", "model.hidden_size=32", "model.intermediate_size=48"),
    *("trainer.max_steps=8", "trainer.save_steps=4", "trainer.eval_steps=4"),
    *("trainer.logging_steps=1", "trainer.per_device_train_batch_size=4"),
]


@pytest.fixture
def start(tmp_path):
    def start(*overrides, folder=tmp_path / "run"):
        train.run(composed(*SETTINGS, *overrides, f"output_dir={folder}"))
        return folder

    return start


def test_a_run_ends_in_a_model_that_can_be_asked(start):
    folder = start("position=randpe")
    rows = [row for row in read_metrics(folder / "metrics.jsonl") if "eval_accuracy_in" in row]
    assert [row["step"] for row in rows] == [4, 8] and "eval_accuracy_out" in rows[0]
    summary = json.loads((folder / "report" / "report.json").read_text())
    assert list(summary["accuracy"]) == ["32", "64", "128", "256"]
    assert "what is the pass key ?" in (folder / "report" / "report.md").read_text()
    assert Passkeys.load(folder) == Passkeys(max_length=32)
    flags = ["--base_model", str(folder), "--num_tests", "1", "--depths", "2", "--processes", "1"]
    asked, rows = entry.evaluate(entry.parser().parse_args(flags))
    assert [*rows["length"].unique()] == [32 * n for n in range(1, 9)]
    assert asked["trained"] == 32 and asked["plain"]
    assert read([folder]).rows[0].runs["passkey"][0].settings["position.length"] == 280


@pytest.mark.parametrize("position", ["tape", "randpe"])
def test_a_continued_run_equals_an_uninterrupted_one(start, tmp_path, position):
    whole = start(f"position={position}", folder=tmp_path / "whole")
    parts = start(f"position={position}")
    shutil.rmtree(parts / "checkpoint-8")
    start(f"position={position}")
    assert_same_weights(weights(whole), weights(parts))
    assert losses(whole) == losses(parts)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["length=40"], r"length=40: these prompts have 38 tokens"),
        (["data.max_length=20"], r"max_length=20: .* without garbage"),
        (["data.keys=x"], "keys='x' must be an integer"),
        (["eval_blocks=null"], "eval_blocks=null: the number of prompts is unlimited"),
        (["task.samples=0"], r"task\.samples=0 must be an integer"),
        (
            ["position=randpe", "position.length=200"],
            r"up to 8 times the trained length needs 265 positions, .* 'randpe' has 200",
        ),
    ],
)
def test_bad_settings_are_refused(start, overrides, message):
    with pytest.raises(ValueError, match=message):
        start(*overrides)


def test_the_experiment_composes():
    cfg = composed("experiment=passkey", "position=randpe")
    assert cfg.length == Passkeys(max_length=cfg.data.max_length).length
    assert cfg.position.length == cfg.encodings.randpe.length >= 8 * cfg.data.max_length + 9
    assert cfg.name == "passkey_randpe_0"
    assert composed("position=randpe").position.length is None


@pytest.mark.slow
def test_a_model_learns_to_retrieve(start):
    """The comparison in docs/retrieval.md is the same at its full size. Models learn retrieval
    abruptly, and some seeds need more steps."""
    folder = start(
        *("seed=2", "position=alibi", "length=54", "data.max_length=48", "trainer.max_steps=700"),
        *("trainer.per_device_train_batch_size=16", "trainer.eval_steps=700", "task.samples=5"),
        *("model.hidden_size=128", "model.intermediate_size=256", "trainer.save_steps=700"),
    )
    summary = json.loads((folder / "report" / "report.json").read_text())
    assert summary["accuracy"]["48"] > 0.9


def make_run(folder, position, seed, right):
    """A run with all answers right at 10 tokens, where the training ended, and so many of 10 at 20,
    40 and 80."""
    configuration = {
        **{"name": folder.name, "seed": seed, "length": 10, "model": {"hidden_size": 8}},
        **{"position": {"name": position}, "trainer": {"seed": seed, "max_steps": 5}},
    }
    write_text(folder / TRAINED, json.dumps(register_run(folder, configuration)))
    evaluated = {
        **{"model": "-", "trained": 10, "max_tokens": 80, "interval": 10, "num_tests": 5},
        **{"depths": 2, "seed": 0, "keys": 1, "values": 1, "plain": True, "original": False},
        "wrong": 0,
    }
    shares = {10: 10, 20: right, 40: right // 2, 80: 0}
    cells = [
        [length, depth, 5, *[min(5, max(0, right - 5 * row))] * 2, 5 * length]
        for length, right in shares.items()
        for row, depth in enumerate((0.0, 1.0))
    ]
    (folder / "passkey").mkdir()
    PASSKEY.write(folder / "passkey", evaluated, [{"batch": 0, "cells": cells, "wrong": []}])
    return folder


def test_the_table_has_means_and_intervals_over_seeds(tmp_path):
    """By hand: 20, 40 and 60 % have mean 40 and standard deviation 20; Student's t for two degrees
    of freedom is 4.3027, and 4.3027 * 20 / sqrt(3) = 49.7."""
    runs = [make_run(tmp_path / f"rope_{n}", "rope", n, 2 * n + 2) for n in range(3)]
    runs += [make_run(tmp_path / "tape_0", "tape", 0, 8)]
    text, found = compare(runs, tmp_path / "out", "passkey")
    assert text.splitlines()[:4] == [
        "| encoding | n | up to 10 tokens, % | 20 (2x), % | 40 (4x), % | 80 (8x), % |",
        "|---|---|---|---|---|---|",
        "| tape | 1 | 100.0 | 80.0 | 40.0 | 0.0 |",
        "| rope | 3 | 100.0 ± 0.0 | 40.0 ± 49.7 | 20.0 ± 24.8 | 0.0 ± 0.0 |",
    ]
    rows = list(csv.DictReader((tmp_path / "out" / "results.csv").open(newline="")))
    assert len(rows) == 4 * 4 * 2 * 3  # runs, lengths, depths, measures
    chosen = [row for row in rows if (row["run"], row["length"]) == ("rope_0", "20")]
    assert [(row["measure"], row["depth"], row["value"], row["n"]) for row in chosen[:4]] == [
        *(("accuracy", "0", "0.4", "5"), ("found", "0", "0.4", "5")),
        *(("tokens", "0", "20.0", "5"), ("accuracy", "1", "0.0", "5")),
    ]
    for name in ("heatmaps", "curves"):
        assert (tmp_path / "out" / f"{name}.png").stat().st_size > 1000
    (axes,) = curves(found.rows).axes
    lines = {line.get_label(): line.get_ydata() for line in axes.lines}
    assert list(lines["rope"]) == pytest.approx([1, 0.4, 0.2, 0])
    assert len(axes.collections) == 1  # one seed has no interval


def test_what_cannot_be_compared_is_refused(tmp_path):
    runs = [make_run(tmp_path / name, "rope", 0, 2) for name in ("a", "b")]
    with pytest.raises(ValueError, match=r"a and .*b are the same run, seed 0"):
        read(runs)
    shutil.rmtree(runs[1] / "passkey")
    assert "passkey has none of perplexity.csv" in read(runs).missing[runs[1]]
