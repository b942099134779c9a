"""Perplexity of a model on a text, with windows of several lengths.

python -m tape.evaluation.perplexity --model output/adape_local --data local --lengths 512 1024
python -m tape.evaluation.perplexity --model output/llama_adape --data ../data/proof_pile.bin
python -m tape.evaluation.perplexity --plot output/*/perplexity.csv --out comparison.png

LongPPL, of the tokens that need a long context (tape/evaluation/long_perplexity.py):

python -m tape.evaluation.perplexity --model output/llama_ft --data x.bin --choose keys.json
python -m tape.evaluation.perplexity --model output/llama_adape --data x.bin --keys keys.json
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import transformers

from tape.command import Distinct, Parser, expected_errors, integer, model_folder
from tape.evaluation import long_perplexity
from tape.evaluation.curves import COLUMNS, Binned, binned, read_curves, write
from tape.evaluation.journal import Incomplete
from tape.evaluation.picture import draw
from tape.evaluation.scoring import BATCH_TOKENS, DTYPES, Perplexity, windows_at_once
from tape.evaluation.tables import check_addable, markdown_table
from tape.evaluation.texts import CORPORA
from tape.evaluation.walk import opened, walk
from tape.evaluation.windows import (
    CONVENTIONS,
    STRIDE,
    Batch,
    batches_of,
    strides_of,
    windows_of,
)
from tape.files import reading
from tape.runs.folder import folder_for_results

LENGTHS = [1024, 2048, 4096, 8192]
LONG, SHORT = 8192, 1024  # of LongPPL


def plan(arguments: argparse.Namespace, strides: dict[int, int], tokens: int) -> list[Batch]:
    """Returns all windows of a text in batches, the costliest first: if memory is short, it shows
    at once. `strides` are by length."""
    batches = []
    for length, stride in strides.items():
        windows = windows_of(arguments.convention, tokens, length, stride)
        most = arguments.batch_size or windows_at_once(length, arguments.batch_tokens)
        batches += batches_of(windows, length, most)
    return sorted(batches, key=lambda batch: (-batch.cost, -batch.length))


def record(batch: Batch, losses: np.ndarray) -> dict[str, Any]:
    """Returns the losses of a batch by position in the window.

    Raises:
        ValueError: if one of them is not a number.
    """
    if not np.isfinite(losses).all():
        raise ValueError(
            f"the model has losses that are not finite in windows of {batch.length:,}: its "
            f"weights are damaged, or the dtype is too narrow for them"
        )
    positions = np.concatenate([window.positions for window in batch.windows])
    return {"length": batch.length, "bins": binned(positions, losses)}


def run(arguments: argparse.Namespace) -> list[Perplexity]:
    """Evaluates one shard; returns the results if all others are complete.

    Raises:
        Incomplete: if other shards are missing.
        ValueError, OSError: for what cannot be evaluated, before any work.
    """
    folder, out, convention = arguments.model, arguments.out, arguments.convention
    check_addable(out, COLUMNS)
    read_curves(out)
    strides = strides_of(convention, arguments.lengths, arguments.stride)
    model, text = opened(arguments, max(arguments.lengths))
    batches = plan(arguments, strides, text.length)
    asked = {
        "lengths": list(strides),
        "strides": list(strides.values()),
        **{name: getattr(arguments, name) for name in ("convention", "batch_tokens")},
        **{name: getattr(arguments, name) for name in ("batch_size", "dtype")},
    }
    print(f"{folder}: shard {arguments.shard} of {text.name}, {text.length:,} tokens, {convention}")
    place = f"{out.with_suffix('')}/{convention}-"
    hashes, rows = walk(arguments, model, text, batches, asked, place, record)
    about = {
        "model": folder.resolve().name,
        "model_hash": hashes["model"][:16],
        "data": text.name,
        "data_hash": hashes["text"][:16],
        "convention": convention,
        "stride": "" if convention == "disjoint" else strides[max(arguments.lengths)],
        "batch_size": arguments.batch_size or "",
        "dtype": arguments.dtype,
    }
    by_length: dict[int, list[Binned]] = {length: [] for length in arguments.lengths}
    with reading(out.with_suffix("")):
        for row in rows:
            by_length[row["length"]].append(row["bins"])
        found = write(out, about, by_length)
    draw([out], out.with_suffix(".png"))
    return found


def parse(given: list[str] | None = None) -> argparse.Namespace:
    parser = Parser(
        prog="python -m tape.evaluation.perplexity",
        description="Perplexity of a model on a text, with windows of several lengths.",
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--model", type=model_folder, help="folder of a model of ours, or a Llama")
    plot = "draw these tables, and measure nothing"
    what.add_argument("--plot", type=Path, nargs="+", action=Distinct, help=plot)
    add = parser.add_argument
    data = f"a file of uint16 token ids, or the validation split of {', '.join(CORPORA)}"
    add("--data", help=data)
    add("--files", nargs="+", help="of --data text, or the folder of --data c4")
    lengths = f"of windows (default: {' '.join(map(str, LENGTHS))}; with --choose {LONG})"
    add("--lengths", type=integer(2), nargs="+", help=lengths)
    add("--convention", choices=CONVENTIONS, default="sliding")
    stride = (
        f"tokens between windows (default: {STRIDE}; half of the shortest length, if sliding "
        f"windows of {STRIDE} tokens or fewer are among them)"
    )
    add("--stride", type=integer(1), help=stride)
    add("--batch_tokens", type=integer(1), default=BATCH_TOKENS, help="run at once")
    add("--batch_size", type=integer(1), help="windows in a mean of longlora (default: 1)")
    add("--max_tokens", type=integer(1), help="of the text, from its beginning")
    add("--dtype", choices=DTYPES, default="float32")
    out = "a table to add to (default: perplexity.csv in the run's folder, or in output/)"
    add("--out", type=Path, help=out)
    add("--shard", default="1/1", help="i/n: the i-th of n shares of the work")
    add("--processes", type=integer(1), default=1, help="worker processes on this machine")
    long = parser.add_mutually_exclusive_group()
    long.add_argument("--choose", type=Path, help="LongPPL: write this evaluator's key tokens here")
    long.add_argument("--keys", type=Path, help="LongPPL: score the model on these key tokens")
    short = f"LongPPL: of the short windows of --choose (default: {SHORT})"
    add("--short", type=integer(2), help=short)
    arguments = parser.parse_args(given)

    def allow(option: str, *names: str) -> None:
        for name in sorted(vars(arguments).keys() - {option, *names}):
            if getattr(arguments, name) != parser.get_default(name):
                parser.error(f"--{option} takes no --{name}")

    text = ("model", "data", "files", "max_tokens", "batch_tokens", "dtype", "processes")
    if arguments.plot:
        allow("plot", "out")
        arguments.out = arguments.out or Path("perplexity.png")
        if arguments.out.suffix not in (".png", ".svg", ".pdf"):
            parser.error(f"--out {arguments.out} must end in .png, .svg or .pdf")
        return arguments
    if arguments.data is None:
        parser.error("--model needs --data")
    name = "perplexity.csv"
    if arguments.choose:
        allow("choose", *text, "lengths", "short")
        arguments.lengths, arguments.short = arguments.lengths or [LONG], arguments.short or SHORT
        if len(arguments.lengths) > 1:
            parser.error("--choose takes one of --lengths")
        if arguments.choose.suffix != ".json":
            parser.error(f"--choose {arguments.choose} must end in .json")
        return arguments
    if arguments.keys:
        allow("keys", *text, "out")
        name = "long_perplexity.csv"
    elif arguments.short:
        parser.error("--short is of --choose")
    arguments.out = arguments.out or folder_for_results(arguments.model) / name
    if arguments.convention == "longlora":
        arguments.batch_size = arguments.batch_size or 1
    elif arguments.batch_size is not None:
        parser.error(f"--batch_size is of --convention longlora, not of {arguments.convention}")
    arguments.lengths = sorted({*(arguments.lengths or LENGTHS)})
    return arguments


@expected_errors(continues=True)
def main(given: list[str] | None = None) -> None:
    arguments = parse(given)
    transformers.logging.disable_progress_bar()
    if arguments.plot:
        draw(arguments.plot, arguments.out)
        print(arguments.out)
    elif arguments.choose:
        print(long_perplexity.choose(arguments))
    elif arguments.keys:
        print(long_perplexity.evaluate(arguments))
    else:
        try:
            lines = [["window", "scored tokens", "loss", "perplexity"]]
            for x in run(arguments):
                values = [f"{x.nll:.4f}", f"{x.perplexity:.3f}"]
                lines.append([f"{x.length:,}", f"{x.tokens:,}", *values])
            print(markdown_table(lines))
            print(f"\nalso in {arguments.out}, with a picture and the loss by position beside it")
        except Incomplete as missing:
            print(f"shard {arguments.shard} is done; {missing}")


if __name__ == "__main__":
    main()
