"""What analyses of trained models on windows of a text have in common."""

from __future__ import annotations

import argparse
import csv
import io
import os
import sys
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers
from safetensors import SafetensorError
from torch import Tensor

from tape.evaluation.compare import labels_of, settings_of
from tape.evaluation.texts import CORPORA, open_text
from tape.modeling import TapeForCausalLM
from tape.training.runs import TRAINED


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Of models, and of a text."""
    parser.add_argument("--model", type=Path, nargs="+", required=True, help="folders of models")
    parser.add_argument(
        "--data",
        default="local",
        help=f"a file of uint16 token ids, or the validation split of {', '.join(CORPORA)}",
    )
    parser.add_argument("--files", nargs="+", help="of --data text, or the folder of --data c4")


class Model(NamedTuple):
    """
    Attributes:
        name: of its folder, each another one.
        row: of the table that it is in. Runs that differ in their seed alone are one row, named as
            comparisons of runs name it; any other model is a row by itself.
    """

    folder: Path
    name: str
    row: str


def models(folders: list[Path]) -> list[Model]:
    """Those in folders.

    Raises:
        ValueError: if a run is there twice.
    """
    names = [folder.resolve().name for folder in folders]
    if len(set(names)) < len(names):
        names = [str(folder).replace("/", "_") for folder in folders]
    runs = {n: settings_of(f) for n, f in enumerate(folders) if (f / TRAINED).is_file()}
    for (n, one), (m, other) in combinations(runs.items(), 2):
        if one == other:
            raise ValueError(
                f"{folders[n]} and {folders[m]} are the same run, seed {one[0]}: take one"
            )
    rows = names.copy()
    settings = [without_seed for _, without_seed in runs.values()]
    distinct = [each for n, each in enumerate(settings) if each not in settings[:n]]
    labels = labels_of(distinct)
    for n, (_, own) in runs.items():
        if settings.count(own) > 1:
            rows[n] = labels[distinct.index(own)]
    return [Model(*each) for each in zip(folders, names, rows, strict=True)]


def windows(
    arguments: argparse.Namespace, folder: Path, decoder: TapeForCausalLM, length: int
) -> tuple[str, list[Tensor]]:
    """The name of the text, and `--windows` of `length` tokens, spread evenly over it.

    Raises:
        ValueError, OSError: if there is no such text, or it is too short or of other tokens.
    """
    cache = Path(os.environ.get("TAPE_CACHE", "cache"))
    text = open_text(arguments.data, arguments.files, folder, cache)
    text.check(decoder.config.vocab_size)
    tokens = text.tokens
    if len(tokens) < length:
        raise ValueError(f"--length {length} is more than the {len(tokens):,} tokens of the text")
    starts = np.linspace(0, len(tokens) - length, arguments.windows).astype(int)
    found = [torch.from_numpy(tokens[start : start + length].astype(np.int64)) for start in starts]
    return text.name, found


def table(rows: list[dict[str, Any]]) -> str:
    """csv"""
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def carry_out(run: Callable[[argparse.Namespace], str], arguments: argparse.Namespace) -> None:
    """Print what comes out, or the error that ends it."""
    transformers.logging.disable_progress_bar()
    try:
        print(run(arguments))
        print(f"\nalso in {arguments.out}")
    except (ValueError, OSError, SafetensorError, torch.OutOfMemoryError) as error:
        sys.exit(f"error: {error}")
