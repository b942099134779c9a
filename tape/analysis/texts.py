"""What analyses of trained models on windows of a text have in common."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers
from torch import Tensor

from tape.command import EXPECTED, expected_errors, in_one_line
from tape.compare.rows import grouped
from tape.compare.runs import Run, settings_of
from tape.evaluation.tables import csv_table
from tape.evaluation.texts import CORPORA, open_text
from tape.files import make_folder
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
        ValueError: if a run occurs twice.
    """
    resolved = [folder.resolve() for folder in folders]
    if twice := {
        str(f) for f, own in zip(folders, resolved, strict=True) if resolved.count(own) > 1
    }:
        raise ValueError(f"--model {' '.join(sorted(twice))}: one folder, given twice")
    names = [folder.name for folder in resolved]
    if len(set(names)) < len(names):
        shared = os.path.commonpath(resolved)
        names = [str(folder.relative_to(shared)) for folder in resolved]
    runs = [Run(f, *settings_of(f)) for f in folders if (f / TRAINED).is_file()]
    rows: dict[Path, str] = {}
    for label, group in grouped(runs):
        if len(group) > 1:
            label = f"{label}, seeds" if label in names else label
            rows |= {run.folder: label for run in group}
    return [Model(f, name, rows.get(f, name)) for f, name in zip(folders, names, strict=True)]


def measured(
    given: list[Path], measure: Callable[[Model], Iterable[dict[str, Any]]]
) -> tuple[list[dict[str, Any]], dict[Path, str]]:
    """The rows of all models, and why some have none.

    Raises:
        ValueError: if no model has any.
    """
    rows: list[dict[str, Any]] = []
    refused: dict[Path, str] = {}
    for model in models(given):
        try:
            rows += list(measure(model))
        except EXPECTED as error:
            refused[model.folder] = in_one_line(error)
    if not rows:
        raise ValueError("; ".join(refused.values()))
    return rows, refused


def with_refused(text: str, refused: dict[Path, str]) -> str:
    """Tables, and below them what is not in them."""
    lines = [f"* {folder}: {why}" for folder, why in refused.items()]
    return "\n\n".join([text, "Not in the tables:", "\n".join(lines)]) if lines else text


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
        raise ValueError(f"windows of {length} tokens: the text has {len(tokens):,}")
    last = len(tokens) - length
    starts = np.unique(np.linspace(0, last, min(arguments.windows, last + 1)).astype(int))
    found = [torch.from_numpy(tokens[start : start + length].astype(np.int64)) for start in starts]
    return text.name, found


def table(rows: list[dict[str, Any]]) -> str:
    """csv"""
    return csv_table([rows[0], *(row.values() for row in rows)])


@expected_errors()
def carry_out(
    run: Callable[[argparse.Namespace], tuple[str, bool]], arguments: argparse.Namespace
) -> None:
    """Print the tables of `run`, which also says whether all models are in them: the status is 1
    otherwise."""
    transformers.logging.disable_progress_bar()
    make_folder(arguments.out)  # before hours of work, if that cannot be
    text, whole = run(arguments)
    print(text)
    print(f"\nalso in {arguments.out}")
    sys.exit(not whole)
