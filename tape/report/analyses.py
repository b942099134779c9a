"""What a look into models gave, and what encodings cost."""

from __future__ import annotations

from tape.evaluation.tables import Row
from tape.report.blocks import Block, Heading, Pictures, number, records
from tape.report.experiment import Experiment, Kind, Read
from tape.report.finding import Folder
from tape.report.training import origin
from tape.report.written import rows_of, written


def read_pictures(folder: Folder) -> list[Row]:
    return rows_of(folder.path / "attention.csv")


def show_pictures(found: Read[list[Row]]) -> list[Block]:
    """The numbers of each folder, and its pictures."""
    blocks: list[Block] = []
    for folder, rows in found:
        shown = [{key.replace("_", " "): rounded(row[key]) for key in row} for row in rows]
        blocks += [Heading(str(folder.path)), records(shown), Pictures(folder.pictures)]
        blocks += origin(folder.path)
    return blocks


def rounded(cell: str) -> str:
    """Of a number, four digits."""
    try:
        return number(float(cell)) if not cell.isdecimal() else cell
    except ValueError:
        return cell


STABILITY = Experiment(
    name="stability",
    title="Stability",
    about="How much attention and positions change when a text is moved. The rows of the paper's "
    "Table 8 are in the tables.",
    kinds=[
        written("tables", "stability", "python -m tape.analysis.stability --model output/adape_c4")
    ],
)
PICTURES = Experiment(
    name="pictures",
    title="Attention and positions",
    about="What models attend to, and what became of their positions (the paper's Fig. 7).",
    kinds=[
        Kind(
            title="folders of pictures",
            command="python -m tape.analysis.visualize --model output/rope_c4 output/adape_c4",
            holds=lambda folder: folder.has("attention.csv"),
            read=read_pictures,
            show=show_pictures,
        )
    ],
)
FAULTS = Experiment(
    name="faults",
    title="Faults of the original code",
    about="What they make of trained models, each by itself.",
    kinds=[
        written(
            "tables",
            "faults",
            "python -m tape.analysis.faults --model output/rope_c4 output/adape_c4",
        )
    ],
)
EFFICIENCY = Experiment(
    name="efficiency",
    title="Efficiency",
    about="What encodings cost, and how fast they run. The paper's Table 3 is beside costs of its "
    "shape.",
    kinds=[
        written("tables of cost", "cost", "python -m tape.analysis.cost"),
        written("tables of speed", "speed", "python benchmarks/speed.py"),
    ],
)
