"""A trained model, ready to be evaluated, and what is asked of it before."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoTokenizer, GenerationConfig, PreTrainedTokenizerBase

from tape.adapters import ADAPTER, merged, weights_of_encoding
from tape.configuration import TapeConfig
from tape.modeling import TapeForCausalLM

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"  # of weights in several files
SHA256 = 64  # digits; a revision on the hub has fewer


def load(
    folder: Path, dtype: torch.dtype | None = None
) -> tuple[TapeForCausalLM, PreTrainedTokenizerBase]:
    """As `load_model`, with the tokenizer that lies beside the weights, and without the sampling
    and the penalties that a base may ask for when it generates."""
    model = load_model(folder, dtype)
    model.generation_config = GenerationConfig()
    return model, AutoTokenizer.from_pretrained(folder, local_files_only=True)


def load_model(
    folder: Path, dtype: torch.dtype | None = None, attn_implementation: str | None = None
) -> TapeForCausalLM:
    """The model of a run or any other of ours, or a Llama as one with RoPE; an adapter merged into
    its base. On a GPU if there is one.

    Args:
        dtype: None for the one that it was saved in, float32 for an adapter.
        attn_implementation: None for the library's choice.

    Raises:
        ValueError: if the folder holds no trained model, or not all of one; for an adapter without
            its base.
    """
    adapted = weight_files(folder)[0].name == ADAPTER
    config = TapeConfig.from_pretrained(folder)
    source, where = _base(folder, config) if adapted else (folder, {"local_files_only": True})
    model, _ = with_weights(
        source,
        config,
        new_encoding=adapted,  # the adapter has its weights
        dtype=config.dtype if dtype is None else dtype,
        attn_implementation=attn_implementation,
        **where,
    )
    if adapted:
        model = merged(model, folder)
    return model.eval().to("cuda" if torch.cuda.is_available() else "cpu")


def with_weights(
    source: str | Path, config: TapeConfig, *, new_encoding: bool, **how: Any
) -> tuple[TapeForCausalLM, list[str]]:
    """The decoder of a configuration with the weights of a checkpoint, and which of these it does
    not take.

    Args:
        new_encoding: the encoding's own weights may be missing there; they are initialised.
        how: arguments of `from_pretrained`.

    Raises:
        ValueError: if weights are missing, or of other shapes.
    """
    with _without_report():
        model, loaded = TapeForCausalLM.from_pretrained(
            source,
            config=config,
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # they are named below
            output_loading_info=True,
            **how,
        )
    for name, theirs, ours in sorted(loaded["mismatched_keys"]):
        raise ValueError(
            f"{name} of {source} has the shape {(*theirs,)}, but {(*ours,)} by these settings"
        )
    new = weights_of_encoding(model) if new_encoding else set()
    if lost := sorted({*loaded["missing_keys"]} - new):
        raise ValueError(
            f"{source}: {len(lost)} weights of the model in config.json are missing, such as "
            f"{lost[0]}"
        )
    return model, sorted(loaded["unexpected_keys"])


@contextmanager
def _without_report() -> Iterator[None]:
    """Without the library's table of missing weights: they are expected, or an error."""
    logger = logging.getLogger("transformers.modeling_utils")

    def keep(record: logging.LogRecord) -> bool:
        return "LOAD REPORT" not in record.getMessage()

    logger.addFilter(keep)
    try:
        yield
    finally:
        logger.removeFilter(keep)


def _base(folder: Path, config: TapeConfig) -> tuple[str | Path, dict[str, Any]]:
    """Where the base of an adapter is, for `from_pretrained`. A relative folder is looked for from
    here, then from each folder around the adapter."""
    if config.adaptation is None:
        raise ValueError(
            f"{folder} is an adapter whose base is not recorded in its config.json; allowed are "
            f"those that train.py peft=... made"
        )
    base, weights = config.adaptation["base_model"], config.adaptation["base_weights"]
    if len(weights) != SHA256:
        return base, {"revision": weights}
    places = (above / base for above in (Path(), *folder.resolve().parents))
    place = next((place for place in places if place.is_dir()), None)
    if place is None:
        raise ValueError(
            f"{folder} is an adapter of base_model={base}, and that folder is not there: put it "
            f"back, or work in the folder that it is seen from"
        )
    if fingerprint(place) != weights:
        raise ValueError(
            f"{folder} is an adapter of base_model={base}, but {place} has other weights now than "
            f"it was trained on"
        )
    return place, {"local_files_only": True}


def restore(model: TapeForCausalLM | PeftModel, checkpoint: Path) -> None:
    """Give a model the weights of a checkpoint of its own run, in the numbers it holds them in."""
    if isinstance(model, PeftModel):
        model.load_adapter(checkpoint, model.active_adapter, is_trainable=True)
        return
    missing = {name for name, _ in model.named_parameters()}
    for path in weight_files(checkpoint):
        weights = load_file(path)
        model.load_state_dict(weights, strict=False)
        missing -= weights.keys()
    if missing:
        raise ValueError(f"{checkpoint} lacks {len(missing)} weights, such as {min(missing)}")


def weight_files(folder: Path) -> list[Path]:
    """The files that hold a model's weights, or the file of an adapter.

    Raises:
        ValueError: if there are none.
    """
    for name in (WEIGHTS, ADAPTER):
        if (folder / name).is_file():
            return [folder / name]
    if (folder / INDEX).is_file():
        names = json.loads((folder / INDEX).read_text())["weight_map"].values()
        return [folder / name for name in sorted(set(names))]
    raise ValueError(f"{folder} has no {WEIGHTS}: give the folder of a run that has finished")


def fingerprint(folder: Path) -> str:
    """The SHA-256 of a model's weights; where they lie in several files, that of their hashes, and
    of an adapter, that of its own and of its base's."""
    found = []
    for path in weight_files(folder):
        with path.open("rb") as file:
            found.append(hashlib.file_digest(file, "sha256").hexdigest())
    if path.name == ADAPTER:
        found.append(TapeConfig.from_pretrained(folder).adaptation["base_weights"])
    return found[0] if len(found) == 1 else hashlib.sha256(" ".join(found).encode()).hexdigest()


def check_length(model: TapeForCausalLM, needed: int, purpose: str) -> None:
    """Raise a ValueError if the model's encoding has less than the `needed` positions."""
    longest = model.base_model.position.longest
    if longest is not None and needed > longest:
        raise ValueError(
            f"{purpose} needs {needed} positions, but the model's "
            f"{model.config.position['name']!r} has {longest}: it takes a model that was trained "
            f"with a position.length of {needed} or more"
        )
