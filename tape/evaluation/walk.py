"""All windows of a text, scored in worker processes and shards that resume."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tape.evaluation import scoring
from tape.evaluation.journal import Shard, join
from tape.evaluation.texts import Text, open_text
from tape.evaluation.windows import Batch
from tape.evaluation.workers import answering, complete_shard
from tape.files import reading
from tape.model.checkpoint import check_length, identified, load_model
from tape.model.modeling import TapeForCausalLM

Record = Callable[[Batch, np.ndarray], dict[str, Any]]  # of a batch and its losses


def opened(arguments: argparse.Namespace, longest: int) -> tuple[TapeForCausalLM, Text]:
    """Returns the model and the text of a command.

    Raises:
        ValueError, OSError: if windows of `longest` tokens, or the text, do not suit the model.
    """
    model = load_model(arguments.model, scoring.DTYPES[arguments.dtype])
    check_length(model, longest, f"--lengths {longest}")
    cache = Path(os.environ.get("TAPE_CACHE", "cache"))
    most = arguments.max_tokens
    text = open_text(arguments.data, arguments.files, arguments.model, cache, most)
    text.check(model.config.vocab_size)
    return model, text


def walk(
    arguments: argparse.Namespace,
    model: TapeForCausalLM,
    text: Text,
    batches: list[Batch],
    asked: dict[str, Any],
    place: str,
    record: Record,
) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Scores the batches of one shard; a repeated call continues.

    Args:
        asked: what the losses depend on besides weights and text.
        place: beginning of the folder's name, which a hash of `asked` completes.
        record: a function of a module; other processes call it.

    Returns:
        Hashes of the `model` and the `text`; the records of all batches, in their order, with
        `batch`, the number.

    Raises:
        Incomplete: if other shards are missing.
    """
    header = {**identified(arguments.model), "text": text.fingerprint(), **asked}
    header["batches"] = len(batches)
    results = Path(place + hashlib.sha256(json.dumps(header).encode()).hexdigest()[:12])
    shard = Shard.parse(arguments.shard)
    load = partial(_load, dtype=scoring.DTYPES[arguments.dtype])
    answer = partial(_answer, text=text, record=record)
    complete_shard(
        results,
        shard,
        header,
        batches,
        answering(arguments.model, model, None, answer, arguments.processes, load),
        lambda batch, found: found,
        title=lambda batch: f"windows of {batch.length:,}",
    )
    _, rows = join(results)
    with reading(results):
        return header, sorted(rows, key=lambda row: row["batch"])


def _load(folder: Path, dtype: torch.dtype) -> tuple[TapeForCausalLM, None]:
    return load_model(folder, dtype), None


def _answer(
    model: TapeForCausalLM, tokenizer: None, batch: Batch, text: Text, record: Record
) -> dict[str, Any]:
    return record(batch, scoring.losses(model, text.tokens, batch))
