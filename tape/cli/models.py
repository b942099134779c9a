"""Arguments of the commands on models, and of those for developers; nothing here is slow."""

import argparse
from pathlib import Path

from tape.core.command import (
    Parser,
    integer,
    model_folder,
)
from tape.evaluation import DTYPES
from tape.imports.named import NAMED


def import_(given: list[str]) -> argparse.Namespace:
    """Convert a .gguf file, a folder or a name on the hub to a checkpoint."""
    parser = Parser("import", "Import a model as a checkpoint, a folder that all commands take.")
    add = parser.add_argument
    known = ", ".join(NAMED)
    add("source", help=f"a .gguf file, a folder, a name on the hub, or {known}")
    add("--out", type=Path, required=True, help="new folder to write")
    return parser.parse_args(given)


def verify(given: list[str]) -> argparse.Namespace:
    """Compare a checkpoint with transformers' own class."""
    parser = Parser(
        "verify", "Compare a checkpoint's logits with those of transformers' own class."
    )
    add = parser.add_argument
    add(
        "folder",
        type=model_folder,
        help="a checkpoint that transformers loads, or an equal model of ours",
    )
    about = "number of tokens to compare, spread over longer lengths (default: 1024)"
    add("--tokens", type=integer(16), default=1024, help=about)
    add("--dtype", choices=DTYPES, default="float32")
    return parser.parse_args(given)


def new_encoding(given: list[str]) -> argparse.Namespace:
    """Make the files of a new encoding."""
    parser = Parser("new-encoding", "Makes the files of a new encoding (CONTRIBUTING.md).")
    parser.add_argument("name", help="the name in position=NAME: lower-case letters, digits and _")
    return parser.parse_args(given)


FORMATS = ("tape", "llama", "mistral", "qwen2", "qwen3", "smollm3")  # `families.WRITTEN`


def export(given: list[str]) -> argparse.Namespace:
    """Save a model with its code, or as a plain Llama."""
    parser = Parser("export", "Export a model to a folder that loads without this package.")
    add = parser.add_argument
    add("folder", type=model_folder, help="a run, one of its checkpoints, or a saved model")
    add("--out", type=Path, required=True, help="new folder to write")
    about = (
        "tape (default): with its code; others: as a model of transformers that computes the same"
    )
    add("--format", choices=FORMATS, default="tape", help=about)
    return parser.parse_args(given)
