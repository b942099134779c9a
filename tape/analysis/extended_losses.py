"""Losses by position of documents that a model reads beyond its trained length, by the method of
--extend: the results of script/smollm2_free.sh as rows, a table and a picture.
"""

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from tape.core.files import reading, write_text
from tape.core.statistics import differences
from tape.evaluation.figures import curve, log_axes, write_figure
from tape.evaluation.tables import markdown_table, over_seeds, write_rows

TRAINED, LONGEST = 8192, 16384
# The last positions of texts of some lengths, as far as the bins of tape perplexity go.
PARTS = {4096: 3444, TRAINED: 6889, 13777: 11585, LONGEST: 13777}
NONE, DYNAMIC = "none", "dynamic ntk"
# Dynamic NTK has NTK's factor T / L in a text of T tokens: by T, the row that is the same.
SAME = {4096: NONE, TRAINED: NONE, 13777: "ntk 1.682", LONGEST: "ntk 2"}
COLUMNS = ["document", "method", "length", "first", "last", "tokens", "nll"]
COUNTS = ("length", "first", "last", "tokens")


def gathered(folder: Path) -> pd.DataFrame:
    """Returns the rows of all documents in a folder of results, one for each bin of positions;
    raises a ValueError if there are none."""
    files = sorted(folder.glob("losses/*_by_position.csv"))
    if not files:
        raise ValueError(f"{folder} has no losses by position: run bash script/smollm2_free.sh")
    found = []
    for path in files:
        with reading(path):
            rows = pd.read_csv(path, keep_default_na=False)
            method = rows["extend"].replace("", NONE)
            name = path.name.removesuffix("_by_position.csv")
            found.append(rows.assign(document=name, method=method)[COLUMNS])
    return pd.concat(found, ignore_index=True)


def complete(rows: pd.DataFrame) -> pd.DataFrame:
    """Returns the rows of the documents that as many methods have read as any document."""
    read = rows.groupby("document")["method"].transform("nunique")
    return rows[read == read.max()]


def by_length(rows: pd.DataFrame) -> pd.DataFrame:
    """Returns the mean loss `value` of the last `n` positions of texts of each length of `PARTS`,
    with the method as `row` and the document as `seed`."""
    found = []
    for length, first in PARTS.items():
        part = rows[rows["first"] == first].rename(columns={"nll": "value", "tokens": "n"})
        part = part.rename(columns={"method": "row", "document": "seed"})
        # A shorter window is dynamic NTK's own.
        whole, own = part[part["length"] == LONGEST], part[part["row"] == SAME[length]]
        found.append(pd.concat([whole, own.assign(row=DYNAMIC)]).assign(length=length))
    return pd.concat(found, ignore_index=True)[["row", "seed", "length", "value", "n"]]


def table(rows: pd.DataFrame) -> str:
    """Returns the mean loss over documents by method and length, and its difference from that
    without a method, paired by document, with 95 % intervals."""
    values = by_length(rows)
    methods = [NONE, *sorted({*values["row"]} - {NONE})]
    of_length = {length: values[values["length"] == length] for length in PARTS}
    last = of_length[LONGEST].groupby("row")["value"].mean()
    methods.sort(key=lambda method: (method != NONE, last[method]))
    paired = values["seed"].nunique() > 1
    compared = {n: differences(x, NONE) for n, x in of_length.items()} if paired else {}
    head = ["method", *(f"to {length:,}" for length in PARTS)]
    lines = [[*head, *(f"to {n:,}, minus none" for n in compared)]]
    for method in methods:
        line = [method]
        for part in of_length.values():
            line.append(over_seeds(part[part["row"] == method]["value"].tolist(), 3))
        for found in compared.values():
            cell = "-"
            if method in found.index:
                each = found.loc[method]
                cell = f"{each['mean']:+z.3f} ± {each['half_width']:.3f} (p {each['p']:.2g})"
            line.append(cell)
        lines.append(line)
    return markdown_table(lines)


def picture(rows: pd.DataFrame) -> Figure:
    """Returns the loss by position, a line for each method that reads the longest window."""
    whole = rows[(rows["length"] == LONGEST) & (rows["first"] >= 256)]
    middle = (whole["first"] * whole["last"]) ** 0.5
    drawn = whole.assign(row=whole["method"], seed=whole["document"], position=middle)
    drawn = drawn.rename(columns={"nll": "value", "tokens": "n"})
    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.subplots()
    curve(drawn, "position", axes=axes)
    axes.axvline(TRAINED, color="tab:red", linestyle=":", label="trained up to here")
    log_axes(axes, "x")
    axes.set(xlabel="tokens before it", ylabel="loss (nats per token)")
    axes.legend(fontsize="small")
    return figure


def publish(results: str, into: str) -> None:
    """Writes the rows of a folder of results to another one, and the table and the picture of the
    documents that all methods have read."""
    rows, target = gathered(Path(results)), Path(into)
    write_rows(target / "losses.csv", rows, COUNTS)
    whole = complete(rows)
    write_figure(picture(whole), target / "losses", ["png"])
    write_text(target / "table.md", f"{table(whole)}\n")
