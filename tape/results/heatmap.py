"""Heat maps of evaluated runs side by side: accuracy over operand lengths, or length and depth.

python -m tape.results.heatmap output/add_*_0 --out output/heatmaps
"""

from __future__ import annotations

from pathlib import Path

from tape.command import Parser, expected_errors, folder_name, picture
from tape.evaluation.figures import write_figure
from tape.results.figures import Map, side_by_side
from tape.results.runs import evaluations_in, shared_name


def maps_in(folder: Path, name: str) -> list[Map]:
    """Returns the heat maps of the evaluations in a folder."""
    found = [
        Map(name, kind, evaluation.asked, evaluation.rows)
        for kind, evaluation in evaluations_in(folder).items()
    ]
    return [each for each in found if each.is_there]


def draw(folder: Path, name: str) -> None:
    """Writes heatmap.png and heatmap.svg beside an evaluation; nothing for prompts whose key may be
    anywhere."""
    if found := maps_in(folder, name):
        write_figure(side_by_side(found), folder / "heatmap")


@expected_errors()
def main(given: list[str] | None = None) -> None:
    parser = Parser(prog="python -m tape.results.heatmap", description="Heat maps side by side.")
    add = parser.add_argument
    add("runs", type=Path, nargs="+", help="folders of runs")
    add("--name", type=folder_name, help="their evaluation (default: the one that all have)")
    add("--out", type=picture, default=Path("output/heatmaps"), help="file, as .png and .svg")
    arguments = parser.parse_args(given)
    found, missing = [], []
    name = arguments.name or shared_name(arguments.runs) or "grid"
    for run in arguments.runs:
        drawn = maps_in(run / name, run.name)
        found += drawn
        missing += [] if drawn else [str(run / name)]
    if found:
        write_figure(side_by_side(found), arguments.out)
        print(f"{arguments.out}.png and {arguments.out}.svg")
    if missing:
        raise ValueError(f"no evaluation with a heat map in {', '.join(missing)}: evaluate first")


if __name__ == "__main__":
    main()
