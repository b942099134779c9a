"""A run's folder: one configuration, one process group at a time, complete checkpoints.

A checkpoint is written under a temporary name, hashed and renamed: it is complete or absent. Before
a run resumes from it, its files are verified against their hashes.
"""

import fcntl
import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tape.core import provenance
from tape.core.files import read_object, reading, write_text

CONFIGURATION = "run.json"
EARLIER = "earlier_max_steps"
HASHES = "sha256.json"
SAVING = ".saving"  # the temporary folder of a checkpoint that is being written
OF_A_START = {".lock", CONFIGURATION, provenance.FILE}
log = logging.getLogger(__name__)

# Settings without influence on the trained weights, among them how the sequences of a step, whose
# number is recorded, are distributed over time and devices.
NO_INFLUENCE = (
    r"name|output_dir|trainer\.output_dir|cache_dir|debug|launcher",
    r"data\.data_dir",  # what lies there is in the fingerprint of the tokens
    r"report\..*",
    r"code|accept_new_code",  # `_check_same`
    r"encodings\..*|longest",  # defaults of position.*
    r"learning_rates(\..*)?|rates_of",  # of which trainer.learning_rate is one
    r"trainer\.(disable_tqdm|report_to|run_name|use_cpu)",
    r"trainer\.(logging|eval)_.*|trainer\.save_(strategy|steps|total_limit)",
    r"trainer\.(per_device_.*_batch_size|gradient_accumulation_steps|dataloader_.*)",
    r"trainer\.ddp_.*",
)
OF_VALIDATIONS = r"eval_blocks|task\.samples"  # all of a run are alike
# What has influence in training to a criterion, which these decide.
OF_A_CRITERION = r"task\.samples|trainer\.eval_(steps|strategy)"
# A resumed run may also have more or fewer steps.
MAY_CHANGE = (*NO_INFLUENCE, r"trainer\.max_steps", EARLIER)
# What a run records besides its settings.
DETERMINED = (r"(tokens|base_weights)(\..*)?|sequences_per_step", EARLIER)


def register_run(folder: Path, configuration: dict[str, Any]) -> dict[str, Any]:
    """Registers the run with this configuration in `folder`, or raises a ValueError with all
    differences if that belongs to another run. Returns the recorded configuration, with numbers of
    steps that were planned before, and determined learning rates, as `earlier_max_steps`."""
    recorded = folder / CONFIGURATION
    if recorded.exists():
        before, now = read_configuration(folder), _flat(configuration)
        if begun(folder):
            _check_same(folder, before, now)
            earlier, steps = before.get(EARLIER) or [], before.get("trainer.max_steps")
            if steps != now.get("trainer.max_steps"):
                earlier = [*earlier, steps]
            if earlier and checkpoints(folder):
                configuration = configuration | {EARLIER: earlier}
    elif folder.exists() and any(not path.name.startswith(".") for path in folder.iterdir()):
        found = f"{folder} has files but no {CONFIGURATION}: it is not a run's folder"
        raise ValueError(f"{found}; choose another name=... or output_dir=...")
    write_text(recorded, json.dumps(configuration, indent=1) + "\n")
    return configuration


def begun(folder: Path) -> bool:
    """Returns whether the run in a folder has made a step."""
    return bool(checkpoints(folder)) or (folder / "metrics.jsonl").exists()


def changes_of(folder: Path, settings: dict[str, Any]) -> list[str]:
    """Lists the composed settings, one per line, in which a run differs from the one in `folder`:
    those that influence its weights, `trainer.max_steps` among them. Raises a ValueError if that
    one's record is missing or damaged."""
    # An adapted model records the encoding of its base, too.
    of_base = (r"position(\..*)?",) if settings["base_model"] else ()
    patterns = (*NO_INFLUENCE, *DETERMINED, *of_base)
    before, now = read_configuration(folder), _flat(settings)
    return differences(_without(patterns, before), _without(patterns, now))


