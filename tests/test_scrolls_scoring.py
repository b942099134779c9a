"""The metrics of SCROLLS, worked by hand; scoring as its evaluator does, the table, the answers."""

import json
import multiprocessing
import socket

import evaluate
import pandas as pd
import pytest
from commands import ROOT, run_command
from pages import blocks
from scrolls_data import write_rows, write_task

from scrolls import score
from scrolls.metrics import SCORE, Scrolls, averages, results
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
NAMES = ["predictions", "references"]
ROUGE = {"rouge/rouge1": 72.2222, "rouge/rouge2": 33.3333, "rouge/rougeL": 72.2222}


@pytest.fixture
def example(tmp_path):
    """Scores a prediction with golds by the metric of a task."""

    def example(task, *given):
        return [*Scrolls(task, cache_dir=tmp_path).example(*given).values()]

    return example


def test_exact_match_and_f1_by_hand(example):
    exact_match, f1 = "quality", "qasper"
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
        assert example(metric, text, golds) == pytest.approx([expected], abs=1e-15), text


def test_every_variant_of_rouge_has_its_own_best_gold(example):
    """The first gold has the same words in reverse: 1, 0 and 1/4. Of the second 3 of 8 words and 2
    of 7 pairs are there in order, of 4 and 3: 1/2, 2/5 and 1/2."""
    rouge = lambda *given: example("qmsum", *given)  # noqa: E731
    prediction = "red green blue pink"
    golds = ["pink blue green red", "red green blue x y z w v"]
    assert rouge(prediction, golds[:1]) == pytest.approx([1, 0, 0.25])
    assert rouge(prediction, golds[1:]) == pytest.approx([0.5, 0.4, 0.5])
    assert rouge(prediction, golds) == pytest.approx([1, 0.4, 0.5])
    best = dict(zip(ROUGE, rouge(prediction, golds), strict=True))
    score = averages("rouge", [best])[SCORE["rouge"]]
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


def second_of_two(folder):
    """Adds the last documented example, with the metric loaded by its path without a network."""
    socket.socket.connect = None
    how = {"num_process": 2, "process_id": 1, "experiment_id": "two", "cache_dir": str(folder)}
    metric = evaluate.load(str(ROOT / "scrolls" / "metrics.py"), "qmsum", **how)
    metric.add_batch(**dict(zip(NAMES, (texts[2:] for texts in DOCUMENTED), strict=True)))
    assert metric.compute() is None


@pytest.fixture
def caches(tmp_path, monkeypatch):
    """Folders of `evaluate` for copies of metrics, and for what they gather."""
    for name in ("MODULES", "METRICS"):
        monkeypatch.setattr(f"evaluate.config.HF_{name}_CACHE", tmp_path / name)
    monkeypatch.syspath_prepend(tmp_path / "MODULES")


