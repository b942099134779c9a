"""A trained model, ready to be evaluated, and what is asked of it before."""

import hashlib
import json
import logging
import sys
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import GenerationConfig, PreTrainedTokenizerBase

from tape.core import provenance
from tape.core.files import read_object, reading, sha256_of
from tape.core.validation import check_no_gguf
from tape.model.adapters import ADAPTER, BFLOAT16, merged, weights_of_encoding
from tape.model.configuration import TapeConfig
from tape.model.modeling import TapeForCausalLM
from tape.model.tokenizer import read_tokenizer

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"  # of weights in several files
CONFIG = "config.json"
IMPORTED = "imported.json"  # where the weights come from (`tape.imports`)
OF_ADAPTER = "adapter_config.json"
WITHOUT_EFFECT = ("adaptation", "transformers_version", "_name_or_path")  # fields of CONFIG
WITHOUT_EFFECT += ("adapter.base_model_name_or_path", "adapter.peft_version")
REWRITTEN = "was written again while it was read: repeat the command"
SHA256 = 64  # digits; a revision on the hub has fewer


def load(
    folder: Path, dtype: torch.dtype | None = None, position: str | dict[str, Any] | None = None
) -> tuple[TapeForCausalLM, PreTrainedTokenizerBase]:
    """Returns `load_model` and its tokenizer. Of a base's settings for generation, only the end
    tokens are left."""
    model = load_model(folder, dtype, position=position)
    model.generation_config = GenerationConfig(eos_token_id=model.generation_config.eos_token_id)
    return model, read_tokenizer(folder)


def read_config(folder: Path, position: str | dict[str, Any] | None = None) -> TapeConfig:
    """Returns the configuration in the folder of a model of ours or of a Llama.

    Args:
        position: replaces the encoding, or some of its arguments; None keeps it.

    Raises:
        ValueError: if the folder has no readable configuration.
    """
    check_no_gguf(folder)
    path = folder / CONFIG
    if not path.is_file():
        raise ValueError(f"{folder} has no {CONFIG}: give the folder of a trained model")
    read_object(path)
    with reading(path):
        return TapeConfig.from_pretrained(folder, local_files_only=True, position=position)


def load_model(
    folder: Path,
    dtype: torch.dtype | None = None,
    attn_implementation: str | None = None,
    position: str | dict[str, Any] | None = None,
) -> TapeForCausalLM:
    """Loads a model for evaluation, on a GPU if there is one. A Llama becomes a model with RoPE. An
    adapter is merged into its base. If the code of the decoder or the encoding has changed since
    the training, a note is printed to stderr.

    Args:
        dtype: dtype of the weights; None: as saved, or float32 for an adapter.
        position: as in `read_config`, for an encoding that has no weights.

    Raises:
        ValueError: if the folder has no trained model; if weights are missing, left over or not
            finite; or if the base of an adapter is not found.
    """
    files = state_of_files(folder)
    adapted = weight_files(folder)[0].name == ADAPTER
    config = read_config(folder, position)
    source, where = _base(folder, config) if adapted else (folder, {"local_files_only": True})
    model, left = with_weights(
        source,
        config,
        new_encoding=adapted,  # the adapter has its weights
        replaces=adapted,
        dtype=torch.float32 if adapted else dtype or config.dtype,  # merging in others would round
        attn_implementation=attn_implementation,
        **where,
    )
    if adapted:
        if config.adaptation.get("frozen") == BFLOAT16:  # as in training
            for weight in model.parameters():
                weight.data = weight.bfloat16().to(weight.dtype)
        with reading(folder / ADAPTER):
            model = merged(model, folder).to(dtype or torch.float32)
    elif left:
        raise ValueError(
            f"{folder}: {len(left)} weights do not belong to the model in {CONFIG}, such as "
            f"{left[0]}"
        )
    model = model.eval().to("cuda" if torch.cuda.is_available() else "cpu")
    check_finite(folder, model)
    model.read_from = files
    if position is None and changed_code(folder, model):
        print(
            f"note: the code of the decoder or its encoding has changed since {folder} was trained;"
            " its results are those of the present code",
            file=sys.stderr,
        )
    return model


