"""The results of perplexity: by the length of the window, and by the position in it.

perplexity.csv has a row per model, extension without training, text, convention and length: how
many tokens were scored, the mean loss `nll` (nats), and perplexity = exp(nll).
perplexity_by_position.csv has the mean loss of the tokens with first..last tokens before them in
their window. perplexity.png shows both. perplexity_by_document.csv has the mean loss of the scored
tokens of each document, by its number in the text; a window belongs to the document of its first
scored token.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from tape.data.ngrams import ORDERS
from tape.evaluation.figures import draw_panel
from tape.evaluation.scoring import Perplexity, exp
from tape.evaluation.tables import add_rows, read_table
from tape.evaluation.view import PERPLEXITY, WHOLE, Asked, Column, Evaluation, Panel, View, select
from tape.evaluation.windows import ALIKE, SPREAD

# What a row is about: it is there once.
ABOUT = ("model", "extend", "model_hash", "data", "data_hash", "convention", "length")
ABOUT += ("stride", "batch_size", "dtype")
OF_MODEL = ("model", "extend", "model_hash", "length")
COLUMNS = (*ABOUT, "tokens", "nll", "perplexity")
POSITION_COLUMNS = (*ABOUT, "first", "last", "tokens", "nll")
DOCUMENT_COLUMNS = (*ABOUT, "document", "tokens", "nll")

# The context gain compares tokens that are scored in at least this many windows.
MIN_WINDOWS = 100
FEW_TOKENS = 4096  # below, the choice of the text may outweigh what is compared

LEAST_SPAN = 0.05  # of an axis of values, as a share of them
LOSS, BEFORE = "loss (nats per token)", "tokens before it"
LABELS = "window (tokens)", "perplexity"
# Losses of n-gram models, from the reports of runs: of the same text, but of other tokens.
NGRAMS = tuple(f"{name} loss" for name in ORDERS)

# Where bins of positions begin: four in an octave, as far as whole numbers allow.
BINS = np.unique(np.rint(2 ** (np.arange(120) / 4)).astype(np.int64))

Binned = list[tuple[int, int, float]]  # bin, tokens, their summed loss


def binned(positions: np.ndarray, losses: np.ndarray) -> Binned:
    """Groups the losses of tokens by the number of tokens before them in the window."""
    bins = np.searchsorted(BINS, positions, side="right") - 1
    tokens, sums = np.bincount(bins), np.bincount(bins, losses)
    return [(int(k), int(tokens[k]), float(sums[k])) for k in tokens.nonzero()[0]]


def scoring_note(convention: str, stride: Any, counts: dict[int, int], text: str) -> str:
    """Says which tokens were scored, how many (by the length of the windows), whether perplexities
    of different lengths are of the same tokens, and whether they are few."""
    how = f"convention {convention}" + (f", stride {int(stride):,}" if stride != "" else "")
    lines = [f"Scored ({how}): {scored_counts(counts)} of {text}."]
    if convention not in ALIKE and len(counts) > 1:
        lines.append(
            "Windows of other lengths score other tokens, short ones with less context: compare "
            "models at one length, not lengths (--convention spread scores the same tokens)."
        )
    if min(counts.values()) < FEW_TOKENS:
        lines.append(
            f"Fewer than {FEW_TOKENS:,} tokens: differences of a few percent may be those of the "
            "chosen text."
        )
    return "\n".join(lines)


def scored_counts(counts: dict[int, int]) -> str:
    """Formats numbers of scored tokens by length."""
    if len({*counts.values()}) == 1:
        each = " at each length" * (len(counts) > 1)
        return f"{next(iter(counts.values())):,} tokens{each}"
    return ", ".join(f"{tokens:,} tokens at {n:,}" for n, tokens in sorted(counts.items()))


def write(
    path: Path,
    about: dict[str, Any],
    batches: dict[int, list[Binned]],
    alone: bool = False,
    windows: pd.DataFrame | None = None,
) -> list[Perplexity]:
    """Adds the results at several lengths to the tables, or replaces these if they hold one
    measurement `alone`: the mean over all tokens, and in each bin of positions. `about` has a value
    for each of ABOUT but the length, empty where it does not apply; `batches` by length the losses
    of each batch; `windows` (columns length, tokens, loss) the tokens and summed losses that count
    in the means, if these are not all."""
    found, rows, bins = [], [], []
    for length, each in sorted(batches.items()):
        key = about | {"length": length}
        parts = [part for batch in each for part in batch]
        sums = pd.DataFrame(parts, columns=["bin", "tokens", "loss"]).groupby("bin").sum()
        counted = sums if windows is None else windows[windows["length"] == length]
        tokens = int(counted["tokens"].sum())
        nll = float(counted["loss"].sum() / tokens)
        found.append(Perplexity(length, tokens, nll))
        rows.append(key | {"tokens": tokens, "nll": nll, "perplexity": exp(nll)})
        for k, tokens, loss in sums.itertuples():
            place = {"first": int(BINS[k]), "last": min(int(BINS[k + 1]), length) - 1}
            bins.append(key | place | {"tokens": tokens, "nll": loss / tokens})
    add_rows(position_table(path), POSITION_COLUMNS, 0 if alone else len(ABOUT) + 2, bins)
    add_rows(path, COLUMNS, 0 if alone else len(ABOUT), rows)
    return found


def write_documents(
    path: Path, about: dict[str, Any], windows: pd.DataFrame, alone: bool = False
) -> None:
    """Adds or replaces, as `write`, the mean losses by document; `windows` have the columns length,
    document, tokens and loss, their sum."""
    sums = windows.groupby(["length", "document"])[["tokens", "loss"]].sum()
    rows = [
        about | {"length": length, "document": number, "tokens": int(n), "nll": loss / n}
        for (length, number), n, loss in sums.itertuples()
    ]
    add_rows(document_table(path), DOCUMENT_COLUMNS, 0 if alone else len(ABOUT) + 1, rows)


def document_table(path: Path) -> Path:
    return path.with_name(f"{path.stem}_by_document.csv")


def position_table(path: Path) -> Path:
    return path.with_name(f"{path.stem}_by_position.csv")


def read_curves(path: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Returns the rows of a table, and of that by position beside it; none without a file."""
    rows = read_table(path, COLUMNS, ("length", "tokens", "nll", "perplexity"))
    numbers = ("length", "first", "last", "tokens", "nll")
    return rows, read_table(position_table(path), POSITION_COLUMNS, numbers)


