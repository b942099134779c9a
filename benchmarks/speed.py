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
from functools import partial
from itertools import product
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch

from benchmarks import workloads
from benchmarks.harness import Work, measure, run, surroundings
from benchmarks.workloads import ADAPTERS, DEVICE, PEERS, SHAPES, WITHOUT, Load
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
        work: as in `Load`.
        methods: that can be compared.
        default: those that are; None for all.
        counted: `warm_up` and `calls` of `measure`.
    """

    prepare: Callable[[Load, str], Work]
    work: tuple[str, ...]
    methods: list[str]
    default: list[str] | None = None
    counted: tuple[int, int] = (1, 1)


LAYERS, DECODERS = [*ENCODINGS, f"tape{WITHOUT}"], [*ENCODINGS, "llama"]
SOME, PASSES, STEP = ["rope", "tape", "llama"], ("forward", "training"), ("training",)
CASES = {
    "layer": Case(workloads.of_attention, PASSES, LAYERS),
    "peers": Case(workloads.of_attention, PASSES, [*PEERS["x-transformers"]]),
    "train_step": Case(workloads.of_decoder, STEP, DECODERS, SOME),
    "decode": Case(workloads.of_decoder, ("prefill", "decoding"), DECODERS, SOME),
    # Memory is counted from the first call, which creates the state of AdamW.
    "adapters": Case(workloads.of_adapter, STEP, [*ADAPTERS], counted=(0, 2)),
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
    if arguments.shape == "llama2_7b" and not GPU:
        parser.error("--shape llama2_7b needs a GPU, and there is none; use --shape small")
    return arguments


def loads(arguments: argparse.Namespace) -> dict[str, tuple[str, Load, list[str]]]:
    """Returns case, load and methods of all comparisons by name, the short ones first."""
    batch, length = TOKENS[arguments.shape]
    asked = product(
        sorted(arguments.lengths or [length]),
        [(name, work) for name in arguments.case for work in CASES[name].work],
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
            batch=arguments.batch or (batch if name in ("train_step", "adapters") else 1),
            length=length,
            new=arguments.new,
            dtype=getattr(torch, arguments.dtype),
            compiled=compiled == "yes",
            checkpointing=arguments.checkpointing,
        )
        title = f"{name}, {work}, {backend}{', compiled' * load.compiled}, {length:,} tokens"
        methods = arguments.methods or case.default or case.methods
        methods = [method for method in methods if method in case.methods]
        if name == "peers":  # each encoding beside those of others
            for own in methods:
                others = [f"{own}, {peer}" for peer in PEERS if own in PEERS[peer]]
                found[f"{title}: {own}"] = name, load, [own, *others]
        elif arguments.alone:
            found |= {f"{title}: {own}": (name, load, [own]) for own in methods}
        elif methods:
            found[title] = name, load, methods
    return found


def spread(values: list[float] | np.ndarray) -> np.ndarray:
    """Returns median and quartiles; of fewer than three values the least and the greatest."""
    return np.quantile(values, (0.5, 0.25, 0.75), method="weibull")


def results(rows: pd.DataFrame, case: str, load: Load) -> pd.DataFrame:
    """Returns a row per method of a comparison, from its raw rows. `first` and `third` are
    quartiles; numbers are missing where a method could not run, and `note` says why."""
    found, base = [], None
    decoded = load.new if load.work == "decoding" else None
    for method, raw in rows.groupby("method", sort=False):
        own = raw["seconds"].dropna().to_numpy()
        base = own if base is None else base
        row = {"case": case, "work": load.work, "method": method, "backend": load.backend}
        row |= {"compiled": load.compiled, "dtype": str(load.dtype).removeprefix("torch.")}
        row |= {"batch": load.batch, "length": load.length, "rounds": len(own)}
        spreads = {}
        if len(own):
            spreads["milliseconds"] = spread(own) * 1e3 / (decoded or 1)
            row["tokens_per_second"] = load.batch * (decoded or load.length) / np.median(own)
            row["memory_mib"] = raw["memory"].iloc[0] / 2**20
        if len(own) and len(base):
            spreads["ratio"] = spread(own / base)
        for column, values in spreads.items():
            row |= zip((column, f"{column}_first", f"{column}_third"), values, strict=True)
        found.append(row | raw[["kernels", "note"]].iloc[0].to_dict())
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
    asked, comparisons = loads(arguments), {}
    for name, (case, load, methods) in asked.items():
        prepare, counted = partial(CASES[case].prepare, load), CASES[case].counted
        comparisons[name] = partial(measure, name, methods, prepare, arguments.rounds, *counted)
    out = arguments.out
    raw = run(out, comparisons, {k: v for k, v in vars(arguments).items() if k != "out"})
    found = {name: results(raw[name], case, load) for name, (case, load, _) in asked.items()}
    record = provenance.read(out)[0]
    where = [record["time"][:10], f"commit {record['commit']}", *surroundings().values()]
    parts = [", ".join(where), "In brackets quartiles; ratios are medians of those within rounds."]
    for name, each in found.items():
        parts += [f"## {name}", table(each)]
    text = "\n\n".join(parts) + "\n"
    write_text(out / "speed.csv", pd.concat(found.values()).to_csv(index=False))
    write_text(out / "speed.md", text)
    print(f"{text}\nalso in {out}")
    if not any(each.rounds.any() for each in found.values()):
        raise ValueError("no method could be measured: see the reasons above")


if __name__ == "__main__":
    main()
