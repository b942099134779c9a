"""SCROLLS metrics as a module of the `evaluate` library, offline:

evaluate.load("scrolls/metric.py", "qasper").compute(predictions=[...], references=[[...], ...])

The library copies this file, and the files that it imports relatively, to a cache keyed by content.
"""

from __future__ import annotations

from typing import Any

import evaluate
from datasets import Features, Sequence, Value
from tqdm import tqdm

from .metrics import SCORE, SUMMARY_LEVEL, VARIANTS, averages, example, splits_sentences
from .tasks import HARD, task_named

DESCRIPTION = """\
The scores of SCROLLS (https://www.scrolls-benchmark.com) as its evaluator computes them. The
configuration is named after a task: gov_report, summ_screen_fd and qmsum use ROUGE, narrative_qa
and qasper F1, quality, quality_hard and contract_nli exact match; `sample` uses F1.
"""
USAGE = """\
Args:
    predictions: list of texts.
    references: list of lists of gold answers, at least one per prediction.
Returns:
    a dictionary, in percent with four decimals: rouge/rouge1, rouge/rouge2, rouge/rougeL,
    rouge/rougeLsum (None without nltk's punkt_tab; not part of any score) and
    rouge/geometric_mean, or f1, or exact_match; num_predicted; mean_prediction_length_characters;
    scrolls_score, which is one of these (None for quality_hard, which is not part of the
    benchmark's mean); display_keys and display, as shown by the benchmark.
"""
CITATION = """\
@inproceedings{shaham-etal-2022-scrolls,
  title = {{SCROLLS}: Standardized {C}ompa{R}ison Over Long Language Sequences},
  author = {Shaham, Uri and Segal, Elad and Ivgi, Maor and Efrat, Avia and Yoran, Ori and Haviv, Adi
    and Gupta, Ankit and Xiong, Wenhan and Geva, Mor and Berant, Jonathan and Levy, Omer},
  booktitle = {Proceedings of EMNLP},
  year = {2022},
  note = {arXiv 2201.03533}
}
"""


class Scrolls(evaluate.Metric):
    """Raises a ValueError for an unknown configuration, missing golds, or no predictions."""

    def _info(self) -> evaluate.MetricInfo:
        self.task = task_named(self.config_name)
        references = Sequence(Value("string"))
        return evaluate.MetricInfo(
            description=DESCRIPTION,
            citation=CITATION,
            inputs_description=USAGE,
            features=Features({"predictions": Value("string"), "references": references}),
            reference_urls=["https://arxiv.org/abs/2201.03533"],
        )

    def _compute(self, predictions: list[str], references: list[list[str]]) -> dict[str, Any]:
        if not predictions:
            raise ValueError("there are no predictions to score")
        if not all(references):
            raise ValueError(f"prediction {references.index([])} has no gold answer to score with")
        metric, summarised = self.task.metric, self.task.metric == "rouge"
        summary_level = summarised and splits_sentences()
        pairs = zip(predictions, references, strict=True)
        with tqdm(pairs, self.task.name, len(predictions), leave=False, disable=None) as progress:
            scores = averages(metric, [example(metric, *pair, summary_level) for pair in progress])
        # In the evaluator's order.
        order = (*VARIANTS, SUMMARY_LEVEL, SCORE[metric]) if summarised else scores
        results = {name: scores.get(name) for name in order}
        results["num_predicted"] = len(predictions)
        results["mean_prediction_length_characters"] = sum(map(len, predictions)) / len(predictions)
        results = {name: None if x is None else round(x, 4) for name, x in results.items()}
        shown = list(VARIANTS) if summarised else [metric]
        return results | {
            "scrolls_score": None if self.task.name == HARD else results[SCORE[metric]],
            "display_keys": shown,
            "display": [results[name] for name in shown],
        }
