"""Common parts of analyses of trained models on windows of a text."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
import transformers
from torch import Tensor

from tape import provenance
from tape.command import (
    EXPECTED,
    Parser,
    expected_errors,
    in_one_line,
    integer,
    model_folder,
    result_folder,
)
from tape.evaluation.texts import CORPORA, open_text
from tape.files import write_text
from tape.model.checkpoint import fingerprint
from tape.model.modeling import TapeForCausalLM
from tape.results.rows import grouped
from tape.results.runs import Run, settings_of
from tape.runs.folder import TRAINED

Rows = list[dict[str, Any]]


def parser_of(name: str, description: str, windows: int) -> Parser:
    """Returns the parser of python -m tape.analysis.<name>: models, a text, a folder of results.

    Args:
        windows: default of --windows.
    """
    parser = Parser(prog=f"python -m tape.analysis.{name}", description=description)
    add = parser.add_argument
    add("--model", type=model_folder, nargs="+", required=True, help="folders of models")
    text = f"a file of uint16 token ids, or the validation split of {', '.join(CORPORA)}"
    add("--data", default="local", help=text)
    add("--files", nargs="+", help="of --data text, or the folder of --data c4")
    add("--out", type=result_folder, default=f"output/{name}", help="a folder")
    add("--windows", type=integer(1, 10**6), default=windows, help="number of windows per length")
    return parser


class Model(NamedTuple):
    """
    Attributes:
        name: unique, of its folder.
        row: of the table. Runs that differ only in their seed share a row, labelled as in
            comparisons of runs; any other model is a row by itself.
    """

    folder: Path
    name: str
    row: str

    def about(self, model: TapeForCausalLM) -> dict[str, str]:
        """Returns the first columns of the loaded model's rows."""
        columns = {"model": self.name, "row": self.row}
        columns |= {"model_hash": fingerprint(self.folder)[:16]}
        return columns | {"position": model.config.position["name"]}


def models(folders: list[Path]) -> list[Model]:
    """Returns the models in folders.

    Raises:
        ValueError: if a run occurs twice.
    """
    resolved = [folder.resolve() for folder in folders]
    if twice := sorted({str(f) for f in folders if resolved.count(f.resolve()) > 1}):
        raise ValueError(f"--model {' '.join(twice)}: duplicate folder; give each once")
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


def windows(
    arguments: argparse.Namespace, folder: Path, decoder: TapeForCausalLM, length: int
) -> tuple[str, list[Tensor]]:
    """Returns the name of the text, and `--windows` of `length` tokens, spread evenly over it.

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


def tabulate(
    arguments: argparse.Namespace,
    name: str,
    measure: Callable[[Model], Iterable[dict[str, Any]]],
    markdown: Callable[[Rows], str],
) -> tuple[str, bool]:
    """Measures all models; writes their rows to <name>.csv and the tables of these to <name>.md.

    Returns:
        The tables, with the reasons why models are not in them, and whether all are.

    Raises:
        ValueError: if none is.
    """
    rows: Rows = []
    refused: list[str] = []
    for model in models(arguments.model):
        try:
            rows += [*measure(model)]  # all or none
        except EXPECTED as error:
            refused.append(f"* {model.folder}: {in_one_line(error)}")
    if not rows:
        raise ValueError("; ".join(refused))
    text = markdown(rows)
    if refused:
        text += "\n\nNot in the tables:\n\n" + "\n".join(refused)
    write_text(arguments.out / f"{name}.csv", pd.DataFrame(rows).to_csv(index=False))
    write_text(arguments.out / f"{name}.md", text + "\n")
    provenance.record(arguments.out)
    return text, not refused


@expected_errors()
def carry_out(
    run: Callable[[argparse.Namespace], tuple[str, bool]], arguments: argparse.Namespace
) -> None:
    """Prints the tables of `run`. The status is 1 unless all models are in them."""
    transformers.logging.disable_progress_bar()
    text, whole = run(arguments)
    print(f"{text}\n\nalso in {arguments.out}")
    sys.exit(not whole)
