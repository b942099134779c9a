"""A trained model, ready to be evaluated, and what is asked of it before."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from tape.modeling import TapeForCausalLM

WEIGHTS = "model.safetensors"


def load(folder: Path) -> tuple[TapeForCausalLM, PreTrainedTokenizerBase]:
    """The model of a run or of any Llama checkpoint, on a GPU if there is one, and its tokenizer.

    Raises:
        ValueError: if the folder holds no trained model, or one of another family.
    """
    if not weights(folder):
        raise ValueError(f"{folder} has no {WEIGHTS}: give the folder of a run that has finished")
    model = TapeForCausalLM.from_pretrained(folder, local_files_only=True).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    return model.to("cuda" if torch.cuda.is_available() else "cpu"), tokenizer


def fingerprint(folder: Path) -> str:
    """The SHA-256 of a model's weights; of those of its files, if there are several."""
    hashes = []
    for path in weights(folder):
        with path.open("rb") as file:
            hashes.append(hashlib.file_digest(file, "sha256").hexdigest())
    return hashes[0] if len(hashes) == 1 else hashlib.sha256("".join(hashes).encode()).hexdigest()


def weights(folder: Path) -> list[Path]:
    """The file of a model's weights, or the files that the library parted them into."""
    whole, parts = folder / WEIGHTS, sorted(folder.glob("model-*-of-*.safetensors"))
    return [whole] if whole.is_file() else parts


def check_length(model: TapeForCausalLM, needed: int, purpose: str) -> None:
    """Raise a ValueError if the model's encoding has less than the `needed` positions."""
    longest = model.base_model.position.longest
    if longest is not None and needed > longest:
        raise ValueError(
            f"{purpose} needs {needed} positions, but the model's "
            f"{model.config.position['name']!r} has {longest}: train with position.length={needed}"
        )
