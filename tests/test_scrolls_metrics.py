"""The metrics of SCROLLS: worked by hand, and against loops that count."""

import random
import re
import string
from functools import lru_cache
from itertools import pairwise

import nltk
import pytest
from rouge_score.rouge_scorer import RougeScorer

from scrolls.metrics import (
    SCORE,
    averages,
    exact_match,
    example,
    f1,
    normalise,
    results,
    rouge,
    splits_sentences,
)
from scrolls.tasks import TASKS

SCORER = RougeScorer(["rouge1", "rouge2", "rougeL"], use_stemmer=False)
DOCUMENTED = (
    ["exact match example", "hello there", "general kenobi"],
    [["exact match example"], ["hello", "hi there"], ["commander kenobi"]],
)
COUNTS = {"num_predicted": 3, "mean_prediction_length_characters": 14.6667}


@pytest.fixture(autouse=True)
def without_sentences(monkeypatch):
    """As on a machine without nltk's data."""

    def missing(text):
        raise LookupError("punkt_tab")

    monkeypatch.setattr(nltk, "sent_tokenize", missing)


def compute(name, predictions, golds):
    return results(TASKS[name], predictions, golds)


def score(metric, pairs):
    """The score of (prediction, golds), as the benchmark has it."""
    return averages(metric, [example(metric, *pair) for pair in pairs])[SCORE[metric]]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The  Cat\tsat\non a mat.", "cat sat on mat"),
        ("state-of-the-art", "stateoftheart"),  # punctuation goes before articles are looked for
        ("a-b", "ab"),
        ("A. B, the!", "b"),
        ("another theory, an anthem", "another theory anthem"),
        ("it's $5 (five)", "its 5 five"),
        ("", ""),
        (" the a AN ", ""),
        ("ÉCOLE  Straße", "école straße"),
        ("“the” …quoted¿", "“ ” …quoted¿"),  # only ASCII punctuation is deleted
        ("l'a été", "la été"),
        ("the\u00a0end\u3000", "end"),
    ],
)
def test_normalisation(text, expected):
    assert normalise(text) == expected


def test_exact_match_by_hand():
    assert exact_match("The Hague.", ["Paris", "hague"]) == 1
    assert exact_match("The Hague", ["The Hague city"]) == 0
    assert exact_match("", [""]) == exact_match("the", [""]) == 1
    assert exact_match("(B) otter", ["otter"]) == 0  # the gold is the option's text
    assert exact_match("NAÏVE", ["naïve"]) == 1
    assert exact_match("nai\u0308ve", ["naïve"]) == 0  # two codings of a text are two texts


def test_f1_by_hand():
    # blue once and red once in common: 2 of 3 and 2 of 4 words.
    assert f1("blue blue red", ["blue red red green"]) == pytest.approx(4 / 7, abs=1e-15)
    assert f1("hello there", ["hello", "hi there"]) == pytest.approx(2 / 3, abs=1e-15)
    assert f1("x y", ["z", "x y z w", "x"]) == pytest.approx(2 / 3, abs=1e-15)
    assert f1("x", ["y"]) == f1("", [""]) == f1("the", ["a"]) == f1("x", [""]) == f1("", ["x"]) == 0
    assert f1("ÜBER-all", ["überall x"]) == pytest.approx(2 / 3, abs=1e-15)


def test_every_variant_of_rouge_has_its_own_best_gold():
    """The first gold has the same words in reverse: 1, 0 and 1/4. Of the second 3 of 8 words and 2
    of 7 pairs are there in order, of 4 and 3: 1/2, 2/5 and 1/2."""
    prediction = "red green blue pink"
    golds = ["pink blue green red", "red green blue x y z w v"]
    assert [*rouge(prediction, golds[:1]).values()] == pytest.approx([1, 0, 0.25])
    assert [*rouge(prediction, golds[1:]).values()] == pytest.approx([0.5, 0.4, 0.5])
    assert [*rouge(prediction, golds).values()] == pytest.approx([1, 0.4, 0.5])
    assert score("rouge", [(prediction, golds)]) == pytest.approx(200_000 ** (1 / 3))


def test_the_geometric_mean_is_that_of_the_means():
    pairs = [
        ("alpha beta gamma delta", ["alpha beta gamma delta"]),
        ("red green blue pink", ["pink blue green red"]),
    ]
    assert score("rouge", pairs) == pytest.approx((100 * 50 * 62.5) ** (1 / 3))
    assert round(score("rouge", pairs), 4) == 67.8604
    assert [score("rouge", [pair]) for pair in pairs] == pytest.approx([100, 0])
    assert score("rouge", [("alpha", ["alpha"])]) == 0  # there is no pair of words
    assert score("rouge", [("", ["x"]), ("", [""])]) == 0


def test_rouge_knows_no_letters_but_ascii_and_keeps_articles():
    assert rouge("the é", ["the ü"])["rouge/rouge1"] == 1
    assert rouge("the cat", ["a cat"])["rouge/rouge1"] == 0.5
    assert rouge("running", ["runs"])["rouge/rouge1"] == 0  # no stems


def counted(tokens, others):
    """How many are in both, each taken once."""
    left, common = list(others), 0
    for token in tokens:
        if token in left:
            left.remove(token)
            common += 1
    return common


def f_measure(common, size, other):
    if not common:
        return 0.0
    precision, recall = common / size, common / other
    return 2 * precision * recall / (precision + recall)


