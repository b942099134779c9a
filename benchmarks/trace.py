"""Counts what a reader of one training step passes: own functions, files, and changes of file.

python benchmarks/trace.py [POSITION ...]
"""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import tape
from benchmarks.workloads import Load

ROOT = Path(tape.__file__).parent


def training_step(position: str) -> list[tuple[str, str]]:
    """Returns file and name of each own function that is called in the forward and backward pass of
    a small model and its loss."""
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
    return calls


def main() -> None:
    for position in sys.argv[1:] or ("rope", "tape"):
        calls = training_step(position)
        changes = sum(one[0] != other[0] for one, other in pairwise(calls))
        names: dict[str, list[str]] = {}
        for file, name in dict.fromkeys(calls):
            names.setdefault(file, []).append(name)
        counts = f"{len({*calls})} functions in {len(names)} files"
        print(f"{position}: {counts}, {changes} changes of file")
        for file in names:
            print(f"  {file}: {', '.join(names[file])}")


if __name__ == "__main__":
    main()