def test_the_metric_on_the_page(caches, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    (code,) = blocks(ROOT / "docs" / "scrolls.md", "python")
    exec(compile(code, "scrolls.md", "exec"), {})
    assert f"# {capsys.readouterr().out}" in code


def test_the_metric_is_loaded_by_path_and_gathers_from_processes(caches, tmp_path):
    other = multiprocessing.get_context("fork").Process(target=second_of_two, args=[tmp_path])
    other.start()
    metric = Scrolls("qmsum", num_process=2, experiment_id="two", cache_dir=tmp_path)
    metric.add_batch(**dict(zip(NAMES, (texts[:2] for texts in DOCUMENTED), strict=True)))
    assert metric.compute() == results(TASKS["qmsum"], *DOCUMENTED)
    other.join()
    assert other.exitcode == 0


def test_the_metric_describes_itself_and_scoring_uses_it(tmp_path, monkeypatch):
    metric = Scrolls("qasper", cache_dir=tmp_path)
    assert [*metric.features] == NAMES and metric.name == "scrolls"
    assert "SCROLLS" in metric.description and "Shaham" in metric.citation
    assert "gold answers" in metric.inputs_description and metric.reduction([1, 3, 2]) == 3
    metric.add(prediction="a mill", reference=["mill", "river"])
    metric.add_batch(predictions=["x y"], references=[("x",)])
    assert metric.compute()["f1"] == 83.3333
    monkeypatch.setattr(Scrolls, "reduction", staticmethod(min))  # not the best, but the worst
    assert results(TASKS["qasper"], *DOCUMENTED)["f1"] == 66.6667  # (1 + 1/2 + 1/2) / 3


@pytest.mark.parametrize(
    ("predictions", "references", "message"),
    [
        (["a", "b"], [["a"], "bc"], r"references\[1\]='bc' must be .* a list of at least one text"),
        (["a", "b"], [["a"], []], r"references\[1\]=\[\] must be the gold answers"),
        (["a", "b"], [["a"], ["b", 3]], r"references\[1\]=\['b', 3\] must be"),
        (["a", 3], [["a"], ["b"]], "predictions must be a list of texts"),
        (["a", "b"], [["a"]], r"Mismatch in the number of predictions \(2\)"),
        ([], [], "no predictions to score"),
    ],
)
def test_what_the_metric_refuses(predictions, references, message):
    with pytest.raises(ValueError, match=message):
        results(TASKS["qasper"], predictions, references)


def test_the_metric_of_an_unknown_task(tmp_path):
    with pytest.raises(ValueError, match=r"config_name, 'qaspr'; did you mean 'qasper'"):
        Scrolls("qaspr", cache_dir=tmp_path)


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
def scored(tmp_path):
    """Runs eval_scrolls.py on predictions, by file, of which some may be written before."""

    def scored(data, predictions, *more, task="qasper", split="validation", file="adape.json"):
        for name, content in predictions.items():
            path = tmp_path / "predictions" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content if isinstance(content, str) else json.dumps(content))
        words = ["--dataset_name", task] if task else ["--all"]
        words += ["--split", split, "--data_dir", data, "--predictions", f"predictions/{file}"]
        words += ["--metrics_output_dir", "out", "--cache_dir", "cache", *more]
        return run_command("eval_scrolls.py", *words, folder=tmp_path)

    return scored


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


def test_errors_stand_in_place_of_scores_but_replace_none(scored, qasper, tmp_path):
    """Of scores by hand: (2/3 + 4/5) / 3. q1: of its golds, "at mill" (one word in common of 3 and
    2) and "mill by river" (two of 3 and 3); q2: two words in common of 3 and 2; q3: none."""

    def fails_into(file, *more):
        done = scored(qasper, {"adape.json": {}}, *more)
        assert done.status == 65 and f"details are in out/{file}" in done.err
        assert not done.out and "q1" not in done.err  # thousands of ids may be missing
        assert json.loads((out / file).read_text())["details"]["missing_keys"] == IDS

    out = tmp_path / "out"
    fails_into("qasper_metrics.json")  # as with the official evaluator
    predictions = {"q3": "", "q2": "In May 1900", "q1": "mill, the River Thames"}
    for more in [], ["--verify_only"]:
        done, good = scored(qasper, {"adape.json": predictions}), metrics(out)
        assert done.status == 0 and json.loads(done.out) == good
        assert [*out.iterdir()] == [out / "qasper_metrics.json"]
        fails_into("qasper_errors.json", *more)
        assert metrics(out) == good and good["scrolls_score"] == 48.8889


def test_without_gold_answers(scored, official, qasper, tmp_path):
    """Predictions are verified at most."""
    given = {"adape.json": {f"qasper-test-{number}": "" for number in range(3)}}
    assert "adape.json: valid\n" in scored(official, given, "--verify_only", split="test").out
    rows = qasper / "qasper" / "validation.jsonl"
    rows.write_text(rows.read_text() + '{"id": "q4", "pid": "q4_0", "input": "Why?\\n\\nD"}\n')
    for message, done in {
        "no gold answer to score with": scored(official, {}, split="test"),
        "neither quality.zip nor quality/validation": scored(qasper, {}, task="quality"),
        "unknown 'qualty'; did you mean 'quality'": scored(qasper, {}, task="qualty"),
        "no.json has no predictions": scored(qasper, {}, file="no.json"),
        f"{rows}, line 6: id 'q4': output=None must be text": scored(qasper, {}),
    }.items():
        assert done.status and len(done.lines) == 1 and message in done.err
    assert not (tmp_path / "out").exists()


