"""Provenance of results: command, commit and machine, in origin.json next to them."""

from __future__ import annotations

import json
import os
import platform
import shlex
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from tape.files import reading, write_text

FILE = "origin.json"
PACKAGES = ("tape", "torch", "transformers")
SOURCE = Path(__file__).resolve().parent.parent


def record(folder: Path) -> None:
    """Adds this process to the provenance record of the results in a folder."""
    here = {"time": datetime.now(UTC).isoformat(timespec="seconds"), **_process()}
    before = read(folder)
    write_text(folder / FILE, json.dumps([*before, here], indent=1) + "\n")


def read(folder: Path) -> list[dict[str, Any]]:
    """Returns the processes that produced the results in a folder, oldest first; an empty list if
    the record is missing or unreadable, because no result depends on it."""
    try:
        with reading(folder / FILE):
            found = json.loads((folder / FILE).read_bytes())
    except (OSError, ValueError):
        return []
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


@cache
def _process() -> dict[str, Any]:
    program, *arguments = sys.orig_argv
    return {
        "command": shlex.join([Path(program).name, *arguments]),
        "commit": commit(),
        "machine": machine(),
        "versions": _versions(),
    }


def commit() -> str | None:
    """Returns the commit of this source, marked if tracked files were changed; None outside its
    repository."""
    try:
        if Path(_git("rev-parse", "--show-toplevel")).resolve() != SOURCE:
            return None
        changed = _git("status", "--porcelain", "--untracked-files=no")
        return _git("rev-parse", "HEAD") + (" with changes" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", SOURCE, *arguments], capture_output=True, text=True, check=True, timeout=10
    )
    return done.stdout.strip()


def machine() -> str:
    """Returns processor, core count and the GPUs that torch sees."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    parts = [f"{_processor()}, {cores} cores"]
    parts += [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())]
    return "; ".join(parts)


def _processor() -> str:
    with suppress(OSError):  # not Linux
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found
