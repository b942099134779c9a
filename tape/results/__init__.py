"""Finished runs as rows in one table of pandas, for a notebook: `from tape.results import load`.

    rows = load(["docs/results/addition"])
    table(rows, by="row")             means and 95 % intervals over seeds
    differences(rows, "rope")         to one row, paired by seed, with tests
    curve(rows, x="length")           lines with bands over seeds
    heat(rows, "depth", "length")     maps side by side

`tape compare` (compare.py) writes these for runs and saved results, which runs.py reads and rows.py
groups; tape/statistics.py summarizes. The VIEW of each kind of evaluation says what is shown
(tape/evaluation/view.py).
"""

from importlib import import_module
from typing import Any

HOMES = {
    "load": "tape.results.rows",
    "table": "tape.statistics",
    "differences": "tape.statistics",
    "curve": "tape.evaluation.figures",
    "heat": "tape.evaluation.figures",
}
__all__ = [*HOMES]


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(HOMES[name]), name)