def _scoring(rows: pd.DataFrame) -> pd.Series:
    """Returns the number of windows that score the positions of each bin."""
    return rows["n"] / (rows["last"] - rows["first"] + 1)


def by_middle(rows: pd.DataFrame) -> pd.DataFrame:
    """Returns the bins of positions, with their middle as `position`, that are scored in at least
    half as many windows as any of their run: under `sliding`, all but the last `stride` positions
    are those of a single window."""
    bins = select(rows, "loss", lambda rows: rows["first"].notna())
    windows = _scoring(bins)
    shown = windows >= windows.groupby(bins["run"]).transform("max") / 2
    return bins.assign(position=(bins["first"] * bins["last"]) ** 0.5)[shown]


def read_evaluation(folder: Path) -> Evaluation:
    """Reads the one measurement in a folder's perplexity.csv: the loss of whole windows by their
    length, and of the longest windows by the number of tokens before (from `first` to `last`).

    Raises:
        ValueError: if there are several measurements or none, or a file is damaged.
    """
    rows, bins = read_curves(path := folder / "perplexity.csv")
    about = [column for column in ABOUT if column != "length"]
    differing = [name for name in about if rows[name].nunique() > 1]
    if rows.empty or differing:
        what = f"one measurement of one model ({', '.join(differing) or 'no row at all'})"
        raise ValueError(f"{path} does not hold {what}: remove it and measure again")
    bins = bins.merge(rows[about].drop_duplicates())
    if bins.empty:
        where = position_table(path)
        raise ValueError(f"{where} is missing, or not of the measurement in {path}: measure again")
    rows = rows.sort_values("length", ignore_index=True)
    asked = rows[about].iloc[0].to_dict() | {"lengths": rows["length"].tolist()}
    asked["model"] = asked.pop("model_hash")
    if not asked["extend"]:
        del asked["extend"]
    if asked["convention"] == SPREAD:
        asked["scored_tokens"] = int(rows["tokens"].iloc[0])
    return Evaluation(asked, _long_form([rows, bins[bins["length"] == asked["lengths"][-1]]]))


def _long_form(tables: list[pd.DataFrame]) -> pd.DataFrame:
    """Returns the losses of both tables; those of whole windows have no `first` and `last`."""
    names = {"nll": "value", "tokens": "n"}
    found = pd.concat(tables, ignore_index=True).rename(columns=names)
    numbers = found[["length", "first", "last", "value"]].astype(float)
    return numbers.assign(measure="loss", n=found["n"].astype(int), unit="nats")


def figure_of(rows: pd.DataFrame, bins: pd.DataFrame) -> Figure:
    """Returns perplexity by the length of the window, and the loss by the position in it, with a
    line for each model, text and convention: of its longest windows, or of all windows of a lone
    one. Lines are named by what differs between them."""
    both = pd.concat([rows, bins], ignore_index=True)
    about = both[[name for name in ABOUT if name != "length"]]
    without_hashes = about.drop(columns=["model_hash", "data_hash"])
    if len(about.drop_duplicates()) == len(without_hashes.drop_duplicates()):
        about = without_hashes
    differing = [*about.columns[about.nunique() > 1]]
    named = differing if {*differing} - {"extend"} else ["model", *differing]
    shown = about[named]
    names = shown.agg(lambda each: " ".join(filter(None, each)), axis=1)
    found = _long_form([rows, bins]).assign(row=names, seed=0)
    lengths = found["length"].map("{:,.0f}".format)
    if len(differing):
        lengths = names + ", " + lengths
        lengths = lengths[found["length"] == found.groupby("row")["length"].transform("max")]
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    draw_panel(left, Panel(_by_length, "length", LABELS, "x"), _by_length(found))
    bins = by_middle(found.assign(row=lengths, run=lengths))
    draw_panel(right, Panel(by_middle, "position", (f"{BEFORE} in the window", LOSS), "x"), bins)
    for above, line in enumerate(reversed(right.lines)):  # a longer window goes on where others end
        line.set_zorder(2 + above / len(right.lines))
    for axes, title in ((left, None), (right, "window")):
        axes.legend(title=title)
        low, high = axes.get_ylim()
        if high - low < LEAST_SPAN * high:  # or a change of nothing looks steep
            middle = (low + high) / 2
            axes.set_ylim(middle * (1 - LEAST_SPAN / 2), middle * (1 + LEAST_SPAN / 2))
    left.set_xticks(sorted({*found["length"]}), minor=False)
    kept = ["convention", "stride"]
    whole = about.iloc[: len(rows)][kept].assign(length=found["length"], tokens=found["n"])
    whole = whole.groupby(kept, sort=False).agg(lambda x: [*map(int, x)])
    titles = [title_of(*key, dict(zip(*each, strict=True))) for key, *each in whole.itertuples()]
    left.set_title("\n".join(titles), fontsize="small")
    return figure


