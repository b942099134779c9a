"""The speed of encodings as tables: all of it as csv, to be read as markdown, beside Table 4."""

from __future__ import annotations

import csv
from collections import defaultdict
from dataclasses import asdict, dataclass, fields
from itertools import groupby
from pathlib import Path
from typing import Any

from tape.analysis.comparison import ROPE, THIS_PACKAGE, Comparison, Method
from tape.analysis.measuring import Seconds
from tape.evaluation.tables import csv_table, markdown_table

PAPER = Path(__file__).with_name("table4.csv")
PAPERS = {"hidden": 768, "heads": 12, "kv_heads": None, "batch": 1}  # what its times are of
NOTE = """\
Milliseconds of a forward pass, a training step or a prompt, of decoding those of one token: medians
over rounds in which all methods took turns. In brackets the time over that of rope, kernel, length
and round being the same. TFLOP/s: two for each multiply-add of the whole N x N attention; MFU: of
what the device reached in a product of matrices. Memory: tensors, above those from before."""


@dataclass(frozen=True)
class Result:
    """One method in one comparison; empty where it could not take part, and why is in `note`.

    Milliseconds are those of one token in decoding, else of the whole; ratios are over rope here,
    `peer_ratio` over the same encoding here; `first` and `third` are quartiles.
    """

    scope: str
    work: str
    encoding: str
    implementation: str
    backend: str
    compiled: str
    dtype: str
    batch: int
    length: int
    rounds: int
    milliseconds: float | None = None
    milliseconds_first: float | None = None
    milliseconds_third: float | None = None
    ratio: float | None = None
    ratio_first: float | None = None
    ratio_third: float | None = None
    peer_ratio: float | None = None
    tokens_per_second: float | None = None
    tflops: float | None = None
    tflops_causal: float | None = None
    peak_tflops: float | None = None
    mfu: float | None = None
    mfu_causal: float | None = None
    memory_mib: float | None = None
    kernels: str = ""
    note: str = ""

    @property
    def method(self) -> str:
        other = "" if self.implementation == THIS_PACKAGE else f", {self.implementation}"
        return self.encoding + other


def results(
    rows: list[dict[str, Any]], comparisons: list[Comparison], shape: dict[str, int | None]
) -> list[Result]:
    """From the rows of a journal."""
    found = []
    for row in sorted(rows, key=lambda row: row["batch"]):
        comparison = comparisons[row["batch"]]
        timed = {_method(r): r["seconds"] for r in row["methods"] if r["seconds"]}
        seconds = Seconds({str(method): times for method, times in timed.items()})
        for measured in row["methods"]:
            method = _method(measured)
            about = _about(comparison, method, len(measured["seconds"]))
            if measured["seconds"]:
                about |= _speed(comparison, method, seconds, shape, row["peak"])
                about["memory_mib"] = measured["memory"] / 2**20
                about["kernels"] = "; ".join(measured["kernels"])
            found.append(Result(**about, note=measured["note"]))
    return found


def _method(row: dict[str, Any]) -> Method:
    return Method(row["encoding"], row["implementation"], row["update"])


def _about(comparison: Comparison, method: Method, rounds: int) -> dict[str, Any]:
    load = comparison.load
    return {
        "scope": comparison.scope,
        "work": load.work,
        "encoding": method.about,
        "implementation": method.implementation,
        "backend": comparison.backend,
        "compiled": "yes" if load.compiled else "no",
        "dtype": str(load.dtype).removeprefix("torch."),
        "batch": load.batch,
        "length": load.length,
        "rounds": rounds,
    }


def _speed(
    comparison: Comparison,
    method: Method,
    seconds: Seconds,
    shape: dict[str, int | None],
    peak: float,
) -> dict[str, float]:
    load, name = comparison.load, str(method)
    times, tokens = (load.new, load.new) if load.work == "decoding" else (1, load.length)
    once, spread = seconds.median(name), seconds.spread(name)
    found = {"milliseconds": 1e3 * once / times}
    for quartile, value in zip(("first", "third"), spread, strict=True):
        found[f"milliseconds_{quartile}"] = 1e3 * value / times
    if str(ROPE) in seconds.rounds:
        found["ratio"] = seconds.ratio(name, str(ROPE))
        found["ratio_first"], found["ratio_third"] = seconds.quartiles(name, str(ROPE))
    same = str(Method(method.encoding))
    if method.implementation != THIS_PACKAGE and same in seconds.rounds:
        found["peer_ratio"] = seconds.ratio(name, same)
    for rule, causal in (("", False), ("_causal", True)):
        flops = 2 * comparison.multiply_adds(method, shape, causal) / once
        found |= {f"tflops{rule}": flops / 1e12, f"mfu{rule}": flops / peak}
    found["tokens_per_second"] = load.batch * tokens / once
    return found | {"peak_tflops": peak / 1e12}


def table(found: list[Result]) -> str:
    """As csv, numbers with six digits."""
    lines = [[field.name for field in fields(Result)]]
    for result in found:
        cells = asdict(result).values()
        lines.append([f"{x:.6g}" if isinstance(x, float) else x for x in cells])
    return csv_table(lines)


