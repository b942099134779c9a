"""Times encodings, attention backends and adapters: layers, training steps, decoding.

In a comparison the methods are set up one after the other and called once for their memory and
attention kernels; then they are timed in turn (README.md). Each comparison is saved before the next
begins: the same command resumes.
"""

import argparse
import gc
import json
import math
import os
import re
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import transformers
from torch._dynamo.exc import TorchDynamoException
from torch._inductor.exc import InductorError

from tape.analysis import growth
from tape.analysis.shapes import ADAPTERS, LLAMA, WITHOUT
from tape.analysis.workloads import CASES, DEVICE, TOKENS, Load, of_adapter
from tape.attention.backends import KERNELS
from tape.core import provenance
from tape.core.config import added_encodings
from tape.core.files import read_object, reading, write_text
from tape.core.progress import track
from tape.core.run_folder import differences
from tape.encodings import ENCODINGS
from tape.evaluation.figures import write_figure
from tape.evaluation.tables import markdown_table

GPU = DEVICE.type == "cuda"
os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or the profiler reports each start and stop
LEAST = 0.02 if GPU else 0.002  # seconds of a measurement
DEFAULTS = {  # of the arguments that a command line leaves out
    "shape": "base" if GPU else "small",
    "backends": [name for name in KERNELS if GPU or name != "flash_attention_2"],
    "compiled": ["no", "yes"] if GPU else ["no"],
    "new": 64 if GPU else 16,
    "dtype": "bfloat16" if GPU else "float32",
}
EVERY = [*ENCODINGS, *sorted(added_encodings())]
METHODS = {  # by case
    "layer": [*EVERY, f"tape{WITHOUT}", LLAMA],
    "train_step": [*EVERY, LLAMA],
    "decode": [*EVERY, LLAMA],
    "adapters": [*ADAPTERS],
}
USUAL = METHODS | {case: ["rope", "tape", LLAMA] for case in ("train_step", "decode")}
TOO_LARGE = "does not fit into memory (with other methods in it, try --alone or fewer of them)"
COLUMNS = ["comparison", "method", "round", "seconds", "memory", "kernels", "note"]
Work = Callable[[], Any]
Seconds = dict[str, list[float]]
Comparisons = dict[str, tuple[Load, list[str]]]  # load and methods by name


def synchronize() -> None:
    if GPU:
        torch.cuda.synchronize()


def in_turn(work: dict[str, Work], rounds: int, warm_up: int, least: float) -> Seconds:
    """Times each method `rounds` times, one after the other in alternating order; returns seconds
    per call, by method and round. Work shorter than `least` seconds is repeated in a measurement.
    """
    seconds: Seconds = {method: [] for method in work}
    calls = dict.fromkeys(work, 1)
    for number in range(-warm_up, rounds):  # rounds below 0 warm up
        for method in list(work) if number % 2 else reversed(work):
            synchronize()
            start = time.perf_counter()
            for _ in range(calls[method]):
                work[method]()
            synchronize()
            per_call = (time.perf_counter() - start) / calls[method]
            if number >= 0:
                seconds[method].append(per_call)
            else:
                calls[method] = max(1, math.ceil(least / per_call))
    return seconds


# Names of attention in the fused kernels of torch, flash-attn and this package.
FUSED = re.compile(r"_scaled_dot_product_\w+|\w*flash_fwd\w*|\w*flex_attention\w*|_Blockwise")
COUNTED = "counted calls"


