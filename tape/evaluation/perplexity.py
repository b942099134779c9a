"""Perplexity of a model on a text, with windows of several lengths.

python -m tape.evaluation.perplexity --model output/adape_local --data local --lengths 512 1024
python -m tape.evaluation.perplexity --model output/llama_adape --data ../data/proof_pile.bin
python -m tape.evaluation.perplexity --plot output/*/perplexity.csv --out comparison.png
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
from functools import partial
from pathlib import Path

import numpy as np
import torch
import transformers

from tape.command import Distinct, Parser, expected_errors, integer, model_folder
from tape.evaluation.curves import COLUMNS, Binned, binned, read_curves, write
from tape.evaluation.journal import Incomplete, Shard, join
from tape.evaluation.picture import draw
from tape.evaluation.scoring import BATCH_TOKENS, Perplexity, losses, windows_at_once
from tape.evaluation.tables import check_addable, markdown_table
from tape.evaluation.texts import CORPORA, Text, open_text
from tape.evaluation.windows import (
    CONVENTIONS,
    STRIDE,
    Batch,
    batches_of,
    strides_of,
    windows_of,
)
from tape.evaluation.workers import answering, complete_shard
from tape.files import reading
from tape.model.checkpoint import check_length, identified, load_model
from tape.model.modeling import TapeForCausalLM
from tape.runs.folder import folder_for_results

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def plan(arguments: argparse.Namespace, strides: dict[int, int], tokens: int) -> list[Batch]:
    """Returns all windows of a text in batches, the costliest first: if memory is short, it shows
    at once. `strides` are by length."""
    batches = []
    for length, stride in strides.items():
        windows = windows_of(arguments.convention, tokens, length, stride)
        most = arguments.batch_size or windows_at_once(length, arguments.batch_tokens)
        batches += batches_of(windows, length, most)
    return sorted(batches, key=lambda batch: (-batch.cost, -batch.length))


def score(model: TapeForCausalLM, tokenizer: None, batch: Batch, text: Text) -> Binned:
    """Returns the losses of a batch, by position in the window.

    Raises:
        ValueError: if one of them is not a number.
    """
    found = losses(model, text.tokens, batch)
    if not np.isfinite(found).all():
        raise ValueError(
            f"the model has losses that are not finite in windows of {batch.length:,}: its "
            f"weights are damaged, or the dtype is too narrow for them"
        )
    return binned(np.concatenate([window.positions for window in batch.windows]), found)


def _load(folder: Path, dtype: torch.dtype) -> tuple[TapeForCausalLM, None]:
    return load_model(folder, dtype), None


def run(arguments: argparse.Namespace) -> list[Perplexity]:
    """Evaluates one shard; returns the results if all others are complete.

    Raises:
        Incomplete: if other shards are missing.
        ValueError, OSError: for what cannot be evaluated, before any work.
    """
    shard, folder, out = Shard.parse(arguments.shard), arguments.model, arguments.out
    check_addable(out, COLUMNS)
    read_curves(out)
    strides = strides_of(arguments.convention, arguments.lengths, arguments.stride)
    load = partial(_load, dtype=DTYPES[arguments.dtype])
    model, _ = load(folder)
    longest = max(arguments.lengths)
    check_length(model, longest, f"--lengths {longest}")
    cache = Path(os.environ.get("TAPE_CACHE", "cache"))
    text = open_text(arguments.data, arguments.files, folder, cache, arguments.max_tokens)
    batches = plan(arguments, strides, text.length)
    text.check(model.config.vocab_size)

    header = {
        **identified(folder),
        "text": text.fingerprint(),
        "lengths": list(strides),
        "strides": list(strides.values()),
        **{name: getattr(arguments, name) for name in ("convention", "batch_tokens")},
        **{name: getattr(arguments, name) for name in ("batch_size", "dtype")},
        "batches": len(batches),
    }
    digest = hashlib.sha256(json.dumps(header).encode()).hexdigest()[:12]
    results = out.with_suffix("") / f"{arguments.convention}-{digest}"
    print(f"{folder}: shard {shard} of {text.name}, {text.length:,} tokens, {arguments.convention}")
    complete_shard(
        results,
        shard,
        header,
        batches,
        answering(folder, model, None, partial(score, text=text), arguments.processes, load),
        lambda batch, found: {"length": batch.length, "bins": found},
        title=lambda batch: f"windows of {batch.length:,}",
    )
    _, rows = join(results)
    by_length: dict[int, list[Binned]] = {length: [] for length in arguments.lengths}
    about = {
        "model": folder.resolve().name,
        "model_hash": header["model"][:16],
        "data": text.name,
        "data_hash": header["text"][:16],
        "convention": arguments.convention,
        "stride": "" if arguments.convention == "disjoint" else strides[longest],
        "batch_size": arguments.batch_size or "",
        "dtype": arguments.dtype,
    }
    with reading(results):
        for row in sorted(rows, key=lambda row: row["batch"]):
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
    lengths = [1024, 2048, 4096, 8192]
    add("--lengths", type=integer(2), nargs="+", default=lengths, help="of windows")
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
    arguments = parser.parse_args(given)
    if arguments.plot:
        for name in sorted(vars(arguments).keys() - {"plot", "out"}):
            if getattr(arguments, name) != parser.get_default(name):
                parser.error(f"--plot takes --out and nothing else, not --{name}")
        arguments.out = arguments.out or Path("perplexity.png")
        if arguments.out.suffix not in (".png", ".svg", ".pdf"):
            parser.error(f"--out {arguments.out} must end in .png, .svg or .pdf")
        return arguments
    if arguments.data is None:
        parser.error("--model needs --data")
    if arguments.convention == "longlora":
        arguments.batch_size = arguments.batch_size or 1
    elif arguments.batch_size is not None:
        parser.error(f"--batch_size is of --convention longlora, not of {arguments.convention}")
    arguments.lengths = sorted(set(arguments.lengths))
    arguments.out = arguments.out or folder_for_results(arguments.model) / "perplexity.csv"
    return arguments


@expected_errors(continues=True)
def main() -> None:
    arguments = parse()
    transformers.logging.disable_progress_bar()
    if arguments.plot:
        draw(arguments.plot, arguments.out)
        print(arguments.out)
        return
    try:
        lines = [["window", "scored tokens", "loss", "perplexity"]]
        for x in run(arguments):
            lines.append([f"{x.length:,}", f"{x.tokens:,}", f"{x.nll:.4f}", f"{x.perplexity:.3f}"])
        print(markdown_table(lines))
        print(f"\nalso in {arguments.out}, with a picture and the loss by position beside it")
    except Incomplete as missing:
        print(f"shard {arguments.shard} is done; {missing}")


if __name__ == "__main__":
    main()
