"""SCROLLS metrics as its evaluator defines them (Shaham et al. 2022, arXiv 2201.03533), as a module
of `evaluate`. Its parts score one prediction against one gold answer."""

import math
import re
import string
from collections import Counter
from collections.abc import Sequence
from tempfile import TemporaryDirectory
from typing import Any

import datasets
import evaluate
from rouge_score.rouge_scorer import RougeScorer
from rouge_score.tokenizers import DefaultTokenizer

from scrolls.tasks import TASKS, Task
from tape.core.progress import track
from tape.core.validation import look_up

SCORE = {"exact_match": "exact_match", "f1": "f1", "rouge": "rouge/geometric_mean"}
VARIANTS = ("rouge1", "rouge2", "rougeL")

_DESCRIPTION = """\
SCROLLS asks questions about long texts. A task is scored by exact match, the F1 of words, or the
geometric mean of ROUGE-1, ROUGE-2 and ROUGE-L. A prediction has the best of its scores over the
gold answers; scores are averaged over the questions."""
_INPUTS = """
Args:
    predictions: a text for each question.
    references: the gold answers of each question, a list of at least one text.
Returns:
    The results of the official evaluator, in percent with four decimals: averages of the task's
    metric; `num_predicted`; `mean_prediction_length_characters`; `scrolls_score`, which is one of
    the averages; `display_keys` and `display`, as shown by the benchmark.
"""
_CITATION = """\
@inproceedings{shaham-etal-2022-scrolls,
    title = "{SCROLLS}: Standardized {C}ompa{R}ison Over Long Language Sequences",
    author = "Shaham, Uri and Segal, Elad and Ivgi, Maor and Efrat, Avia and Yoran, Ori and
        Haviv, Adi and Gupta, Ankit and Xiong, Wenhan and Geva, Mor and Berant, Jonathan and
        Levy, Omer",
    booktitle = "Proceedings of the 2022 Conference on Empirical Methods in Natural Language
        Processing",
    year = "2022",
    url = "https://arxiv.org/abs/2201.03533",
}"""
_ROUGE = RougeScorer(VARIANTS, tokenizer=DefaultTokenizer(use_stemmer=False))
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalise(text: str) -> str:
    """Lower case, without ASCII punctuation ("state-of-the-art" becomes "stateoftheart"), then
    without articles and extra white space."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(prediction: str, gold: str) -> float:
    """Returns 1 if the prediction equals the gold after normalisation, else 0."""
    return float(normalise(prediction) == normalise(gold))


def f1(prediction: str, gold: str) -> float:
    """Returns the F1 in 0..1 of the multisets of normalised words; 0 without a common word, even if
    both are empty."""
    words, others = normalise(prediction).split(), normalise(gold).split()
    common = (Counter(words) & Counter(others)).total()
    if not common:
        return 0.0
    precision, recall = common / len(words), common / len(others)
    return 2 * precision * recall / (precision + recall)


def pair(metric: str, prediction: str, gold: str) -> dict[str, float]:
    """Scores a prediction by one gold answer, in 0..1. ROUGE (Lin 2004) is the F-measure of three
    variants."""
    if metric != "rouge":
        return {metric: {"exact_match": exact_match, "f1": f1}[metric](prediction, gold)}
    scores = _ROUGE.score(gold, prediction)
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


class Scrolls(evaluate.Metric):
    """The score of a task, which `config_name` names:

        metric = evaluate.load("scrolls/metrics.py", "qasper")
        metric.compute(predictions=["the mill"], references=[["At the mill.", "By a river."]])

    Takes the arguments of `evaluate.Metric`. Raises a ValueError for an unknown task, and for
    references that are not lists of gold answers.
    """

    reduction = staticmethod(max)  # of the scores of a prediction, one for each gold answer

    def _info(self) -> evaluate.MetricInfo:
        self.task = look_up("task of SCROLLS, the metric's config_name,", self.config_name, TASKS)
        texts = datasets.Value("string")
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_INPUTS,
            features=datasets.Features(predictions=texts, references=datasets.List(texts)),
            homepage="https://www.scrolls-benchmark.com",
            reference_urls=["https://arxiv.org/abs/2201.03533"],
        )

    def add_batch(self, *, predictions=None, references=None, **others) -> None:
        """Adds predictions and their gold answers. (`evaluate` itself checks only the first of
        them, and would make a text that is not in a list a gold answer of each letter.)"""
        if not all(isinstance(text, str) for text in predictions):
            raise ValueError("predictions must be a list of texts")
        for number, golds in enumerate(references):
            texts = isinstance(golds, list | tuple) and all(isinstance(text, str) for text in golds)
            if not texts or not golds:
                what = "must be the gold answers of a question, a list of at least one text"
                raise ValueError(f"references[{number}]={golds!r} {what}")
        super().add_batch(predictions=predictions, references=references, **others)

    def add(self, *, prediction=None, reference=None, **others) -> None:
        """Adds one prediction and its gold answers."""
        self.add_batch(predictions=[prediction], references=[reference], **others)

    def example(self, prediction: str, golds: Sequence[str]) -> dict[str, float]:
        """Scores one prediction, in 0..1; each variant of ROUGE has its own best gold."""
        scores = [pair(self.task.metric, prediction, gold) for gold in golds]
        return {name: self.reduction(score[name] for score in scores) for name in scores[0]}

    def _compute(self, predictions: list[str], references: list[list[str]]) -> dict[str, Any]:
        if not predictions:
            raise ValueError("there are no predictions to score")
        pairs = zip(predictions, references, strict=True)
        progress = track(pairs, desc=self.task.name, total=len(predictions), leave=False)
        examples = [self.example(*given) for given in progress]
        found = averages(self.task.metric, examples)
        found["num_predicted"] = len(predictions)
        lengths = map(len, predictions)
        found["mean_prediction_length_characters"] = sum(lengths) / len(predictions)
        found = {name: round(value, 4) for name, value in found.items()}
        shown = [*examples[0]]
        return found | {
            "scrolls_score": found[SCORE[self.task.metric]],
            "display_keys": shown,
            "display": [found[name] for name in shown],
        }


def results(task: Task, predictions: list[str], golds: list[list[str]]) -> dict[str, Any]:
    """Returns the official results of a task, without leaving files in the cache of `evaluate`."""
    with TemporaryDirectory() as folder:
        metric = Scrolls(task.name, keep_in_memory=True, cache_dir=folder)
        return metric.compute(predictions=predictions, references=golds)