def observed(work: Work, warm_up: int = 1, calls: int = 1) -> tuple[int, list[str]]:
    """Calls some work under torch's profiler, `warm_up` times before memory is counted. Returns the
    peak of tensors in bytes above those before the counted calls; and the fused kernels of
    attention, none if it was matrix products and a softmax."""
    with torch.profiler.profile(profile_memory=True) as profile:
        for _ in range(warm_up):  # what the counted calls free must be allocated in the profiler
            work()
        synchronize()
        if GPU:
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
    if GPU:
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
    """Measures the methods of a comparison, each set up by `prepare`.

    Args:
        warm_up: calls before memory is counted, and rounds before the timed ones.
        calls: calls whose memory is counted.

    Returns:
        COLUMNS, with a row per method and round. A method that could not run has one row, without
        `seconds` (per call); its `note` says why. `memory` and `kernels` are those of `observed`.
    """
    torch._dynamo.reset()  # forget graphs for other lengths
    observations, works, none = {}, {}, {"memory": 0, "kernels": ""}
    for method in methods:
        gc.collect()  # free the models of the last comparison, and what did not fit
        try:
            work = prepare(method)
            memory, kernels = observed(work, warm_up, calls)
            observations[method] = {"memory": memory, "kernels": "; ".join(kernels), "note": ""}
            works[method] = work
        except Exception as error:
            observations[method] = none | {"note": inability(error)}
    try:
        seconds = in_turn(works, rounds, warm_up, LEAST)
    except Exception as error:
        seconds = {}
        observations |= dict.fromkeys(works, none | {"note": inability(error)})
    rows = [
        {"comparison": name, "method": method, **values, "round": number, "seconds": per_call}
        for method, values in observations.items()
        for number, per_call in enumerate(seconds.get(method, [math.nan]), start=1)
    ]
    return pd.DataFrame(rows, columns=COLUMNS)


def read(path: Path) -> pd.DataFrame:
    """Reads rows of `measure`, none if there is no file; raises a ValueError for another table."""
    if not path.exists():
        return pd.DataFrame(columns=COLUMNS)
    with reading(path):
        return pd.read_csv(path, keep_default_na=False, na_values={"seconds": ""})[COLUMNS]


def surroundings() -> dict[str, str | None]:
    """Returns what times depend on besides settings."""
    return {
        "machine": f"{provenance.machine()}, {torch.get_num_threads()} threads",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "commit": provenance.commit(),
    }


def on_this_device(given: argparse.Namespace) -> argparse.Namespace:
    """Returns arguments with the defaults of the device."""
    return argparse.Namespace(**(DEFAULTS | vars(given)))


def loads(arguments: argparse.Namespace) -> Comparisons:
    """Returns all comparisons, the short ones first."""
    known = {name for case in arguments.case for name in METHODS[case]}
    if unknown := [name for name in arguments.methods or () if name not in known]:
        cases = " ".join(arguments.case)
        raise ValueError(f"--methods {' '.join(unknown)}: --case {cases} has none")
    batch, length = TOKENS[arguments.shape]
    lengths = sorted(arguments.lengths or [length])
    works = [(case, work) for case in arguments.case for work in CASES[case][1]]
    if unknown := " ".join({*(arguments.work or ())} - {work for _, work in works}):
        raise ValueError(f"--work {unknown}: --case {' '.join(arguments.case)} has none")
    works = [(case, work) for case, work in works if work in (arguments.work or [work])]
    comparisons: Comparisons = {}
    for length, (case, work), compiled, backend in product(
        lengths, works, arguments.compiled, arguments.backends
    ):
        load = Load(
            work=work,
            shape=arguments.shape,
            backend=backend,
            batch=arguments.batch or (batch if case in ("train_step", "adapters") else 1),
            length=length,
            new=arguments.new,
            dtype=getattr(torch, arguments.dtype),
            compiled=compiled == "yes",
            checkpointing=arguments.checkpointing,
            case=case,
        )
        title = f"{case}, {work}, {backend}{', compiled' * load.compiled}, {length:,} tokens"
        methods = arguments.methods or USUAL[case]
        methods = [method for method in methods if method in METHODS[case]]
        if arguments.alone:
            comparisons |= {f"{title}: {method}": (load, [method]) for method in methods}
        elif methods:
            comparisons[title] = load, methods
    if not comparisons:
        raise ValueError(f"--methods {' '.join(arguments.methods)}: none has the work asked for")
    return comparisons


def run(arguments: argparse.Namespace, comparisons: Comparisons) -> dict[str, pd.DataFrame]:
    """Makes the comparisons that are not in a folder yet; returns the rows of each. Raises a
    ValueError if the folder has rows of other settings."""
    settings = surroundings() | {
        key: value for key, value in vars(arguments).items() if key not in ("out", "adapters")
    }
    file, saved = arguments.out / "speed_rounds.csv", arguments.out / "speed_settings.json"
    done = dict(iter(read(file).groupby("comparison", sort=False)))
    if done and (changes := differences(read_object(saved), settings)):
        holds = f"{file} holds another measurement ({'; '.join(changes)})"
        raise ValueError(f"{holds}; give this one another place, or remove that file")
    write_text(saved, json.dumps(settings, indent=1) + "\n")
    provenance.record(arguments.out)
    with torch._dynamo.config.patch(recompile_limit=64):
        left = [name for name in comparisons if name not in done]
        for name in track(left, desc="comparisons"):
            load, methods = comparisons[name]
            prepare, warm_up, calls = partial(CASES[load.case][0], load), arguments.warm_up, 1
            if load.case == "adapters":
                prepare = partial(of_adapter, load, settings=arguments.adapters)
                warm_up, calls = 0, 2  # the first step creates the state of AdamW
            done[name] = measure(name, methods, prepare, arguments.rounds, warm_up, calls)
            write_text(file, pd.concat(done.values()).to_csv(index=False))  # whole comparisons
    return done


