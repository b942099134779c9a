"""What this experiment leaves behind, on the page of all results."""

from __future__ import annotations

from pathlib import Path

from tape.report.blocks import Details
from tape.report.experiment import Experiment
from tape.report.training import runs, task_of
from tape.report.written import comparisons, paper_table

TABLES = Path(__file__).parent


EXPERIMENT = Experiment(
    name="pretraining",
    title="Pre-training",
    about="What encodings make of a text that they were trained on from scratch, at the trained "
    "length and beyond it.",
    kinds=[
        comparisons({"encoding", "seed", "perplexity"}, "bash script/compare.sh"),
        runs(
            lambda run: task_of(run).endswith(".TextTask") and "peft.name" not in run,
            "TYPE=adape bash script/train.sh",
        ),
    ],
    paper=[
        Details(
            "The paper's ablations of TAPE: perplexity on code by length",
            [
                paper_table(TABLES / "table6.csv", "arXiv 2501.00712, Table 6"),
                paper_table(TABLES / "table7.csv", "arXiv 2501.00712, Table 7"),
            ],
        )
    ],
)
