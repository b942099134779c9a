"""A trained model, ready to be evaluated, and what is asked of it before."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import torch
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from tape.modeling import TapeForCausalLM

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"  # of weights in several files


def load(folder: Path) -> tuple[TapeForCausalLM, PreTrainedTokenizerBase]:
    """As `load_model`, with the tokenizer that lies beside the weights."""
    model = load_model(folder)
    return model, AutoTokenizer.from_pretrained(folder, local_files_only=True)


def load_model(folder: Path, dtype: torch.dtype | None = None) -> TapeForCausalLM:
    """The model of a run or any other of ours, or a Llama as one with RoPE; on a GPU if there is
    one. None: in the dtype that it was saved in.

    Raises:
        ValueError: if the folder holds no trained model, or not all of one.
    """
    weight_files(folder)
    model, loaded = TapeForCausalLM.from_pretrained(
        folder, dtype=dtype, local_files_only=True, output_loading_info=True
    )
    if missing := sorted(loaded["missing_keys"]):
        raise ValueError(
            f"{folder}: {len(missing)} weights of the model in config.json are missing, such as "
            f"{missing[0]}"
        )
    return model.eval().to("cuda" if torch.cuda.is_available() else "cpu")


def weight_files(folder: Path) -> list[Path]:
    """The files that hold a model's weights.

    Raises:
        ValueError: if there are none.
    """
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if (folder / INDEX).is_file():
        names = json.loads((folder / INDEX).read_text())["weight_map"].values()
        return [folder / name for name in sorted(set(names))]
    raise ValueError(f"{folder} has no {WEIGHTS}: give the folder of a run that has finished")


def fingerprint(folder: Path) -> str:
    """The SHA-256 of a model's weights; where they lie in several files, that of their hashes."""
    found = []
    for path in weight_files(folder):
        with path.open("rb") as file:
            found.append(hashlib.file_digest(file, "sha256").hexdigest())
    return found[0] if len(found) == 1 else hashlib.sha256(" ".join(found).encode()).hexdigest()


def check_length(model: TapeForCausalLM, needed: int, purpose: str) -> None:
    """Raise a ValueError if the model's encoding has less than the `needed` positions."""
    longest = model.base_model.position.longest
    if longest is not None and needed > longest:
        raise ValueError(
            f"{purpose} needs {needed} positions, but the model's "
            f"{model.config.position['name']!r} has {longest}: train with position.length={needed}"
        )
