"""The experiments, in the order of the page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

from tape.compare.rows import is_method
from tape.compare.runs import Run
from tape.report import analyses, perplexity, zero_shot
from tape.report.blocks import Details
from tape.report.evaluations import evaluations
from tape.report.experiment import Experiment
from tape.report.other import other
from tape.report.training import runs, task_of
from tape.report.written import comparisons, paper_table

PAPER = Path(__file__).with_name("paper")  # tables of arXiv 2501.00712


def of(evaluation: str) -> Callable[[Sequence[Run]], bool]:
    """Whether all runs have this evaluation, and none extends another model."""
    return lambda runs: all(evaluation in run.asked and not is_method(run) for run in runs)


PRETRAINING = Experiment(
    name="pretraining",
    title="Pre-training",
    about="Encodings trained on a text from scratch: perplexity at the trained length and beyond "
    "it.",
    kinds=[
        comparisons(of("perplexity"), "bash script/compare.sh"),
        runs(
            lambda run: task_of(run).endswith(".TextTask") and "peft.name" not in run,
            "TYPE=adape bash script/train.sh",
        ),
    ],
    paper=[
        Details(
            "The paper's ablations of TAPE: perplexity on code by length",
            [
                paper_table(PAPER / "table6.csv", "arXiv 2501.00712, Table 6"),
                paper_table(PAPER / "table7.csv", "arXiv 2501.00712, Table 7"),
            ],
        )
    ],
)
ARITHMETIC = Experiment(
    name="arithmetic",
    title="Arithmetic",
    about="Whether a model that learned to add short numbers adds longer ones.",
    kinds=[
        comparisons(of("arithmetic"), "bash script/compare_add.sh"),
        evaluations("arithmetic", "TYPE=adape bash script/eval_add.sh"),
        runs(
            lambda run: task_of(run).startswith("arithmetic."),
            "TYPE=adape bash script/train_add.sh",
        ),
    ],
    paper=[paper_table(PAPER / "arithmetic.csv", "Additions in the paper, arXiv 2501.00712")],
)
EXTENSION = Experiment(
    name="extension",
    title="Context extension",
    about="Trained models on longer contexts, after a little training by each method.",
    kinds=[
        comparisons(lambda runs: any(map(is_method, runs)), "bash script/extend_demo.sh"),
        runs(lambda run: "peft.name" in run, "TYPE=adape bash script/train_llama.sh"),
    ],
    paper=[
        paper_table(
            PAPER / "extension.csv",
            "Perplexity of Llama-2-7B after extension to 8,192 tokens, by length: "
            "arXiv 2501.00712, Table 2",
        )
    ],
)
RETRIEVAL = Experiment(
    name="retrieval",
    title="Retrieval",
    about="Whether a key is found in prompts of any length, wherever it stands. The paper has a "
    "figure of this (Fig. 3), and no table.",
    kinds=[
        comparisons(of("passkey"), "bash script/compare_passkey.sh"),
        evaluations("passkey", "python eval_retrieval.py --base_model output/llama_adape"),
        runs(
            lambda run: task_of(run).startswith("retrieval.") and "peft.name" not in run,
            "python train.py experiment=passkey position=tape name=passkey_adape",
        ),
    ],
)


def experiments() -> list[Experiment]:
    scrolls = import_module("scrolls.section")  # builds on this package
    found = [
        PRETRAINING,
        ARITHMETIC,
        scrolls.EXPERIMENT,
        EXTENSION,
        perplexity.EXPERIMENT,
        RETRIEVAL,
        zero_shot.EXPERIMENT,
        analyses.STABILITY,
        analyses.PICTURES,
        analyses.FAULTS,
        analyses.EFFICIENCY,
    ]
    return [*found, other(found)]
