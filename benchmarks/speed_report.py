"""The speed of encodings as csv, as tables next to the paper's Table 4, and as pictures."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib
import pandas as pd
from matplotlib.figure import Figure

from benchmarks.harness import seconds_of
from benchmarks.timing import Spread
from tape.evaluation.figures import write_figure
from tape.evaluation.tables import markdown_table
from tape.files import write_text
from tape.positions import ENCODINGS

if TYPE_CHECKING:
    from benchmarks.speed import Case, Method

PAPER = Path(__file__).with_name("table4.csv")
PAPERS = {"hidden": 768, "heads": 12, "kv_heads": None, "batch": 1}  # of its times
NOTE = """\
Milliseconds of a forward pass, a training step or a prompt; in decoding, of one token: medians over
rounds in which all methods took turns. In brackets the time divided by that of rope in the same
round, backend and length, with quartiles. TFLOP/s: two per multiply-add of the whole N x N
attention. Share: of the peak TFLOP/s of a known GPU in 16 bits (the model FLOPs utilization, MFU),
elsewhere of those of a product of large matrices on the same machine (`reference`). Memory: peak of
tensors above those before."""
# Empty where a method could not run, and `note` says why. `first` and `third` are quartiles.
COLUMNS = [
    "scope",
    "work",
    "encoding",
    "implementation",
    "backend",
    "compiled",
    "dtype",
    "batch",
    "length",
    "rounds",
    "milliseconds",
    "milliseconds_first",
    "milliseconds_third",
    "ratio",
    "ratio_first",
    "ratio_third",
    "peer_ratio",
    "tokens_per_second",
    "tflops",
    "tflops_causal",
    "reference",
    "reference_tflops",
    "share",
    "share_causal",
    "memory_mib",
    "kernels",
    "note",
]
QUANTITIES = {"milliseconds": "ms", "ratio": "time / rope", "memory_mib": "memory (MiB)"}
PALETTE = [colour for name in ("tab20", "tab20b") for colour in matplotlib.colormaps[name].colors]
COLOURS = dict(zip(ENCODINGS, PALETTE, strict=False))
STYLES = {"here": "o-", "transformers": "x--", "torch": "+--", "x-transformers": "1:"}


def results(
    found: dict[str, pd.DataFrame], cases: list[Case], reference: str, rate: float
) -> pd.DataFrame:
    """Returns a row per case and method, in COLUMNS.

    Args:
        found: raw rows by the name of the case.
        reference, rate: what speeds are compared with, and its FLOP/s.
    """
    rows = []
    for case in cases:
        load, raw = case.load, found.get(str(case), pd.DataFrame(columns=["method"]))
        seconds = seconds_of(raw) if len(raw) else {}
        for name, each in raw.drop_duplicates("method").set_index("method").iterrows():
            method = case.methods[name]
            row = {
                "scope": case.scope,
                "work": load.work,
                "encoding": method.label,
                "implementation": method.implementation,
                "backend": case.backend,
                "compiled": "yes" if load.compiled else "no",
                "dtype": str(load.dtype).removeprefix("torch."),
                "batch": load.batch,
                "length": load.length,
                "rounds": len(seconds[name]),
                "kernels": each["kernels"],
                "note": each["note"],
            }
            if seconds[name]:
                row |= {"reference": reference, "reference_tflops": rate / 1e12}
                row |= speed(case, method, seconds, name, rate)
                row["memory_mib"] = each["memory"] / 2**20
            rows.append(row)
    return pd.DataFrame(rows, columns=COLUMNS)


def speed(
    case: Case, method: Method, seconds: dict[str, list[float]], name: str, rate: float
) -> dict[str, float]:
    load, own, once = case.load, seconds[name], Spread.of(seconds[name])
    calls = load.new if load.work == "decoding" else 1
    row, spreads = {}, {"milliseconds": Spread(*(1e3 * x / calls for x in once))}
    if base := seconds["rope"]:
        spreads["ratio"] = Spread.of_ratios(own, base)
    for column, spread in spreads.items():
        row |= dict(zip((column, f"{column}_first", f"{column}_third"), spread, strict=True))
    if method.implementation != "here" and (here := seconds[method.encoding]):
        row["peer_ratio"] = Spread.of_ratios(own, here).median
    for rule, causal in (("", False), ("_causal", True)):
        flops = 2 * case.multiply_adds(method, causal) / once.median
        row |= {f"tflops{rule}": flops / 1e12, f"share{rule}": flops / rate}
    tokens = load.new if load.work == "decoding" else load.length
    return row | {"tokens_per_second": load.batch * tokens / once.median}


def write(rows: pd.DataFrame, arguments: argparse.Namespace) -> str:
    """Writes speed.csv and the pictures to --out; returns all tables in markdown."""
    write_text(arguments.out / "speed.csv", rows.to_csv(index=False, float_format="%.6g"))
    rows = rows.assign(how=rows.backend + rows.compiled.map({"no": "", "yes": ", compiled"}))
    other = (", " + rows.implementation).where(rows.implementation != "here", "")
    rows["method"] = rows.encoding + other
    timed = rows[rows.milliseconds.notna()]
    parts = [NOTE]
    if PAPERS.items() <= vars(arguments).items():
        parts += beside_paper(timed)
    for kind, group in timed.groupby(["scope", "work", "how"]):
        parts += [f"## {', '.join(kind)}", by_length(group)]
    for (scope, how), group in timed.groupby(["scope", "how"]):
        name = f"speed_{scope}_{how.replace(', ', '_')}"
        write_figure(figure_of(group, f"{scope}, {how}"), arguments.out / name)
    return "\n\n".join([*parts, *compared(timed), *left_out(rows[rows.note != ""])])


def by_length(group: pd.DataFrame) -> str:
    """Returns a row per method, a column per length, and more of its longest length."""
    lengths = sorted(group.length.unique())
    head = ["encoding", *(f"ms, {length:,}" for length in lengths)]
    lines = [[*head, "tokens/s", "TFLOP/s", "share", "memory, MiB", "kernels"]]
    for method, own in group.groupby("method", sort=False):
        at = own.set_index("length")
        last = at.loc[max(at.index)]
        times = [time_of(at.loc[length]) if length in at.index else "" for length in lengths]
        share = [f"{last.tflops:.3g}", f"{last.share:.1%}", f"{last.memory_mib:,.1f}"]
        rate = f"{last.tokens_per_second:,.0f}"
        lines.append([method, *times, rate, *share, last.kernels or "unfused"])
    return markdown_table(lines)


def time_of(row: pd.Series) -> str:
    time = f"{row.milliseconds:.3g}" if row.milliseconds < 1e3 else f"{row.milliseconds:,.0f}"
    ratio = f"({row.ratio:.2f}; {row.ratio_first:.2f} to {row.ratio_third:.2f})"
    return time if pd.isna(row.ratio) else f"{time} {ratio}"


def beside_paper(timed: pd.DataFrame) -> Iterator[str]:
    """A layer's forward pass for 1,024 tokens next to the paper's Table 4: each encoding in its
    fastest fused backend, the row that is not fused under eager attention. Ratios are within
    rounds; in another backend than RoPE's they are of medians."""
    published = pd.read_csv(PAPER)
    ours = timed.query("scope == 'layer' and work == 'forward' and length == 1024")
    ours = ours[ours.implementation == "here"].sort_values("milliseconds")

    def best(row: pd.Series) -> pd.DataFrame:
        eager = (ours.backend == "eager") == (row["name"] == "TAPE, not fused")
        return ours[eager & (ours.encoding == row.encoding)].head(1)

    rope = best(published.loc[0])
    lines = [["Table 4", "paper, ms", "paper, / RoPE", "here, ms", "here, / RoPE", "here, kernel"]]
    for _, row in published.iterrows():
        cells = ["", "", ""]
        for _, found in best(row).iterrows() if len(rope) else ():
            ratio = f"{found.ratio:.2f}"
            if found.how != rope.how.iloc[0]:  # they took no turns with each other
                ratio = f"{found.milliseconds / rope.milliseconds.iloc[0]:.2f}, medians"
            cells = [f"{found.milliseconds:.3g}", ratio, found.how]
        against = row.time / published.time[0]
        lines.append([row["name"], f"{row.time / 10:.3f}", f"{against:.2f}", *cells])
    if len(rope):
        yield markdown_table(lines)


