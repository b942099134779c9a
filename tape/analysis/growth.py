"""How time and memory grow with the length, from results of benchmarks/speed.py."""

from itertools import cycle

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from tape.evaluation.figures import STYLES, log_axes, side_by_side
from tape.evaluation.tables import markdown_table

LEAST = 3  # lengths of an exponent
ABOUT = """\
Exponents: least-squares slopes of ln(time) and ln(memory) against ln(length), of methods with
at least 3 lengths; (n lengths): fewer than others have. Picture: growth.png."""
TIME, MEMORY = "milliseconds", "memory_mib"
Panels = list[tuple[str, str, str, pd.DataFrame]]  # work, measure, its label, and rows


def panels(found: pd.DataFrame) -> Panels:
    """Returns the rows of methods that were measured at LEAST lengths, by work and measure. The
    memory of decoding is left out: it does not include the cache."""
    every, kind = [], ["case", "work", "backend", "compiled"]
    rows = found.dropna(subset=TIME).sort_values("length", kind="stable")
    lengths = rows.groupby([*kind, "method"])["length"].transform("count")
    for (case, work, backend, compiled), own in rows[lengths >= LEAST].groupby(kind, sort=False):
        title = f"{case}, {work}, {backend}{', compiled' * compiled}"
        if work == "decoding":
            every.append((title, TIME, "time per token, ms", own))
        else:
            every += [(title, TIME, "time, ms", own), (title, MEMORY, "memory, MiB", own)]
    return every


def exponents(rows: pd.DataFrame, measure: str) -> dict[str, str]:
    """Returns the exponent of each method in the rows of a panel."""
    found = {}
    for method, line in rows.groupby("method", sort=False):
        slope, _ = np.polyfit(np.log(line["length"]), np.log(line[measure]), 1)
        fewer = len(line) < rows["length"].nunique()
        found[method] = f"{slope:.2f}" + f" ({len(line)} lengths)" * fewer
    return found


def table(every: Panels) -> str:
    """Returns all exponents in markdown."""
    lines = [["work", "measure", "method", "exponent"]]
    for work, measure, label, rows in every:
        lines += [[work, label, *each] for each in exponents(rows, measure).items()]
    return markdown_table(lines)


def curves(every: Panels) -> Figure:
    """Draws a line per method in each panel, of time with the band between its quartiles."""
    figure, places = side_by_side(len(every), 2, (6.5, 4))
    methods = pd.concat(rows["method"] for *_, rows in every).unique()
    styles = dict(zip(methods, cycle(STYLES), strict=False))
    for axes, (work, measure, label, rows) in zip(places, every, strict=True):
        for method, exponent in exponents(rows, measure).items():
            line, style = rows[rows["method"] == method], styles[method]
            axes.plot(line["length"], line[measure], ".", label=f"{method}: {exponent}", **style)
            if measure == TIME:
                ends = line[f"{TIME}_first"], line[f"{TIME}_third"]
                axes.fill_between(line["length"], *ends, color=style["color"], alpha=0.15, lw=0)
        log_axes(axes, "xy")
        axes.set(title=work, xlabel="tokens", ylabel=label)
        axes.grid(alpha=0.3)
        axes.legend(title="exponent", fontsize="small", loc="upper left", bbox_to_anchor=(1, 1))
    return figure