def check_finite(source: str | Path, model: TapeForCausalLM) -> None:
    """Raises a ValueError if a weight of the model, which comes from `source`, is not finite."""
    for name, weight in model.state_dict().items():
        if weight.is_floating_point() and not weight.is_meta and not weight.isfinite().all():
            raise ValueError(f"{source}: some weights are not finite, such as {name}")


def with_weights(
    source: str | Path,
    config: TapeConfig,
    *,
    new_encoding: bool,
    replaces: bool = False,
    **how: Any,
) -> tuple[TapeForCausalLM, list[str]]:
    """Returns the decoder of a configuration with the weights of a checkpoint, and the names of the
    weights that it does not take. A `new_encoding`'s own weights may be missing; they are
    initialised, and if it `replaces` another one, also those that have the names of its weights.

    Raises:
        ValueError: if weights are missing, quantized, or of other shapes.
    """
    if getattr(config, "quantization_config", None) is not None:
        raise ValueError(f"{source} holds quantized weights; use the original model")
    check_no_pickles(Path(source))
    # transformers' table of missing weights: they are expected, or an error.
    logger = logging.getLogger("transformers.modeling_utils")
    logger.addFilter(no_report := lambda record: "LOAD REPORT" not in record.getMessage())
    try:
        with reading(Path(source)):
            model, loaded = TapeForCausalLM.from_pretrained(
                source,
                config=config,
                use_safetensors=True,
                ignore_mismatched_sizes=True,  # they are named below
                output_loading_info=True,
                **how,
            )
    finally:
        logger.removeFilter(no_report)
    new = weights_of_encoding(model) if new_encoding else set()
    for name, theirs, ours in sorted(loaded["mismatched_keys"]):
        if not (replaces and name in new):
            raise ValueError(
                f"{name} of {source} has the shape {(*theirs,)}, but {(*ours,)} by these settings"
            )
    replaced = sorted(new - {*loaded["missing_keys"]}) if replaces else []
    if replaced:
        renew(model, new)
    if lost := sorted({*loaded["missing_keys"]} - new):
        raise ValueError(
            f"{source}: {len(lost)} weights of the model in config.json are missing, such as "
            f"{lost[0]}"
        )
    left = sorted([*loaded["unexpected_keys"], *replaced])
    return model, [name for name in left if "inv_freq" not in name]


def renew(model: TapeForCausalLM, names: set[str]) -> None:
    """Initialises these weights of a model, which are all of its encoding's."""
    weights = {weight for name, weight in model.named_parameters() if name in names}
    for weight in weights:
        weight._is_hf_initialized = False  # by the checkpoint
    for module in reversed([*model.modules()]):  # a module after its parts
        if (own := {*module.parameters()}) and own <= weights:
            model._init_weights(module)


def _base(folder: Path, config: TapeConfig) -> tuple[str | Path, dict[str, Any]]:
    """Returns where the base of an adapter is, for `from_pretrained`. A relative folder is sought
    from here, then from each folder above the adapter."""
    base, weights = (_adaptation(folder, config)[key] for key in ("base_model", "base_weights"))
    if len(weights) != SHA256:
        return base, {"revision": weights}
    places = (above / base for above in (Path(), *folder.resolve().parents))
    place = next((place for place in places if place.is_dir()), None)
    if place is None:
        raise ValueError(
            f"{folder} is an adapter of base_model={base}, and that folder does not exist: restore "
            "it, or run the command from the folder that its path is relative to"
        )
    if fingerprint(place) != weights:
        raise ValueError(
            f"{folder} is an adapter of base_model={base}, but the weights in {place} are not "
            "those it was trained on"
        )
    return place, {"local_files_only": True}


def _adaptation(folder: Path, config: TapeConfig) -> dict[str, str]:
    """Returns the base of an adapter, `base_model`, and its hash or revision, `base_weights`."""
    found = config.adaptation or {}
    if not all(isinstance(found.get(key), str) for key in ("base_model", "base_weights")):
        raise ValueError(
            f"{folder} is an adapter whose base is not recorded in its {CONFIG}; give an adapter "
            "that was trained with train.py peft=..."
        )
    return found


