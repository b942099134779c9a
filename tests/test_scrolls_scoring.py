"""Scoring as the official evaluator does it, the table, and the page of answers."""

import csv
import json
import sys
from pathlib import Path

import pandas as pd
import pytest
from scrolls_data import write_task

from scrolls import score
from scrolls.tasks import BENCHMARK, TASKS

QASPER = [  # an id's golds are not next to each other, and one of them is there twice
    ("q1", "Where?", "At the mill."),
    ("q2", "When?", "In May"),
    ("q1", "Where?", "a mill, by the river"),
    ("q1", "Where?", "a mill, by the river"),
    ("q3", "Who?", ""),
]
IDS = ["q1", "q2", "q3"]


@pytest.fixture(scope="session")
def official(tmp_path_factory):
    """All seven zips."""
    folder = tmp_path_factory.mktemp("scrolls")
    for task in BENCHMARK:
        write_task(folder, task, validation=4)
    return folder


@pytest.fixture
def qasper(tmp_path):
    """Five rows of three questions."""
    folder = tmp_path / "data" / "qasper"
    folder.mkdir(parents=True)
    rows = [
        {"id": key, "pid": f"{key}_{n}", "input": f"{asked}\n\nA document.", "output": gold}
        for n, (key, asked, gold) in enumerate(QASPER)
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "validation.jsonl").write_text(text)
    return folder.parent


@pytest.fixture
def evaluate(monkeypatch, tmp_path):
    """Calls eval_scrolls.py on tmp_path/predictions as its users do; returns its exit status."""

    def evaluate(data, *more, task="qasper", split="validation", file="adape.json"):
        what = ["--all"] if task is None else ["--dataset_name", task]
        given = [*what, "--split", split, "--data_dir", data, *more]
        given += ["--predictions", tmp_path / "predictions" / file]
        given += ["--metrics_output_dir", tmp_path / "out", "--cache_dir", tmp_path / "cache"]
        monkeypatch.setattr(sys, "argv", ["eval_scrolls.py", *map(str, given)])
        try:
            score.main()
        except SystemExit as stop:
            return stop.code
        return 0

    return evaluate


@pytest.fixture
def write(tmp_path):
    """Writes predictions, given or as text."""

    def write(predictions, file="adape.json"):
        text = predictions if isinstance(predictions, str) else json.dumps(predictions)
        path = tmp_path / "predictions" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    return write


def metrics(folder, task="qasper"):
    return json.loads((folder / f"{task}_metrics.json").read_text())


def answers(data, task, change=lambda gold: gold):
    """The first gold of every question, changed."""
    _, golds = score.read_questions(TASKS[task], "validation", data, Path("unused"))
    return {id_: change(texts[0]) for id_, texts in golds.items()}


def test_scores_are_written_and_printed(evaluate, write, qasper, tmp_path, capsys):
    """q1: of its golds, "at mill" (at and mill; one word in common of 3 and 2) and "mill by river"
    (two of 3 and 3); q2: two words in common of 3 and 2; q3: nothing in common. (2/3 + 4/5) / 3."""
    write({"q3": "", "q2": "In May 1900", "q1": "mill, the River Thames"})
    assert evaluate(qasper) == 0
    written = (tmp_path / "out" / "qasper_metrics.json").read_text()
    assert written == capsys.readouterr().out
    assert json.loads(written) == {
        "f1": 48.8889,
        "num_predicted": 3,
        "mean_prediction_length_characters": 11.0,
        "scrolls_score": 48.8889,
        "display_keys": ["f1"],
        "display": [48.8889],
    }
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["qasper_metrics.json"]


@pytest.mark.parametrize(
    ("predictions", "error", "details"),
    [
        ("null", "it must hold a JSON object", {}),
        ("{", "Expecting property name", {}),
        ('{"q1": "x", "q1": "x"}', "duplicate ids: 1", {}),
        ({"q1": "x", "q2": None, "q9": "x"}, "the prediction for 'q2' is not text", {}),
        ({"q1": "\ud800"}, "the prediction for 'q1' is not text", {}),
        ({"q2": "x"}, "2 ids are missing, 0 are redundant", (["q1", "q3"], [])),
        (dict.fromkeys([*IDS, "z", "q9"], "x"), "0 ids are missing, 2 are", ([], ["q9", "z"])),
        ({"q2": "x", "q3": "x", "Q1": "x"}, "1 ids are missing, 1 are", (["q1"], ["Q1"])),
    ],
)
def test_what_does_not_verify(qasper, write, tmp_path, predictions, error, details):
    write(predictions)
    texts, report = score.verify(tmp_path / "predictions" / "adape.json", IDS)
    (said,) = report["errors"]
    assert not texts and f"adape.json: {error}" in said
    keys = ("missing_keys", "redundant_keys") if details else ()
    assert report["details"] == dict(zip(keys, details, strict=True))