def _check_same(folder: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    changes = differences(_without(MAY_CHANGE, before), _without(MAY_CHANGE, now))
    if changes:
        listed = "".join(f"  {change}\n" for change in changes)
        remedy = "give this run its own name=... or output_dir=..., or remove that folder."
        raise ValueError(f"{folder} holds a run with another configuration:\n{listed}{remedy}")
    if before.get("code") != now.get("code") and not now.get("accept_new_code"):
        raise ValueError(
            f"{folder}: the code of its encoding or of the decoder has changed; give the new run "
            "its own name=... or output_dir=..., or continue this one with accept_new_code=true"
        )


def read_configuration(folder: Path, name: str = CONFIGURATION) -> dict[str, Any]:
    """Returns the configuration recorded by `register_run`, flat: `trainer.max_steps` and so on.
    The name TRAINED gives that of the saved weights: a run that was resumed since has a newer one.
    Raises a ValueError if there is no such file, or it is damaged."""
    recorded = folder / name
    if not recorded.is_file():
        raise ValueError(f"{folder} has no {name}: give the folder of a run that has finished")
    settings = read_object(recorded)
    with reading(recorded):
        return _flat(settings)


def influential(settings: dict[str, Any]) -> dict[str, Any]:
    """Filters a flat configuration for settings that influence the trained weights. Null settings
    and empty groups, which older runs may not have, are left out."""
    found = _without((*NO_INFLUENCE, OF_VALIDATIONS), settings)
    return {key: value for key, value in found.items() if value is not None and value != {}}


def _without(patterns: tuple[str, ...], settings: dict[str, Any]) -> dict[str, Any]:
    kept = OF_A_CRITERION if settings.get("task.criterion") is not None else ""
    return {
        key: value
        for key, value in settings.items()
        if re.fullmatch(kept, key) or not any(re.fullmatch(pattern, key) for pattern in patterns)
    }


def differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Lists the differences between flat settings, one per line."""
    names = {EARLIER: "trainer.max_steps before the run was continued"}
    return [
        f"{names.get(key, key)}: {before.get(key, '(absent)')} -> {now.get(key, '(absent)')}"
        for key in sorted(before.keys() | now.keys())
        if before.get(key) != now.get(key)
    ]


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Locks a run's folder, which the first of a run's processes does; raises a ValueError if
    another run holds the lock. A run that fails before it starts leaves no files."""
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        try:
            # POSIX locks belong to one process: data-loader workers that outlive it hold none.
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError) as error:
            what = f"another process is using {folder}: wait for it, or give this one another"
            raise ValueError(f"{what} name or folder") from error
        except OSError as error:
            what = f"cannot be locked on this file system ({error.strerror})"
            raise ValueError(f"{folder} {what}; choose another output_dir=...") from error
        try:
            yield
        except BaseException:
            files = [*folder.iterdir()]
            if {path.name for path in files} <= OF_A_START:
                for path in files:
                    path.unlink()
                if is_new:
                    folder.rmdir()
            raise


def folder_for_results(model: Path) -> Path:
    """Returns where results of a model belong: in the folder of a run or of its checkpoint itself;
    for any other model, whose folder may be another program's, in output/<its name>. Raises a
    ValueError if that holds another model."""
    model_folder = model.resolve()
    if any((folder / CONFIGURATION).exists() for folder in (model_folder, model_folder.parent)):
        return model
    found = Path("output", model_folder.name)
    if found.resolve() != model_folder and (found / "config.json").exists():
        what = f"results of {model} belong in {found}, the folder of another model"
        raise ValueError(f"{what}; rename one of them")
    return found


def nodes(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the settings of a configuration, such as `trainer.max_steps`, and their values."""
    for key, value in tree.items():
        yield f"{prefix}{key}", value
        if isinstance(value, Mapping):
            yield from nodes(value, f"{prefix}{key}.")


def _flat(tree: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in nodes(tree) if not (isinstance(value, dict) and value)}


def checkpoints(folder: Path) -> list[Path]:
    """Returns checkpoints in the order of their steps, including damaged ones."""
    found = [path for path in folder.glob("checkpoint-*") if path.name[11:].isdigit()]
    return sorted(found, key=step_of)


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.name[11:])


def finalize_checkpoint(work: Path, checkpoint: Path) -> None:
    """Records the hashes of all files in `work` and renames the folder to `checkpoint`."""
    files = sorted(path for path in work.rglob("*") if path.is_file())
    hashes = {str(path.relative_to(work)): _sha256(path, flush=True) for path in files}
    write_text(work / HASHES, json.dumps(hashes, indent=1))
    if checkpoint.exists():  # it was damaged, and its steps were repeated
        shutil.rmtree(checkpoint)
    work.rename(checkpoint)


def verify_checkpoint(checkpoint: Path) -> str | None:
    """Returns what is wrong with a checkpoint; None if every file matches its hash."""
    try:
        hashes = read_object(checkpoint / HASHES)
    except (OSError, ValueError):
        return f"its list of files, {HASHES}, is missing or damaged"
    for name, expected in hashes.items():
        if not (checkpoint / name).is_file() or _sha256(checkpoint / name) != expected:
            return f"{name} is missing, or changed after it was written"
    return None if hashes else f"{HASHES} lists no files"


def _sha256(path: Path, flush: bool = False) -> str:
    with path.open("rb") as file:
        if flush:  # to disk, before an older checkpoint is deleted in favour of this one
            os.fsync(file.fileno())
        return hashlib.file_digest(file, "sha256").hexdigest()


def last_complete(folder: Path) -> Path | None:
    """Returns the newest complete checkpoint; logs a warning for each newer one."""
    for checkpoint in reversed(checkpoints(folder)):
        if (found := verify_checkpoint(checkpoint)) is None:
            return checkpoint
        log.warning("%s is skipped: %s", checkpoint, found)
    return None


def clear_unfinished(folder: Path) -> None:
    """Removes the partial checkpoint of a run that was killed while saving."""
    if (work := folder / SAVING).exists():
        log.warning("a checkpoint was not finished: removed")
        shutil.rmtree(work)


def remove_old(newest: Path, limit: int | None) -> None:
    """Keeps the `limit` checkpoints up to the newest one (None: all). Those of later steps are
    damaged: the run would have resumed from them."""
    found = checkpoints(newest.parent)
    place = found.index(newest) + 1
    old = found[: max(0, place - limit)] if limit else []
    for checkpoint in old + found[place:]:
        # Hashes first: if the deletion is interrupted, the rest is not a valid checkpoint.
        (checkpoint / HASHES).unlink(missing_ok=True)
        shutil.rmtree(checkpoint)
