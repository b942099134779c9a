"""Results of comparisons, evaluations and analyses, from their csv files and written tables."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import pandas as pd

from tape.evaluation import curves
from tape.evaluation import zero_shot as lm_eval
from tape.evaluation.tables import Row, read_table
from tape.evaluation.view import Evaluation
from tape.results import rates
from tape.results.compare import ranked
from tape.results.experiment import Folder, Kind, Read
from tape.results.html import (
    Block,
    Details,
    Heading,
    Markdown,
    Paragraph,
    Pictures,
    number,
    records,
)
from tape.results.run_section import encoding_of, made_by
from tape.results.runs import (
    EVALUATIONS,
    RESULTS,
    SETTINGS,
    Run,
    check_weights,
    module_of,
    read_saved,
    read_settings,
    view_of,
)
from tape.results.table import markdown
from tape.statistics import with_interval

TABLE = "table.md"


def columns_of(path: Path) -> tuple[str, ...]:
    """Returns the first line of a csv file."""
    with path.open(newline="", encoding="utf-8") as file:
        return tuple(next(csv.reader(file), ()))


def has_columns(path: Path, columns: Iterable[str]) -> bool:
    """Returns whether this is a csv file with at least these columns."""
    with suppress(OSError, ValueError, csv.Error):
        return path.is_file() and set(columns_of(path)).issuperset(columns)
    return False


def rows_of(path: Path) -> list[Row]:
    """Reads a csv file.

    Raises:
        OSError, ValueError: if it has no rows, or an incomplete one.
    """
    if not path.read_bytes().endswith(b"\n"):
        raise ValueError(f"{path} ends within a line; create it again")
    if rows := read_table(path, columns_of(path)):
        return rows
    raise ValueError(f"{path} has no rows")


def blocks_of(path: Path) -> list[Block]:
    """Reads a markdown file with a table."""
    text = Markdown(path.read_text(encoding="utf-8"))
    if not text.has_table:
        raise ValueError(f"{path} holds no table; create it again")
    return [text]


def show(found: Read[list[Block]]) -> list[Block]:
    """The blocks of each folder, its pictures and its provenance."""
    blocks: list[Block] = []
    for folder, text in found:
        blocks += [Heading(str(folder.path)), *text, Pictures(folder.pictures)]
        blocks += made_by(folder.path)
    return blocks


# ---- analyses and comparisons


def written(title: str, stem: str, command: str) -> Kind:
    """Folders with stem.csv, and the tables of stem.md unless only the rows were kept."""

    def read_folder(folder: Folder) -> list[Block]:
        rows = rows_of(folder.path / f"{stem}.csv")
        if folder.has(f"{stem}.md"):
            return blocks_of(folder.path / f"{stem}.md")
        return [records({key.replace("_", " "): rounded(row[key]) for key in row} for row in rows)]

    return Kind(title, command, lambda folder: folder.has(f"{stem}.csv"), read_folder, show)


def rounded(cell: str) -> str:
    """Rounds a number with a decimal point to four digits."""
    with suppress(ValueError):
        return number(float(cell)) if "." in cell else cell
    return cell


def comparisons(holds: Callable[[Sequence[Run]], bool], command: str) -> Kind:
    """Saved results of `tape.results.compare` whose runs `holds` accepts."""

    def holds_folder(folder: Folder) -> bool:
        with suppress(OSError, ValueError):
            return folder.has(RESULTS, SETTINGS) and holds(read_settings(folder.path))
        return False

    return Kind("comparisons", command, holds_folder, read_comparison, show)


def read_comparison(folder: Folder) -> list[Block]:
    """The table of a comparison. If it was not kept, it is computed from the rows: of each task, or
    of learning rates if the runs were not evaluated. Each seed may have a base of its own."""
    runs = read_saved(folder.path)
    if folder.has(TABLE):
        return blocks_of(folder.path / TABLE)
    if not any(run.asked for run in runs):
        return [Markdown(rates.table(rates.choices(runs)))]
    by_task: dict[str, list[Run]] = {}
    for run in runs:
        tasks = [asked["task"] for asked in run.asked.values() if "task" in asked]
        by_task.setdefault(tasks[0] if tasks else "", []).append(run)
    blocks: list[Block] = []
    for task, group in by_task.items():
        rows = ranked(group, across=["*"], within=["base_*", "tokenizer"])
        blocks += [Paragraph(task)] * bool(task) + [Markdown(markdown(rows))]
    return blocks


# ---- evaluations of single runs


def evaluations(kind: str, command: str) -> Kind:
    """Evaluations by accuracy: a row each with 95 % (Wilson) intervals, and their pictures."""

    def read_folder(folder: Folder) -> Evaluation:
        found = module_of(kind).read_evaluation(folder.path)
        check_weights(folder.path.parent, folder.path.name, found.asked["model"])
        return found

    def show_rows(found: Read[Evaluation]) -> list[Block]:
        view, rows = view_of(kind), []
        for folder, (asked, given) in found:
            table = pd.DataFrame(given)
            cells = {"evaluation": str(folder.path), "encoding": encoding_of(folder.path.parent)}
            cells |= view.about(asked)
            for column in view.columns([asked], [table]):
                cells[column.title] = "-"
                if counted := column.counted(table):
                    share, total = counted
                    found_share = with_interval(round(share * total), round(total))
                    shown = (100 * found_share[key] for key in ("accuracy", "low", "high"))
                    cells[column.title] = "{:.1f} ({:.1f} to {:.1f})".format(*shown)
            rows.append(cells)
        drawn = [path for folder, _ in found for path in folder.pictures]
        pictures = Details("The pictures of these evaluations", [Pictures(drawn)])
        return [records(rows, "Accuracy", missing="-"), pictures]

    holds = EVALUATIONS[kind][0]
    return Kind("evaluations", command, lambda f: f.has(holds), read_folder, show_rows)


def curves_in(folder: Folder) -> list[Path]:
    """Returns the tables of perplexity in a folder, under any name. One with the usual name and
    other columns is among them, so that its reader refuses it."""
    paths = (folder.path / name for name in sorted(folder.files) if name.endswith(".csv"))
    usual, columns = "perplexity.csv", curves.COLUMNS
    return [
        path
        for path in paths
        if path.name == usual or (has_columns(path, columns) and columns_of(path) == columns)
    ]


def read_curves(folder: Folder) -> list[Row]:
    rows = []
    for path in curves_in(folder):
        rows_of(path)
        rows += [{"table": str(path), **row} for row in curves.read_curves(path)[0]]
    return rows


def show_curves(found: Read[list[Row]]) -> list[Block]:
    """A row per model, text and convention, a column per length. Hashes are shown if a table has
    several."""
    table = pd.DataFrame([row for _, each in found for row in each])
    table = table.astype({"length": int, "tokens": int, "perplexity": float})
    series = ["table", *(column for column in curves.ABOUT if column != "length")]
    shown = [
        name
        for name in series
        if (table[name] != "").any()
        and (not name.endswith("_hash") or table.groupby("table")[name].nunique().max() > 1)
    ]
    lengths, rows = sorted(table["length"].unique()), []
    for _, group in table.groupby(series, sort=False):
        by_length = group.set_index("length")["perplexity"]
        scored = dict.fromkeys((group["tokens"].min(), group["tokens"].max()))
        rows.append(
            {
                **group.iloc[0][shown],
                "scored tokens": " to ".join(f"{n:,}" for n in scored),
                **{str(n): f"{by_length[n]:.3f}" if n in by_length else "-" for n in lengths},
            }
        )
    drawn = [path.with_suffix(".png") for folder, _ in found for path in curves_in(folder)]
    pictures = Pictures([path for path in drawn if path.is_file()])
    return [
        records(rows, "Perplexity by length in tokens"),
        Details("By length, and the loss by position", [pictures]),
    ]


def perplexity(_: str, command: str) -> Kind:
    """Tables of perplexity by length."""
    return Kind("tables", command, lambda f: bool(curves_in(f)), read_curves, show_curves)


def show_zero_shot(found: Read[list[Row]]) -> list[Block]:
    """One table of all models, or one per folder if the tasks differ."""
    try:
        return [Markdown(lm_eval.table([row for _, rows in found for row in rows]))]
    except ValueError as error:
        blocks: list[Block] = [Paragraph(f"No common table: {error}.")]
    for folder, rows in found:
        blocks.append(Heading(str(folder.path)))
        try:
            blocks.append(Markdown(lm_eval.table(rows)))
        except ValueError as error:
            blocks.append(Paragraph(f"No table: {error}."))
    return blocks


def zero_shot(name: str, command: str) -> Kind:
    """Tables of zero-shot tasks in files of this name."""

    def read_folder(folder: Folder) -> list[Row]:
        rows_of(folder.path / name)
        return lm_eval.read([folder.path / name])

    return Kind("tables", command, lambda folder: folder.has(name), read_folder, show_zero_shot)
