"""The metrics of SCROLLS, worked by hand; scoring as its evaluator does, the table, the answers."""

import json

import pandas as pd
import pytest
from commands import run_command
from scrolls_data import write_rows, write_task

from scrolls import score
from scrolls.metrics import SCORE, averages, exact_match, example, f1, results
from scrolls.tasks import BENCHMARK, TASKS

GOLDS = [  # an id's golds are not next to each other, and one of them is there twice
    ("q1", "Where?", "At the mill."),
    ("q2", "When?", "In May"),
    ("q1", "Where?", "a mill, by the river"),
    ("q1", "Where?", "a mill, by the river"),
    ("q3", "Who?", ""),
]
IDS = ["q1", "q2", "q3"]
DOCUMENTED = (
    ["exact match example", "hello there", "general kenobi"],
    [["exact match example"], ["hello", "hi there"], ["commander kenobi"]],
)
ROUGE = {"rouge/rouge1": 72.2222, "rouge/rouge2": 33.3333, "rouge/rougeL": 72.2222}


def test_exact_match_and_f1_by_hand():
    for metric, text, golds, expected in (
        (exact_match, "The Hague.", ["Paris", "hague"], 1),
        (exact_match, "The Hague", ["The Hague city"], 0),
        (exact_match, "the", [""], 1),
        (exact_match, "nai\u0308ve", ["naïve"], 0),  # two codings of a text are two texts
        # Punctuation, of which only ASCII's counts, goes before articles are looked for.
        (exact_match, "The  Cat\ton a state-of-the-art\n mat", ["cat on stateoftheart mat"], 1),
        (exact_match, "A. B, the! ÉCOLE  Straße\u00a0end", ["b école straße end"], 1),
        (exact_match, "“the” …quoted¿", ["quoted"], 0),
        # blue once and red once in common: 2 of 3 and 2 of 4 words.
        (f1, "blue blue red", ["blue red red green"], 4 / 7),
        (f1, "x y", ["z", "x y z w", "x"], 2 / 3),
        (f1, "ÜBER-all", ["überall x"], 2 / 3),
        (f1, "", [""], 0),
        (f1, "x", [""], 0),
    ):
        assert metric(text, golds) == pytest.approx(expected, abs=1e-15), text


def test_every_variant_of_rouge_has_its_own_best_gold():
    """The first gold has the same words in reverse: 1, 0 and 1/4. Of the second 3 of 8 words and 2
    of 7 pairs are there in order, of 4 and 3: 1/2, 2/5 and 1/2."""
    rouge = lambda *given: [*example("rouge", *given).values()]  # noqa: E731
    prediction = "red green blue pink"
    golds = ["pink blue green red", "red green blue x y z w v"]
    assert rouge(prediction, golds[:1]) == pytest.approx([1, 0, 0.25])
    assert rouge(prediction, golds[1:]) == pytest.approx([0.5, 0.4, 0.5])
    assert rouge(prediction, golds) == pytest.approx([1, 0.4, 0.5])
    score = averages("rouge", [example("rouge", prediction, golds)])[SCORE["rouge"]]
    assert score == pytest.approx(200_000 ** (1 / 3))
    assert rouge("the é", ["the ü"])[0] == 1  # no letters but ASCII
    assert rouge("the cat", ["a cat"])[0] == 0.5  # with articles
    assert rouge("running", ["runs"])[0] == 0  # no stems


def test_the_documented_example():
    """With the keys in the official order."""
    counts = {"num_predicted": 3, "mean_prediction_length_characters": 14.6667}
    for tasks, values, mean in (
        (["quality", "contract_nli"], {"exact_match": 33.3333}, {}),
        (["narrative_qa", "qasper", "sample"], {"f1": 72.2222}, {}),
        (["gov_report", "summ_screen_fd", "qmsum"], ROUGE, {"rouge/geometric_mean": 55.8136}),
    ):
        (whole,) = (mean or values).values()
        shown = {"display_keys": [*values], "display": [*values.values()]}
        expected = values | mean | counts | {"scrolls_score": whole} | shown
        for task in tasks:
            assert [*results(TASKS[task], *DOCUMENTED).items()] == [*expected.items()]