def literal_normalise(text):
    kept = "".join(character for character in text.lower() if character not in string.punctuation)
    words, word = [], ""
    for character in kept + " ":
        if character.isalnum() or character == "_":
            word += character
            continue
        words += [" " if word in ("a", "an", "the") else word, character]
        word = ""
    return "".join(words).split()


def literal_f1(prediction, gold):
    prediction, gold = literal_normalise(prediction), literal_normalise(gold)
    return f_measure(counted(prediction, gold), len(prediction), len(gold))


def literal_rouge(prediction, gold):
    prediction, gold = (re.findall("[a-z0-9]+", text.lower()) for text in (prediction, gold))

    @lru_cache(None)
    def common(i, j):
        if i == len(prediction) or j == len(gold):
            return 0
        if prediction[i] == gold[j]:
            return 1 + common(i + 1, j + 1)
        return max(common(i + 1, j), common(i, j + 1))

    pairs, gold_pairs = ([*pairwise(text)] for text in (prediction, gold))
    return (
        f_measure(counted(prediction, gold), len(prediction), len(gold)),
        f_measure(counted(pairs, gold_pairs), len(pairs), len(gold_pairs)),
        f_measure(common(0, 0), len(prediction), len(gold)),
    )


def test_metrics_equal_loops_that_count():
    generator = random.Random(0)
    pieces = [
        "the ",
        "a ",
        "An ",
        "red",
        "Green ",
        "blue ",
        "é",
        "x-",
        "'s ",
        "the-",
        ". ",
        "\n",
        "7 ",
    ]

    def text(length=12):
        return "".join(generator.choices(pieces, k=generator.randrange(length)))

    examples = [(text(), [text() for _ in range(generator.randrange(1, 4))]) for _ in range(1500)]
    examples += [(text(150), [text(150), text(100)]) for _ in range(10)]
    equal, rouges = [], []
    for prediction, golds in examples:
        normal = literal_normalise(prediction)
        assert normalise(prediction).split() == normal
        equal.append(any(normal == literal_normalise(gold) for gold in golds))
        assert exact_match(prediction, golds) == equal[-1]
        assert f1(prediction, golds) == max(literal_f1(prediction, gold) for gold in golds)
        each = [literal_rouge(prediction, gold) for gold in golds]
        rouges.append([max(values) for values in zip(*each, strict=True)])
        assert [*rouge(prediction, golds).values()] == pytest.approx(rouges[-1], abs=1e-12)
        scores = SCORER.score_multi(golds, prediction)
        assert rouge(prediction, golds) == {f"rouge/{n}": s.fmeasure for n, s in scores.items()}
    assert 20 < sum(equal) < 1400  # both happen
    assert score("exact_match", examples) == 100 * sum(equal) / len(equal)
    means = [100 * sum(column) / len(rouges) for column in zip(*rouges, strict=True)]
    assert score("rouge", examples) == pytest.approx((means[0] * means[1] * means[2]) ** (1 / 3))


def test_the_documented_example():
    """With the keys in the official order."""
    rouges = {"rouge/rouge1": 72.2222, "rouge/rouge2": 33.3333, "rouge/rougeL": 72.2222}
    shown = {"display_keys": [*rouges], "display": [*rouges.values()]}
    means = {"rouge/rougeLsum": None, "rouge/geometric_mean": 55.8136}
    summary = rouges | means | COUNTS | {"scrolls_score": 55.8136} | shown
    expected = dict.fromkeys(("gov_report", "qmsum", "summ_screen_fd"), summary)
    for name, metric, value in [
        *((name, "exact_match", 33.3333) for name in ("quality", "contract_nli")),
        *((name, "f1", 72.2222) for name in ("narrative_qa", "qasper", "sample")),
    ]:
        shown = {"scrolls_score": value, "display_keys": [metric], "display": [value]}
        expected[name] = {metric: value, **COUNTS, **shown}
    expected["quality_hard"] = expected["quality"] | {"scrolls_score": None}
    assert expected.keys() == TASKS.keys()
    for name, found in expected.items():
        assert [*compute(name, *DOCUMENTED).items()] == [*found.items()]


def test_with_nltks_data_only_rouge_lsum_is_different(monkeypatch):
    """The gold's sentences in another order: all of it is there sentence by sentence, half of it as
    one sequence; of the other two words one."""
    given = ["Red green. Blue pink.", " one two"], [["Blue pink. Red green."], ["one. three"]]
    without, f1_without = (compute(name, *given) for name in ("qmsum", "qasper"))
    assert not splits_sentences() and without["rouge/rougeLsum"] is None
    monkeypatch.setattr(nltk, "sent_tokenize", lambda text: re.split(r"(?<=\.)\s", text))
    assert splits_sentences()
    found = compute("qmsum", *given)
    assert found == without | {"rouge/rougeLsum": 75.0} and found["rouge/rougeL"] == 50.0
    assert compute("qasper", *given) == f1_without


def test_results_have_four_decimals():
    """Two of three right, and a seventh of a character more than 2 on average."""
    assert compute("quality", ["x", "X.", "y"], [["x"]] * 3)["exact_match"] == 66.6667
    lengths = compute("qasper", ["ab"] * 6 + ["äöü"], [["x"]] * 7)
    assert lengths["mean_prediction_length_characters"] == 2.1429  # characters, not bytes
