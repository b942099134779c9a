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
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from torch._dynamo.exc import TorchDynamoException
from torch._inductor.exc import InductorError
from tqdm import tqdm

import tape
from benchmarks.models import DEVICE, SHAPES
from benchmarks.timing import Spread, Work, in_turn, limit_memory, memory_in_use, observed
from tape import origin
from tape.attention import KERNELS
from tape.command import Distinct, Parser, integer, result_folder
from tape.evaluation.tables import csv_table, markdown_table, read_table
from tape.files import read_object, write_text
from tape.training.runs import differences

LEAST = 0.02 if DEVICE.type == "cuda" else 0.002  # seconds of a measurement
CONTINUES = 75  # exit status if work is left for the same command
TOO_LARGE = "does not fit into memory"
BESIDE = " beside the methods before it: try it with rope alone"
RAN_OUT = "memory ran out while all took turns: try fewer of them"
COLUMNS = ("comparison", "method", "round", "seconds", "loaded", "memory", "kernels", "result")
COLUMNS += ("note",)


# ---- comparisons


class Comparison(NamedTuple):
    """Methods that take turns.

    Attributes:
        prepare: sets up a method and returns its work.
        warm_up: calls before memory is counted, and rounds before the timed ones.
        calls: calls whose memory is counted.
        optional: whether a method that cannot run gets a note in place of an error.
    """

    name: str
    prepare: dict[str, Callable[[], Work]]
    warm_up: int = 1
    calls: int = 1
    optional: bool = False


@dataclass
class Measured:
    """One method in one comparison.

    Attributes:
        seconds: per call, by round; empty if it could not run, and `note` says why.
        loaded: bytes in use before its work.
        memory, kernels, result: see `observed`.
    """

    seconds: list[float] = field(default_factory=list)
    loaded: int = 0
    memory: int = 0
    kernels: str = ""
    result: str = ""
    note: str = ""


def inability(error: Exception) -> str | None:
    """Returns why a method cannot run here; None for an unexpected error."""
    text = (str(error).strip().splitlines() or [type(error).__name__])[0]
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in text:
        return TOO_LARGE
    if isinstance(error, TorchDynamoException | InductorError):
        return f"does not compile: {text}"
    if isinstance(error, ValueError | NotImplementedError | ImportError):
        return text
    return None


def measure(
    comparison: Comparison, rounds: int, say: Callable[[str], None] = lambda _: None
) -> dict[str, Measured]:
    """Measures the methods of a comparison.

    Args:
        say: gets the name of the method at hand.
    """
    gc.collect()  # the models of the comparison before
    torch._dynamo.reset()  # graphs of another length
    found, able = {}, {}
    for method, prepare in comparison.prepare.items():
        say(method)
        each = found[method] = Measured()
        try:
            work = prepare()
            each.loaded = memory_in_use()
            each.memory, kernels, result = observed(work, comparison.warm_up, comparison.calls)
            each.kernels, each.result = "; ".join(kernels), "" if result is None else str(result)
            able[method] = work
        except Exception as error:
            if not comparison.optional or (reason := inability(error)) is None:
                raise
            each.note = reason + BESIDE if reason == TOO_LARGE and able else reason
            if reason == TOO_LARGE:
                gc.collect()  # its beginnings are in the way of the others
    say("in turn")
    try:
        seconds = in_turn(able, rounds, comparison.warm_up, LEAST)
    except Exception as error:
        if not comparison.optional or inability(error) != TOO_LARGE:
            raise
        return {name: Measured(note=each.note or RAN_OUT) for name, each in found.items()}
    for method, times in seconds.items():
        found[method].seconds = times
    return found


# ---- raw rows


def rows_of(found: dict[str, dict[str, Measured]]) -> Iterator[list[Any]]:
    """Yields a row per comparison, method and round; one if there are no rounds."""
    for comparison, methods in found.items():
        for method, each in methods.items():
            about = [each.loaded, each.memory, each.kernels, each.result, each.note]
            for number, seconds in enumerate(each.seconds or [""], start=1):
                yield [comparison, method, number if each.seconds else 0, seconds, *about]


def read(path: Path) -> dict[str, dict[str, Measured]]:
    """Returns the comparisons of a file of rows; none if there is no file."""
    found: dict[str, dict[str, Measured]] = {}
    for row in read_table(path, COLUMNS, counts=("round", "loaded", "memory")):
        numbers = int(row["loaded"]), int(row["memory"])
        begun = Measured([], *numbers, row["kernels"], row["result"], row["note"])
        each = found.setdefault(row["comparison"], {}).setdefault(row["method"], begun)
        each.seconds += [float(row["seconds"])] if row["seconds"] else []
    return found


