"""LongPPL: perplexity of the tokens that need a long context (Fang et al. 2024, arXiv 2410.23771).

A named evaluator chooses the key tokens once: those whose loss is more than 2 nats lower with the
long context than with a short one, and below 2 nats with the long one. Other models of the same
tokenizer are then scored on these tokens.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from tape.evaluation.scoring import exp
from tape.evaluation.tables import add_rows, check_addable, markdown_table
from tape.evaluation.texts import Text, opened, walk
from tape.evaluation.windows import Batch, batches_of, windows_of
from tape.files import check_folder, read_object, reading, write_text
from tape.model.checkpoint import fingerprint
from tape.model.modeling import TapeForCausalLM

GAIN, MOST = 2.0, 2.0  # nats: by the long context, at least; with it, at most
ABOUT = ("model", "model_hash", "evaluator", "data", "data_hash", "length", "short", "dtype")
COLUMNS = (*ABOUT, "keys", "nll", "long_perplexity")


def record(batch: Batch, losses: np.ndarray) -> dict[str, Any]:
    return {"losses": losses.round(6).tolist()}


def measure(
    arguments: argparse.Namespace,
    model: TapeForCausalLM,
    text: Text,
    lengths: list[int],
    place: Path,
    keys: np.ndarray | None = None,
) -> list[np.ndarray]:
    """Returns the losses of a text's tokens for each length of the windows, (N,) float64; NaN where
    there is none. Windows overlap by half: a loss has half of a length to a length of context.

    Args:
        place: the folder of what was measured so far.
        keys: sorted tokens of which windows must score one; None: every window counts.
    """
    batches = []
    for length in lengths:
        windows = windows_of("sliding", text.length, length, length // 2)
        if keys is not None:
            windows = [x for x in windows if np.diff(np.searchsorted(keys, [x.first, x.stop]))]
        batches += batches_of(windows, length, arguments.batch_tokens)
    asked = {
        "keys": None if keys is None else hashlib.sha256(keys.tobytes()).hexdigest(),
        "lengths": lengths,
        "dtype": arguments.dtype,
        "batch_tokens": arguments.batch_tokens,
    }
    _, rows = walk(arguments, model, text, batches, asked, f"{place}/", record)
    found = [np.full(text.length, np.nan) for _ in lengths]
    with reading(place):
        for row in rows:
            batch = batches[row["batch"]]
            scored = np.concatenate([np.arange(w.first, w.stop) for w in batch.windows])
            found[lengths.index(batch.length)][scored] = row["losses"]
    return found


def choose(arguments: argparse.Namespace) -> str:
    """Writes the key tokens of a text by the evaluator `arguments.model`; returns their number.

    Raises:
        ValueError: if there are none.
    """
    (length,), short = arguments.lengths, arguments.short
    if not 2 <= short <= length // 2:
        raise ValueError(f"--short {short} must be in 2..{length // 2}, half of --lengths")
    check_folder(arguments.choose.parent)
    model, text = opened(arguments, length)
    place = arguments.choose.with_suffix("")
    with_long, with_short = measure(arguments, model, text, [length, short], place)
    with_long[: length // 2] = np.nan  # whose context is shorter
    keys = np.flatnonzero((with_short - with_long > GAIN) & (with_long < MOST))  # not of NaNs
    scored = int(np.isfinite(with_long).sum())
    if not len(keys):
        raise ValueError(
            f"{arguments.model} has no key token among {scored:,}: it does not use contexts longer "
            f"than --short {short}; choose another evaluator or a smaller --short"
        )
    found = {
        "evaluator": arguments.model.resolve().name,
        "evaluator_hash": fingerprint(arguments.model)[:16],
        "data": text.name,
        "data_hash": text.fingerprint()[:16],
        "length": length,
        "short": short,
        "dtype": arguments.dtype,
        "scored": scored,
        "keys": keys.tolist(),
    }
    write_text(arguments.choose, json.dumps(found) + "\n")
    share = f"{len(keys):,} of {scored:,} tokens are key tokens ({len(keys) / scored:.2%})"
    return f"{share}\nalso in {arguments.choose}"


def evaluate(arguments: argparse.Namespace) -> str:
    """Adds the LongPPL of a model to its table and returns the row as a table.

    Raises:
        ValueError: if the keys are of another text, or of another tokenizer.
    """
    check_addable(arguments.out, COLUMNS)
    chosen = read_object(arguments.keys)
    with reading(arguments.keys):
        keys, length = np.array(chosen["keys"], dtype=np.int64), chosen["length"]
        if keys.ndim != 1 or not len(keys) or (np.diff(keys, prepend=-1) <= 0).any():
            raise ValueError("keys must be ascending tokens")
    model, text = opened(arguments, length)
    with reading(arguments.keys):
        if chosen["data_hash"] != text.fingerprint()[:16]:
            raise ValueError(
                f"the keys were chosen on another text or with another tokenizer than {text.name}; "
                "use the text, the --max_tokens and a model with the tokenizer of --choose"
            )
    place = arguments.out.with_suffix("")
    (found,) = measure(arguments, model, text, [length], place, keys)
    nll = float(found[keys].mean())
    row = {
        "model": arguments.model.resolve().name,
        "model_hash": fingerprint(arguments.model)[:16],
        **{name: chosen[name] for name in ("evaluator", "data", "data_hash", "length", "short")},
        "dtype": arguments.dtype,
        "keys": len(keys),
        "nll": nll,
        "long_perplexity": exp(nll),
    }
    (row,) = add_rows(arguments.out, COLUMNS, len(ABOUT), [row])
    cells = [row[name] for name in ("model", "evaluator", "length", "short", "keys")]
    head = ["model", "evaluator", "window", "short window", "key tokens", "loss", "LongPPL"]
    values = [f"{float(row['nll']):.4f}", f"{float(row['long_perplexity']):.3f}"]
    return f"{markdown_table([head, [*cells, *values]])}\n\nalso in {arguments.out}"
