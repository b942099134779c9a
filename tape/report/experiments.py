"""The experiments, in the order of the page."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

from tape.compare.rows import is_method
from tape.compare.runs import RESULTS, Run
from tape.evaluation.journal import Incomplete, join
from tape.report.experiment import Experiment, Folder, Kind
from tape.report.html import Block, Details, Table, records
from tape.report.results import (
    PERPLEXITIES,
    TABLE,
    ZERO_SHOT_TABLES,
    comparisons,
    evaluations,
    read_comparison,
    rows_of,
    show,
    written,
)
from tape.report.training import is_run, read_run, runs, task_of
from tape.report.training import show as show_runs

PAPER = Path(__file__).with_name("paper")  # tables of arXiv 2501.00712
HELP = "python -m tape.report --help"


def of(evaluation: str) -> Callable[[Sequence[Run]], bool]:
    """Returns whether all runs have this evaluation and none extends another model."""
    return lambda runs: all(evaluation in run.asked and not is_method(run) for run in runs)


def paper(name: str, caption: str) -> Table:
    return records(rows_of(PAPER / f"{name}.csv"), caption)


def experiments() -> list[Experiment]:
    scrolls = import_module("scrolls.section")  # builds on this package
    models = "--model output/rope_c4 output/adape_c4"
    found = [
        Experiment(
            "pretraining",
            "Pre-training",
            "Encodings trained on a text from scratch: perplexity at the trained length and "
            "beyond it.",
            [
                comparisons(of("perplexity"), "bash script/compare.sh"),
                runs(
                    lambda run: task_of(run).endswith(".TextTask") and "peft.name" not in run,
                    "TYPE=adape bash script/train.sh",
                ),
            ],
            [
                Details(
                    "The paper's ablations of TAPE: perplexity on code by length",
                    [paper(f"table{n}", f"arXiv 2501.00712, Table {n}") for n in (6, 7)],
                )
            ],
        ),
        Experiment(
            "arithmetic",
            "Arithmetic",
            "Whether a model that learned to add short numbers adds longer ones.",
            [
                comparisons(of("arithmetic"), "bash script/compare_add.sh"),
                evaluations("arithmetic", "TYPE=adape bash script/eval_add.sh"),
                runs(
                    lambda run: task_of(run).startswith("arithmetic."),
                    "TYPE=adape bash script/train_add.sh",
                ),
            ],
            [paper("arithmetic", "Additions in the paper, arXiv 2501.00712")],
        ),
        scrolls.EXPERIMENT,
        Experiment(
            "extension",
            "Context extension",
            "Trained models on longer contexts, after a little training by each method.",
            [
                comparisons(lambda runs: any(map(is_method, runs)), "bash script/extend_demo.sh"),
                runs(lambda run: "peft.name" in run, "TYPE=adape bash script/train_llama.sh"),
            ],
            [
                paper(
                    "extension",
                    "Perplexity of Llama-2-7B after extension to 8,192 tokens, by length: "
                    "arXiv 2501.00712, Table 2",
                )
            ],
        ),
        Experiment(
            "perplexity",
            "Perplexity by length",
            "Models on texts in windows of several lengths. Rows compare where the text, the "
            "convention and the type of numbers are the same. The paper's Table 2 is above, with "
            "context extension.",
            [PERPLEXITIES],
        ),
        Experiment(
            "retrieval",
            "Retrieval",
            "Whether a key is found in prompts of any length, wherever it stands. The paper has a "
            "figure of this (Fig. 3), and no table.",
            [
                comparisons(of("passkey"), "bash script/compare_passkey.sh"),
                evaluations("passkey", "python eval_retrieval.py --base_model output/llama_adape"),
                runs(
                    lambda run: task_of(run).startswith("retrieval.") and "peft.name" not in run,
                    "python train.py experiment=passkey position=tape name=passkey_adape",
                ),
            ],
        ),
        Experiment(
            "zero_shot",
            "Zero-shot tasks",
            "What models know without having been trained on the task.",
            [ZERO_SHOT_TABLES],
        ),
        Experiment(
            "stability",
            "Stability",
            "How much attention and positions change when a text is moved. The rows of the paper's "
            "Table 8 are in the tables.",
            [
                written(
                    "tables",
                    "stability",
                    "python -m tape.analysis.stability --model output/adape_c4",
                )
            ],
        ),
        Experiment(
            "pictures",
            "Attention and positions",
            "What models attend to, and what became of their positions (the paper's Fig. 7).",
            [
                written(
                    "folders of pictures",
                    "attention",
                    f"python -m tape.analysis.visualize {models}",
                )
            ],
        ),
        Experiment(
            "faults",
            "Faults of the original code",
            "What they make of trained models, each by itself.",
            [written("tables", "faults", f"python -m tape.analysis.faults {models}")],
        ),
        Experiment(
            "efficiency",
            "Efficiency",
            "What encodings cost, and how fast they run. The paper's Table 3 is beside costs of "
            "its shape.",
            [
                written("tables of cost", "cost", "python -m tape.analysis.cost"),
                written("tables of speed", "speed", "python benchmarks/speed.py"),
            ],
        ),
    ]
    return [*found, other(found)]


def other(found: Sequence[Experiment]) -> Experiment:
    """The last section: comparisons, runs and evaluations that belong to no other."""

    def left(title: str, holds: Callable[[Folder], bool]) -> Callable[[Folder], bool]:
        kinds = [kind for each in found for kind in each.kinds if kind.title == title]
        return lambda folder: holds(folder) and not any(kind.holds(folder) for kind in kinds)

    compared, trained = left("comparisons", is_comparison), left("runs", is_run)
    under_way = left("evaluations", has_journals)
    return Experiment(
        "other",
        "Other results",
        "What belongs to none of the experiments above.",
        [
            Kind("comparisons", HELP, compared, read_other_comparison, show),
            Kind("runs", HELP, trained, read_run, show_runs, lambda run: run.left),
            # `join` raises Incomplete. Complete journals have their results elsewhere.
            Kind("evaluations under way", HELP, under_way, lambda f: join(f.path) and None, list),
        ],
    )


def is_comparison(folder: Folder) -> bool:
    """Returns whether a folder has a comparison, or only the logs of its runs, as before all of
    them are evaluated. (Several comparisons of the same runs have a folder each within it.)"""
    if folder.has(TABLE, "table.csv"):  # of SCROLLS
        return False
    logs = all(name.endswith((".log", ".finished")) for name in folder.files)
    under_way = bool(folder.files) and logs and not folder.folders
    return under_way or not folder.files.isdisjoint((TABLE, RESULTS))


def read_other_comparison(folder: Folder) -> list[Block]:
    if folder.files.isdisjoint((TABLE, RESULTS)):
        raise Incomplete("only what runs printed: the comparison was not finished, or has failed")
    return read_comparison(folder)


def has_journals(folder: Folder) -> bool:
    return any(re.fullmatch(r"shard-\d+-of-\d+", name) for name in folder.folders)
