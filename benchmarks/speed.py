"""Times encodings, attention backends and adapters: layers, training steps, decoding.

python benchmarks/speed.py                               # layers and decoders, on two cores minutes
python benchmarks/speed.py --case train_step decode --shape base --methods rope tape llama
python benchmarks/speed.py --case adapters decode --shape llama2_7b --methods lora adape rope tape

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

import pandas as pd
import torch

from benchmarks import peers, workloads
from benchmarks.harness import Comparison, Spread, Work, run, surroundings
from benchmarks.workloads import DEVICE, SHAPES, WITHOUT, WORK, Load
from tape import provenance
from tape.attention.backends import KERNELS
from tape.command import Distinct, Parser, expected_errors, integer, result_folder
from tape.evaluation.tables import markdown_table
from tape.files import write_text
from tape.model.flops import training_flops
from tape.positions import ENCODINGS
from tape.training.console import peak_flops

GPU = DEVICE.type == "cuda"
# Sequences of a training step and their length.
TOKENS = {"tiny": (4, 32), "small": (8, 256), "small_32k": (1, 1024), "base": (1, 1024)}
TOKENS |= {"llama2_7b": (1, 8192)}


class Case(NamedTuple):
    """What is timed.

    Attributes:
        prepare: sets up a method of a load.
        work: by default.
        methods: that can be compared.
        default: those that are.
        others: methods beside each, in a comparison of its own.
        batched: whether there are by default the sequences of a training step, else one.
        counted: see `Comparison`.
    """

    prepare: Callable[[Load, str], Work]
    work: tuple[str, ...]
    methods: list[str]
    default: list[str]
    others: tuple[str, ...] = ()
    batched: bool = False
    counted: tuple[int, int] = (1, 1)


LAYERS = [*ENCODINGS, f"tape{WITHOUT}"]
DECODERS, SOME = [*ENCODINGS, "llama"], ["rope", "tape", "llama"]
PEERED = [*peers.PEERS["x-transformers"]]
ADAPTERS = [*workloads.ADAPTERS]
CASES = {
    "layer": Case(peers.of_attention, WORK, LAYERS, LAYERS),
    "peers": Case(peers.of_attention, WORK[:2], PEERED, PEERED, others=(*peers.METHODS,)),
    "train_step": Case(workloads.of_decoder, ("training",), DECODERS, SOME, batched=True),
    "decode": Case(workloads.of_decoder, ("prefill", "decoding"), DECODERS, SOME),
    # Memory is counted from the first call, which creates the state of AdamW.
    "adapters": Case(
        workloads.of_adapter, ("training",), ADAPTERS, ADAPTERS, batched=True, counted=(0, 2)
    ),
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
    if "adapters" in arguments.case and {*(arguments.work or ["training"])} != {"training"}:
        parser.error(f"--work {' '.join(arguments.work)}: adapters are timed in training alone")
    if arguments.shape == "llama2_7b" and not GPU:
        parser.error("--shape llama2_7b needs a GPU, and there is none; use --shape small")
    return arguments


def loads(arguments: argparse.Namespace) -> list[tuple[str, Load, list[str]]]:
    """Returns case, load and methods of all comparisons, the short ones first."""
    batch, length = TOKENS[arguments.shape]
    asked = product(
        sorted(arguments.lengths or [length]),
        arguments.case,
        arguments.work or WORK,
        arguments.compiled,
        arguments.backends,
    )
    found = []
    for length, name, work, compiled, backend in asked:
        case = CASES[name]
        load = Load(
            work=work,
            shape=arguments.shape,
            backend=backend,
            batch=arguments.batch or (batch if case.batched else 1),
            length=length,
            new=1 if case.prepare is peers.of_attention else arguments.new,
            dtype=getattr(torch, arguments.dtype),
            compiled=compiled == "yes",
            checkpointing=arguments.checkpointing,
        )
        methods = [m for m in arguments.methods or case.default if m in case.methods]
        groups = [[m] for m in methods] if arguments.alone or case.others else [methods]
        for group in groups if arguments.work or work in case.work else ():
            beside = [other for other in case.others if other.startswith(f"{group[0]},")]
            found += [(name, load, group + beside)] if group else []
    return found


def title(case: str, load: Load) -> str:
    compiled = ", compiled" if load.compiled else ""
    return f"{case}, {load.work}, {load.backend}{compiled}, {load.length:,} tokens"


def results(rows: pd.DataFrame, case: str, load: Load) -> pd.DataFrame:
    """Returns a row per method of a comparison, from its raw rows. `first` and `third` are
    quartiles; numbers are missing where a method could not run, and `note` says why."""
    found, groups = [], rows.groupby("method", sort=False)["seconds"]
    seconds = {method: times.dropna().tolist() for method, times in groups}
    base = next(iter(seconds.values()))
    peak = peak_flops(DEVICE, load.dtype)
    for _, raw in rows.drop_duplicates("method").iterrows():
        own, tokens = seconds[raw.method], load.batch * load.length
        row = {"case": case, "work": load.work, "method": raw.method, "backend": load.backend}
        row |= {"compiled": load.compiled, "dtype": str(load.dtype).removeprefix("torch.")}
        row |= {"batch": load.batch, "length": load.length, "rounds": len(own)}
        calls = 1
        if load.work == "decoding":
            calls, tokens = load.new, load.batch * load.new
        spreads = {}
        if own:
            spreads["milliseconds"] = Spread(*(1e3 * x / calls for x in Spread.of(own)))
            row["tokens_per_second"] = tokens / Spread.of(own).median
            row |= {"memory_mib": raw.memory / 2**20, "loaded_mib": raw.loaded / 2**20}
        if own and base:
            spreads["ratio"] = Spread.of_ratios(own, base)
        for column, spread in spreads.items():
            row |= dict(zip((column, f"{column}_first", f"{column}_third"), spread, strict=True))
        if own and peak and case == "train_step":
            config = load.config("rope" if raw.method == "llama" else raw.method)
            flops = training_flops(config, load.length) * load.batch
            row["mfu"] = flops / Spread.of(own).median / peak
        found.append(row | {"kernels": raw.kernels, "note": raw.note})
    return pd.DataFrame(found)


def table(found: pd.DataFrame, alone: bool = False) -> str:
    """Returns results in markdown, and why methods could not run; of methods that were measured
    alone not their ratios, but the memory that was in use before."""
    first = found.iloc[0]
    head = ["method", "ms", "tokens/s", f"time / {first.method}", "memory, MiB"]
    lines, notes = [[*head, f"memory / {first.method}", "kernels"]], []
    if alone:
        lines = [["method", "ms", "tokens/s", "quartiles, ms", "memory, MiB", "before", "kernels"]]
    for row in found.itertuples():
        if row.note:
            notes.append(f"* {row.method}: {row.note}")
            continue
        cells = [row.method, f"{row.milliseconds:,.3g}", f"{row.tokens_per_second:,.0f}"]
        if alone:
            spread = f"{row.milliseconds_first:,.3g} to {row.milliseconds_third:,.3g}"
            cells += [spread, f"{row.memory_mib:,.1f}", f"{row.loaded_mib:,.1f}"]
        elif first.note:
            cells += ["", f"{row.memory_mib:,.1f}", ""]
        else:
            ratio = f"{row.ratio:.2f} ({row.ratio_first:.2f} to {row.ratio_third:.2f})"
            share = row.memory_mib / max(first.memory_mib, 2**-20)
            cells += [ratio, f"{row.memory_mib:,.1f}", f"{share:.2f}"]
        lines.append([*cells, row.kernels or "unfused"])
    parts = [markdown_table(lines)] if len(lines) > 1 else []
    return "\n\n".join([*parts, *(["Not measured:\n\n" + "\n".join(notes)] if notes else [])])


@expected_errors(continues=True)
def main(given: list[str] | None = None) -> None:
    arguments = parse(given)
    asked = loads(arguments)
    names = [
        f"{title(case, load)}{f': {methods[0]}' if arguments.alone or CASES[case].others else ''}"
        for case, load, methods in asked
    ]
    comparisons = [
        Comparison(name, methods, partial(CASES[case].prepare, load), *CASES[case].counted)
        for name, (case, load, methods) in zip(names, asked, strict=True)
    ]
    settings = {key: value for key, value in vars(arguments).items() if key != "out"}
    version = {"x-transformers": peers.version("x-transformers")}
    raw = run(arguments.out, comparisons, settings | version, arguments.rounds)
    found = [
        results(raw[name], case, load) for name, (case, load, _) in zip(names, asked, strict=True)
    ]
    record = provenance.read(arguments.out)[0]
    day = record.get("time", str(date.today()))[:10]
    parts = [f"{day}, commit {record.get('commit')}, {', '.join(surroundings().values())}"]
    parts += ["In brackets quartiles; ratios are medians of those within rounds."]
    tables: dict[str, list[pd.DataFrame]] = {}
    for name, (case, load, _), each in zip(names, asked, found, strict=True):
        tables.setdefault(title(case, load) if arguments.alone else name, []).append(each)
    for name, together in tables.items():
        parts += [f"## {name}", table(pd.concat(together), arguments.alone)]
    text = "\n\n".join(parts) + "\n"
    write_text(arguments.out / "speed.csv", pd.concat(found).to_csv(index=False))
    write_text(arguments.out / "speed.md", text)
    print(f"{text}\nalso in {arguments.out}")
    if not any(each.rounds.any() for each in found):
        raise ValueError("no method could be measured: see the reasons above")


if __name__ == "__main__":
    main()
