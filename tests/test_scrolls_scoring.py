"""Scoring as the official evaluator does it, the table, the submission, and pages to read."""

import csv
import json
import shutil
import sys
from html.parser import HTMLParser
from pathlib import Path

import pandas
import pytest
from scrolls_data import write_task

from scrolls import official_files, score, show
from scrolls.predictions import (
    MISSING,
    NOT_AN_OBJECT,
    REDUNDANT,
    VALUES_NOT_STRINGS,
    Golds,
    verify,
)
from scrolls.show import harmless
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
def run(monkeypatch, tmp_path):
    """Call a command as its users do; whatever it exits with is returned."""

    def run(module, *arguments):
        command = [module.__name__, *map(str, arguments), "--cache_dir", str(tmp_path / "cache")]
        monkeypatch.setattr(sys, "argv", command)
        try:
            module.main()
        except SystemExit as stop:
            return stop.code
        return 0

    return run


@pytest.fixture
def evaluate(run, tmp_path):
    """eval_scrolls.py for the predictions of one task, given or as text; into tmp_path/metrics."""

    def evaluate(predictions, data, *more, task="qasper", split="validation"):
        text = predictions if isinstance(predictions, str) else json.dumps(predictions)
        (tmp_path / "adape.json").write_text(text)
        arguments = {
            **{"--split": split, "--dataset_name": task, "--data_dir": data},
            "--predictions": tmp_path / "adape.json",
            "--metrics_output_dir": tmp_path / "metrics",
        }
        return run(score, *(part for pair in arguments.items() for part in pair), *more)

    return evaluate


def metrics(folder, task="qasper"):
    return json.loads((folder / f"{task}_metrics.json").read_text())


def answers(data, task, split="validation", change=lambda gold: gold):
    """The first gold of every question, changed."""
    asked = Golds(split, data, Path("unused")).of(TASKS[task]).questions
    return {key: change(question.outputs[0]) for key, question in asked.items()}


def write_answers(folder, data, kind, tasks=BENCHMARK, **options):
    for task in tasks:
        (folder / task).mkdir(parents=True, exist_ok=True)
        (folder / task / f"{kind}.json").write_text(json.dumps(answers(data, task, **options)))


def test_scores_are_written_and_printed(evaluate, qasper, tmp_path, capsys):
    """q1: of its golds, "at mill" (at and mill; one word in common of 3 and 2) and "mill by river"
    (two of 3 and 3); q2: two words in common of 3 and 2; q3: nothing in common. (2/3 + 4/5) / 3."""
    predictions = {"q3": "", "q2": "In May 1900", "q1": "mill, the River Thames"}
    assert evaluate(predictions, qasper) == 0
    results = metrics(tmp_path / "metrics")
    assert results == json.loads(capsys.readouterr().out)
    assert results == {
        **{"f1": 48.8889, "num_predicted": 3, "mean_prediction_length_characters": 11.0},
        **{"scrolls_score": 48.8889, "display_keys": ["f1"], "display": [48.8889]},
    }
    assert (tmp_path / "metrics" / "qasper_metrics.json").read_text() == (
        json.dumps(results, indent=4) + "\n"
    )


@pytest.mark.parametrize("task", [*BENCHMARK, "quality_hard"])
def test_golds_score_in_full_and_zips_as_folders(evaluate, official, task, tmp_path):
    name = TASKS[task].metric
    assert evaluate(answers(official, task), official, task=task) == 0
    results = metrics(tmp_path / "metrics", task)
    assert results["rouge/geometric_mean" if name == "rouge" else name] == pytest.approx(100)
    assert results["scrolls_score"] == (None if task == "quality_hard" else 100)
    wrong = answers(official, task, change=lambda gold: f"{gold} zzz")
    assert evaluate(wrong, official, task=task) == 0
    zipped = metrics(tmp_path / "metrics", task)
    assert zipped["display"][0] < 100
    write_task(tmp_path / "folders", task, validation=4, zipped=False)
    assert evaluate(wrong, tmp_path / "folders", task=task) == 0
    assert metrics(tmp_path / "metrics", task) == zipped


