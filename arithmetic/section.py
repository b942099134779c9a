"""What this experiment leaves behind, on the page of all results."""

from __future__ import annotations

from pathlib import Path

from tape.evaluation.compare import check_weights

from arithmetic.grid import Grid, read_grid
from tape.evaluation.journal import read_evaluated
from tape.report.blocks import Block, Details, Pictures, Table
from tape.report.experiment import Experiment, Kind, Read
from tape.report.finding import Folder
from tape.report.training import encoding_of, percent, runs, task_of
from tape.report.written import comparisons, paper_table

REGIONS = {"inside": "trained lengths, %", "outside": "beyond them, %", "all": "whole grid, %"}


def show(found: Read[Grid]) -> list[Block]:
    """A row per evaluation, with 95 % (Wilson) intervals, and the grids."""
    rows = []
    for folder, grid in found:
        summary = grid.summary()
        shares = (percent(summary[region]) for region in REGIONS)
        trained, tested = " x ".join(map(str, grid.trained)), " x ".join(map(str, grid.total.shape))
        name = encoding_of(folder.path.parent)
        rows.append([str(folder.path), name, trained, tested, *shares])
    head = ["evaluation", "encoding", "trained to digits", "tested to digits", *REGIONS.values()]
    drawn = [path for folder, _ in found for path in folder.pictures]
    return [
        Table(head, rows, "Accuracy over the lengths of both operands"),
        Details("The grids of these evaluations", [Pictures(drawn)]),
    ]


def read(folder: Folder) -> Grid:
    """Raises a ValueError if it is not of the weights beside it."""
    check_weights(folder.path.parent, folder.path.name, read_evaluated(folder.path))
    return read_grid(folder.path)


EXPERIMENT = Experiment(
    name="arithmetic",
    title="Arithmetic",
    about="Whether a model that learned to add short numbers adds longer ones.",
    kinds=[
        comparisons({"encoding", "seed", "region", "accuracy"}, "bash script/compare_add.sh"),
        Kind(
            title="evaluations",
            command="TYPE=adape bash script/eval_add.sh",
            holds=lambda folder: folder.has("grid.csv"),
            read=read,
            show=show,
        ),
        runs(
            lambda run: task_of(run).startswith("arithmetic."),
            "TYPE=adape bash script/train_add.sh",
        ),
    ],
    paper=[
        paper_table(
            Path(__file__).with_name("paper.csv"), "Additions in the paper, arXiv 2501.00712"
        )
    ],
)
