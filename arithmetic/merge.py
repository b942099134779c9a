"""From the shards of an evaluation to its results.

python -m arithmetic.merge output/add_adape
"""

from __future__ import annotations

from pathlib import Path

from arithmetic.grid import Grid, write_grid
from tape.command import Parser, expected_errors, folder_name
from tape.compare.heatmap import draw
from tape.evaluation.checkpoint import fingerprint
from tape.evaluation.journal import join, place_of


def merge(run: Path, name: str = "grid") -> Grid:
    """Write the results in run/name from the parts of all shards there.

    Raises:
        ValueError: if these are not the whole of one evaluation of the model in `run`.
    """
    folder = place_of(run, "--name", name)
    evaluated, rows = join(folder)
    if "problems.max_first" not in evaluated:
        raise ValueError(f"{folder} contains an evaluation, but not of arithmetic")
    if evaluated["model"] != fingerprint(run):
        raise ValueError(
            f"{folder} was evaluated with other weights than those in {run}: remove it"
        )
    grid = write_grid(folder, evaluated, rows)
    draw(folder, run.resolve().name)
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


@expected_errors()
def main() -> None:
    parser = Parser(
        prog="python -m arithmetic.merge", description="Join the shards of an evaluation."
    )
    parser.add_argument("run", type=Path, help="the folder of the run")
    parser.add_argument(
        "--name", type=folder_name, default="grid", help="of the evaluation (default: grid)"
    )
    arguments = parser.parse_args()
    print(describe(merge(arguments.run, arguments.name)))


if __name__ == "__main__":
    main()
