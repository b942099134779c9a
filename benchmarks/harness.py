"""Measures methods that take turns: clock, memory, raw rows on disk, medians with quartiles.

In a comparison the methods are set up one after the other and called once for their memory and
attention kernels; then they are timed in rounds of alternating order, so that slow phases of the
machine affect all of them. Ratios of two methods are taken within rounds.
"""

from __future__ import annotations

import gc
import hashlib
import json
import math
import os
import re
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
from benchmarks.workloads import DEVICE
from tape import provenance
from tape.files import read_object, reading, write_text
from tape.runs.folder import differences

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or the profiler reports each start and stop
LEAST = 0.02 if DEVICE.type == "cuda" else 0.002  # seconds of a measurement
TOO_LARGE = "does not fit into memory"
RAN_OUT = "memory ran out while all took turns: try fewer of them"
COLUMNS = ["comparison", "method", "round", "seconds", "loaded", "memory", "kernels", "note"]
Work = Callable[[], Any]


class Comparison(NamedTuple):
    """Methods that take turns.

    Attributes:
        prepare: sets up a method and returns its work.
        warm_up: calls before memory is counted, and rounds before the timed ones.
        calls: calls whose memory is counted.
    """

    name: str
    methods: list[str]
    prepare: Callable[[str], Work]
    warm_up: int = 1
    calls: int = 1


class Spread(NamedTuple):
    """Median and quartiles; of fewer than three values the least and the greatest."""

    median: float
    first: float
    third: float

    @classmethod
    def of(cls, values: list[float]) -> Spread:
        few = len(values) < 3
        low, _, high = (min(values), 0, max(values)) if few else statistics.quantiles(values, n=4)
        return cls(statistics.median(values), low, high)

    @classmethod
    def of_ratios(cls, times: list[float], base: list[float]) -> Spread:
        """Of the ratios within rounds."""
        return cls.of([a / b for a, b in zip(times, base, strict=True)])


def synchronize() -> None:
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def in_turn(
    work: dict[str, Work], rounds: int, warm_up: int = 2, least: float = 0.0
) -> dict[str, list[float]]:
    """Times each method `rounds` times, one after the other in alternating order.

    Args:
        least: minimal duration of a measurement in seconds. Shorter work is repeated within it.

    Returns:
        Seconds per call, by method and round.
    """
    seconds: dict[str, list[float]] = {method: [] for method in work}
    calls = dict.fromkeys(work, 1)
    for number in range(-warm_up, rounds):
        for method in list(work) if number % 2 else list(work)[::-1]:
            synchronize()
            start = time.perf_counter()
            for _ in range(calls[method]):
                work[method]()
            synchronize()
            once = (time.perf_counter() - start) / calls[method]
            if number >= 0:
                seconds[method].append(once)
            else:
                calls[method] = max(1, math.ceil(least / once))
    return seconds


# ---- memory


def kib(table: str, key: str) -> int:
    """Bytes, from a line `key: number kB` of one of the kernel's tables."""
    lines = Path(table).read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(key)).split()[1])


def memory_in_use() -> int:
    """Returns bytes allocated on the device, or resident in this process."""
    if DEVICE.type == "cuda":
        return torch.cuda.memory_allocated()
    if sys.platform == "linux":
        return kib("/proc/self/status", "VmRSS")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@contextmanager
def limit_memory() -> Iterator[None]:
    """Makes a CPU refuse allocations beyond nine tenths of the free memory, where the system would
    kill this process or another."""
    if DEVICE.type != "cpu" or sys.platform != "linux":
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_DATA)
    limit = kib("/proc/self/status", "VmData") + kib("/proc/meminfo", "MemAvailable") * 9 // 10
    if resource.RLIM_INFINITY not in before:
        limit = min(limit, *before)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


# Names of attention in the fused kernels of torch, flash-attn and this package.
FUSED = re.compile(
    r"_scaled_dot_product_\w+|\w*flash_fwd\w*|\w*fmha\w*|\w*sdpa\w*|\w*flex_attention\w*"
    r"|_CausalAttention"
)
COUNTED = "counted calls"


def observed(work: Work, warm_up: int = 1, calls: int = 1) -> tuple[int, list[str]]:
    """Calls some work under torch's profiler.

    Args:
        warm_up: calls before memory is counted.
        calls: calls whose memory is counted.

    Returns:
        The peak of tensors in bytes above those before the counted calls; and the fused kernels of
        attention, none if it was matrix products and a softmax.
    """
    activities = [torch.profiler.ProfilerActivity.CPU]
    if DEVICE.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        for _ in range(warm_up):  # what the counted calls free must be allocated in the profiler
            work()
        synchronize()
        before = memory_in_use()
        if DEVICE.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        with torch.profiler.record_function(COUNTED):
            for _ in range(calls):
                work()
            synchronize()
    events = profile.profiler.kineto_results.events()
    found = (FUSED.search(event.name()) for event in events)
    names = {match[0] for match in found if match}
    other = ("backward", "_attention_math")  # the latter is torch's without a fused kernel
    kernels = sorted(name for name in names if not name.lower().endswith(other))
    if DEVICE.type == "cuda":
        return torch.cuda.max_memory_allocated() - before, kernels
    # The process may keep what was freed: its resident memory would say little.
    start = next(event.start_ns() for event in events if event.name() == COUNTED)
    used = peak = 0
    for at, change in sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]"):
        if at >= start:
            used += change
            peak = max(peak, used)
    return peak, kernels


