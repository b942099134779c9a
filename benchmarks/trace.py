"""Counts what a reader of one training step passes: own functions, files, and changes of file.

python benchmarks/trace.py [POSITION ...]
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch

import tape
from tape import TapeConfig, TapeForCausalLM

ROOT = Path(tape.__file__).parent


class Trace(NamedTuple):
    """The own functions of a call, in order: (file, function)."""

    calls: list[tuple[str, str]]

    @property
    def functions(self) -> list[tuple[str, str]]:
        return list(dict.fromkeys(self.calls))

    @property
    def files(self) -> list[str]:
        return list(dict.fromkeys(file for file, _ in self.calls))

    @property
    def changes(self) -> int:
        """How often the next function is in another file."""
        pairs = zip(self.calls, self.calls[1:], strict=False)
        return sum(before[0] != after[0] for before, after in pairs)


def training_step(position: str) -> Trace:
    """Traces the forward and backward pass of a small model and its loss."""
    torch.manual_seed(0)
    config = TapeConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=16,
        position=position,
    )
    model = TapeForCausalLM(config).train()
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
    return Trace(calls)


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