def test_errors_stand_in_place_of_scores_but_replace_none(
    evaluate, write, qasper, tmp_path, capsys
):
    def fails_into(file, *more):
        write({})
        assert evaluate(qasper, *more) == 65
        assert f"details are in {out / file}" in capsys.readouterr().err
        assert json.loads((out / file).read_text())["details"]["missing_keys"] == IDS

    out = tmp_path / "out"
    fails_into("qasper_metrics.json")  # as with the official evaluator
    for more in [], ["--verify_only"]:
        write(dict.fromkeys(IDS, "x"))
        assert evaluate(qasper) == 0 and [*out.iterdir()] == [out / "qasper_metrics.json"]
        good = metrics(out)
        fails_into("qasper_errors.json", *more)
        assert metrics(out) == good and "f1" in good


def test_verify_only_scores_nothing(evaluate, write, official, tmp_path, capsys):
    write({f"qasper-test-{number}": "" for number in range(3)})
    assert evaluate(official, "--verify_only", split="test") == 0
    assert not (tmp_path / "out").exists() and "adape.json: valid\n" in capsys.readouterr().out
    assert "no gold answer to score with" in evaluate(official, split="test")


def test_what_is_wrong_with_the_gold_answers_is_named(evaluate, write, qasper, tmp_path):
    write(dict.fromkeys(IDS, "x"))
    assert "neither quality.zip nor quality/validation" in evaluate(qasper, task="quality")
    assert evaluate(qasper, task="qualty") == 2  # argparse lists the names
    assert "no.json has no predictions" in evaluate(qasper, file="no.json")
    rows = qasper / "qasper" / "validation.jsonl"
    rows.write_text(rows.read_text() + '{"id": "q4", "pid": "q4_0", "input": "Why?\\n\\nD"}\n')
    assert f"{rows}, line 6: id 'q4': output=None must be text" in evaluate(qasper)
    assert not (tmp_path / "out").exists()


def test_the_table_of_the_benchmark(evaluate, write, official, tmp_path, capsys):
    """TAPE's row of the paper: 140.65 in all, a seventh of it is 20.0929. Errors of one file stop
    no other."""
    for task in BENCHMARK:
        write(answers(official, task), f"{task}/adape.json")
        write(answers(official, task, change=lambda gold: "zzz"), f"{task}/rope.json")
    write("{", "qasper/fire.json")
    for task in ("quality", "qmsum"):
        write(answers(official, task), f"{task}/fire.json")
    assert evaluate(official, task=None, file="") == 65
    assert "qasper/fire.json: Expecting" in capsys.readouterr().err
    out = tmp_path / "out"
    with (out / "table.csv").open(newline="") as file:
        rows = {row["encoding"]: row for row in csv.DictReader(file)}
    assert {row["from"] for row in list(rows.values())[:3]} == {"here, validation"}
    assert {row["from"] for row in list(rows.values())[3:]} == {"arXiv 2501.00712, Table 1"}
    assert all(float(rows["adape"][task]) == 100 for task in (*BENCHMARK, "mean"))
    assert all(float(rows["rope"][task]) == 0 for task in (*BENCHMARK, "mean"))
    assert rows["fire"]["quality"] == "100.0" and rows["fire"]["qasper"] == ""
    assert rows["fire"]["mean"] == "" and rows["TAPE"]["mean"] == "20.0929"
    lines = (out / "table.md").read_text().splitlines()
    assert lines[3:5] == [
        "| fire | - | - | - | 100.00 | 100.00 | - | - | - | here, validation |",
        f"| rope |{' 0.00 |' * 8} here, validation |",
    ]
    assert lines[5].startswith("| RoPE | 8.39 | 65.00 | 1.77 | 0.04 | 6.34 | 5.63 | 9.71 | 13.84 |")
    assert metrics(out / "fire", "quality")["exact_match"] == 100
    assert "errors" in metrics(out / "fire") and (out / "origin.json").is_file()


def test_answers_are_read_side_by_side(evaluate, write, qasper, tmp_path):
    write(dict(zip(IDS, ["mill", "<b>May</b>", "x " * 99], strict=True)))
    write(dict(zip(IDS, ["mill", "at\n5", "&amp;"], strict=True)), "rope.json")
    assert evaluate(qasper, file="") == 0
    assert metrics(tmp_path / "out" / "rope")["num_predicted"] == 3
    page = tmp_path / "out" / "qasper_answers.html"
    (table,) = pd.read_html(page, index_col=0)
    assert [*table.columns] == ["question", "gold answers", "adape", "rope"]
    assert [*table.index] == IDS and [*table["rope"]] == ["mill", "at 5", "&amp;"]
    assert table["adape"]["q2"] == "<b>May</b>" and table["adape"]["q3"].count("x") == 99
    assert table["gold answers"]["q1"].startswith("At the mill. a mill, by")