@pytest.fixture(scope="module")
def official(tmp_path_factory):
    """All seven zips."""
    folder = tmp_path_factory.mktemp("scrolls")
    for task in BENCHMARK:
        write_task(folder, task, validation=4)
    return folder


@pytest.fixture
def qasper(tmp_path):
    """Five rows of three questions."""
    rows = [(id_, f"{asked}\n\nA document.", gold) for id_, asked, gold in GOLDS]
    return write_rows(tmp_path / "data" / "qasper" / "validation.jsonl", rows).parents[1]


@pytest.fixture
def evaluate(tmp_path):
    """Runs eval_scrolls.py on predictions, by file, of which some may be written before."""

    def evaluate(data, predictions, *more, task="qasper", split="validation", file="adape.json"):
        for name, content in predictions.items():
            path = tmp_path / "predictions" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content if isinstance(content, str) else json.dumps(content))
        words = ["--dataset_name", task] if task else ["--all"]
        words += ["--split", split, "--data_dir", data, "--predictions", f"predictions/{file}"]
        words += ["--metrics_output_dir", "out", "--cache_dir", "cache", *more]
        return run_command("eval_scrolls.py", *words, folder=tmp_path)

    return evaluate


def metrics(folder, task="qasper"):
    return json.loads((folder / f"{task}_metrics.json").read_text())


def test_what_does_not_verify(tmp_path):
    for predictions, error, details in (
        ("null", "it must hold a JSON object", {}),
        ("{", "Expecting property name", {}),
        ('{"q1": "x", "q1": "x"}', "duplicate ids: 1", {}),
        ('{"q1": "x", "q2": null, "q9": "x"}', "the prediction for 'q2' is not text", {}),
        (r'{"q1": "\ud800"}', "the prediction for 'q1' is not text", {}),
        ('{"q2": "x"}', "2 ids are missing, 0 are redundant", (["q1", "q3"], [])),
        ('{"q2": "x", "q3": "x", "Q1": "x"}', "1 ids are missing, 1 are", (["q1"], ["Q1"])),
    ):
        (file := tmp_path / "adape.json").write_text(predictions)
        texts, report = score.verify(file, IDS)
        (said,) = report["errors"]
        assert not texts and f"adape.json: {error}" in said
        keys = ("missing_keys", "redundant_keys") if details else ()
        assert report["details"] == dict(zip(keys, details, strict=True))


def test_errors_stand_in_place_of_scores_but_replace_none(evaluate, qasper, tmp_path):
    """Of scores by hand: (2/3 + 4/5) / 3. q1: of its golds, "at mill" (one word in common of 3 and
    2) and "mill by river" (two of 3 and 3); q2: two words in common of 3 and 2; q3: none."""

    def fails_into(file, *more):
        done = evaluate(qasper, {"adape.json": {}}, *more)
        assert done.status == 65 and f"details are in out/{file}" in done.err
        assert json.loads((out / file).read_text())["details"]["missing_keys"] == IDS

    out = tmp_path / "out"
    fails_into("qasper_metrics.json")  # as with the official evaluator
    predictions = {"q3": "", "q2": "In May 1900", "q1": "mill, the River Thames"}
    for more in [], ["--verify_only"]:
        done, good = evaluate(qasper, {"adape.json": predictions}), metrics(out)
        assert done.status == 0 and json.loads(done.out) == good
        assert [*out.iterdir()] == [out / "qasper_metrics.json"]
        fails_into("qasper_errors.json", *more)
        assert metrics(out) == good and good["scrolls_score"] == 48.8889


