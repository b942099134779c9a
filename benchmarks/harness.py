"""The harness of all benchmarks: methods take turns, raw rows go to disk, tables are made of them.

A benchmark is a list of comparisons. In each, the methods are set up one after the other and called
once for their memory and attention kernels; then they are timed in rounds of alternating order, so
that slow phases of the machine affect all of them. Ratios of two methods are taken within rounds.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch
import transformers
from torch._dynamo.exc import TorchDynamoException
from torch._inductor.exc import InductorError
from tqdm import tqdm

import tape
from benchmarks.models import DEVICE, SHAPES
from benchmarks.timing import Spread, Work, in_turn, limit_memory, memory_in_use, observed
from tape import provenance as origin
from tape.attention.backends import KERNELS
from tape.command import Distinct, Parser, integer, result_folder
from tape.evaluation.tables import markdown_table
from tape.files import read_object, reading, write_text
from tape.runs.folder import differences

LEAST = 0.02 if DEVICE.type == "cuda" else 0.002  # seconds of a measurement
CONTINUES = 75  # exit status if work is left for the same command
TOO_LARGE = "does not fit into memory"
BESIDE = " beside the methods before it: try it with rope alone"
RAN_OUT = "memory ran out while all took turns: try fewer of them"
COLUMNS = ["comparison", "method", "round", "seconds", "loaded", "memory", "kernels", "result"]
COLUMNS += ["note"]


class Comparison(NamedTuple):
    """Methods that take turns.

    Attributes:
        prepare: sets up a method and returns its work.
        warm_up: calls before memory is counted, and rounds before the timed ones.
        calls: calls whose memory is counted.
        optional: whether a method that cannot run gets a note in place of an error.
    """

    name: str
    methods: list[str]
    prepare: Callable[[str], Work]
    warm_up: int = 1
    calls: int = 1
    optional: bool = False


def inability(error: Exception) -> str | None:
    """Returns why a method cannot run here; None for an unexpected error."""
    text = (str(error).strip().splitlines() or [type(error).__name__])[0]
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in text:
        return TOO_LARGE
    if isinstance(error, TorchDynamoException | InductorError):
        return f"does not compile: {text}"
    return text if isinstance(error, ValueError | NotImplementedError | ImportError) else None


def measure(
    comparison: Comparison, rounds: int, say: Callable[[str], None] = lambda _: None
) -> pd.DataFrame:
    """Measures the methods of a comparison.

    Args:
        say: gets the name of the method at hand.

    Returns:
        COLUMNS, with a row per method and round. A method that could not run has one row, without
        `seconds` (per call); its `note` says why. `loaded` is the bytes in use before its work;
        `memory`, `kernels` and `result` are those of `observed`.
    """
    gc.collect()  # the models of the comparison before
    torch._dynamo.reset()  # graphs of another length
    empty = {"loaded": 0, "memory": 0, "kernels": "", "result": ""}
    found, able = [], {}
    for method in comparison.methods:
        say(method)
        row = {"comparison": comparison.name, "method": method, **empty, "note": ""}
        found.append(row)
        try:
            work = comparison.prepare(method)
            row["loaded"] = memory_in_use()
            row["memory"], kernels, result = observed(work, comparison.warm_up, comparison.calls)
            row |= {"kernels": "; ".join(kernels), "result": "" if result is None else str(result)}
            able[method] = work
        except Exception as error:
            if not comparison.optional or (reason := inability(error)) is None:
                raise
            row["note"] = reason + BESIDE if reason == TOO_LARGE and able else reason
            if reason == TOO_LARGE:
                gc.collect()  # its beginnings are in the way of the others
    say("in turn")
    try:
        seconds = in_turn(able, rounds, comparison.warm_up, LEAST)
    except Exception as error:
        if not comparison.optional or inability(error) != TOO_LARGE:
            raise
        found = [row | empty | {"note": row["note"] or RAN_OUT} for row in found]
        seconds = {}
    rows = [
        {**row, "round": number, "seconds": time}
        for row in found
        for number, time in enumerate(seconds.get(row["method"], [math.nan]), start=1)
    ]
    return pd.DataFrame(rows, columns=COLUMNS)


def read(path: Path) -> pd.DataFrame:
    """Reads rows of `measure`; none if there is no file.

    Raises:
        ValueError: if the file is damaged or another table.
    """
    if not path.exists():
        return pd.DataFrame(columns=COLUMNS)
    text = dict.fromkeys(("comparison", "method", "seconds", "kernels", "result", "note"), str)
    with reading(path):
        rows = pd.read_csv(path, dtype=text, keep_default_na=False)
        if [*rows] != COLUMNS:
            raise ValueError(f"its columns must be {', '.join(COLUMNS)}: give another folder")
        return rows.assign(seconds=rows["seconds"].replace("", "nan").astype(float))  # exact


@cache
def code() -> str:
    """Returns a hash of the package and the benchmarks: of what is measured."""
    roots, found = (Path(tape.__file__).parent, Path(__file__).parent), hashlib.sha256()
    for path in (path for root in roots for path in sorted(root.rglob("*.py"))):
        found.update(path.name.encode() + path.read_bytes())
    return found.hexdigest()[:16]


def machine() -> str:
    return f"{origin.machine()}, {torch.get_num_threads()} threads"


# ---- commands


def parser(
    doc: str,
    methods: tuple[list[str], list[str]] | None = None,
    shape: str | None = None,
    attention: bool = False,
    rounds: tuple[int, int] | None = (15, 7),
    out: str | None = None,
    **counts: tuple[int, int, str],
) -> Parser:
    """Returns a parser with the flags that benchmarks share.

    Args:
        doc: the description is its first paragraph.
        methods: choices and default of --methods.
        shape: default of --shape.
        attention: whether there is --attention.
        rounds: default and least number of rounds, for benchmarks in rounds.
        out: default of --out; by default results are printed only.
        counts: more flags for integers: default, least value, help.
    """
    found = Parser(
        description=doc.split("\n\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = found.add_argument
    if methods:
        choices, default = methods
        about = "what is compared; the first is the base of ratios"
        add("--methods", nargs="+", choices=choices, default=default, action=Distinct, help=about)
    if shape:
        add("--shape", choices=SHAPES, default=shape, help="of the model")
    if attention:
        add("--attention", choices=KERNELS, default="sdpa", help="attention backend")
    for flag, (default, least, about) in counts.items():
        add(f"--{flag}", type=integer(least, 10**7), default=default, help=about)
    if rounds:
        kind = integer(rounds[1], 10**6)
        add("--rounds", "--repeats", type=kind, default=rounds[0], help="of all methods")
    about = "folder for the rows and the table; rerunning the command resumes there"
    add("--out", type=result_folder, default=out, help=about)
    return found


def run(
    name: str, arguments: argparse.Namespace, comparisons: list[Comparison], **settings: Any
) -> dict[str, pd.DataFrame]:
    """Measures the comparisons that are not in --out yet, and after --seconds begins none.

    Args:
        settings: what the times depend on besides arguments, machine, versions and code.

    Returns:
        The rows of each comparison that is done.

    Raises:
        ValueError: if --out has rows of other settings; names every difference.
    """
    given = {key: x for key, x in vars(arguments).items() if key not in ("out", "seconds")}
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    about = {"machine": machine(), **versions, "code": code(), **settings, **given}
    found, out = pd.DataFrame(columns=COLUMNS), arguments.out
    if out is not None:
        file, settings_file = out / f"{name}_rounds.csv", out / f"{name}_settings.json"
        found = read(file)
        if len(found) and (changes := differences(read_object(settings_file), about)):
            raise ValueError(
                f"{file} holds another measurement ({'; '.join(changes)}); give this one another "
                f"place, or remove that file"
            )
        write_text(settings_file, json.dumps(about, indent=1) + "\n")
    done = dict(iter(found.groupby("comparison", sort=False)))
    left = [comparison for comparison in comparisons if comparison.name not in done]
    if left and out is not None:
        origin.record(out)
    end = time.monotonic() + (getattr(arguments, "seconds", None) or math.inf)
    bar = tqdm(left, unit="comparison", disable=None)
    with limit_memory(), torch._dynamo.config.patch(recompile_limit=64):
        for comparison in bar:
            if time.monotonic() > end and comparison is not left[0]:
                break
            bar.set_description(comparison.name)
            rows = measure(comparison, arguments.rounds, bar.set_postfix_str)
            done[comparison.name] = rows
            if out is not None:  # whole comparisons only, whenever this process is killed
                write_text(file, pd.concat(done.values()).to_csv(index=False))
    return done


def seconds_of(rows: pd.DataFrame) -> dict[str, list[float]]:
    """Returns seconds per call by method and round; none for methods that could not run."""
    groups = rows.groupby("method", sort=False)["seconds"]
    return {method: seconds.dropna().tolist() for method, seconds in groups}


def heading(arguments: argparse.Namespace) -> str:
    """Returns date, commit, machine, versions and settings of results in markdown."""
    record = origin.read(arguments.out)[:1] if arguments.out is not None else []
    day = record[0].get("time", "")[:10] if record else date.today()
    commit = record[0].get("commit") if record else origin.commit()
    given = []
    for key, value in vars(arguments).items():
        if key not in ("out", "seconds") and value not in (None, False, ""):
            words = value if isinstance(value, list | tuple) else [value]
            flag = "--" + (key.replace("_", "-") if value is True else key)
            given += [flag, *(str(word) for word in words if word is not True)]
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    return f"{day}, {machine()}, {versions}, commit {commit}\n\n    {' '.join(given)}"


def publish(name: str, arguments: argparse.Namespace, text: str, left: int = 0) -> None:
    """Prints a result below `heading` and writes it to <name>.md of --out; exits with 75 if work is
    left."""
    text = f"{heading(arguments)}\n\n{text}"
    print(text)
    if arguments.out is not None:
        write_text(arguments.out / f"{name}.md", text.rstrip() + "\n")
        print(f"also in {arguments.out}")
    if left:
        print(f"{left} comparisons are left: the same command continues")
        sys.exit(CONTINUES)


def table(
    rows: pd.DataFrame,
    title: str = "method",
    amount: float | None = None,
    unit: str = "tokens",
    result: str | None = None,
) -> str:
    """Returns a row per method, with ratios to the first.

    Args:
        title: head of the first column.
        amount: work of one call, in units; the ratios are those of throughput then, else of time.
        result: head of a column with what the work returned.
    """
    seconds, about = seconds_of(rows), rows.drop_duplicates("method").set_index("method")
    base = about.index[0]
    ratio = ["time"] if amount is None else [f"{unit}/s", "throughput"]
    head = [title, "ms", *ratio[:-1], f"{ratio[-1]} / {base}", "memory, MiB", f"memory / {base}"]
    lines = [head + ([] if result is None else [result])]
    for name, each in about.iterrows():
        middle = statistics.median(seconds[name])
        cells = [Spread.of_ratios(seconds[name], seconds[base])]
        if amount is not None:
            gain = Spread.of_ratios(seconds[base], seconds[name])
            cells = [f"{amount / middle:,.0f}", gain]
        share = each["memory"] / max(1, about.loc[base, "memory"])
        cells += [f"{each['memory'] / 2**20:,.1f}", f"{share:.2f}"]
        cells += [] if result is None else [each["result"]]
        lines.append([name, f"{1000 * middle:,.1f}", *cells])
    return markdown_table(lines)


def show(
    name: str, arguments: argparse.Namespace, comparisons: list[Comparison], **columns: Any
) -> None:
    """Measures comparisons and publishes a table of each; `columns` are those of `table`."""
    found = run(name, arguments, comparisons)
    parts = []
    for comparison, rows in found.items():
        parts += [comparison] * (len(comparisons) > 1) + [table(rows, **columns)]
    publish(name, arguments, "\n\n".join(parts))
