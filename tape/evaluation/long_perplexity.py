"""LongPPL: perplexity of the tokens that need a long context (Fang et al. 2024, arXiv 2410.23771).

python -m tape.evaluation.long_perplexity --model output/llama_ft --data x.bin --choose keys.json
python -m tape.evaluation.long_perplexity --model output/llama_adape --data x.bin --keys keys.json

A named evaluator chooses the key tokens once: those whose loss is more than 2 nats lower with the
long context than with a short one, and below 2 nats with the long one. Other models of the same
tokenizer are then scored on these tokens.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from tape.command import Parser, expected_errors, integer, model_folder
from tape.evaluation.journal import Shard, join
from tape.evaluation.perplexity import DTYPES
from tape.evaluation.scoring import BATCH_TOKENS, exp, losses, windows_at_once
from tape.evaluation.tables import add_rows, check_addable, markdown_table
from tape.evaluation.texts import CORPORA, Text, open_text
from tape.evaluation.windows import Batch, batches_of, windows_of
from tape.evaluation.workers import answering, complete_shard
from tape.files import check_folder, read_object, reading, write_text
from tape.model.checkpoint import check_length, fingerprint, identified, load_model
from tape.model.modeling import TapeForCausalLM
from tape.runs.folder import folder_for_results

GAIN, MOST = 2.0, 2.0  # nats: by the long context, at least; with it, at most
ABOUT = ("model", "model_hash", "evaluator", "data", "data_hash", "length", "short", "dtype")
COLUMNS = (*ABOUT, "keys", "nll", "long_perplexity")


def score(model: TapeForCausalLM, tokenizer: None, batch: Batch, text: Text) -> list[float]:
    """Returns the losses of the scored tokens of a batch, in nats."""
    return losses(model, text.tokens, batch).round(6).tolist()


def _load(folder: Path, dtype: torch.dtype) -> tuple[TapeForCausalLM, None]:
    return load_model(folder, dtype), None


def measure(
    arguments: argparse.Namespace,
    text: Text,
    lengths: list[int],
    place: Path,
    keys: np.ndarray | None = None,
) -> list[np.ndarray]:
    """Returns the losses of a text's tokens for each length of the windows, (N,) float64; NaN where
    there is none. Windows overlap by half: a loss has between half of a length and a length of
    context. A repeated call continues.

    Args:
        place: the folder of what was measured so far.
        keys: sorted tokens of which windows must score one; None: every window counts.
    """
    load = partial(_load, dtype=DTYPES[arguments.dtype])
    model, _ = load(arguments.model)
    check_length(model, max(lengths), f"--length {max(lengths)}")
    text.check(model.config.vocab_size)
    batches = []
    for length in lengths:
        windows = windows_of("sliding", text.length, length, length // 2)
        if keys is not None:
            windows = [x for x in windows if np.diff(np.searchsorted(keys, [x.first, x.stop]))]
        batches += batches_of(windows, length, windows_at_once(length, arguments.batch_tokens))
    header = {
        **identified(arguments.model),
        "text": text.fingerprint(),
        "keys": None if keys is None else hashlib.sha256(keys.tobytes()).hexdigest(),
        "lengths": lengths,
        "dtype": arguments.dtype,
        "batch_tokens": arguments.batch_tokens,
        "batches": len(batches),
    }
    results = place / hashlib.sha256(json.dumps(header).encode()).hexdigest()[:12]
    complete_shard(
        results,
        Shard.parse("1/1"),
        header,
        batches,
        answering(
            arguments.model, model, None, partial(score, text=text), arguments.processes, load
        ),
        lambda batch, found: {"losses": found},
        title=lambda batch: f"windows of {batch.length:,}",
    )
    found = [np.full(text.length, np.nan) for _ in lengths]
    with reading(results):
        for row in join(results)[1]:
            batch = batches[row["batch"]]
            scored = np.concatenate([np.arange(w.first, w.stop) for w in batch.windows])
            found[lengths.index(batch.length)][scored] = row["losses"]
    return found


def key_tokens(long: np.ndarray, short: np.ndarray) -> np.ndarray:
    """Returns the tokens, ascending, that the long context makes likely and the short one does
    not: (K,). Tokens with a NaN are none."""
    return np.flatnonzero((short - long > GAIN) & (long < MOST))


def choose(arguments: argparse.Namespace, text: Text) -> dict[str, Any]:
    """Writes the key tokens of a text by the evaluator `arguments.model`, and returns them.

    Raises:
        ValueError: if there are none.
    """
    if not 2 <= arguments.short <= arguments.length // 2:
        raise ValueError(
            f"--short {arguments.short} must be in 2..{arguments.length // 2}, half of --length"
        )
    check_folder(arguments.choose.parent)
    place = arguments.choose.with_suffix("")
    long, short = measure(arguments, text, [arguments.length, arguments.short], place)
    long[: arguments.length // 2] = np.nan  # whose context is shorter
    keys = key_tokens(long, short)
    scored = int(np.isfinite(long).sum())
    if not len(keys):
        raise ValueError(
            f"{arguments.model} has no key token among {scored:,}: it does not use contexts longer "
            f"than --short {arguments.short}; choose another evaluator or a smaller --short"
        )
    found = {
        "evaluator": arguments.model.resolve().name,
        "evaluator_hash": fingerprint(arguments.model)[:16],
        "data": text.name,
        "data_hash": text.fingerprint()[:16],
        "length": arguments.length,
        "short": arguments.short,
        "dtype": arguments.dtype,
        "scored": scored,
        "keys": keys.tolist(),
    }
    write_text(arguments.choose, json.dumps(found) + "\n")
    return found


def evaluate(arguments: argparse.Namespace, text: Text) -> dict[str, str]:
    """Adds the LongPPL of a model to its table and returns the row.

    Raises:
        ValueError: if the keys are of another text, or of another tokenizer.
    """
    check_addable(arguments.out, COLUMNS)
    chosen = read_object(arguments.keys)
    with reading(arguments.keys):
        keys, length = np.array(chosen["keys"], dtype=np.int64), chosen["length"]
        if keys.ndim != 1 or not len(keys) or (np.diff(keys, prepend=-1) <= 0).any():
            raise ValueError("keys must be ascending tokens")
        if chosen["data_hash"] != text.fingerprint()[:16]:
            raise ValueError(
                f"the keys were chosen on another text or with another tokenizer than {text.name}; "
                "use the text, the --max_tokens and a model with the tokenizer of --choose"
            )
    (found,) = measure(arguments, text, [length], arguments.out.with_suffix(""), keys)
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
    return add_rows(arguments.out, COLUMNS, len(ABOUT), [row])[0]


def parse(given: list[str] | None = None) -> argparse.Namespace:
    parser = Parser(
        prog="python -m tape.evaluation.long_perplexity",
        description="Perplexity of the tokens that need a long context (LongPPL).",
    )
    add = parser.add_argument
    add(
        "--model",
        type=model_folder,
        required=True,
        help="folder of a model of ours, or a Llama",
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--choose", type=Path, help="write the key tokens of this evaluator here")
    what.add_argument("--keys", type=Path, help="score the model on these key tokens")
    data = f"a file of uint16 token ids, or the validation split of {', '.join(CORPORA)}"
    add("--data", required=True, help=data)
    add("--files", nargs="+", help="of --data text, or the folder of --data c4")
    add("--max_tokens", type=integer(1), help="of the text, from its beginning")
    add("--length", type=integer(4), default=8192, help="of the long windows; with --choose")
    add("--short", type=integer(2), default=1024, help="of the short windows; with --choose")
    add("--batch_tokens", type=integer(1), default=BATCH_TOKENS, help="run at once")
    add("--dtype", choices=DTYPES, default="float32")
    add("--processes", type=integer(1), default=1, help="worker processes on this machine")
    out = "a table to add to (default: long_perplexity.csv in the run's folder, or in output/)"
    add("--out", type=Path, help=out)
    arguments = parser.parse_args(given)
    other = {"--choose": ("out",), "--keys": ("length", "short")}
    mode = "--choose" if arguments.choose else "--keys"
    for name in other[mode]:
        if getattr(arguments, name) != parser.get_default(name):
            parser.error(f"{mode} takes no --{name}")
    if arguments.choose and arguments.choose.suffix != ".json":
        parser.error(f"--choose {arguments.choose} must end in .json")
    arguments.out = arguments.out or folder_for_results(arguments.model) / "long_perplexity.csv"
    return arguments


@expected_errors(continues=True)
def main(given: list[str] | None = None) -> None:
    arguments = parse(given)
    transformers.logging.disable_progress_bar()
    cache = Path(os.environ.get("TAPE_CACHE", "cache"))
    model, most = arguments.model, arguments.max_tokens
    text = open_text(arguments.data, arguments.files, model, cache, most)
    if arguments.choose:
        found = choose(arguments, text)
        share = len(found["keys"]) / found["scored"]
        print(f"{len(found['keys']):,} of {found['scored']:,} tokens are key tokens ({share:.2%})")
        print(f"also in {arguments.choose}")
        return
    row = evaluate(arguments, text)
    cells = [row[name] for name in ("model", "evaluator", "length", "short", "keys")]
    head = ["model", "evaluator", "window", "short window", "key tokens", "loss", "LongPPL"]
    values = [f"{float(row['nll']):.4f}", f"{float(row['long_perplexity']):.3f}"]
    print(markdown_table([head, [*cells, *values]]))
    print(f"\nalso in {arguments.out}")


if __name__ == "__main__":
    main()