def markdown(found: list[Result], about: dict[str, Any]) -> str:
    """All tables.

    Args:
        about: what was measured, and on what.
    """
    timed = [result for result in found if result.milliseconds is not None]
    settings = ", ".join(f"{key} {_plain(value)}" for key, value in about.items())
    parts = [settings, NOTE]
    if PAPERS.items() <= about.items():
        parts += [part for part in (beside_paper(timed),) if part]

    def kind(result: Result) -> tuple[str, ...]:
        return result.scope, result.work, result.backend, result.compiled

    for (scope, work, backend, compiled), group in groupby(sorted(timed, key=kind), kind):
        title = f"## {scope}, {work}, {backend}" + (", compiled" if compiled == "yes" else "")
        parts += [title, by_length(list(group))]
    parts += [part for part in (compared(timed), left_out(found)) if part]
    return "\n\n".join(parts) + "\n"


def _plain(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def by_length(group: list[Result]) -> str:
    """A row per method, a column per length, and more of the longest that it was measured at."""
    lengths = sorted({result.length for result in group})
    head = ["encoding", *(f"ms, {length:,}" for length in lengths)]
    lines = [[*head, "tokens/s", "TFLOP/s", "MFU", "memory, MiB", "kernels"]]
    for method in dict.fromkeys(result.method for result in group):
        at = {result.length: result for result in group if result.method == method}
        last = at[max(at)]
        lines.append(
            [
                method,
                *(_time(at.get(length)) for length in lengths),
                f"{last.tokens_per_second:,.0f}",
                f"{last.tflops:.3g}",
                f"{last.mfu:.1%}",
                f"{last.memory_mib:,.1f}",
                last.kernels or "unfused",
            ]
        )
    return markdown_table(lines)


def _time(result: Result | None) -> str:
    if result is None:
        return ""
    time = (
        f"{result.milliseconds:.3g}" if result.milliseconds < 1e3 else f"{result.milliseconds:,.0f}"
    )
    if result.ratio is None:
        return time
    return f"{time} ({result.ratio:.2f}; {result.ratio_first:.2f} to {result.ratio_third:.2f})"


def beside_paper(timed: list[Result]) -> str | None:
    """A forward pass of one layer for 1,024 tokens: the fastest kernels here, and what the paper's
    Table 4 has; of what is not fused, the fastest under eager attention."""
    with PAPER.open(encoding="utf-8", newline="") as file:
        published = list(csv.DictReader(file))
    here = [
        result
        for result in timed
        if (result.scope, result.work, result.length) == ("layer", "forward", 1024)
        and result.implementation == THIS_PACKAGE
    ]
    best = {}
    for row in published:
        kernels = [
            result
            for result in here
            if result.encoding == row["encoding"]
            and (result.backend == "eager") == (row["name"] == "TAPE, not fused")
        ]
        best[row["name"]] = min(kernels, key=lambda result: result.milliseconds, default=None)
    if best["RoPE"] is None:
        return None
    lines = [["Table 4", "paper, ms", "paper, / RoPE", "here, ms", "here, / RoPE", "here, kernel"]]
    for row in published:
        ours, paper = best[row["name"]], float(row["time"]) / 10
        cells = ["", "", ""]
        if ours is not None:
            ratio = ours.milliseconds / best["RoPE"].milliseconds
            compiled = ", compiled" if ours.compiled == "yes" else ""
            cells = [f"{ours.milliseconds:.3g}", f"{ratio:.2f}", ours.backend + compiled]
        against = float(row["time"]) / float(published[0]["time"])
        lines.append([row["name"], f"{paper:.3f}", f"{against:.2f}", *cells])
    return markdown_table(lines)


def compared(timed: list[Result]) -> str | None:
    """What others take, over the same encoding here."""
    lines = [["peer", "encoding", "work", "kernel", "length", "time / here"]]
    for result in timed:
        if result.peer_ratio is not None:
            compiled = ", compiled" if result.compiled == "yes" else ""
            work = f"{result.scope}, {result.work}"
            about = [work, result.backend + compiled, f"{result.length:,}"]
            lines.append(
                [result.implementation, result.encoding, *about, f"{result.peer_ratio:.2f}"]
            )
    return f"## Peers\n\n{markdown_table(lines)}" if len(lines) > 1 else None


def left_out(found: list[Result]) -> str | None:
    """What could not be measured, by the reason."""
    lengths: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for result in found:
        if result.note:
            compiled = ", compiled" if result.compiled == "yes" else ""
            place = f"{result.scope}, {result.work}, {result.backend}{compiled}"
            lengths[result.note, place, result.method].append(f"{result.length:,}")
    methods: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for (why, place, method), missing in lengths.items():
        methods[why, place, " ".join(missing)].append(method)
    if not methods:
        return None
    lines = [["work", "lengths", "not measured", "why"]]
    for (why, place, missing), left in methods.items():
        lines.append([place, missing, "; ".join(left), why.replace("|", "/")])
    return f"## Left out\n\n{markdown_table(lines)}"