def resumed(rows: Path, settings: dict[str, Any]) -> dict[str, dict[str, Measured]]:
    """Returns the comparisons that a file of rows holds, and writes their settings beside it.

    Args:
        settings: what the times depend on.

    Raises:
        ValueError: if the rows are of other settings; names every difference.
    """
    about = rows.with_name(rows.name.replace("_rounds.csv", "_settings.json"))
    found = read(rows)
    if found and (changes := differences(read_object(about), settings)):
        raise ValueError(
            f"{rows} holds another measurement ({'; '.join(changes)}); give this one another "
            f"place, or remove that file"
        )
    write_text(about, json.dumps(settings, indent=1) + "\n")
    return found


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
    out: Path | None = None,
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
    add("--out", type=table_folder, default=out, help=about)
    return found


def table_folder(text: str) -> Path:
    """A folder for results, for argparse: refused before anything is measured."""
    folder = result_folder(text)
    if folder.is_file():
        raise argparse.ArgumentTypeError(f"{text} is a file; give a folder")
    return folder


def run(
    name: str, arguments: argparse.Namespace, comparisons: list[Comparison], **settings: Any
) -> dict[str, dict[str, Measured]]:
    """Measures the comparisons that are not in --out yet, and after --seconds begins none.

    Args:
        settings: what the times depend on besides arguments, machine, versions and code.

    Returns:
        The methods of each comparison that is done.
    """
    given = {key: x for key, x in vars(arguments).items() if key not in ("out", "seconds")}
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    about = {"machine": machine(), **versions, "code": code(), **settings, **given}
    rows = None if arguments.out is None else arguments.out / f"{name}_rounds.csv"
    found = {} if rows is None else resumed(rows, about)
    left = [comparison for comparison in comparisons if comparison.name not in found]
    if left and rows is not None:
        origin.record(arguments.out)
    end = time.monotonic() + (getattr(arguments, "seconds", None) or math.inf)
    bar = tqdm(left, unit="comparison", disable=None)
    with limit_memory(), torch._dynamo.config.patch(recompile_limit=64):
        for comparison in bar:
            if time.monotonic() > end and comparison is not left[0]:
                break
            bar.set_description(comparison.name)
            found[comparison.name] = measure(comparison, arguments.rounds, bar.set_postfix_str)
            if rows is not None:  # whole comparisons only, whenever this process is killed
                write_text(rows, csv_table([COLUMNS, *rows_of(found)]))
    return found


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
    """Prints a result and writes it to <name>.md of --out; exits with 75 if work is left."""
    print(text)
    if arguments.out is not None:
        write_text(arguments.out / f"{name}.md", text.rstrip() + "\n")
        print(f"also in {arguments.out}")
    if left:
        print(f"{left} comparisons are left: the same command continues")
        sys.exit(CONTINUES)


def table(
    found: dict[str, Measured],
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
    base, first = next(iter(found.items()))
    head = [title, "ms", f"time / {base}", "memory, MiB", f"memory / {base}"]
    if amount is not None:
        head[2:3] = [f"{unit}/s", f"throughput / {base}"]
    lines = [head + ([] if result is None else [result])]
    for name, each in found.items():
        middle = statistics.median(each.seconds)
        line = [name, f"{1000 * middle:,.1f}", str(Spread.of_ratios(each.seconds, first.seconds))]
        if amount is not None:
            gain = Spread.of_ratios(first.seconds, each.seconds)
            line[2:] = [f"{amount / middle:,.0f}", str(gain)]
        line += [f"{each.memory / 2**20:,.1f}", f"{each.memory / max(1, first.memory):.2f}"]
        lines.append(line + ([] if result is None else [each.result]))
    return markdown_table(lines)


def show(
    name: str, arguments: argparse.Namespace, comparisons: list[Comparison], **columns: Any
) -> None:
    """Measures comparisons and publishes a table of each; `columns` are those of `table`."""
    found = run(name, arguments, comparisons)
    parts = [heading(arguments)]
    for comparison, methods in found.items():
        parts += [comparison] * (len(comparisons) > 1) + [table(methods, **columns)]
    publish(name, arguments, "\n\n".join(parts))
