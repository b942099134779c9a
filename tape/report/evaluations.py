"""Evaluations of single runs, with the columns of their comparison."""

from __future__ import annotations

import pandas as pd

from tape.compare.runs import EVALUATIONS, check_weights, module_of, view_of
from tape.evaluation.view import PERCENT, Column, Evaluation
from tape.report.blocks import Block, Details, Pictures, Table
from tape.report.experiment import Kind, Read
from tape.report.finding import Folder
from tape.report.training import encoding_of, percent
from tape.statistics import with_interval


def evaluations(kind: str, command: str) -> Kind:
    """Evaluations of one kind of accuracy: a row each, with 95 % (Wilson) intervals, and their
    pictures."""

    def read(folder: Folder) -> Evaluation:
        found = module_of(kind).read_evaluation(folder.path)
        check_weights(folder.path.parent, folder.path.name, found.asked["model"])
        return found

    def show(found: Read[Evaluation]) -> list[Block]:
        view, rows = view_of(kind), []
        for folder, (asked, given) in found:
            table = pd.DataFrame(given)
            cells = {"evaluation": str(folder.path), "encoding": encoding_of(folder.path.parent)}
            cells |= view.about(asked)
            for column in view.columns([asked], [table]):
                cells[column.title] = _share(column, table)
            rows.append(cells)
        head = list(dict.fromkeys(title for cells in rows for title in cells))
        lines = [[cells.get(title, "-") for title in head] for cells in rows]
        drawn = [path for folder, _ in found for path in folder.pictures]
        pictures = Details("The pictures of these evaluations", [Pictures(drawn)])
        return [Table(head, lines, "Accuracy"), pictures]

    return Kind("evaluations", command, lambda f: f.has(EVALUATIONS[kind][0]), read, show)


def _share(column: Column, rows: pd.DataFrame) -> str:
    assert column.scale is PERCENT
    if (counted := column.counted(rows)) is None:
        return "-"
    share, total = counted
    return percent(with_interval(round(share * total), round(total)))
