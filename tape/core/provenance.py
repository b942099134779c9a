"""Provenance of results: command, commit and machine, in origin.json next to them, and a
fingerprint of the code of a model."""

import ast
import hashlib
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
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tape import __version__
from tape.core.files import write_text

if TYPE_CHECKING:
    from torch import nn

FILE = "origin.json"
TRAINED = "trained.json"  # settings that made the saved weights, beside them
PACKAGES = ("torch", "transformers")
ORIGIN = ("commit", "machine", "threads", "versions")  # what is kept with a result's rows
PACKAGE = "tape"
SOURCE = Path(__file__).resolve().parents[2]


def record(folder: Path) -> None:
    """Adds this process to the provenance record of the results in a folder."""
    here = {"time": datetime.now(UTC).isoformat(timespec="seconds"), **_process()}
    before = read(folder)
    write_text(folder / FILE, json.dumps([*before, here], indent=1) + "\n")


def read(folder: Path) -> list[dict[str, Any]]:
    """Returns the processes that produced the results in a folder, oldest first; an empty list if
    the record is missing or unreadable, because no result depends on it."""
    with suppress(OSError, ValueError):
        found = json.loads((folder / FILE).read_bytes())
        if isinstance(found, list) and all(isinstance(process, dict) for process in found):
            return found
    return []


def origins(folder: Path) -> list[dict[str, Any]]:
    """Returns the different commits, machines, numbers of threads and versions among the processes
    that produced the results in a folder, oldest first."""
    found = []
    for process in read(folder):
        kept = {key: process[key] for key in ORIGIN if key in process}
        found += [kept] * (kept not in found)
    return found


def place_of(origin: list[dict[str, Any]]) -> str:
    """Formats what the digits of a result depend on besides the code, from `origins`: machine,
    threads and torch of each process; empty if unknown."""
    places = []
    for process in origin:
        threads = process.get("threads")
        parts = [process.get("machine"), threads and f"threads: {threads}"]
        parts.append(f"torch {(process.get('versions') or {}).get('torch', 'unknown')}")
        places.append(", ".join(filter(None, parts)))
    return ", then ".join(dict.fromkeys(places))


def fingerprint(model: "nn.Module") -> str:
    """Returns a hash of the code that computes a model: of the modules of this package that define
    its parts, and of those that they use.

    Comments, docstrings, format, imports and messages of errors do not count, nor does the module
    that code stands in. Packages are not followed: `tape.positions` imports all encodings.
    """
    waiting, found, code = {type(part).__module__ for part in model.modules()}, set(), set()
    while waiting:
        module = sys.modules.get(waiting.pop())
        if module is None or module in found or hasattr(module, "__path__"):
            continue
        if module.__name__.partition(".")[0] == PACKAGE:
            found.add(module)
            code |= _statements(Path(module.__file__).read_text(encoding="utf-8"))
            for value in vars(module).values():
                is_module = isinstance(value, ModuleType)
                waiting.add(value.__name__ if is_module else getattr(value, "__module__", None))
    return hashlib.sha256("\n".join(sorted(code)).encode()).hexdigest()[:16]


@cache
def _statements(source: str) -> set[str]:
    return {ast.unparse(statement) for statement in _Bare().visit(ast.parse(source)).body}


class _Bare(ast.NodeTransformer):
    """Removes imports, docstrings and messages of errors."""

    def visit(self, node: ast.AST) -> ast.AST | None:
        text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if text or isinstance(node, ast.Import | ast.ImportFrom):
            return None
        return ast.Raise() if isinstance(node, ast.Raise) else self.generic_visit(node)


@cache
def _process() -> dict[str, Any]:
    program, *arguments = sys.orig_argv
    return {
        "command": shlex.join([Path(program).name, *arguments]),
        "commit": commit(),
        "machine": machine(),
        "threads": threads(),
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """Returns the versions of Python and of the packages that results depend on most."""
    found = {"python": platform.python_version(), "tape": __version__}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def commit() -> str | None:
    """Returns the commit of this source, marked if tracked files were changed; None outside its
    repository."""
    if not (SOURCE / ".git").exists():
        return None
    command = ["git", "-C", SOURCE, "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip().replace("-dirty", " with changes")


def threads() -> int:
    """Returns the number of torch's threads, on which the order of sums depends."""
    import torch  # takes a second

    return torch.get_num_threads()


def machine() -> str:
    """Returns the processor, the vector instructions that torch uses on it, the core count, and the
    GPUs that torch sees."""
    import torch  # takes a second

    gpus = [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())]
    # Sums are rounded differently with other instructions, and processors may share a name.
    instructions = torch.backends.cpu.get_cpu_capability()
    return "; ".join([f"{_processor()}, {instructions}, {cores()} cores", *gpus])


def cores() -> int:
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _processor() -> str:
    """Returns the model of the processor, on Linux with its family and model numbers: virtual
    machines name different generations alike, whose instructions round differently."""
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().partition("\n\n")[0].splitlines()
        pairs = (line.partition(":") for line in lines)
        fields = {name.strip(): value.strip() for name, _, value in pairs}
        if "model name" in fields:
            numbers = [f"{key} {fields[key]}" for key in ("cpu family", "model") if key in fields]
            return f"{fields['model name']} ({', '.join(numbers)})"
    return platform.processor() or platform.machine()