def compared(timed: pd.DataFrame) -> Iterator[str]:
    """Times of peers divided by those of the same encoding here."""
    lines = [["peer", "encoding", "work", "kernel", "length", "time / here"]]
    for row in timed[timed.peer_ratio.notna()].itertuples():
        about = [row.implementation, row.encoding, f"{row.scope}, {row.work}", row.how]
        lines.append([*about, f"{row.length:,}", f"{row.peer_ratio:.2f}"])
    if len(lines) > 1:
        yield f"## Peers\n\n{markdown_table(lines)}"


def left_out(rows: pd.DataFrame) -> Iterator[str]:
    """What could not run, by the reason."""
    missing = rows.assign(
        place=rows.scope + ", " + rows.work + ", " + rows.how,
        lengths=rows.length.map("{:,}".format),
        why=rows.note.str.replace("|", "/"),
    )
    by_method = missing.groupby(["why", "place", "method"], sort=False)["lengths"]
    missing = by_method.agg(" ".join).reset_index()
    by_lengths = missing.groupby(["place", "lengths", "why"], sort=False)["method"]
    missing = by_lengths.agg("; ".join).reset_index()
    lines = [["work", "lengths", "not measured", "why"]]
    lines += missing[["place", "lengths", "method", "why"]].to_numpy().tolist()
    if len(lines) > 1:
        yield f"## Left out\n\n{markdown_table(lines)}"


def figure_of(group: pd.DataFrame, title: str) -> Figure:
    """Returns a row of panels per quantity, a column per work, with a line per method. The methods
    of an encoding have one colour."""
    kinds, lines = group.work.unique(), {}
    figure = Figure(figsize=(3.6 * len(kinds) + 2.4, 8.4), layout="constrained")
    panels = figure.subplots(len(QUANTITIES), len(kinds), squeeze=False, sharex=True)
    for row, (quantity, label) in zip(panels, QUANTITIES.items(), strict=True):
        for axes, work in zip(row, kinds, strict=True):
            shown = group[group.work == work].sort_values("length")
            for method, line in shown.dropna(subset=quantity).groupby("method", sort=False):
                encoding, _, without = line.encoding.iloc[0].partition(" ")
                style = "s:" if without else STYLES[line.implementation.iloc[0]]
                about = {"color": COLOURS[encoding], "markersize": 4}
                (lines[method],) = axes.plot(line.length, line[quantity], style, **about)
            axes.set_xscale("log", base=2)
            lengths = shown.length.unique()
            axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
            axes.set_yscale("linear" if quantity == "ratio" else "log")
            axes.grid(alpha=0.3)
            per = " per token" if quantity == "milliseconds" and work == "decoding" else ""
            axes.set_ylabel(label + per)
            panels[0, list(kinds).index(work)].set_title(work)
            panels[-1, list(kinds).index(work)].set_xlabel("tokens")
    names = [name for name in group.method.unique() if name in lines]
    figure.legend([lines[name] for name in names], names, loc="outside right upper")
    figure.suptitle(title)
    return figure