def test_without_gold_answers(evaluate, official, qasper, tmp_path):
    """Predictions are verified at most."""
    given = {"adape.json": {f"qasper-test-{number}": "" for number in range(3)}}
    assert "adape.json: valid\n" in evaluate(official, given, "--verify_only", split="test").out
    rows = qasper / "qasper" / "validation.jsonl"
    rows.write_text(rows.read_text() + '{"id": "q4", "pid": "q4_0", "input": "Why?\\n\\nD"}\n')
    for message, done in {
        "no gold answer to score with": evaluate(official, {}, split="test"),
        "neither quality.zip nor quality/validation": evaluate(qasper, {}, task="quality"),
        "unknown 'qualty'; did you mean 'quality'": evaluate(qasper, {}, task="qualty"),
        "no.json has no predictions": evaluate(qasper, {}, file="no.json"),
        f"{rows}, line 6: id 'q4': output=None must be text": evaluate(qasper, {}),
    }.items():
        assert done.status and len(done.lines) == 1 and message in done.err
    assert not (tmp_path / "out").exists()


def test_the_table_of_the_benchmark(evaluate, official, tmp_path):
    """TAPE's row of the paper: 140.65 in all, a seventh of it is 20.0929. Errors of one file stop
    no other."""
    given = {"qasper/fire.json": "{"}
    for name, task in BENCHMARK.items():
        _, golds = score.read_questions(task, "validation", official, tmp_path)
        given[f"{name}/adape.json"] = {id_: texts[0] for id_, texts in golds.items()}
        given[f"{name}/rope.json"] = dict.fromkeys(golds, "zzz")
    for task in ("quality", "qmsum"):
        given[f"{task}/fire.json"] = given[f"{task}/adape.json"]
    done, out = evaluate(official, given, task=None, file=""), tmp_path / "out"
    assert done.status == 65 and "qasper/fire.json: Expecting" in done.err
    rows = pd.read_csv(out / "table.csv", index_col="encoding")
    assert [*rows["from"].iloc[2:4]] == ["here, validation", "arXiv 2501.00712, Table 1"]
    scores = rows[[*BENCHMARK, "mean"]]
    assert (scores.loc["adape"] == 100).all() and (scores.loc["rope"] == 0).all()
    assert scores.loc["fire"].dropna().to_dict() == {"quality": 100, "qmsum": 100}
    assert scores.loc["TAPE", "mean"] == 20.0929
    lines = (out / "table.md").read_text().splitlines()
    assert lines[3:5] == [
        "| fire | - | - | - | 100.00 | 100.00 | - | - | - | here, validation |",
        f"| rope |{' 0.00 |' * 8} here, validation |",
    ]
    assert lines[5].startswith("| RoPE | 8.39 | 65.00 | 1.77 | 0.04 | 6.34 | 5.63 | 9.71 | 13.84 |")
    assert metrics(out / "fire", "quality")["exact_match"] == 100
    assert "errors" in metrics(out / "fire") and (out / "origin.json").is_file()


def test_answers_are_read_side_by_side(evaluate, qasper, tmp_path):
    given = {
        "adape.json": dict(zip(IDS, ["mill", "<b>May</b>", "x " * 99], strict=True)),
        "question.json": dict(zip(IDS, ["mill", "at\n5", "&amp;"], strict=True)),
    }
    assert evaluate(qasper, given, file="").status == 0
    assert "| question | 22.2222 |" in (tmp_path / "out" / "qasper_scores.md").read_text()
    (table,) = pd.read_html(tmp_path / "out" / "qasper_answers.html", index_col=0)
    assert [*table.columns] == ["question", "gold answers", "adape", "question.1"]
    assert [*table.index] == IDS and [*table["question.1"]] == ["mill", "at 5", "&amp;"]
    assert table["adape"]["q2"] == "<b>May</b>" and table["adape"]["q3"].count("x") == 99
    assert table["gold answers"]["q1"].startswith("At the mill. a mill, by")