def title_of(convention: str, stride: Any, counts: dict[int, int]) -> str:
    """Says in a picture which tokens were scored: their numbers by length, or of all lengths."""
    stride = f", stride {int(stride):,}" if stride != "" else ""
    shown = scored_counts(counts)
    if len(shown) > 40:
        shown = f"{min(counts.values()):,} to {max(counts.values()):,} tokens, not the same"
    return f"{convention}{stride}: {shown}"


def context_gain(rows: pd.DataFrame, trained: int) -> list[dict[str, Any]]:
    """What context is worth to a model: the mean loss of tokens with 2 to 7 tokens before them
    minus that of the bins within the last half of the trained length (all of it for powers of two:
    else the bins at its borders are left out), in the longest windows, as a row. None below
    16 tokens, where both would be the same, and if fewer than MIN_WINDOWS windows score these
    tokens: under `sliding`, only the first window scores those at its beginning. `rows` are those
    of `read_evaluation`."""
    losses = []
    for first, last in ((2, 7), (trained // 2, trained - 1)):
        part = rows[(rows["first"] >= first) & (rows["last"] <= last)]
        if trained < 16 or part.empty or _scoring(part).min() < MIN_WINDOWS:
            return []
        losses.append(np.average(part["value"], weights=part["n"]))
    gain = {"measure": "context gain", "value": losses[0] - losses[1], "unit": "nats"}
    return [gain | {"n": int(part["n"].sum())}]


def _whole(rows: pd.DataFrame, length: int) -> pd.Series:
    """Whether rows are of whole windows of a length, which have no positions."""
    return (rows["length"] == length) & rows["first"].isna()


def _by_length(rows: pd.DataFrame) -> pd.DataFrame:
    """Returns the perplexity of whole windows."""
    windows = select(rows, "loss", lambda rows: rows["first"].isna())
    return windows.assign(value=windows["value"].map(exp))


def _columns(asked: list[Asked], rows: pd.DataFrame) -> list[Column]:
    lengths = asked[0]["lengths"]
    columns = []
    for n in lengths:
        compared = f"{n:,}" if n in (lengths[0], lengths[-1]) else ""
        where = partial(_whole, length=n)
        columns.append(Column(f"perplexity {n:,}", "loss", PERPLEXITY, where, compared))
    having = rows[rows["measure"] == "context gain"]["run"]
    if having.nunique() == rows["run"].nunique():
        columns.append(Column("context gain, nats", "context gain"))
    if (rows["measure"] == "speed").any():
        columns.append(Column("tokens/s", "speed", WHOLE, cost=True))
        columns.append(Column("memory, GiB", "peak memory", cost=True))
    return columns


def _scored(asked: Asked, rows: pd.DataFrame) -> dict[str, Any]:
    whole = select(rows, "loss", lambda rows: rows["first"].isna())
    counts = {int(n): int(tokens) for n, tokens in whole.groupby("length")["n"].max().items()}
    return {"convention": asked["convention"], "stride": asked["stride"], "counts": counts}


class Results(NamedTuple):
    """As tables read and show an evaluation, like `Accuracy`."""

    read: Callable[[Path], Evaluation]
    view: View


VIEW = View(
    keys=(*(name for name in ABOUT if name not in OF_MODEL), "lengths", "scored_tokens"),
    note=lambda asked, rows: scoring_note(**_scored(asked, rows), text=asked["data"]),
    columns=_columns,
    best=lambda asked: partial(_whole, length=asked["lengths"][-1]),
    measure="loss",
    panels=(
        Panel(partial(select, measure="validation loss"), "step", ("steps", f"validation {LOSS}")),
        Panel(_by_length, "length", LABELS, "xy", title=lambda *of: title_of(**_scored(*of))),
        Panel(
            by_middle, "position", (f"{BEFORE} in the longest windows", LOSS), "x", levels=NGRAMS
        ),
    ),
)
RESULTS = Results(read_evaluation, VIEW)
