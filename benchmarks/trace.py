"""Counts what a reader of one training step passes: own functions, files, and changes of file.

python benchmarks/trace.py [POSITION ...]
"""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch

import tape
from benchmarks.workloads import Load

ROOT = Path(tape.__file__).parent


class Trace(NamedTuple):
    """The own functions, (file, function), and files of a call, in order; and how often the next
    function is in another file."""

    functions: list[tuple[str, str]]
    files: list[str]
    changes: int


def training_step(position: str) -> Trace:
    """Traces the forward and backward pass of a small model and its loss."""
    load = Load("training", "tiny", "sdpa", batch=2, length=16)
    model = load.decoder(position).cpu().train()
    ids = torch.randint(64, (2, 16))
    calls = []

    def note(frame: FrameType, event: str, argument: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(ROOT) and frame.f_code.co_name[0] != "<":
            calls.append((str(path.relative_to(ROOT)), frame.f_code.co_qualname))

    sys.setprofile(note)
    try:
        model(ids, labels=ids, skip_logits=True).loss.backward()
    finally:
        sys.setprofile(None)
    files = [file for file, _ in calls]
    changes = sum(before != after for before, after in pairwise(files))
    return Trace([*dict.fromkeys(calls)], [*dict.fromkeys(files)], changes)


def main() -> None:
    for position in sys.argv[1:] or ("rope", "tape"):
        trace = training_step(position)
        counts = f"{len(trace.functions)} functions in {len(trace.files)} files"
        print(f"{position}: {counts}, {trace.changes} changes of file")
        for file in trace.files:
            names = ", ".join(name for where, name in trace.functions if where == file)
            print(f"  {file}: {names}")


if __name__ == "__main__":
    main()
