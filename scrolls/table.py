"""Table of SCROLLS results (the paper's Table 1), with rows of our own above the paper's."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from tape.evaluation.tables import csv_table, markdown_table

PAPER = Path(__file__).with_name("paper.csv")

# In the paper's order and naming.
COLUMNS = {
    "qasper": "Qasper F1",
    "contract_nli": "ContractNLI EM",
    "narrative_qa": "NarrativeQA F1",
    "quality": "QuALITY EM",
    "qmsum": "QMSum Rgm",
    "summ_screen_fd": "SummScreen Rgm",
    "gov_report": "GovReport Rgm",
}
NOTE = """\
Percent. Rgm: geometric mean of rouge1, rouge2 and rougeL. Avg: mean of the seven tasks, if all are
there. Rows from arXiv 2501.00712 are the paper's, on validation sets; their Avg is computed."""


@dataclass(frozen=True)
class Row:
    """Scores of an encoding by task, in percent; `origin` names their source."""

    encoding: str
    origin: str
    scores: dict[str, float]

    @property
    def mean(self) -> float | None:
        """The benchmark's score: the mean of the seven tasks, or None if one is missing."""
        if any(task not in self.scores for task in COLUMNS):
            return None
        return fmean(self.scores[task] for task in COLUMNS)

    @property
    def cells(self) -> list[float | None]:
        return [*(self.scores.get(task) for task in COLUMNS), self.mean]


def paper_rows() -> list[Row]:
    """Returns Table 1, on the validation sets; the means are computed, as the paper has none."""
    with PAPER.open(encoding="utf-8", newline="") as file:
        return [
            Row(row["encoding"], row["source"], {task: float(row[task]) for task in COLUMNS})
            for row in csv.DictReader(file)
        ]


def markdown(rows: list[Row]) -> str:
    """With two decimals, as in the paper; "-" for what is not there."""
    lines = [["encoding", *COLUMNS.values(), "Avg", "from"]]
    for row in rows:
        cells = ["-" if cell is None else f"{cell:.2f}" for cell in row.cells]
        lines.append([row.encoding, *cells, row.origin])
    return f"{markdown_table(lines)}\n\n{NOTE}"


def table(rows: list[Row]) -> str:
    """The same as csv, with all four decimals; empty for what is not there."""
    lines = [["encoding", *COLUMNS, "mean", "from"]]
    for row in rows:
        cells = ["" if cell is None else round(cell, 4) for cell in row.cells]
        lines.append([row.encoding, *cells, row.origin])
    return csv_table(lines)
