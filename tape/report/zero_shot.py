"""Zero-shot tasks of lm-eval, beside the paper's Table 9."""

from __future__ import annotations

from tape.evaluation.tables import Row
from tape.evaluation.zero_shot import read, table
from tape.report.blocks import Block, Heading, Markdown, Paragraph
from tape.report.experiment import Experiment, Kind, Read
from tape.report.finding import Folder
from tape.report.written import rows_of

NAME = "zero_shot.csv"


def read_folder(folder: Folder) -> list[Row]:
    rows_of(folder.path / NAME)
    return read([folder.path / NAME])


def show(found: Read[list[Row]]) -> list[Block]:
    """One table of all models; one for each if they were not asked the same."""
    try:
        return [Markdown(table([row for _, rows in found for row in rows]))]
    except ValueError as error:
        blocks: list[Block] = [Paragraph(f"No common table: {error}.")]
    for folder, rows in found:
        blocks.append(Heading(str(folder.path)))
        try:
            blocks.append(Markdown(table(rows)))
        except ValueError as error:
            blocks.append(Paragraph(f"No table: {error}."))
    return blocks


EXPERIMENT = Experiment(
    name="zero_shot",
    title="Zero-shot tasks",
    about="What models know without having been trained on the task.",
    kinds=[
        Kind(
            title="tables",
            command="python -m tape.evaluation.lm_eval --model output/llama_adape "
            "--tasks mmlu,arc_challenge,arc_easy",
            holds=lambda folder: folder.has(NAME),
            read=read_folder,
            show=show,
        )
    ],
)
