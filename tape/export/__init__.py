"""Exports a trained model to a folder that loads without this package.

tape export output/adape_local --out adape-small
"""

import argparse
import inspect
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedTokenizerBase, logging

from tape import encodings as registry
from tape.core.files import let_others_read, new_folder, read_object
from tape.core.run_folder import CONFIGURATION, HASHES, verify_checkpoint
from tape.encodings import ENCODINGS
from tape.export.card import base_of, model_card
from tape.export.family import family_config, write_config
from tape.export.flatten import flat_modules, flat_name
from tape.model.checkpoint import IMPORTED, load_model
from tape.model.configuration import TapeConfig
from tape.model.modeling import TapeForCausalLM, TapeModel
from tape.model.tokenizer import read_tokenizer

CHECKPOINT = re.compile(r"checkpoint-\d+")
TOLERANCE = 1e-5  # of the largest logit, in float32: backends may round differently


def export(folder: str | Path, out: str | Path, format: str = "tape") -> Path:
    """Writes the model in `folder` to the new folder `out`: weights, tokenizer and card, and for
    the format "tape" the code. Leaves nothing behind on failure.

    Raises:
        ValueError: if there is no complete model, `out` exists, the format cannot express the
            encoding, or the export, loaded in a process without this package, gives other logits.
    """
    folder, out = Path(folder), Path(out).absolute()
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise ValueError(f"{out} already exists; choose another --out")
    model, tokenizer, recorded = load(folder)
    if format != "tape":
        family_config(model, format)
    with new_folder(out, cached=False) as work:
        model.config.use_cache = True  # disabled during training
        if model.config.adaptation is not None:  # without the place of a local folder
            model.config.adaptation |= {"base_model": base_of(recorded)[0]}
        model.save_pretrained(work)
        let_others_read(work)
        if tokenizer is not None:
            tokenizer.save_pretrained(work)
            if definition(read_tokenizer(work)) != definition(tokenizer):
                raise ValueError(f"the tokenizer of {folder} is another one once it is saved")
        if format == "tape":
            write_code(model, work)
        else:
            write_config(model, work, format)
        card = model_card(model, tokenizer is not None, recorded, out.name, format)
        (work / "README.md").write_text(card)
        verify(model, work, format)
    return out