def quartiles(name: str, values: np.ndarray) -> dict[str, float]:
    """Returns the median under a name, and the quartiles; of up to three values, these are the
    least and the greatest."""
    median, first, third = np.quantile(values, (0.5, 0.25, 0.75), method="weibull")
    return {name: median, f"{name}_first": first, f"{name}_third": third}


def results(rows: pd.DataFrame, load: Load) -> pd.DataFrame:
    """Returns a row per method of a comparison, from its raw rows. `_first` and `_third` are
    quartiles; numbers are missing where a method could not run, and `note` says why."""
    lines, baseline = [], None
    decoded = load.new if load.work == "decoding" else None  # tokens
    for method, raw in rows.groupby("method", sort=False):
        seconds = raw["seconds"].to_numpy()  # one NaN if the method could not run
        baseline = seconds if baseline is None else baseline  # of the first method
        line = asdict(load) | {"method": method, "rounds": raw["seconds"].count()}
        line |= quartiles("milliseconds", seconds * 1e3 / (decoded or 1))
        line["tokens_per_second"] = load.batch * (decoded or load.length) / np.median(seconds)
        line["memory_mib"] = raw["memory"].where(raw["seconds"].notna()).iloc[0] / 2**20
        line |= quartiles("ratio", seconds / baseline)
        lines.append(line | raw[["kernels", "note"]].iloc[0].to_dict())
    return pd.DataFrame(lines)


def table(comparison: pd.DataFrame) -> str:
    """Returns the results of a comparison in markdown, and why methods could not run."""
    first = comparison.iloc[0]
    head = ["method", "ms", "tokens/s", f"time / {first.method}", "memory, MiB"]
    lines, notes = [[*head, f"memory / {first.method}", "kernels"]], []
    for row in comparison.itertuples():
        if row.note:
            notes.append(f"* {row.method}: {row.note}")
            continue
        ratio = share = ""
        if not first.note:
            ratio = f"{row.ratio:.2f} ({row.ratio_first:.2f} to {row.ratio_third:.2f})"
            share = f"{row.memory_mib / max(first.memory_mib, 2**-20):.2f}"
        cells = [row.method, f"{row.milliseconds:,.3g}", f"{row.tokens_per_second:,.0f}", ratio]
        lines.append([*cells, f"{row.memory_mib:,.1f}", share, row.kernels or "unfused"])
    shown = markdown_table(lines) if len(lines) > 1 else ""
    missing = "Not measured:\n\n" + "\n".join(notes) if notes else ""
    return "\n\n".join(filter(None, (shown, missing)))


def main(given: argparse.Namespace) -> None:
    arguments = on_this_device(given)
    comparisons, out = loads(arguments), arguments.out
    raw = run(arguments, comparisons)
    compared = {name: results(raw[name], load) for name, (load, _) in comparisons.items()}
    where = [f"{name} {value}" for name, value in surroundings().items()]
    parts = [", ".join([provenance.read(out)[0]["time"][:10], *where])]
    parts.append("In brackets quartiles; ratios are medians of those within rounds.")
    for name, comparison in compared.items():
        parts += [f"## {name}", table(comparison)]
    rows = pd.concat(compared.values())
    if grown := growth.panels(rows):
        parts += ["## Growth", growth.ABOUT, growth.table(grown)]
        write_figure(growth.curves(grown), out / "growth", ["png"])
    text = "\n\n".join(parts) + "\n"
    write_text(out / "speed.csv", rows.to_csv(index=False))
    write_text(out / "speed.md", text)
    print(f"{text}\nalso in {out}")
    if not rows["rounds"].any():
        raise ValueError("no method could be measured: see the reasons above")
