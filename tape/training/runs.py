"""A run's folder: one configuration, one process group at a time, and checkpoints that are whole.

A checkpoint is written under another name, hashed and renamed: it is there with all of its files,
or not at all. Before a run continues from it, its files are compared with their hashes.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tape import origin
from tape.files import make_folder, read_object, reading, write_text

CONFIGURATION = "run.json"
TRAINED = "trained.json"
EARLIER = "earlier_max_steps"
HASHES = "sha256.json"
log = logging.getLogger(__name__)

# Settings without an influence on what is learned: where a run lies, what is looked at, and how
# the sequences of a step (their number is recorded) are spread over time and devices.
NO_INFLUENCE = (
    r"name|output_dir|alias|trainer\.output_dir|cache_dir|debug|launcher",
    r"data\.data_dir",  # what lies there is in the fingerprint of the tokens
    r"report\..*|data\.max_bad|eval_blocks|task\.samples",
    r"encodings\..*|tape_sampler|randpe_length",  # defaults of position.*; the last two of old runs
    r"trainer\.(disable_tqdm|report_to|run_name)",
    r"trainer\.(logging|eval)_.*|trainer\.save_(strategy|steps|total_limit)",
    r"trainer\.(per_device_.*_batch_size|gradient_accumulation_steps|dataloader_.*)",
    r"trainer\.ddp_.*",
)
# A continued run may also go on for longer, or end sooner.
MAY_CHANGE = (*NO_INFLUENCE, r"trainer\.max_steps", EARLIER)


def register_run(folder: Path, configuration: dict[str, Any]) -> dict[str, Any]:
    """Make `folder` the place of the run with this configuration, or find that it is already.

    Returns:
        What is recorded: the configuration and, as `earlier_max_steps`, how long the run was to go
        on before it was continued otherwise. Its learning rates followed that.

    Raises:
        ValueError: if another run has begun there; names every difference.
    """
    recorded = folder / CONFIGURATION
    if recorded.exists():
        before, now = read_configuration(folder), dict(_flat(configuration))
        changes = differences(_without(MAY_CHANGE, before), _without(MAY_CHANGE, now))
        begun = checkpoints(folder) or (folder / "metrics.jsonl").exists()
        if changes and begun:
            raise ValueError(
                f"{folder} holds a run with another configuration:\n"
                + "\n".join(f"  {change}" for change in changes)
                + "\ngive this run its own name=... or output_dir=..., or remove that folder."
            )
        if begun:
            earlier = before.get(EARLIER) or []
            steps = before.get("trainer.max_steps")
            if steps != now.get("trainer.max_steps"):
                earlier = [*earlier, steps]
            if earlier:
                configuration = configuration | {EARLIER: earlier}
    elif folder.exists() and any(not path.name.startswith(".") for path in folder.iterdir()):
        raise ValueError(
            f"{folder} has files but no {CONFIGURATION}: it is not a run's folder. "
            f"Choose another name=... or output_dir=..."
        )
    write_text(recorded, json.dumps(configuration, indent=1) + "\n")
    return configuration


def read_configuration(folder: Path, name: str = CONFIGURATION) -> dict[str, Any]:
    """Returns what `register_run` recorded, flat: `trainer.max_steps` and so on.

    With the name TRAINED, returns what the weights in the folder were trained with: a run that
    continues is ahead of them.

    Raises:
        ValueError: if there is no such file, or it is damaged.
    """
    recorded = folder / name
    if not recorded.is_file():
        raise ValueError(f"{folder} has no {name}: give the folder of a run that has finished")
    settings = read_object(recorded)
    with reading(recorded):
        return dict(_flat(settings))


def influential(settings: dict[str, Any]) -> dict[str, Any]:
    """Of a flat configuration, what has an influence on what is learned. What is null is left out:
    it may not have been there when another run was made."""
    found = _without(NO_INFLUENCE, settings)
    return {key: value for key, value in found.items() if value is not None}


def _without(patterns: tuple[str, ...], settings: dict[str, Any]) -> dict[str, Any]:
    return {
        key: value
        for key, value in settings.items()
        if not any(re.fullmatch(pattern, key) for pattern in patterns)
    }


def differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What is not the same in flat settings, a line each."""
    return [
        f"{key}: {before.get(key, '(absent)')} -> {now.get(key, '(absent)')}"
        for key in sorted(before.keys() | now.keys())
        if before.get(key) != now.get(key)
    ]


