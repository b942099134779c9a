"""What analyses of trained models on windows of a text have in common."""

from __future__ import annotations

import argparse
import csv
import io
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors import SafetensorError
from torch import Tensor

from tape.evaluation.texts import CORPORA, open_text
from tape.modeling import TapeForCausalLM


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Of models, and of a text."""
    parser.add_argument("--model", type=Path, nargs="+", required=True, help="folders of models")
    parser.add_argument(
        "--data",
        default="local",
        help=f"a file of uint16 token ids, or the validation split of {', '.join(CORPORA)}",
    )
    parser.add_argument("--files", nargs="+", help="of --data text, or the folder of --data c4")


def names(folders: list[Path]) -> list[str]:
    """Of models, each another one."""
    found = [folder.resolve().name for folder in folders]
    return found if len(set(found)) == len(found) else [str(f).replace("/", "_") for f in folders]


def windows(
    arguments: argparse.Namespace, folder: Path, model: TapeForCausalLM, length: int
) -> tuple[str, list[Tensor]]:
    """The name of the text, and `--windows` of `length` tokens, spread evenly over it.

    Raises:
        ValueError, OSError: if there is no such text, or it is too short or of other tokens.
    """
    cache = Path(os.environ.get("TAPE_CACHE", "cache"))
    text = open_text(arguments.data, arguments.files, folder, cache)
    text.check(model.config.vocab_size)
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
