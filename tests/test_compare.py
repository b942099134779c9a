"""Comparisons over seeds: the numbers, the names of the rows, and what is refused."""

import csv
import json
import shutil

import pytest
from arithmetic.compare import compare, grid_of, read_run, rows_of

from arithmetic import Problems
from arithmetic.grid import write_grid
from tape.files import write_text
from tape.training.runs import TRAINED, register_run

PROBLEMS = Problems(max_first=1, max_second=1)


def make_run(folder, position, seed, outside, asked=(), trainer=(), hidden=8, **settings):
    """A run whose grid of 2 x 2 has so many right answers of 10 in each cell beyond 1 x 1, where
    all are right."""
    trainer = {"seed": seed, "max_steps": 5, "eval_steps": seed + 1, **dict(trainer)}
    configuration = {
        **{"name": folder.name, "seed": seed, "length": 7, "model": {"hidden_size": hidden}},
        **{"position": {"name": position, **settings}, "trainer": trainer},
    }
    write_text(folder / TRAINED, json.dumps(register_run(folder, configuration)))
    evaluated = {
        **{"model": "-", "max_length": 2, "samples": 10, "seed": 0, "wrong": 0},
        **{f"problems.{name}": value for name, value in vars(PROBLEMS).items()},
        **dict(asked),
    }
    cells = [[1, 1, 10, 10], *([n, m, outside, 10] for n, m in ((1, 2), (2, 1), (2, 2)))]
    (folder / "grid").mkdir()
    write_grid(folder / "grid", evaluated, [{"batch": 0, "cells": cells, "wrong": []}])
    return folder


@pytest.fixture
def runs(tmp_path):
    outside = {("tape", 0): 2, ("tape", 1): 4, ("tape", 2): 9, ("rope", 0): 1, ("rope", 1): 1}
    return [
        make_run(tmp_path / f"add_{position}_{seed}", position, seed, right)
        for (position, seed), right in outside.items()
    ]


def test_the_table_has_means_and_intervals_over_seeds(runs, tmp_path):
    """By hand: 20, 40 and 90 % have mean 50 and standard deviation sqrt(1300) = 36.056; Student's
    t for two degrees of freedom is 4.3027, and 4.3027 * 36.056 / sqrt(3) = 89.6."""
    text = compare(runs, "grid", tmp_path / "out")
    assert text.splitlines()[2:] == [
        "| tape | 3 | 100.0 ± 0.0 | 50.0 ± 89.6 | 62.5 ± 67.2 |",
        "| rope | 2 | 100.0 ± 0.0 | 10.0 ± 0.0 | 32.5 ± 0.0 |",
    ]
    assert (tmp_path / "out" / "table.md").read_text() == text + "\n"
    rows = list(csv.DictReader((tmp_path / "out" / "runs.csv").open(newline="")))
    assert len(rows) == 5 * 3
    assert rows[1] == {
        **{"encoding": "tape", "seed": "0", "region": "outside"},
        **{"accuracy": "0.2", "correct": "6", "total": "30"},
    }
    assert (tmp_path / "out" / "heatmaps.png").stat().st_size > 10_000
    tape = grid_of(rows_of([read_run(run, "grid") for run in runs])[0])
    assert tape.correct.tolist() == [[30, 15], [15, 15]] and tape.total.tolist() == [[30] * 2] * 2


def test_one_seed_has_no_interval(runs, tmp_path):
    assert "| 1 | 100.0 | 20.0 | 40.0 |" in compare(runs[:1], "grid", tmp_path / "out")


def test_rows_are_named_by_all_that_differs(runs, tmp_path):
    """And not by what has no influence, such as eval_steps, or only another encoding has; by the
    whole name of a setting where another, here `length`, ends alike."""
    runs.append(make_run(tmp_path / "wide", "tape", 0, 1, hidden=16))
    runs.append(make_run(tmp_path / "theta", "rope", 0, 1, theta=5))
    runs += [make_run(tmp_path / f"{n}", "learned", 0, 1, length=n) for n in (9, 16)]
    rows = rows_of([read_run(run, "grid") for run in runs])
    assert {row.label: len(row.runs) for row in rows} == {
        "rope theta=None": 2,
        "rope theta=5": 1,
        "tape model.hidden_size=16": 1,
        "tape": 3,
        "learned position.length=9": 1,
        "learned position.length=16": 1,
    }


