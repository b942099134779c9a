"""Perplexity of a model on a text, with windows of several lengths."""

import argparse
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import transformers

from tape.core.files import check_folder, reading
from tape.core.provenance import TRAINED
from tape.evaluation import scoring
from tape.evaluation.curves import (
    Binned,
    binned,
    figure_of,
    read_curves,
    scoring_note,
    write,
    write_documents,
)
from tape.evaluation.extension import extended, extension
from tape.evaluation.figures import write_figure
from tape.evaluation.journal import Incomplete, Shard, answering, complete_shard, join
from tape.evaluation.tables import markdown_table
from tape.evaluation.texts import Text, asked_text
from tape.evaluation.windows import SPREAD, Batch, batches_of, strides_of, windows_of
from tape.model.checkpoint import check_length, identified, load_model
from tape.model.modeling import TapeForCausalLM


def answer(model: TapeForCausalLM, text: Text, batch: Batch) -> dict[str, Any]:
    """Returns the losses of a batch by position in the window, and by window: where it stops, the
    number of its tokens that count in the mean, and their summed loss."""
    losses = scoring.losses(model, text.tokens, batch)
    if not np.isfinite(losses).all():
        what = f"the model has losses that are not finite in windows of {batch.length:,}"
        why = "the dtype is too narrow for them, or the encoding is undefined at this length"
        raise ValueError(f"{what}: its weights are damaged, {why}")
    positions = np.concatenate([window.positions for window in batch.windows])
    found = {"length": batch.length, "bins": binned(positions, losses)}
    ends = np.cumsum([len(window.positions) for window in batch.windows])
    parts = np.split(losses, ends[:-1])
    parts = [part[-(batch.counted or len(part)) :] for part in parts]
    stops = (window.stop for window in batch.windows)
    found["windows"] = [[x, len(part), part.sum()] for x, part in zip(stops, parts, strict=True)]
    return found


def plan(
    text: Text,
    convention: str,
    strides: dict[int, int],
    batch_tokens: int,
    scored: int | None = None,
) -> list[Batch]:
    """Returns all windows in batches, the costliest first: if memory is short, it shows at once.
    The longest windows of `spread` are read as a whole, for the losses by position."""
    batches, longest = [], max(strides)
    for length, stride in strides.items():
        windows = windows_of(convention, len(text.tokens), length, stride, longest, scored)
        counted = stride if (convention, length) == (SPREAD, longest) else None
        if counted is not None:
            windows = [window._replace(first=window.start + 1) for window in windows]
        batches += batches_of(windows, length, batch_tokens, counted)
    return sorted(batches, key=lambda batch: (-batch.cost, -batch.length))


def places_of(batches: list[Batch]) -> str:
    """Returns a hash of the places of all windows of a sample: with that of its text, it says which
    tokens were scored."""
    windows = sorted({(x.stop, batch.length) for batch in batches for x in batch.windows})
    return hashlib.sha256(json.dumps(windows).encode()).hexdigest()


def run(arguments: argparse.Namespace) -> str:
    """Evaluates one shard, from where it was interrupted; returns a table of the results if all
    others are complete, and raises Incomplete otherwise. Raises a ValueError or an OSError for what
    cannot be evaluated, before any work."""
    folder, out, convention = arguments.model, arguments.out, arguments.convention
    shard = Shard.parse(arguments.shard)
    if out.suffix != ".csv":
        raise ValueError(f"--out {out} must end in .csv")
    read_curves(out)
    check_folder(out.parent)
    strides = strides_of(convention, arguments.lengths, arguments.stride)
    position = extended(arguments, folder)
    model = load_model(folder, getattr(torch, arguments.dtype), position=position)
    check_length(model, arguments.lengths[-1], f"--lengths {arguments.lengths[-1]}")
    text = asked_text(arguments, folder, arguments.max_tokens)
    text.check(model.config.vocab_size)
    batches = plan(text, convention, strides, arguments.batch_tokens, arguments.scored_tokens)
    header = {
        **identified(folder, model),
        "text": text.fingerprint(),
        "lengths": list(strides),
        "strides": list(strides.values()),
        "convention": convention,
        "batch_tokens": arguments.batch_tokens,
        "batch_size": 1 if convention == "longlora" else None,  # of LongLoRA's command
        "dtype": arguments.dtype,
        "batches": len(batches),
    }
    if position is not None:
        header["position"] = position
    if convention == SPREAD:
        header["places"] = places_of(batches)
    digest = hashlib.sha256(json.dumps(header).encode()).hexdigest()[:12]
    results = out.with_suffix("") / f"{convention}-{digest}"
    print(f"{folder}: shard {shard} of {text.name}, {len(text.tokens):,} tokens, {convention}")
    answered = answering(folder, model, text, answer, processes=1)
    complete_shard(results, shard, header, batches, answered, lambda batch, found: found)
    return publish(arguments, header, text, results)


def publish(
    arguments: argparse.Namespace, header: dict[str, Any], text: Text, results: Path
) -> str:
    """Adds the results of all shards to the tables, draws them, and returns them as a table."""
    _, rows = join(results)
    convention, out, measured = arguments.convention, arguments.out, header["model"]
    if not (arguments.model / TRAINED).is_file():  # a run's weights have one configuration
        measured = hashlib.sha256(f"{measured} {header['config']}".encode()).hexdigest()
    scored_text = header["text"]
    if places := header.get("places"):
        scored_text = hashlib.sha256(f"{scored_text} {places}".encode()).hexdigest()
    about = {
        "model": arguments.model.resolve().name,
        "extend": extension(arguments),
        "model_hash": measured[:16],
        "data": text.name,
        "data_hash": scored_text[:16],
        "convention": convention,
        "stride": "" if convention == "disjoint" else header["strides"][-1],
        "batch_size": header["batch_size"] or "",
        "dtype": arguments.dtype,
    }
    by_length: dict[int, list[Binned]] = {length: [] for length in header["lengths"]}
    windows: list[tuple[int, int, int, float]] = []
    with reading(results):
        for row in rows:
            by_length[row["length"]].append(row["bins"])
            windows += ((row["length"], *window) for window in row["windows"])
        # In an evaluation's folder, which comparisons read (`read_evaluation`).
        alone = out.resolve().parent.parent == arguments.model.resolve()
        by_window = pd.DataFrame(windows, columns=["length", "stop", "tokens", "loss"])
        found = write(out, about, by_length, alone, by_window)
    numbers = text.documents(by_window["stop"] - by_window["tokens"])
    write_documents(out, about, by_window.assign(document=numbers), alone)
    write_figure(figure_of(*read_curves(out)), out.with_suffix(""), ["png"])
    lines = [["window", "scored tokens", "loss", "perplexity"]]
    for x in found:
        lines.append([f"{x.length:,}", f"{x.tokens:,}", f"{x.nll:.4f}", f"{x.perplexity:.3f}"])
    counts = {x.length: x.tokens for x in found}
    note = scoring_note(convention, about["stride"], counts, text.name)
    table = f"{markdown_table(lines)}\n\n{note}"
    beside = "a picture and the losses by position and document"
    return f"{table}\n\nalso in {out}, with {beside} beside it"


def main(arguments: argparse.Namespace) -> None:
    transformers.logging.disable_progress_bar()
    try:
        print(run(arguments))
    except Incomplete as missing:
        print(f"shard {arguments.shard} is done; {missing}")
