"""The metrics of SCROLLS: worked by hand, and against loops that count."""

import pytest

from scrolls.metrics import SCORE, averages, exact_match, example, f1, normalise, results
from scrolls.tasks import TASKS

DOCUMENTED = (
    ["exact match example", "hello there", "general kenobi"],
    [["exact match example"], ["hello", "hi there"], ["commander kenobi"]],
)
COUNTS = {"num_predicted": 3, "mean_prediction_length_characters": 14.6667}


def rouge(prediction, golds):
    return [*example("rouge", prediction, golds).values()]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The  Cat\tsat\non a mat.", "cat sat on mat"),
        ("state-of-the-art", "stateoftheart"),  # punctuation goes before articles are looked for
        ("A. B, the!", "b"),
        ("ÉCOLE  Straße", "école straße"),
        ("“the” …quoted¿", "“ ” …quoted¿"),  # only ASCII punctuation is deleted
        ("the\u00a0end\u3000", "end"),
    ],
)
def test_normalisation(text, expected):
    assert normalise(text) == expected


@pytest.mark.parametrize(
    ("metric", "text", "golds", "expected"),
    [
        (exact_match, "The Hague.", ["Paris", "hague"], 1),
        (exact_match, "The Hague", ["The Hague city"], 0),
        (exact_match, "the", [""], 1),
        (exact_match, "nai\u0308ve", ["naïve"], 0),  # two codings of a text are two texts
        # blue once and red once in common: 2 of 3 and 2 of 4 words.
        (f1, "blue blue red", ["blue red red green"], 4 / 7),
        (f1, "x y", ["z", "x y z w", "x"], 2 / 3),
        (f1, "ÜBER-all", ["überall x"], 2 / 3),
        (f1, "", [""], 0),
        (f1, "x", [""], 0),
    ],
)
def test_exact_match_and_f1_by_hand(metric, text, golds, expected):
    assert metric(text, golds) == pytest.approx(expected, abs=1e-15)


def test_every_variant_of_rouge_has_its_own_best_gold():
    """The first gold has the same words in reverse: 1, 0 and 1/4. Of the second 3 of 8 words and 2
    of 7 pairs are there in order, of 4 and 3: 1/2, 2/5 and 1/2."""
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
    rouges = {"rouge/rouge1": 72.2222, "rouge/rouge2": 33.3333, "rouge/rougeL": 72.2222}
    shown = {"display_keys": [*rouges], "display": [*rouges.values()]}
    score = {"rouge/geometric_mean": 55.8136}
    summary = rouges | score | COUNTS | {"scrolls_score": 55.8136} | shown
    for name, task in TASKS.items():
        expected = summary
        if task.metric != "rouge":
            value = 72.2222 if task.metric == "f1" else 33.3333
            shown = {"scrolls_score": value, "display_keys": [task.metric], "display": [value]}
            expected = {task.metric: value, **COUNTS, **shown}
        assert [*results(TASKS[name], *DOCUMENTED).items()] == [*expected.items()]
    of = {name: [task.name for task in TASKS.values() if task.metric == name] for name in SCORE}
    assert of["rouge"] == ["gov_report", "summ_screen_fd", "qmsum"]
    assert of["f1"] == ["narrative_qa", "qasper", "sample"]
    assert of["exact_match"] == ["quality", "contract_nli"]
