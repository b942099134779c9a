"""Times encodings, attention backends and adapters: layers, training steps, decoding.

tape speed                               # layers and decoders, on two cores minutes
tape speed --case train_step decode --shape base --methods rope tape llama
tape speed --case adapters decode --shape llama2_7b --methods lora adape rope tape

The methods of a case take turns in one process; ratios are those to the first of them. Each
comparison is saved before the next begins: the same command resumes.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from datetime import date
from functools import partial
from itertools import product
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch

from benchmarks import peers, workloads
from benchmarks.harness import Work, measure, run, surroundings
from benchmarks.workloads import DEVICE, SHAPES, WITHOUT, WORK, Load
from tape import provenance
from tape.attention.backends import KERNELS
from tape.command import Distinct, Parser, expected_errors, integer, result_folder
from tape.evaluation.tables import markdown_table
from tape.files import write_text
from tape.positions import ENCODINGS

GPU = DEVICE.type == "cuda"
# Sequences of a training step and their length.
TOKENS = {"tiny": (4, 32), "small": (8, 256), "base": (1, 1024), "llama2_7b": (1, 8192)}


class Case(NamedTuple):
    """What is timed.

    Attributes:
        prepare: sets up a method of a load.
        work: by default; decoders can do any other.
        methods: that can be compared.
        default: those that are.
        others: methods beside each, in a comparison of its own.
        batched: whether there are by default the sequences of a training step, else one.
        counted: `warm_up` and `calls` of `measure`.
    """

    prepare: Callable[[Load, str], Work]
    work: tuple[str, ...]
    methods: list[str]
    default: list[str]
    others: tuple[str, ...] = ()
    batched: bool = False
    counted: tuple[int, int] = (1, 1)

    def works(self, asked: list[str] | None) -> list[str]:
        """Returns what is timed of the work that is asked for."""
        able = WORK if self.prepare is workloads.of_decoder else self.work
        return [work for work in asked or self.work if work in able]


LAYERS = [*ENCODINGS, f"tape{WITHOUT}"]
DECODERS, SOME = [*ENCODINGS, "llama"], ["rope", "tape", "llama"]
PEERED = [*peers.PEERS["x-transformers"]]
ADAPTERS = [*workloads.ADAPTERS]
STEP, PASSES = ("training",), ("forward", "training")
CASES = {
    "layer": Case(peers.of_attention, PASSES, LAYERS, LAYERS),
    "peers": Case(peers.of_attention, PASSES, PEERED, PEERED, others=(*peers.METHODS,)),
    "train_step": Case(workloads.of_decoder, STEP, DECODERS, SOME, batched=True),
    "decode": Case(workloads.of_decoder, ("prefill", "decoding"), DECODERS, SOME),
    # Memory is counted from the first call, which creates the state of AdamW.
    "adapters": Case(workloads.of_adapter, STEP, ADAPTERS, ADAPTERS, batched=True, counted=(0, 2)),
}


def parse(given: list[str] | None = None) -> argparse.Namespace:
    parser = Parser(
        description=__doc__.split("\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    names = dict.fromkeys(name for case in CASES.values() for name in case.methods)
    both, several = ["no", "yes"], {"nargs": "+", "action": Distinct}
    backends = [name for name in KERNELS if GPU or name != "flash_attention_2"]
    dtype, number = "bfloat16" if GPU else "float32", integer(1, 10**7)
    cases = ["layer", "train_step", "decode"]
    add = parser.add_argument
    add("--case", choices=CASES, default=cases, help="what is timed", **several)
    add("--methods", choices=names, help="by default those of the case", **several)
    add("--work", choices=WORK, help="by default those of the case", **several)
    add("--shape", choices=SHAPES, default="base" if GPU else "small", help="of the decoder")
    add("--backends", choices=KERNELS, default=backends, help="of attention", **several)
    add("--compiled", choices=both, default=both[: 1 + GPU], help="torch.compile", **several)
    add("--lengths", type=number, help="tokens; by default those of the shape", **several)
    add("--batch", type=number, help="sequences; by default those of case and shape")
    add("--new", type=number, default=64 if GPU else 16, help="tokens that decoders decode")
    add("--dtype", choices=["float32", "bfloat16", "float16"], default=dtype, help="see Load")
    add("--checkpointing", action="store_true", help="of activations, in decoders that train")
    add("--alone", action="store_true", help="each method alone: for models that are large")
    add("--rounds", type=integer(7, 10**6), default=15, help="of all methods")
    add("--out", type=result_folder, default="output/speed", help="folder, in which it resumes")
    arguments = parser.parse_args(given)
    known = {name for case in arguments.case for name in CASES[case].methods}
    if unknown := [name for name in arguments.methods or () if name not in known]:
        parser.error(f"--methods {' '.join(unknown)}: --case {' '.join(arguments.case)} has none")
    for name in arguments.case:
        if not CASES[name].works(arguments.work):
            parser.error(f"--work {' '.join(arguments.work)}: --case {name} has none")
    if arguments.shape == "llama2_7b" and not GPU:
        parser.error("--shape llama2_7b needs a GPU, and there is none; use --shape small")
    return arguments


def loads(arguments: argparse.Namespace) -> dict[str, tuple[str, Load, list[str]]]:
    """Returns case, load and methods of all comparisons by name, the short ones first."""
    batch, length = TOKENS[arguments.shape]
    asked = product(
        sorted(arguments.lengths or [length]),
        [(name, work) for name in arguments.case for work in CASES[name].works(arguments.work)],
        arguments.compiled,
        arguments.backends,
    )
    found = {}
    for length, (name, work), compiled, backend in asked:
        case = CASES[name]
        load = Load(
            work=work,
            shape=arguments.shape,
            backend=backend,
            batch=arguments.batch or (batch if case.batched else 1),
            length=length,
            new=arguments.new,
            dtype=getattr(torch, arguments.dtype),
            compiled=compiled == "yes",
            checkpointing=arguments.checkpointing,
        )
        title = f"{name}, {work}, {backend}{', compiled' * load.compiled}, {length:,} tokens"
        methods = [m for m in arguments.methods or case.default if m in case.methods]
        if arguments.alone or case.others:
            for method in methods:
                others = [other for other in case.others if other.startswith(f"{method},")]
                found[f"{title}: {method}"] = name, load, [method, *others]
        elif methods:
            found[title] = name, load, methods
    return found


def spread(values: list[float] | np.ndarray) -> np.ndarray:
    """Returns median and quartiles; of fewer than three values the least and the greatest."""
    return np.quantile(values, (0.5, 0.25, 0.75), method="weibull")


def results(rows: pd.DataFrame, case: str, load: Load) -> pd.DataFrame:
    """Returns a row per method of a comparison, from its raw rows. `first` and `third` are
    quartiles; numbers are missing where a method could not run, and `note` says why."""
    found, groups = [], rows.groupby("method", sort=False)["seconds"]
    seconds = {method: times.dropna().to_numpy() for method, times in groups}
    base = next(iter(seconds.values()))
    decoded = load.new if load.work == "decoding" else None
    for _, raw in rows.drop_duplicates("method").iterrows():
        own = seconds[raw.method]
        row = {"case": case, "work": load.work, "method": raw.method, "backend": load.backend}
        row |= {"compiled": load.compiled, "dtype": str(load.dtype).removeprefix("torch.")}
        row |= {"batch": load.batch, "length": load.length, "rounds": len(own)}
        spreads = {}
        if len(own):
            spreads["milliseconds"] = spread(own) * 1e3 / (decoded or 1)
            row["tokens_per_second"] = load.batch * (decoded or load.length) / np.median(own)
            row["memory_mib"] = raw.memory / 2**20
        if len(own) and len(base):
            spreads["ratio"] = spread(own / base)
        for column, values in spreads.items():
            row |= zip((column, f"{column}_first", f"{column}_third"), values, strict=True)
        found.append(row | {"kernels": raw.kernels, "note": raw.note})
    return pd.DataFrame(found)


def table(found: pd.DataFrame) -> str:
    """Returns results in markdown, and why methods could not run."""
    first = found.iloc[0]
    head = ["method", "ms", "tokens/s", f"time / {first.method}", "memory, MiB"]
    lines, notes = [[*head, f"memory / {first.method}", "kernels"]], []
    for row in found.itertuples():
        if row.note:
            notes.append(f"* {row.method}: {row.note}")
            continue
        ratio = share = ""
        if not first.note:
            ratio = f"{row.ratio:.2f} ({row.ratio_first:.2f} to {row.ratio_third:.2f})"
            share = f"{row.memory_mib / max(first.memory_mib, 2**-20):.2f}"
        cells = [row.method, f"{row.milliseconds:,.3g}", f"{row.tokens_per_second:,.0f}", ratio]
        lines.append([*cells, f"{row.memory_mib:,.1f}", share, row.kernels or "unfused"])
    parts = [markdown_table(lines)] if len(lines) > 1 else []
    if notes:
        parts.append("Not measured:\n\n" + "\n".join(notes))
    return "\n\n".join(parts)


@expected_errors(continues=True)
def main(given: list[str] | None = None) -> None:
    arguments = parse(given)
    asked = loads(arguments)
    comparisons = {}
    for name, (case, load, methods) in asked.items():
        prepare, counted = partial(CASES[case].prepare, load), CASES[case].counted
        comparisons[name] = partial(measure, name, methods, prepare, arguments.rounds, *counted)
    settings = {key: value for key, value in vars(arguments).items() if key != "out"}
    settings["x-transformers"] = peers.version("x-transformers")
    raw = run(arguments.out, comparisons, settings)
    found = {name: results(raw[name], case, load) for name, (case, load, _) in asked.items()}
    record = provenance.read(arguments.out)[0]
    day = record.get("time", str(date.today()))[:10]
    parts = [f"{day}, commit {record.get('commit')}, {', '.join(surroundings().values())}"]
    parts += ["In brackets quartiles; ratios are medians of those within rounds."]
    for name, each in found.items():
        parts += [f"## {name}", table(each)]
    text = "\n\n".join(parts) + "\n"
    write_text(arguments.out / "speed.csv", pd.concat(found.values()).to_csv(index=False))
    write_text(arguments.out / "speed.md", text)
    print(f"{text}\nalso in {arguments.out}")
    if not any(each.rounds.any() for each in found.values()):
        raise ValueError("no method could be measured: see the reasons above")


if __name__ == "__main__":
    main()