@pytest.mark.parametrize(
    ("predictions", "errors", "details"),
    [
        ([["q1", "x"]], [NOT_AN_OBJECT], {"missing_keys": [], "redundant_keys": []}),
        ("null", [NOT_AN_OBJECT], {"missing_keys": [], "redundant_keys": []}),
        (
            {"q1": "x", "q2": None, "q9": "x"},
            [VALUES_NOT_STRINGS],
            {"missing_keys": [], "redundant_keys": []},
        ),
        ({"q2": "x"}, [MISSING], {"missing_keys": ["q1", "q3"]}),
        (
            dict.fromkeys([*IDS, "z", "q9"], "x"),
            [REDUNDANT],
            {"redundant_keys": ["q9", "z"]},
        ),
        (
            {"q2": "x", "q3": "x", "Q1": "x"},
            [MISSING, REDUNDANT],
            {"missing_keys": ["q1"], "redundant_keys": ["Q1"]},
        ),
    ],
)
@pytest.mark.parametrize("more", [[], ["--verify_only"]])
def test_what_does_not_verify(
    evaluate, qasper, tmp_path, capsys, predictions, errors, details, more
):
    assert evaluate(dict.fromkeys(IDS, "x"), qasper) == 0
    assert "f1" in metrics(tmp_path / "metrics")
    capsys.readouterr()
    assert evaluate(predictions, qasper, *more) == 65
    assert metrics(tmp_path / "metrics") == {"errors": errors, "details": details}
    printed, _, see = capsys.readouterr().out.partition("See details in: ")
    assert json.loads(printed) == errors
    assert see == f"{tmp_path / 'metrics' / 'qasper_metrics.json'}\n"


def test_the_official_messages():
    for predictions, errors in (
        ({1: "x", "q2": "x"}, ["All keys of the predictions dictionary must be strings"]),
        ({"q2": 1}, ["All values of the predictions dictionary must be strings"]),
        (
            [],
            [
                'The predictions must be saved a JSON object: {"id1": "prediction1", '
                '"id2": "prediction2", ...}'
            ],
        ),
        ({"b": "x"}, ["There are missing example IDs.", "There are redundant example IDs."]),
        ({"q2": ""}, []),
    ):
        assert verify(predictions, ["q2"])[0] == errors


def test_verify_only_scores_nothing(evaluate, official, tmp_path, capsys):
    ids = [f"qasper-test-{number}" for number in range(3)]
    assert evaluate(dict.fromkeys(ids, ""), official, "--verify_only", split="test") == 0
    assert capsys.readouterr().out == "The 3 predictions for qasper are valid.\n"
    assert not (tmp_path / "metrics").exists()


def test_what_is_wrong_with_the_gold_answers_is_named(evaluate, qasper, official, tmp_path):
    predictions = dict.fromkeys(IDS, "x")
    stopped = evaluate(predictions, official, split="test")
    assert "no gold answer to score with" in stopped and "--split validation" in stopped
    stopped = evaluate(predictions, qasper, task="quality")
    assert "neither quality.zip nor quality/validation.jsonl" in stopped
    assert evaluate(predictions, qasper, task="qualty") == 2  # argparse lists the names

    rows = qasper / "qasper" / "validation.jsonl"
    rows.write_text(rows.read_text() + '{"id": "q4", "pid": "q4_0", "input": "Why?\\n\\nD"}\n')
    assert f"{rows}, line 6, id 'q4': field 'output' is missing" in evaluate(predictions, qasper)
    rows.write_text("{}\n[")
    assert f"{rows}, line 1: field 'id' is missing" in evaluate(predictions, qasper)
    assert not (tmp_path / "metrics").exists()


def test_a_test_file_with_answers(evaluate, qasper, official, tmp_path):
    file = ["--test_data_file", qasper / "qasper" / "validation.jsonl"]
    assert evaluate(dict.fromkeys(IDS, "mill"), official, *file, split="test") == 0
    assert metrics(tmp_path / "metrics")["num_predicted"] == 3
    stopped = evaluate({}, official, *file)
    assert stopped == "error: --test_data_file is the test split of one --dataset_name"