# ---- comparisons


def inability(error: Exception) -> str:
    """Returns why a method cannot run here; raises an unexpected error."""
    text = (str(error).strip().splitlines() or [type(error).__name__])[0]
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in text:
        return TOO_LARGE
    if isinstance(error, TorchDynamoException | InductorError):
        return f"does not compile: {text}"
    if isinstance(error, ValueError | NotImplementedError | ImportError):
        return text
    raise error


def measure(comparison: Comparison, rounds: int) -> pd.DataFrame:
    """Measures the methods of a comparison.

    Returns:
        COLUMNS, with a row per method and round. A method that could not run has one row, without
        `seconds` (per call); its `note` says why. `loaded` is the bytes in use before its work;
        `memory` and `kernels` are those of `observed`.
    """
    gc.collect()  # the models of the comparison before
    torch._dynamo.reset()  # graphs of another length
    empty = {"loaded": 0, "memory": 0, "kernels": ""}
    found, able = [], {}
    for method in comparison.methods:
        row = {"comparison": comparison.name, "method": method, **empty, "note": ""}
        found.append(row)
        try:
            work = comparison.prepare(method)
            row["loaded"] = memory_in_use()
            row["memory"], kernels = observed(work, comparison.warm_up, comparison.calls)
            row["kernels"] = "; ".join(kernels)
            able[method] = work
        except Exception as error:
            row["note"] = inability(error)
        if row["note"] == TOO_LARGE:
            gc.collect()  # its beginnings are in the way of the others
            row["note"] += " beside the methods before it: try it alone" * bool(able)
    try:
        seconds = in_turn(able, rounds, comparison.warm_up, LEAST)
    except Exception as error:
        if inability(error) != TOO_LARGE:
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
    text = dict.fromkeys(("comparison", "method", "seconds", "kernels", "note"), str)
    with reading(path):
        rows = pd.read_csv(path, dtype=text, keep_default_na=False)
        if not {*COLUMNS} <= {*rows}:
            raise ValueError(f"its columns must be {', '.join(COLUMNS)}: give another folder")
        return rows[COLUMNS].assign(seconds=rows["seconds"].replace("", "nan").astype(float))


@cache
def code() -> str:
    """Returns a hash of the package and the benchmarks: of what is measured."""
    roots, found = (Path(tape.__file__).parent, Path(__file__).parent), hashlib.sha256()
    for path in (path for root in roots for path in sorted(root.rglob("*.py"))):
        found.update(path.name.encode() + path.read_bytes())
    return found.hexdigest()[:16]


def surroundings() -> dict[str, str]:
    """Returns machine and versions."""
    machine = f"{provenance.machine()}, {torch.get_num_threads()} threads"
    return {
        "machine": machine,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def run(
    out: Path,
    comparisons: list[Comparison],
    settings: dict[str, Any],
    rounds: int,
    seconds: float | None = None,
) -> dict[str, pd.DataFrame]:
    """Measures the comparisons that are not in a folder yet, and after `seconds` begins none.

    Args:
        settings: what the times depend on besides machine, versions and code.

    Returns:
        The rows of each comparison that is done.

    Raises:
        ValueError: if the folder has rows of other settings; names every difference.
    """
    about = {**surroundings(), "code": code(), **settings}
    file, settings_file = out / "speed_rounds.csv", out / "speed_settings.json"
    found = read(file)
    if len(found) and (changes := differences(read_object(settings_file), about)):
        raise ValueError(
            f"{file} holds another measurement ({'; '.join(changes)}); give this one another "
            f"place, or remove that file"
        )
    write_text(settings_file, json.dumps(about, indent=1) + "\n")
    done = dict(iter(found.groupby("comparison", sort=False)))
    left = [comparison for comparison in comparisons if comparison.name not in done]
    if left:
        provenance.record(out)
    end = time.monotonic() + (seconds or math.inf)
    bar = tqdm(left, unit="comparison", disable=None)
    with limit_memory(), torch._dynamo.config.patch(recompile_limit=64):
        for comparison in bar:
            if time.monotonic() > end and comparison is not left[0]:
                break
            bar.set_description(comparison.name)
            done[comparison.name] = measure(comparison, rounds)
            # whole comparisons only, whenever this process is killed
            write_text(file, pd.concat(done.values()).to_csv(index=False))
    return done
