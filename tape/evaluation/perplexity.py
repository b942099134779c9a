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
from typing import Any

import numpy as np
import transformers

from tape import parsers
from tape.command import expected_errors
from tape.evaluation import long_perplexity
from tape.evaluation.curves import COLUMNS, Binned, binned, draw, read_curves, write
from tape.evaluation.extension import extension
from tape.evaluation.journal import Incomplete
from tape.evaluation.tables import check_addable, markdown_table
from tape.evaluation.texts import opened, walk
from tape.evaluation.windows import (
    Batch,
    batches_of,
    strides_of,
    windows_of,
)
from tape.files import reading


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


@expected_errors(continues=True)
def main(given: list[str] | None = None) -> None:
    arguments = parsers.perplexity(given)
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