def definition(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """Returns what determines the tokens of a text."""
    if not tokenizer.is_fast:
        return tokenizer.get_vocab()
    found = json.loads(tokenizer.backend_tokenizer.to_str())
    return {key: found[key] for key in found.keys() - {"padding", "truncation"}}


def load(folder: Path) -> tuple[TapeForCausalLM, PreTrainedTokenizerBase | None, dict[str, Any]]:
    """Returns the model of a run, of one of its checkpoints or of any other folder, in its saved
    dtype, its tokenizer if it has one, and what is recorded of its base, into which an adapter is
    merged. Raises a ValueError if there is no complete model of ours."""
    is_checkpoint = CHECKPOINT.fullmatch(folder.name) is not None
    recorded = (folder.parent if is_checkpoint else folder) / CONFIGURATION
    is_ours = (folder / HASHES).exists() or (is_checkpoint and recorded.exists())
    if is_ours and (found := verify_checkpoint(folder)) is not None:
        raise ValueError(f"{folder} is a damaged checkpoint ({found})")
    model = load_model(folder).cpu()
    has_tokenizer = (folder / "tokenizer_config.json").exists()
    base = model.config.adaptation or (read_object(recorded) if recorded.exists() else {})
    for imported in (folder / IMPORTED, Path(base.get("base_model") or folder) / IMPORTED):
        if imported.is_file() and (types := read_object(imported).get("stored")):
            base = base | {"stored": ", ".join(types)}
    return model, read_tokenizer(folder) if has_tokenizer else None, base


def write_code(model: TapeForCausalLM, folder: Path) -> None:
    """Writes the model's modules next to its weights, among them those of an encoding of another
    package, and registers them in config.json."""
    position = model.config.position
    names = {position["name"], *(entry["name"] for entry in position.get("pattern", ()))}
    added = {name: ENCODINGS[name] for name in sorted(names)}
    added = {name: cls for name, cls in added.items() if not cls.__module__.startswith("tape.")}
    entries = [cls.__module__ for cls in (TapeConfig, TapeForCausalLM, *added.values())]
    files = flat_modules(*entries)
    for name, cls in added.items():
        files[f"{flat_name(registry.__name__)}.py"] += (
            f"\nfrom .{flat_name(cls.__module__)} import {cls.__name__}\n"
            f"ENCODINGS[{name!r}] = {cls.__name__}\n"
        )
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    classes = {
        "AutoConfig": TapeConfig,
        "AutoModel": TapeModel,
        "AutoModelForCausalLM": TapeForCausalLM,
    }
    config = json.loads((folder / "config.json").read_bytes())
    config["auto_map"] = {
        auto: f"{flat_name(cls.__module__)}.{cls.__name__}" for auto, cls in classes.items()
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def verify(model: TapeForCausalLM, folder: Path, format: str) -> None:
    """Compares the model's logits on random tokens with those of the folder in another process: for
    the format "tape" in the saved dtype, where they must be equal; for others in float32.

    Raises:
        ValueError: if the folder does not load there, or gives other logits.
    """
    exact = format == "tape"
    dtype = str(model.dtype).removeprefix("torch.") if exact else "float32"
    model.to(getattr(torch, dtype))
    position = model.model.position
    limits = position.max_positions, getattr(position.sampler, "eval_length", None)
    length = min(256, model.config.max_position_embeddings, *filter(None, limits))
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(model.config.vocab_size, (2, length), generator=generator)
    with torch.no_grad():
        expected = model(tokens).logits
    found = _logits_elsewhere(folder, tokens, dtype)
    difference = (found.double() - expected.double()).abs().max().item()
    allowed = 0.0 if exact else TOLERANCE * expected.abs().max().item()
    if not difference <= allowed:  # also true for NaN
        raise ValueError(
            "the exported folder produces different logits from the model: they differ by up to "
            f"{difference:.3g}; allowed: {allowed:.3g}"
        )


def _logits_elsewhere(folder: Path, tokens: torch.Tensor, dtype: str) -> torch.Tensor:
    """Returns what `_loaded` computes in a process that cannot import this package."""
    program = f"{inspect.getsource(_loaded)}\nimport sys\n_loaded(*sys.argv[1:])"
    with tempfile.TemporaryDirectory() as scratch:
        given, answer = Path(scratch, "tokens.safetensors"), Path(scratch, "answer.safetensors")
        save_file({"input_ids": tokens}, given)
        settings = {"HF_MODULES_CACHE": scratch, "HF_HUB_OFFLINE": "1"}
        settings["OMP_NUM_THREADS"] = str(torch.get_num_threads())
        process = subprocess.run(
            [sys.executable, "-P", "-c", program, folder, given, answer, dtype],
            cwd=scratch,
            env=os.environ | settings,
            capture_output=True,
            text=True,
        )
        if process.returncode:
            reason = process.stderr.strip().splitlines() or [f"exit status {process.returncode}"]
            raise ValueError(f"the exported folder cannot be loaded on its own: {reason[-1]}")
        return load_file(answer)["logits"]


def _loaded(folder: str, tokens: str, answer: str, dtype: str) -> None:
    """Writes the logits of the model in a folder."""
    import sys

    sys.modules["tape"] = None  # makes importing it fail
    import torch
    from safetensors.torch import load_file, save_file
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, trust_remote_code=True)
    with torch.no_grad():
        save_file({"logits": model.eval()(**load_file(tokens)).logits}, answer)


def main(given: argparse.Namespace) -> None:
    logging.disable_progress_bar()
    out = export(given.folder, given.out, given.format)
    print(f"{out}: complete, and its logits equal the model's")
