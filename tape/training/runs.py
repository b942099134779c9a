"""A run's folder: one configuration, its checkpoints, and what is in them when a run was killed."""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from tape.files import write_text

CONFIGURATION = "run.json"
MARK = "complete.json"

# What may change when a run is continued: where it lies, how long it goes on, and what is only
# looked at.
MAY_CHANGE = (
    r"name|output_dir|trainer\.output_dir|cache_dir|debug",
    r"report\..*|data\.max_bad",
    r"trainer\.(max_steps|disable_tqdm|report_to|run_name)",
    r"trainer\.(logging|eval|save)_.*",
)


def claim(folder: Path, configuration: dict[str, Any]) -> None:
    """Make `folder` the place of the run with this configuration, or find that it is already.

    Raises:
        ValueError: if another run has begun there; names every difference.
    """
    recorded = folder / CONFIGURATION
    if recorded.exists():
        before = dict(_flat(json.loads(recorded.read_text())))
        now = dict(_flat(configuration))
        changes = [
            f"  {key}: {before.get(key, '(absent)')} -> {now.get(key, '(absent)')}"
            for key in sorted(before.keys() | now.keys())
            if before.get(key) != now.get(key)
            and not any(re.fullmatch(pattern, key) for pattern in MAY_CHANGE)
        ]
        begun = checkpoints(folder) or (folder / "metrics.jsonl").exists()
        if changes and begun:
            raise ValueError(
                f"{folder} holds a run with another configuration:\n"
                + "\n".join(changes)
                + "\nGive this run its own name=... or output_dir=..., or remove that folder."
            )
    elif folder.exists() and any(not path.name.startswith(".") for path in folder.iterdir()):
        raise ValueError(
            f"{folder} has files but no {CONFIGURATION}: it is not a run's folder. "
            f"Choose another name=... or output_dir=..."
        )
    write_text(recorded, json.dumps(configuration, indent=1) + "\n")


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes out of a run's folder; the processes of one run share it.

    Raises:
        ValueError: if another one is at work there.
    """
    if os.environ.get("RANK", "0") != "0":
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ValueError(
                f"another process is working in {folder}; wait for it, or choose another name=..."
            ) from error
        yield


def _flat(tree: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(tree, dict) and tree:
        for key, value in tree.items():
            yield from _flat(value, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, tree


def checkpoints(folder: Path) -> list[Path]:
    """Checkpoints in the order of their steps, complete or not."""
    found = [path for path in folder.glob("checkpoint-*") if path.name[11:].isdigit()]
    return sorted(found, key=step_of)


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.name[11:])


def is_complete(checkpoint: Path) -> bool:
    """Whether it was marked as complete and every file still has the size it had then."""
    mark = checkpoint / MARK
    if not mark.exists():
        return False
    sizes = json.loads(mark.read_text())
    files = {name: checkpoint / name for name in sizes}
    return all(path.exists() and path.stat().st_size == sizes[n] for n, path in files.items())


def last_complete(folder: Path) -> Path | None:
    """The newest checkpoint that a killed run left whole."""
    return next((path for path in reversed(checkpoints(folder)) if is_complete(path)), None)


class MarkComplete(TrainerCallback):
    """Marks a checkpoint when all of it is written and all of its weights are finite."""

    def on_save(self, args, state, control, model=None, **kwargs):
        if not state.is_world_process_zero:
            return
        checkpoint = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        if all(torch.isfinite(parameter).all() for parameter in model.parameters()):
            files = [path for path in checkpoint.iterdir() if path.name != MARK]
            sizes = {path.name: path.stat().st_size for path in files}
            write_text(checkpoint / MARK, json.dumps(sizes))
