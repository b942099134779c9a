"""Finished runs as rows in one table of pandas, for a notebook: `from tape.results import load`.

rows = load(["docs/results/addition"])
table(rows, by="row")             means and 95 % intervals over seeds
differences(rows, "rope")         to one row, paired by seed, with tests
curve(rows, x="length")           lines with bands over seeds
heat(rows, "depth", "length")     maps side by side
"""

from tape.core.statistics import differences, table
from tape.evaluation.figures import curve, heat
from tape.results.rows import load

__all__ = ["curve", "differences", "heat", "load", "table"]
