"""Table of SCROLLS results (the paper's Table 1), with rows of our own above the paper's."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from tape.evaluation.tables import markdown_table

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


def table(scores: dict[str, dict[str, float]], origin: str) -> pd.DataFrame:
    """Returns scores in percent, a row per encoding; the paper's Table 1 (validation sets) follows.
    `mean`, the benchmark's score, is missing where a task is.

    Args:
        scores: by encoding and task.
        origin: where they are from.
    """
    ours = [{"encoding": name, **of, "from": origin} for name, of in scores.items()]
    rows = pd.concat([pd.DataFrame(ours), pd.read_csv(PAPER)], ignore_index=True)
    rows["mean"] = rows.reindex(columns=[*COLUMNS]).mean(axis="columns", skipna=False)
    return rows.reindex(columns=["encoding", *COLUMNS, "mean", "from"])


def markdown(rows: pd.DataFrame) -> str:
    """With two decimals, as in the paper; "-" for what is not there."""
    shown = rows.rename(columns=COLUMNS | {"mean": "Avg"}).map(
        lambda cell: cell if isinstance(cell, str) else "-" if pd.isna(cell) else f"{cell:.2f}"
    )
    return f"{markdown_table([shown.columns, *shown.to_numpy()])}\n\n{NOTE}"


def csv_of(rows: pd.DataFrame) -> str:
    """With all four decimals; empty for what is not there."""
    return rows.round(4).to_csv(index=False, lineterminator="\n")