def clear_alias(folder: Path) -> None:
    """Removes `folder` if it is a link that `link_alias` made: a run with this name replaces it."""
    if folder.is_symlink() and folder.readlink().parts == (folder.readlink().name,):
        folder.unlink()


def link_alias(folder: Path, alias: str) -> None:
    """Makes `alias` a link to the folder of a run beside it, unless something has that name."""
    link = folder.with_name(alias)
    if not os.path.lexists(link):
        link.symlink_to(folder.name)
        log.info("%s -> %s", link, folder.name)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes out of a run's folder; the processes of one run share it.

    Raises:
        ValueError: if another one is at work there.
    """
    if os.environ.get("RANK", "0") != "0":
        yield
        return
    make_folder(folder)
    with (folder / ".lock").open("w") as lock:
        try:
            # Of this process alone: a data-loader worker that outlives it for a moment has no part.
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ValueError(
                f"another process is working in {folder}; wait for it, or choose another name=..."
            ) from error
        try:
            yield
        except BaseException:
            left = [*folder.iterdir()]
            if {path.name for path in left} <= {".lock", CONFIGURATION, origin.FILE}:
                for path in left:  # refused before it began
                    path.unlink()
                with suppress(OSError):
                    folder.rmdir()
            raise


def _flat(tree: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(tree, dict) and tree:
        for key, value in tree.items():
            yield from _flat(value, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, tree


def checkpoints(folder: Path) -> list[Path]:
    """Checkpoints in the order of their steps, whole or damaged."""
    found = [path for path in folder.glob("checkpoint-*") if path.name[11:].isdigit()]
    return sorted(found, key=step_of)


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.name[11:])


def unfinished(folder: Path) -> Path:
    """Where a checkpoint is until all of it is written."""
    return folder / ".saving"


def finalize_checkpoint(work: Path, checkpoint: Path) -> None:
    """Record the hashes of all files in `work` and give the folder its name."""
    files = sorted(path for path in work.rglob("*") if path.is_file())
    hashes = {str(path.relative_to(work)): _sha256(path, flush=True) for path in files}
    write_text(work / HASHES, json.dumps(hashes, indent=1))
    if checkpoint.exists():  # it was damaged, and its steps were done again
        shutil.rmtree(checkpoint)
    work.rename(checkpoint)


def verify_checkpoint(checkpoint: Path) -> str | None:
    """What is wrong with a checkpoint; None if every file is as it was written."""
    try:
        hashes = read_object(checkpoint / HASHES)
    except (OSError, ValueError):
        hashes = {}
    if not hashes:
        return f"its list of files, {HASHES}, is missing or damaged"
    for name, expected in hashes.items():
        path = checkpoint / name
        if not path.is_file():
            return f"{name} is missing"
        if _sha256(path) != expected:
            return f"{name} is not as it was written"
    return None


def _sha256(path: Path, flush: bool = False) -> str:
    with path.open("rb") as file:
        if flush:  # to the disk, before an older checkpoint is given up for this one
            os.fsync(file.fileno())
        return hashlib.file_digest(file, "sha256").hexdigest()


def last_complete(folder: Path) -> Path | None:
    """The newest checkpoint that is whole; those that are not are named in the log."""
    for checkpoint in reversed(checkpoints(folder)):
        found = verify_checkpoint(checkpoint)
        if found is None:
            return checkpoint
        log.warning("%s is left out: %s", checkpoint, found)
    return None


def clear_unfinished(folder: Path) -> None:
    """Remove what a run left that was killed while it saved."""
    if (work := unfinished(folder)).exists():
        left = sorted(path.name for path in work.iterdir()) or ["nothing"]
        log.warning("a checkpoint was not finished (%s): removed", ", ".join(left))
        shutil.rmtree(work)


def remove_old(newest: Path, limit: int | None) -> None:
    """Keep the `limit` checkpoints up to the newest one; None keeps all. Those of later steps were
    found to be damaged, or the run would have gone on from them."""
    found = checkpoints(newest.parent)
    place = found.index(newest) + 1
    old = found[: max(0, place - limit)] if limit else []
    for checkpoint in old + found[place:]:
        # Its list of files goes first: what is left of it by a kill is no checkpoint.
        (checkpoint / HASHES).unlink(missing_ok=True)
        shutil.rmtree(checkpoint)
