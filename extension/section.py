"""What this experiment leaves behind, on the page of all results."""

from __future__ import annotations

from pathlib import Path

from tape.report.experiment import Experiment
from tape.report.training import runs
from tape.report.written import comparisons, paper_table

EXPERIMENT = Experiment(
    name="extension",
    title="Context extension",
    about="What a trained model makes of longer contexts after a little training by each method.",
    kinds=[
        comparisons({"method", "seed", "measure", "length"}, "bash script/extend_demo.sh"),
        runs(lambda run: "peft.name" in run, "TYPE=adape bash script/train_llama.sh"),
    ],
    paper=[
        paper_table(
            Path(__file__).with_name("paper.csv"),
            "Perplexity of Llama-2-7B after extension to 8,192 tokens, by length: "
            "arXiv 2501.00712, Table 2",
        )
    ],
)
