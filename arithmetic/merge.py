"""From the shards of an evaluation to its results.

python -m arithmetic.merge output/add_adape
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from arithmetic.decoding import fingerprint
from arithmetic.grid import Grid, write_grid
from arithmetic.heatmap import draw
from arithmetic.parts import FILE, read
from arithmetic.plan import Shard
from tape.training.runs import differences


def shards(folder: Path) -> dict[Path, tuple[dict[str, Any], list[dict[str, Any]]]]:
    """The parts in a folder, by file: what they begin with, and their batches."""
    found = {path: read(path) for path in sorted(folder.glob(f"shard-*/{FILE}"))}
    return {path: (header, rows) for path, (header, rows, _) in found.items() if header is not None}


def owners(headers: dict[Path, dict[str, Any]]) -> dict[int, Path]:
    """Which parts a batch belongs to.

    Raises:
        ValueError: if two of them are of different evaluations, or share a batch.
    """
    found: dict[int, Path] = {}
    first, expected = next(iter(headers.items()))
    for path, header in headers.items():
        if changes := differences(expected | {"shard": header["shard"]}, header):
            raise ValueError(
                f"{first} and {path} belong to different evaluations ({'; '.join(changes)}); take "
                f"the same settings, give one of them another name=..., or remove one"
            )
        numbers = Shard.parse(header["shard"]).numbers(header["batches"])
        if shared := found.keys() & set(numbers):
            raise ValueError(
                f"{found[min(shared)]} and {path} overlap: batch {min(shared)} belongs to both; "
                f"remove one of them"
            )
        found |= dict.fromkeys(numbers, path)
    return found


def merge(run: Path, name: str = "grid") -> Grid:
    """Write the results in run/name from the parts of all shards there.

    Raises:
        ValueError: if these are not the whole of one evaluation of the model in `run`.
    """
    folder = run / name
    found = shards(folder)
    if not found:
        raise ValueError(f"{folder} holds no evaluation: run python -m arithmetic.evaluate first")
    belongs = owners({path: header for path, (header, _) in found.items()})
    evaluated = {k: v for k, v in next(iter(found.values()))[0].items() if k != "shard"}
    if evaluated["model"] != fingerprint(run):
        raise ValueError(
            f"{folder} was evaluated with other weights than those in {run}: remove it"
        )
    done = [(row["batch"], path) for path, (_, rows) in found.items() for row in rows]
    if len(set(done)) < len(done) or not set(done) <= belongs.items():
        raise ValueError(f"parts in {folder} have batches twice, or not their own: remove it")
    if missing := sorted(set(range(evaluated["batches"])) - dict(done).keys()):
        where = sorted({str(belongs.get(number, "a shard not started")) for number in missing})
        raise ValueError(
            f"{len(missing)} of {evaluated['batches']} batches are missing: run the evaluation of "
            f"{', '.join(where)} to its end"
        )
    rows = [row for _, rows in found.values() for row in rows]
    grid = write_grid(folder, evaluated, rows)
    draw([(run.resolve().name, grid)], folder / "heatmap")
    return grid


def describe(grid: Grid) -> str:
    """A line per part of the grid: its accuracy, and what it was seen in."""
    parts = {key: share for key, share in grid.summary().items() if key != "diagonal"}
    return "\n".join(
        f"{key}: {share['accuracy']:.3f} ({share['low']:.3f} to {share['high']:.3f}), "
        f"{share['correct']:,} of {share['total']:,}"
        for key, share in parts.items()
        if share is not None
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m arithmetic.merge", description="Join the shards of an evaluation."
    )
    parser.add_argument("run", type=Path, help="the folder of the run")
    parser.add_argument("--name", default="grid", help="of the evaluation (default: grid)")
    arguments = parser.parse_args()
    try:
        print(describe(merge(arguments.run, arguments.name)))
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
