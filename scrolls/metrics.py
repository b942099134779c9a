"""SCROLLS metrics as its evaluator defines them (Shaham et al. 2022, arXiv 2201.03533).

`example` scores one answer, `averages` a set of answers, `results` the answers of a task. An answer
with several golds gets its best score.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from typing import Any

import nltk
from rouge_score.rouge_scorer import RougeScorer
from rouge_score.scoring import fmeasure
from rouge_score.tokenize import tokenize
from tqdm import tqdm

from scrolls.tasks import HARD, Task

# Metrics of a set of answers.
SCORE = {"exact_match": "exact_match", "f1": "f1", "rouge": "rouge/geometric_mean"}
VARIANTS = ("rouge/rouge1", "rouge/rouge2", "rouge/rougeL")
SUMMARY_LEVEL = "rouge/rougeLsum"  # computed by sentence; reported, but not part of any score

_NGRAMS = RougeScorer(["rouge1", "rouge2"], use_stemmer=False)
_SENTENCES = RougeScorer(["rougeLsum"], use_stemmer=False)
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalise(text: str) -> str:
    """Lower case, without ASCII punctuation, then without articles and extra white space.

    Punctuation is deleted rather than replaced: "state-of-the-art" becomes "stateoftheart".
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(prediction: str, golds: Sequence[str]) -> float:
    """Returns 1 if the prediction equals a gold after normalisation, else 0."""
    return float(any(normalise(prediction) == normalise(gold) for gold in golds))


def f1(prediction: str, golds: Sequence[str]) -> float:
    """Returns the best F1 in 0..1 of the multiset of normalised words against a gold; 0 without a
    common word, even if both are empty."""
    best, words = 0.0, normalise(prediction).split()
    for others in (normalise(gold).split() for gold in golds):
        if common := (Counter(words) & Counter(others)).total():
            precision, recall = common / len(words), common / len(others)
            best = max(best, 2 * precision * recall / (precision + recall))
    return best


def rouge(prediction: str, golds: Sequence[str]) -> dict[str, float]:
    """Returns the F-measure of each variant in 0..1 (Lin 2004), each for its own best gold."""
    scores = [_variants(prediction, gold) for gold in golds]
    return {variant: max(score[variant] for score in scores) for variant in VARIANTS}


def _variants(prediction: str, gold: str) -> dict[str, float]:
    scores = _NGRAMS.score(gold, prediction)
    rouge1, rouge2 = (scores[name].fmeasure for name in ("rouge1", "rouge2"))
    # As in rouge_score, whose table of all pairs takes minutes for a summarisation task.
    words, others = tokenize(prediction, None), tokenize(gold, None)
    common = _common_subsequence(words, others)
    rouge_l = fmeasure(common / len(words), common / len(others)) if common else 0.0
    return dict(zip(VARIANTS, (rouge1, rouge2, rouge_l), strict=True))


def _common_subsequence(words: list[str], others: list[str]) -> int:
    """Returns the length of the longest common subsequence. A row of the table is an integer whose
    bits are 0 where the length increases (Hyyrö 2004)."""
    places: dict[str, int] = {}
    for place, word in enumerate(words):
        places[word] = places.get(word, 0) | 1 << place
    row = every = (1 << len(words)) - 1
    for word in others:
        met = row & places.get(word, 0)
        row = ((row + met) | (row - met)) & every
    return len(words) - row.bit_count()


def splits_sentences() -> bool:
    """Returns whether nltk's sentence splitter (punkt_tab) is installed; never downloads it."""
    try:
        nltk.sent_tokenize("")
    except LookupError:
        return False
    return True


def example(
    metric: str, prediction: str, golds: Sequence[str], summary_level: bool = False
) -> dict[str, float]:
    """Scores one answer, in 0..1.

    Args:
        metric: exact_match, f1 or rouge.
        golds: at least one.
        summary_level: also compute rougeLsum; requires `splits_sentences()`.
    """
    if metric == "exact_match":
        return {metric: exact_match(prediction, golds)}
    if metric == "f1":
        return {metric: f1(prediction, golds)}
    scores = rouge(prediction, golds)
    if summary_level:
        text, *others = ("\n".join(nltk.sent_tokenize(x.strip())) for x in (prediction, *golds))
        found = [_SENTENCES.score(other, text)["rougeLsum"].fmeasure for other in others]
        scores[SUMMARY_LEVEL] = max(found)
    return scores


def averages(metric: str, examples: Sequence[dict[str, float]]) -> dict[str, float]:
    """Averages examples in percent; for ROUGE adds the geometric mean of the averages of rouge1,
    rouge2 and rougeL, which is 0 if one of them is.

    Two references and two predictions, the second a reordering of its reference:

    >>> pairs = [("alpha beta gamma delta", "alpha beta gamma delta"),
    ...          ("red green blue pink", "pink blue green red")]
    >>> scores = averages("rouge", [example("rouge", text, [gold]) for text, gold in pairs])
    >>> {name: round(score, 4) for name, score in scores.items()}  # doctest: +NORMALIZE_WHITESPACE
    {'rouge/rouge1': 100.0, 'rouge/rouge2': 50.0, 'rouge/rougeL': 62.5,
     'rouge/geometric_mean': 67.8604}
    """
    columns = {name: [scores[name] for scores in examples] for name in examples[0]}
    if metric != "rouge":
        return {name: 100.0 * sum(column) / len(column) for name, column in columns.items()}
    # Scaled to percent before summing, as in the evaluator, which can affect rounding.
    means = {n: sum(100 * score for score in column) / len(column) for n, column in columns.items()}
    product = means[VARIANTS[0]] * means[VARIANTS[1]] * means[VARIANTS[2]]
    return means | {SCORE["rouge"]: product ** (1 / 3)}


def results(task: Task, predictions: list[str], golds: list[list[str]]) -> dict[str, Any]:
    """Returns the official results, in percent with four decimals: rouge/rouge1, rouge/rouge2,
    rouge/rougeL, rouge/rougeLsum (None without nltk's punkt_tab) and rouge/geometric_mean, or f1,
    or exact_match; num_predicted; mean_prediction_length_characters; scrolls_score, which is one of
    these (None for quality_hard, which is not part of the benchmark's mean); display_keys and
    display, as shown by the benchmark.

    Args:
        predictions: at least one.
        golds: of each prediction, at least one.
    """
    metric, summarised = task.metric, task.metric == "rouge"
    summary_level = summarised and splits_sentences()
    pairs = zip(predictions, golds, strict=True)
    with tqdm(pairs, task.name, len(predictions), leave=False, disable=None) as progress:
        scores = averages(metric, [example(metric, *pair, summary_level) for pair in progress])
    # In the evaluator's order.
    order = (*VARIANTS, SUMMARY_LEVEL, SCORE[metric]) if summarised else scores
    found = {name: scores.get(name) for name in order}
    found["num_predicted"] = len(predictions)
    found["mean_prediction_length_characters"] = sum(map(len, predictions)) / len(predictions)
    found = {name: None if x is None else round(x, 4) for name, x in found.items()}
    shown = list(VARIANTS) if summarised else [metric]
    return found | {
        "scrolls_score": None if task.name == HARD else found[SCORE[metric]],
        "display_keys": shown,
        "display": [found[name] for name in shown],
    }