def restore(model: TapeForCausalLM | PeftModel, checkpoint: Path) -> None:
    """Loads the weights of a checkpoint of the same run into a model, in the model's dtypes."""
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
    """Returns the files of a model's weights, or the file of an adapter; refuses other folders."""
    check_no_gguf(folder)
    whole = next((name for name in (WEIGHTS, INDEX) if (folder / name).is_file()), None)
    beside = next((name for name in (ADAPTER, OF_ADAPTER) if (folder / name).is_file()), None)
    if whole and beside:  # transformers would add the adapter, to the base that it names
        raise ValueError(
            f"{folder} has {whole} and {beside}: a model or an adapter is allowed, not both; merge "
            "the adapter into its base, or remove its files"
        )
    for name in (WEIGHTS, ADAPTER):
        if (folder / name).is_file():
            return [folder / name]
    if whole:
        index = read_object(folder / INDEX)
        with reading(folder / INDEX):
            names = sorted({*index["weight_map"].values()}) or [""]
            for name in names:
                if Path(name).name != name or not (folder / name).is_file():
                    raise ValueError(f"names {name!r}, which is not a file in the same folder")
            return [folder / name for name in names]
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder: give that of a run that has finished")
    check_no_pickles(folder)
    raise ValueError(f"{folder} has no {WEIGHTS}: give the folder of a run that has finished")


def check_no_pickles(folder: Path) -> None:
    """Raises a ValueError if a folder's weights are in transformers' old format."""
    if any(folder.glob("pytorch_model*.bin")) and not any(folder.glob("*.safetensors")):
        raise ValueError(
            f"{folder} has its weights as pickles (pytorch_model*.bin), which are not read because "
            "they may hold code: load it in transformers, and save_pretrained it"
        )


def fingerprint(folder: Path) -> str:
    """Returns the SHA-256 of a model's weights; of several files, that of their hashes; of an
    adapter, that of its own and its base's hash."""
    files = weight_files(folder)
    found = [sha256_of(path) for path in files]
    if files[0].name == ADAPTER:
        found.append(_adaptation(folder, read_config(folder))["base_weights"])
    return found[0] if len(found) == 1 else hashlib.sha256(" ".join(found).encode()).hexdigest()


def state_of_files(folder: Path) -> list[tuple[int, int]]:
    """Returns what tells whether a model's files have been written again."""
    found = (path.stat() for path in (folder / CONFIG, *weight_files(folder)) if path.exists())
    return [(file.st_ino, file.st_mtime_ns) for file in found]


def identified(folder: Path, model: TapeForCausalLM) -> dict[str, str]:
    """Returns hashes of what determines the results of the model from a folder: its weights,
    configuration (and that of an adapter) and code; and, of an imported model, the types that its
    weights were stored in. Raises a ValueError if they are others by now."""
    settings = read_object(folder / CONFIG)
    if (folder / ADAPTER).is_file():
        settings |= {f"adapter.{key}": x for key, x in read_object(folder / OF_ADAPTER).items()}
    told = {key: value for key, value in settings.items() if key not in WITHOUT_EFFECT}
    content = json.dumps(told, sort_keys=True).encode()
    hashes = {"model": fingerprint(folder), "config": hashlib.sha256(content).hexdigest()[:16]}
    if state_of_files(folder) != model.read_from:
        raise ValueError(f"{folder} {REWRITTEN}")
    if (folder / IMPORTED).is_file() and (stored := read_object(folder / IMPORTED).get("stored")):
        hashes["stored"] = ", ".join(stored)
    return hashes | {"code": provenance.fingerprint(model)}


def changed_code(folder: Path, model: TapeForCausalLM) -> bool:
    """Returns whether the model from a run's folder was trained with other code than the present;
    False where this was not recorded."""
    record = folder / provenance.TRAINED
    trained = read_object(record).get("code") if record.is_file() else None
    return trained not in (None, provenance.fingerprint(model))


def check_length(
    model: TapeForCausalLM, needed: int, purpose: str, longest: int | None = None
) -> None:
    """Raises a ValueError if the model's encoding has fewer than the `needed` positions."""
    longest = model.base_model.position.max_positions if longest is None else longest
    if longest is not None and needed > longest:
        raise ValueError(
            f"{purpose} needs {needed} positions, but the model's "
            f"{model.config.position['name']!r} has {longest}: use a model trained with a "
            f"position.length of {needed} or more"
        )
