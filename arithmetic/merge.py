"""From the shards of an evaluation to its results.

python -m arithmetic.merge output/add_adape
"""

from __future__ import annotations

from pathlib import Path

from arithmetic.grid import GRID
from tape.command import Parser, expected_errors, folder_name
from tape.evaluation.journal import place_of
from tape.evaluation.view import Evaluation


def merge(run: Path, name: str = "grid") -> Evaluation:
    """Writes the results in run/name from all shards there.

    Raises:
        ValueError: if these are not the whole of one evaluation of the model in `run`.
    """
    return GRID.gather(place_of(run, "--name", name))


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
    print(GRID.describe(merge(arguments.run, arguments.name)))


if __name__ == "__main__":
    main()