def test_one_run_in_other_words_is_one_row(tmp_path):
    """10000 is 10000.0, and null is what a setting is that was not there yet."""
    runs = [
        make_run(tmp_path / "a", "rope", 0, 1, theta=10000),
        make_run(tmp_path / "b", "rope", 1, 1, theta=10000.0, scaling=None),
    ]
    (row,) = rows_of([read_run(run, "grid") for run in runs])
    assert (row.label, len(row.runs)) == ("rope", 2)


def test_rows_of_different_encodings_say_where_what_they_share_differs(tmp_path):
    runs = [
        make_run(tmp_path / "a", "rope", 0, 1, theta=500, sampler="shift"),
        make_run(tmp_path / "b", "tape", 0, 1, theta=10000, sampler="shift", width=4),
        make_run(
            tmp_path / "c", "tape", 1, 1, {}, {"seed": 0}, theta=10000, sampler="shift", width=4
        ),
    ]
    assert {row.label for row in rows_of([read_run(run, "grid") for run in runs])} == {
        "rope theta=500",
        "tape",
        "tape trainer.seed=0",
    }
    assert {row.label for row in rows_of([read_run(run, "grid") for run in runs[:2]])} == {
        "rope theta=500",
        "tape theta=10000",
    }


def test_a_continued_run_is_what_it_was_until_it_ends(tmp_path):
    """And never the same as one that was to be as long from the beginning."""
    run = make_run(tmp_path / "a", "rope", 0, 1)
    (run / "checkpoint-5").mkdir()
    longer = json.loads((run / "run.json").read_text())
    longer["trainer"]["max_steps"] = 9
    recorded = register_run(run, longer)
    assert recorded["earlier_max_steps"] == [5] and register_run(run, longer) == recorded
    straight = make_run(tmp_path / "b", "rope", 1, 1, trainer={"max_steps": 9}.items())
    rows = rows_of([read_run(folder, "grid") for folder in (run, straight)])
    assert {row.label for row in rows} == {"rope trainer.max_steps=5", "rope trainer.max_steps=9"}
    write_text(run / TRAINED, json.dumps(recorded))
    rows = rows_of([read_run(folder, "grid") for folder in (run, straight)])
    assert {row.label for row in rows} == {
        "rope earlier_max_steps=[5]",
        "rope earlier_max_steps=None",
    }


def test_what_cannot_be_compared_is_refused(runs, tmp_path):
    def comparing(folder):
        return lambda: rows_of([read_run(run, "grid") for run in (*runs, folder)])

    other = make_run(tmp_path / "other", "rope", 7, 1, asked={"samples": 20}.items())
    with pytest.raises(ValueError, match="were not asked the same: samples: 10 -> 20"):
        comparing(other)()
    twice = make_run(tmp_path / "twice", "tape", 2, 1)
    with pytest.raises(ValueError, match=r"add_tape_2 and .*twice are the same run, seed 2"):
        comparing(twice)()
    (runs[0] / "model.safetensors").write_bytes(b"trained further")
    with pytest.raises(ValueError, match="was evaluated with other weights"):
        comparing(other)()
    shutil.rmtree(runs[1] / "grid")
    with pytest.raises(ValueError, match=r"has no grid\.csv: evaluate that run first"):
        read_run(runs[1], "grid")
    (runs[2] / TRAINED).unlink()
    with pytest.raises(ValueError, match=r"has no trained\.json: give the folder of a run that"):
        read_run(runs[2], "grid")
    (runs[3] / "grid" / "summary.json").write_text("{")
    with pytest.raises(ValueError, match=r"summary\.json is damaged"):
        read_run(runs[3], "grid")