def test_the_table_of_the_benchmark(scored, official, tmp_path):
    """TAPE's row of the paper: 140.65 in all, a seventh of it is 20.0929. Errors of one file stop
    no other."""
    given = {"qasper/fire.json": "{"}
    for name, task in BENCHMARK.items():
        questions = score.read_questions(task, "validation", official, tmp_path)
        given[f"{name}/adape.json"] = {id_: asked.golds[0] for id_, asked in questions.items()}
        given[f"{name}/rope.json"] = dict.fromkeys(questions, "zzz")
    for task in ("quality", "qmsum"):
        given[f"{task}/fire.json"] = given[f"{task}/adape.json"]
    done, out = scored(official, given, task=None, file=""), tmp_path / "out"
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


def test_answers_are_read_side_by_side(scored, qasper, tmp_path):
    given = {
        "adape.json": dict(zip(IDS, ["mill", "<b>May</b>", "x " * 99], strict=True)),
        "question.json": dict(zip(IDS, ["mill", "at\n5", "&amp;"], strict=True)),
    }
    assert scored(qasper, given, file="").status == 0
    assert "| question | 22.2222 |" in (tmp_path / "out" / "qasper_scores.md").read_text()
    (table,) = pd.read_html(tmp_path / "out" / "qasper_answers.html", index_col=0)
    assert [*table.columns] == ["question", "passage", "gold answers", "adape", "question.1"]
    assert {*table["passage"]} == {"A document."}
    assert [*table.index] == IDS and [*table["question.1"]] == ["mill", "at 5", "&amp;"]
    assert table["adape"]["q2"] == "<b>May</b>" and table["adape"]["q3"].count("x") == 99
    assert table["gold answers"]["q1"].startswith("At the mill. a mill, by")


def test_a_long_document_is_shown_around_its_answer():
    words = [f"word{n}" for n in range(900)]
    document = " ".join(words)
    shown = score.passage(document, "WORD450")
    assert len(shown) == score.PASSAGE + 4 and shown.index("word450") in range(490, 510)
    assert shown.startswith("… ") and shown.endswith(" …") and shown[2:-2] in document
    for missing in ("word45", "elsewhere", "", None):  # word45 stands there, far in front
        assert score.passage(document, missing) == f"{document[: score.PASSAGE]} …"
    assert score.passage(document, "word899") == f"… {document[-score.PASSAGE :]}"
    assert score.passage("word1 word2", "word2") == "word1 word2"


def test_answers_to_some_questions_have_scores_of_their_own(scored, qasper, tmp_path):
    """Of three questions, limit=2 takes the first and the last."""
    whole = {"q1": "mill, the River Thames", "q2": "In May", "q3": ""}
    some = {name: whole[name] for name in ("q1", "q3")}
    given = {"adape.json": whole, "limit_2/adape.json": some}
    assert scored(qasper, given).status == 0
    before = metrics(tmp_path / "out")
    wrong = scored(qasper, {}, file="limit_2/adape.json")
    assert wrong.status == 65
    assert "1 ids are missing, 0 are redundant; answers of limit=N are scored with" in wrong.err
    for file in ("limit_2/adape.json", ""):
        done = scored(qasper, {}, "--limit", "2", file=file)
        assert done.status == 0 and "33.3333" in done.out  # (2/3 + 0) / 2
    assert metrics(tmp_path / "out") == before and before["num_predicted"] == 3
    found = metrics(tmp_path / "out" / "limit_2" / "adape")
    assert found["num_predicted"] == 2 and found["f1"] == 33.3333
