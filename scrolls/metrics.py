"""SCROLLS metrics as its evaluator defines them (Shaham et al. 2022, arXiv 2201.03533). An answer
with several golds gets its best score."""

import math
import re
import string
from collections import Counter
from collections.abc import Sequence
from typing import Any

from rouge_score.rouge_scorer import RougeScorer
from rouge_score.tokenizers import DefaultTokenizer
from tqdm import tqdm

from scrolls.tasks import Task

SCORE = {"exact_match": "exact_match", "f1": "f1", "rouge": "rouge/geometric_mean"}
VARIANTS = ("rouge1", "rouge2", "rougeL")

_ROUGE = RougeScorer(VARIANTS, tokenizer=DefaultTokenizer(use_stemmer=False))
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalise(text: str) -> str:
    """Lower case, without ASCII punctuation ("state-of-the-art" becomes "stateoftheart"), then
    without articles and extra white space."""
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


def example(metric: str, prediction: str, golds: Sequence[str]) -> dict[str, float]:
    """Scores one answer with one gold or more, in 0..1. ROUGE (Lin 2004) is the F-measure of three
    variants, each for its own best gold."""
    if metric != "rouge":
        return {metric: {"exact_match": exact_match, "f1": f1}[metric](prediction, golds)}
    scores = _ROUGE.score_multi(golds, prediction)
    return {f"rouge/{variant}": scores[variant].fmeasure for variant in VARIANTS}


def averages(metric: str, examples: Sequence[dict[str, float]]) -> dict[str, float]:
    """Averages examples in percent; for ROUGE adds the geometric mean of the averages of rouge1,
    rouge2 and rougeL, which is 0 if one of them is."""
    columns = {name: [scores[name] for scores in examples] for name in examples[0]}
    if metric != "rouge":
        return {name: 100.0 * sum(column) / len(column) for name, column in columns.items()}
    # Scaled to percent before summing, as in the evaluator, which can affect rounding.
    means = {n: sum(100 * score for score in column) / len(column) for n, column in columns.items()}
    return means | {SCORE["rouge"]: math.prod(means.values()) ** (1 / 3)}


def results(task: Task, predictions: list[str], golds: list[list[str]]) -> dict[str, Any]:
    """Returns the official results, in percent with four decimals: the averages of the task's
    metric; num_predicted; mean_prediction_length_characters; scrolls_score, which is one of the
    averages; display_keys and display, as shown by the benchmark."""
    pairs = zip(predictions, golds, strict=True)
    with tqdm(pairs, task.name, len(predictions), leave=False, disable=None) as progress:
        examples = [example(task.metric, *pair) for pair in progress]
    found = averages(task.metric, examples)
    found["num_predicted"] = len(predictions)
    found["mean_prediction_length_characters"] = sum(map(len, predictions)) / len(predictions)
    found = {name: round(value, 4) for name, value in found.items()}
    shown = [*examples[0]]
    return found | {
        "scrolls_score": found[SCORE[task.metric]],
        "display_keys": shown,
        "display": [found[name] for name in shown],
    }
