"""Measures methods that take turns: clock, memory, raw rows on disk.

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
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

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
TOO_LARGE = "does not fit into memory with the other methods: try --alone, or fewer of them"
COLUMNS = ["comparison", "method", "round", "seconds", "memory", "kernels", "note"]
Work = Callable[[], Any]


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


# Names of attention in the fused kernels of torch, flash-attn and this package.
FUSED = re.compile(
    r"_scaled_dot_product_\w+|\w*flash_fwd\w*|\w*fmha\w*|\w*sdpa\w*|\w*flex_attention\w*"
    r"|_CausalAttention"
)
COUNTED = "counted calls"


def observed(work: Work, warm_up: int = 1, calls: int = 1) -> tuple[int, list[str]]:
    """Calls some work under torch's profiler, `warm_up` times before memory is counted.

    Returns:
        The peak of tensors in bytes above those before the counted calls; and the fused kernels of
        attention, none if it was matrix products and a softmax.
    """
    with torch.profiler.profile(profile_memory=True) as profile:
        for _ in range(warm_up):  # what the counted calls free must be allocated in the profiler
            work()
        synchronize()
        if DEVICE.type == "cuda":
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
        with torch.profiler.record_function(COUNTED):
            for _ in range(calls):
                work()
            synchronize()
    events = profile.profiler.kineto_results.events()
    names = {match[0] for event in events if (match := FUSED.search(event.name()))}
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


def measure(
    name: str,
    methods: list[str],
    prepare: Callable[[str], Work],
    rounds: int,
    warm_up: int = 1,
    calls: int = 1,
) -> pd.DataFrame:
    """Measures the methods of a comparison.

    Args:
        prepare: sets up a method and returns its work.
        warm_up: calls before memory is counted, and rounds before the timed ones.
        calls: calls whose memory is counted.

    Returns:
        COLUMNS, with a row per method and round. A method that could not run has one row, without
        `seconds` (per call); its `note` says why. `memory` and `kernels` are those of `observed`.
    """
    torch._dynamo.reset()  # graphs of another length
    found, able = {}, {}
    for method in methods:
        gc.collect()  # the models of the comparison before, and what did not fit
        try:
            work = prepare(method)
            memory, kernels = observed(work, warm_up, calls)
            found[method] = {"memory": memory, "kernels": "; ".join(kernels), "note": ""}
            able[method] = work
        except Exception as error:
            found[method] = {"memory": 0, "kernels": "", "note": inability(error)}
    try:
        seconds = in_turn(able, rounds, warm_up, LEAST)
    except Exception as error:
        seconds, none = {}, {"memory": 0, "kernels": "", "note": inability(error)}
        found |= dict.fromkeys(able, none)
    rows = [
        {"comparison": name, "method": method, **row, "round": number, "seconds": each}
        for method, row in found.items()
        for number, each in enumerate(seconds.get(method, [math.nan]), start=1)
    ]
    return pd.DataFrame(rows, columns=COLUMNS)


def read(path: Path) -> pd.DataFrame:
    """Reads rows of `measure`; none if there is no file.

    Raises:
        ValueError: if the file is damaged or another table.
    """
    if not path.exists():
        return pd.DataFrame(columns=COLUMNS)
    text = dict.fromkeys(("comparison", "method", "kernels", "note"), str)
    with reading(path):
        missing = {"seconds": ""}
        return pd.read_csv(path, dtype=text, keep_default_na=False, na_values=missing)[COLUMNS]


@cache
def surroundings() -> dict[str, str]:
    """Returns what times depend on besides settings: machine, versions, and a hash of the package
    and the benchmarks."""
    roots, found = (Path(tape.__file__).parent, Path(__file__).parent), hashlib.sha256()
    for path in (path for root in roots for path in sorted(root.rglob("*.py"))):
        found.update(path.name.encode() + path.read_bytes())
    return {
        "machine": f"{provenance.machine()}, {torch.get_num_threads()} threads",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "code": found.hexdigest()[:16],
    }


def run(
    out: Path, comparisons: dict[str, Callable[[], pd.DataFrame]], settings: dict[str, Any]
) -> dict[str, pd.DataFrame]:
    """Makes the comparisons that are not in a folder yet.

    Args:
        comparisons: by name; each returns the rows of `measure`.

    Returns:
        The rows of each comparison.

    Raises:
        ValueError: if the folder has rows of other settings; names every difference.
    """
    about = {**surroundings(), **settings}
    file, settings_file = out / "speed_rounds.csv", out / "speed_settings.json"
    done = dict(iter(read(file).groupby("comparison", sort=False)))
    if done and (changes := differences(read_object(settings_file), about)):
        raise ValueError(
            f"{file} holds another measurement ({'; '.join(changes)}); give this one another "
            f"place, or remove that file"
        )
    write_text(settings_file, json.dumps(about, indent=1) + "\n")
    provenance.record(out)
    left = [name for name in comparisons if name not in done]
    with torch._dynamo.config.patch(recompile_limit=64):
        for name in tqdm(left, unit="comparison", disable=None):
            done[name] = comparisons[name]()
            # whole comparisons only, whenever this process is killed
            write_text(file, pd.concat(done.values()).to_csv(index=False))
    return done
