"""Perplexity of a model on a text, with windows of several lengths.

tape perplexity --model output/adape_local --data local --lengths 512 1024
tape perplexity --model output/llama_adape --data ../data/proof_pile.bin
tape perplexity --model output/rope_local --data local --extend self_extend --factor 4

LongPPL, of the tokens that need a long context (tape/evaluation/long_perplexity.py):

tape perplexity --model output/llama_ft --data x.bin --choose keys.json
tape perplexity --model output/llama_adape --data x.bin --keys keys.json
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import transformers

from tape.command import Parser, expected_errors, integer, model_folder
from tape.evaluation import long_perplexity
from tape.evaluation.curves import COLUMNS, Binned, binned, draw, read_curves, write
from tape.evaluation.extension import add_options, extension
from tape.evaluation.journal import Incomplete
from tape.evaluation.scoring import DTYPES
from tape.evaluation.tables import check_addable, markdown_table
from tape.evaluation.texts import CORPORA, opened, walk
from tape.evaluation.windows import (
    BATCH_TOKENS,
    CONVENTIONS,
    Batch,
    batches_of,
    strides_of,
    windows_of,
)
from tape.files import reading
from tape.runs.folder import folder_for_results

LENGTHS = [1024, 2048, 4096, 8192]
LONG, SHORT = 8192, 1024  # of LongPPL
# Options that --choose and --keys take; without them, all others but --short are taken.
OF_A_TEXT = {"model", "data", "files", "max_tokens", "batch_tokens", "dtype", "processes"}
OPTIONS = {"choose": OF_A_TEXT | {"lengths", "short"}, "keys": OF_A_TEXT | {"out"}}


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


def run(arguments: argparse.Namespace) -> str:
    """Evaluates one shard; returns a table of the results if all others are complete.

    Raises:
        Incomplete: if other shards are missing.
        ValueError, OSError: for what cannot be evaluated, before any work.
    """
    folder, out, convention = arguments.model, arguments.out, arguments.convention
    check_addable(out, COLUMNS)
    read_curves(out)
    strides = strides_of(convention, arguments.lengths, arguments.stride)
    model, text = opened(arguments, max(arguments.lengths))
    alone = convention == "longlora"  # the mean is over windows, as in LongLoRA's command
    batches = []
    for length, stride in strides.items():
        windows = windows_of(convention, text.length, length, stride)
        batches += batches_of(windows, length, length if alone else arguments.batch_tokens)
    # The costliest first: if memory is short, it shows at once.
    batches.sort(key=lambda batch: (-batch.cost, -batch.length))
    asked = {
        "lengths": list(strides),
        "strides": list(strides.values()),
        "convention": convention,
        "batch_tokens": arguments.batch_tokens,
        "batch_size": 1 if alone else None,
        "dtype": arguments.dtype,
    }
    print(f"{folder}: shard {arguments.shard} of {text.name}, {text.length:,} tokens, {convention}")
    place = f"{out.with_suffix('')}/{convention}-"
    hashes, rows = walk(arguments, model, text, batches, asked, place, record)
    about = {
        "model": f"{folder.resolve().name} {extension(arguments)}".strip(),
        "model_hash": hashes["model"][:16],
        "data": text.name,
        "data_hash": hashes["text"][:16],
        "convention": convention,
        "stride": "" if convention == "disjoint" else strides[max(arguments.lengths)],
        "batch_size": 1 if convention == "longlora" else "",
        "dtype": arguments.dtype,
    }
    by_length: dict[int, list[Binned]] = {length: [] for length in arguments.lengths}
    with reading(out.with_suffix("")):
        for row in rows:
            by_length[row["length"]].append(row["bins"])
        found = write(out, about, by_length)
    draw(out)
    lines = [["window", "scored tokens", "loss", "perplexity"]]
    for x in found:
        lines.append([f"{x.length:,}", f"{x.tokens:,}", f"{x.nll:.4f}", f"{x.perplexity:.3f}"])
    note = f"also in {out}, with a picture and the loss by position beside it"
    return f"{markdown_table(lines)}\n\n{note}"


def parse(given: list[str] | None = None) -> argparse.Namespace:
    """Parses a command line; refuses options that do not go together."""
    about = "Perplexity of a model on a text, with windows of several lengths."
    parser = Parser(prog="tape perplexity", description=about)
    add = parser.add_argument
    add("--model", type=model_folder, required=True, help="a folder: a model of ours, or a Llama")
    corpora = ", ".join(name for name in CORPORA if name != "run")
    about = f"a file of uint16 token ids, or the validation split of its own text (run), {corpora}"
    add("--data", required=True, help=about)
    add("--files", nargs="+", help="of --data text, or the folder of --data c4")
    about = f"tokens of the windows (default: {' '.join(map(str, LENGTHS))}; of --choose: {LONG})"
    add("--lengths", type=integer(2), nargs="+", help=about)
    add("--convention", choices=CONVENTIONS, default="sliding")
    add("--stride", type=integer(1), help="tokens between windows (default: docs/perplexity.md)")
    add("--batch_tokens", type=integer(1), default=BATCH_TOKENS, help="run at once")
    add("--max_tokens", type=integer(1), help="of the text, from its beginning")
    add("--dtype", choices=DTYPES, default="float32")
    add("--out", type=Path, help="table to add to (default: in the run's folder, or in output/)")
    add("--shard", default="1/1", help="i/n: the i-th of n shares of the work")
    add("--processes", type=integer(1), default=1, help="worker processes on this machine")
    add_options(parser)
    long = parser.add_mutually_exclusive_group()
    long.add_argument("--choose", type=Path, help="LongPPL: write this evaluator's key tokens here")
    long.add_argument("--keys", type=Path, help="LongPPL: score the model on these key tokens")
    add("--short", type=integer(2), help=f"tokens of --choose's short windows (default: {SHORT})")
    arguments = parser.parse_args(given)
    mode = next((name for name in OPTIONS if getattr(arguments, name)), "model")
    changed = {k for k, value in vars(arguments).items() if value != parser.get_default(k)}
    allowed = OPTIONS.get(mode, vars(arguments).keys() - {"short"}) | {mode}
    if others := sorted(changed - allowed):
        parser.error(f"--{mode} takes no --{others[0]}")
    if mode == "choose":
        arguments.lengths, arguments.short = arguments.lengths or [LONG], arguments.short or SHORT
        if len(arguments.lengths) > 1:
            parser.error("--choose takes one of --lengths")
        if arguments.choose.suffix != ".json":
            parser.error(f"--choose {arguments.choose} must end in .json")
        return arguments
    # perplexity.csv of a run holds one measurement of it.
    name = "extended.csv" if arguments.extend else "perplexity.csv"
    name = "long_perplexity.csv" if mode == "keys" else name
    arguments.out = arguments.out or folder_for_results(arguments.model) / name
    arguments.lengths = sorted({*(arguments.lengths or LENGTHS)})
    return arguments


@expected_errors(continues=True)
def main(given: list[str] | None = None) -> None:
    arguments = parse(given)
    transformers.logging.disable_progress_bar()
    if arguments.choose or arguments.keys:
        long = long_perplexity.choose if arguments.choose else long_perplexity.evaluate
        print(long(arguments))
    else:
        try:
            print(run(arguments))
        except Incomplete as missing:
            print(f"shard {arguments.shard} is done; {missing}")


if __name__ == "__main__":
    main()