@pytest.mark.parametrize("task", ["qasper", "quality"])
def test_scoring_needs_ids_and_answers_only(evaluate, official, task, tmp_path):
    file = tmp_path / "answered.jsonl"
    rows = [
        {"id": "a", "output": "the mill"},
        {"id": "a", "output": "a mill", "pid": "a_1", "input": "Where?"},  # no blank line
        {"id": "b", "output": "May", "input": "When?\n\nNo choices, but a document."},
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    given, options = {"a": "a mill", "b": "June"}, ["--test_data_file", file]
    assert evaluate(given, official, *options, task=task, split="test") == 0
    assert metrics(tmp_path / "metrics", task)["display"] == [50.0]
    assert evaluate(given, official, *options, "--verify_only", task=task, split="test") == 0
    file.write_text(json.dumps(rows[1] | {"output": None}))
    stopped = evaluate({"a": "x"}, official, *options, task=task, split="test")
    assert f"{file}, id 'a': no gold answer to score with" in stopped
    file.write_text(json.dumps({"output": "x"}))
    stopped = evaluate({"a": "x"}, official, *options, task=task, split="test")
    assert f"{file}, line 1: field 'id' is missing" in stopped


def test_hard_questions_leave_the_others_out(evaluate, official, tmp_path):
    everything = answers(official, "quality")  # 0 and 2 of 0..3 are hard
    hard = answers(official, "quality_hard")
    assert len(everything) == 4 and len(hard) == 2
    assert evaluate(everything, official, task="quality_hard") == 0
    assert metrics(tmp_path / "metrics", "quality_hard")["num_predicted"] == 2
    assert evaluate(hard | {"unknown": "x"}, official, task="quality_hard") == 65
    details = metrics(tmp_path / "metrics", "quality_hard")["details"]
    assert details == {"redundant_keys": ["unknown"]}
    assert evaluate(hard, official, task="quality") == 65


@pytest.fixture
def evaluate_all(run, official, tmp_path):
    def evaluate_all(*more, data=official):
        folders = ["--predictions", tmp_path / "scrolls", "--metrics_output_dir", tmp_path / "out"]
        given = [] if data is None else ["--data_dir", data]
        return run(score, "--all", *folders, *given, *more)

    return evaluate_all


def table_of(folder):
    with (folder / "table.csv").open(newline="") as file:
        return {row["encoding"]: row for row in csv.DictReader(file)}


def test_the_table_of_the_benchmark(evaluate_all, official, tmp_path, caplog):
    """TAPE's row of the paper: 140.65 in all, a seventh of it is 20.0929."""
    write_answers(tmp_path / "scrolls", official, "adape")
    write_answers(tmp_path / "scrolls", official, "rope", change=lambda gold: "zzz")
    write_answers(tmp_path / "scrolls", official, "fire", tasks=["quality", "qmsum"])
    assert evaluate_all() == 0
    assert "note: fire has no predictions for gov_report, " in caplog.text
    rows = table_of(tmp_path / "out")
    assert {row["from"] for row in list(rows.values())[:3]} == {"here, validation"}
    assert {row["from"] for row in list(rows.values())[3:]} == {"arXiv 2501.00712, Table 1"}
    assert all(float(rows["adape"][task]) == 100 for task in (*BENCHMARK, "mean"))
    assert all(float(rows["rope"][task]) == 0 for task in (*BENCHMARK, "mean"))
    assert rows["fire"]["quality"] == "100.0" and rows["fire"]["qasper"] == ""
    assert rows["fire"]["mean"] == "" and rows["TAPE"]["mean"] == "20.0929"
    lines = (tmp_path / "out" / "table.md").read_text().splitlines()
    assert lines[3:5] == [
        "| fire | - | - | - | 100.00 | 100.00 | - | - | - | here, validation |",
        f"| rope |{' 0.00 |' * 8} here, validation |",
    ]
    assert lines[5].startswith("| RoPE | 8.39 | 65.00 | 1.77 | 0.04 | 6.34 | 5.63 | 9.71 | 13.84 |")
    summary = json.loads((tmp_path / "out" / "adape" / "scrolls.json").read_text())
    assert summary["scrolls_score"] == 100 and [*summary] == [*BENCHMARK, "scrolls_score"]
    assert summary["contract_nli"] == {
        **{"scrolls_score": 100.0, "display": [100.0], "display_keys": ["exact_match"]}
    }
    partial = json.loads((tmp_path / "out" / "fire" / "scrolls.json").read_text())
    assert partial["scrolls_score"] is None
    assert metrics(tmp_path / "out" / "fire", "quality")["exact_match"] == 100


def test_errors_of_one_file_stop_no_other(evaluate_all, official, tmp_path, capsys, caplog):
    write_answers(tmp_path / "scrolls", official, "adape")
    write_answers(tmp_path / "scrolls", official, "rope", tasks=["qmsum"])
    assert evaluate_all() == 0
    broken = tmp_path / "scrolls" / "qmsum" / "adape.json"
    broken.write_text('{"unknown": "x"}')
    assert evaluate_all("--submission", tmp_path / "all.csv", "--type", "adape") == 65
    where = tmp_path / "out" / "adape" / "qmsum_metrics.json"
    assert f"error: {MISSING} {REDUNDANT} See details in: {where}\n" in capsys.readouterr().err
    assert "all.csv is not written" in caplog.text and not (tmp_path / "all.csv").exists()
    assert json.loads(where.read_text())["details"]["redundant_keys"] == ["unknown"]
    rows = table_of(tmp_path / "out")
    assert rows["adape"]["qmsum"] == rows["adape"]["mean"] == ""
    assert rows["adape"]["qasper"] == rows["rope"]["qmsum"] == "100.0"

    broken.write_text("{")
    shutil.rmtree(tmp_path / "out")
    assert f"error: {broken} cannot be read" in evaluate_all()
    assert not (tmp_path / "out").exists()


def test_hard_questions_are_shown_with_the_test_split(evaluate_all, official, tmp_path):
    data = write_task(tmp_path / "data", "quality", zipped=False)
    shutil.copy(data / "validation.jsonl", data / "test.jsonl")
    write_answers(tmp_path / "scrolls", data.parent, "adape", tasks=["quality"], split="test")
    assert evaluate_all("--split", "test", data=data.parent) == 0
    summary = json.loads((tmp_path / "out" / "adape" / "scrolls.json").read_text())
    assert summary["quality"] == {
        **{"scrolls_score": 100.0, "display": [100.0, 100.0]},
        "display_keys": ["exact_match", "hard_exact_match"],
    }
    assert metrics(tmp_path / "out" / "adape", "quality_hard")["num_predicted"] == 2

    predictions = tmp_path / "scrolls" / "quality" / "adape.json"
    given = json.loads(predictions.read_text())
    given.popitem()  # not a hard question
    predictions.write_text(json.dumps(given))
    assert evaluate_all("--split", "test", data=data.parent) == 65
    summary = json.loads((tmp_path / "out" / "adape" / "scrolls.json").read_text())
    assert summary == {"scrolls_score": None}


def test_narrative_qa_is_not_downloaded_on_the_way(
    evaluate_all, official, tmp_path, caplog, monkeypatch
):
    write_answers(tmp_path / "scrolls", official, "adape")
    small = shutil.copytree(official, tmp_path / "small")
    cached = (small / "narrative_qa.zip").rename(tmp_path / "narrative_qa.zip")
    monkeypatch.setattr(official_files.constants, "HF_HUB_OFFLINE", False)
    in_cache = []

    def download(*_, local_files_only=False, **__):
        assert local_files_only
        if not in_cache:
            raise official_files.LocalEntryNotFoundError("it is not there")
        return in_cache[0]

    monkeypatch.setattr(official_files, "hf_hub_download", download)
    assert evaluate_all(data=small) == 0
    assert "note: narrative_qa is skipped, because its 8,000 MB" in caplog.text
    rows = table_of(tmp_path / "out")
    assert rows["adape"]["narrative_qa"] == rows["adape"]["mean"] == ""
    stopped = evaluate_all("--submission", "all.csv", "--type", "adape", data=small)
    assert "the ids of narrative_qa are missing" in stopped
    for folder, mean, found in (
        (small, "", []),
        (official, "100.0", []),
        (small, "100.0", [cached]),
    ):
        monkeypatch.setenv("SCROLLS_DIR", str(folder))
        in_cache[:] = found
        assert evaluate_all(data=None) == 0
        assert table_of(tmp_path / "out")["adape"]["mean"] == mean


def test_a_submission_reads_back_exactly(evaluate_all, official, tmp_path, capsys):
    odd = iter(
        ['two\nlines, "quoted"', "", " \r\n", "a,b", "'", "NA", "null", '"', "é\u2028x", "\r"]
    )
    test = {}
    for task in BENCHMARK:
        ids = [f"{task}-test-{number}" for number in range(3)]
        test[task] = {key: next(odd, "-1") for key in ids}
        (tmp_path / "scrolls" / task).mkdir(parents=True)
        (tmp_path / "scrolls" / task / "adape.json").write_text(json.dumps(test[task]))
    target = ["--split", "test", "--verify_only", "--submission", tmp_path / "all.csv", "--type"]
    assert evaluate_all(*target, "adape") == 0
    assert "7 files of predictions are valid, 0 are not." in capsys.readouterr().out
    assert not (tmp_path / "out").exists()

    expected = [[task, *pair] for task, texts in test.items() for pair in texts.items()]
    with (tmp_path / "all.csv").open(newline="", encoding="utf-8") as file:
        assert list(csv.reader(file)) == [["Task", "ID", "Prediction"], *expected]
    read = pandas.read_csv(  # as the official evaluator does
        tmp_path / "all.csv", dtype=object, keep_default_na=False, na_values=["!@#$%^&*()"]
    )
    assert list(read.columns) == ["Task", "ID", "Prediction"] and read.values.tolist() == expected

    (tmp_path / "scrolls" / "qasper" / "adape.json").unlink()
    (tmp_path / "all.csv").unlink()
    stopped = evaluate_all(*target, "adape")
    assert stopped.endswith("adape has none for qasper") and not (tmp_path / "all.csv").exists()
    assert "did you mean 'adape'" in evaluate_all(*target, "adap")


def test_settings_that_do_not_go_together(evaluate, evaluate_all, official, tmp_path):
    assert "contains no predictions" in evaluate_all()
    assert "--submission and --type go together" in evaluate_all("--type", "adape")
    file = ["--test_data_file", "x.jsonl"]
    assert "--test_data_file is" in evaluate_all(*file, "--split", "test")
    assert "--submission needs --all" in evaluate({}, official, "--submission", "x", "--type", "y")


class Page(HTMLParser):
    """The text of a page, its tags, and the articles that are marked."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.text, self.marked = [], [], "", 0
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += [name for name, _ in attributes]
        self.marked += tag == "article" and ("class", "best") in attributes

    def handle_data(self, data):
        self.text += data


@pytest.fixture
def read(run, qasper, tmp_path, capsys):
    """Four encodings' answers; what the console and the page say."""
    folder = tmp_path / "predictions"
    folder.mkdir()
    for kind, texts in {
        "adape": ["mill", "In May", "<script>alert('x')</script>"],
        "rope": ["mill", "at 5", "\x1b[2J\x07&amp; \u202eevil"],
        "fire": ["mill", "May", "nothing"],
    }.items():
        given = json.dumps(dict(zip(IDS, texts, strict=True)))
        (folder / f"{kind}.json").write_text(given)

    def read(*more):
        out = tmp_path / "page.html"
        where = ["--dataset_name", "qasper", "--predictions", folder, "--data_dir", qasper]
        stopped = run(show, *where, "--out", out, *more)
        if stopped:
            return stopped
        return capsys.readouterr().out, out.read_text()

    return read


def test_answers_are_read_side_by_side(read):
    """q1: "mill" against "at mill", 2/3, for all; q2: 1, 0 and 2/3; q3: 0. Means: 5/9, 2/9, 4/9."""
    console, page = read()
    means = [line.split() for line in console.splitlines()[:3]]
    assert means == [["*", "adape", "55.56"], ["fire", "44.44"], ["rope", "22.22"]]
    shown = Page(page)
    assert "qasper: 3 of 3 questions" in shown.text
    assert {"link", "img", "iframe", "script"}.isdisjoint(shown.tags)
    assert {"src", "href", "onclick"}.isdisjoint(shown.attributes)
    assert shown.tags.count("article") == 9 and shown.tags.count("section") == 3
    assert shown.marked == 1 + 3  # of q2 one, of q1 all
    for text in ("<script>alert('x')</script>", "<1b>[2J<07>&amp; <202e>evil", "★ 100.00", "55.56"):
        assert text in shown.text
    assert "At the mill." in shown.text and "(empty)" in shown.text and "\x1b" not in page
    assert [shown.text.index(id_) for id_ in ("q2", "q3", "q1")] == sorted(
        map(shown.text.index, IDS)
    )


def test_what_is_read_can_be_chosen(read):
    _, page = read("--sort", "order", "--limit", "2")
    assert "2 of 3" in page and page.index("q1") < page.index("q2") and "q3" not in page
    _, page = read("--ids", "q3", "q1", "--limit", "1")
    assert "2 of 3" in page and "q2" not in page and Page(page).tags.count("section") == 2
    assert "qasper has no question 'q7'; an example of its questions is 'q1'" in read("--ids", "q7")
    assert "--limit 0 must be at least 1" in read("--limit", "0")


def test_a_baseline_reads_no_document(read, qasper):
    train = [
        *(("Where?", "At sea"), ("Where?", "At the mill."), ("Where?", "At the mill.")),
        *(("Why?", gold) for gold in ("For fun", "No", "No", "No")),  # the most frequent of all
    ]
    rows = (
        {"id": f"t{n}", "pid": f"t{n}", "input": f"{asked}\n\nA document.", "output": gold}
        for n, (asked, gold) in enumerate(train)
    )
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (qasper / "qasper" / "train.jsonl").write_text(text)
    console, page = read("--majority", "--sort", "order")
    assert "majority  33.33" in console  # of three questions it answers the first
    said = Page(page).text.split("majority")[2:]
    assert ["At the mill." in text for text in said] == [True, False, False]
    assert ["No" in text for text in said] == [False, True, True]


def test_summaries_show_scores_of_their_own(run, official, tmp_path, capsys):
    """The mean at the head is the task's, geometric over means."""
    given = answers(official, "qmsum")
    given[next(iter(given))] = "zzz"
    (tmp_path / "qmsum").mkdir()
    (tmp_path / "qmsum" / "adape.json").write_text(json.dumps(given))
    where = ["--dataset_name", "qmsum", "--predictions", tmp_path / "qmsum", "--data_dir", official]
    assert run(show, *where, "--out", tmp_path / "page.html") == 0
    assert "* adape  75.00" in capsys.readouterr().out
    page = (tmp_path / "page.html").read_text()
    assert page.count("★ 100.00") == 3 and "not the average of the scores" in page


def test_what_cannot_be_read_is_refused(read, tmp_path):
    broken = tmp_path / "predictions" / "rope.json"
    broken.write_text('{"q1": "x", "q2": "x", "q4": "x"}')
    stopped = read()
    assert stopped.startswith(f"error: {broken}: {MISSING} {REDUNDANT}")
    assert "missing_keys: q3" in stopped and "redundant_keys: q4" in stopped
    for path in broken.parent.iterdir():
        path.unlink()
    assert "contains no predictions" in read()
    assert not (tmp_path / "page.html").exists()


def test_only_control_characters_are_replaced():
    assert harmless("a\tb\r\nc\rd\x7f\x9b\x00") == "a\tb\nc<0d>d<7f><9b><00>"
    assert harmless("\u2066x\u2069 é 👩\u200d🔬") == "<2066>x<2069> é 👩\u200d🔬"


def test_the_note_about_sentences_comes_once(evaluate, evaluate_all, official, tmp_path, caplog):
    def missing(text):
        raise LookupError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nltk.sent_tokenize", missing)
        write_answers(tmp_path / "scrolls", official, "adape", tasks=["qmsum", "gov_report"])
        assert evaluate_all() == 0
        assert [record.message for record in caplog.records].count(score.NO_SUMMARY_LEVEL) == 1
        caplog.clear()
        patch.setattr("nltk.sent_tokenize", str.splitlines)
        assert evaluate(answers(official, "qmsum"), official, task="qmsum") == 0
        assert score.NO_SUMMARY_LEVEL not in caplog.messages
    assert metrics(tmp_path / "metrics", "qmsum")["rouge/rougeLsum"] == 100
