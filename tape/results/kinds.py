"""The kinds of results on the page: how a folder with some is recognised, read and shown."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from tape import provenance
from tape.evaluation import curves
from tape.evaluation import zero_shot as lm_eval
from tape.evaluation.accuracy import share
from tape.evaluation.tables import Row, read_table
from tape.model.adapters import ADAPTER
from tape.model.checkpoint import WEIGHTS
from tape.results import rates
from tape.results.comparison import Comparison
from tape.results.html import Block, Details, Pictures, code, has_table, number, records
from tape.results.rows import groups_of, is_method
from tape.results.runs import (
    EVALUATIONS,
    Run,
    check_weights,
    is_saved,
    module_of,
    read_saved,
    view_of,
)
from tape.results.table import markdown
from tape.runs.folder import CONFIGURATION, TRAINED, read_configuration
from tape.runs.metrics import MetricsFile, read_metrics
from tape.training.criterion import last_step, reached

TABLE = "table.md"
LOSSES = {"loss": "training", "eval_loss": "validation"}
# Keys of report.json that are no measurements, or have a column of their own.
FACTS = {"position", "attention", "parameters", "steps", "tokens_per_second", "peak_memory_gib"}
FACTS |= {"data_share", "mfu", "product_share", "ngrams", "scored_bytes"}


@dataclass(frozen=True)
class Found:
    """The results of one kind in a folder.

    Attributes:
        rows: for the table of all folders of the kind.
        blocks: of this folder alone, below that table.
        left: the work that is left in the folder, or None.
    """

    rows: Sequence[dict[Any, Any]] = ()
    blocks: Sequence[Block] = ()
    left: str | None = None


@dataclass(frozen=True)
class Kind:
    """Results of one form.

    Attributes:
        title: plural noun for these results.
        command: makes such results.
        holds: returns whether a folder has some.
        read: returns the results in such a folder, or None for nothing to show. Any exception
            marks the folder as broken.
        table: formats the rows of all folders.
    """

    title: str
    command: str
    holds: Callable[[Path], bool]
    read: Callable[[Path], Found | None]
    table: Callable[[list[dict[Any, Any]]], str] = records


def kind_of(command: str, title: str = "tables", methods: bool = False, **form: Any) -> Kind:
    """Returns the kind of results of an entry of experiments.yaml.

    Args:
        title: of written tables.
        methods: whether training runs may adapt another model.
        form: one name: `comparisons` of an evaluation or of methods, training `runs` of methods or
            by a pattern of the task, `evaluations` of single runs, `written` tables by the stem of
            the file, tables of `perplexity` or `zero_shot`.
    """
    ((name, of),) = form.items()

    def compares(runs: list[Run]) -> bool:
        if of == "methods":
            return any(map(is_method, runs))
        return all(of in run.asked and not is_method(run) for run in runs)

    def trains(run: dict[str, Any]) -> bool:
        if of == "methods":
            return "peft.name" in run
        return bool(re.search(of, task_of(run))) and (methods or "peft.name" not in run)

    if name == "comparisons":
        return Kind(name, command, partial(holds_comparison, compares), read_comparison)
    if name == "runs":
        return runs(trains, command)
    if name == "evaluations":
        holds, read = partial(has, EVALUATIONS[of][0]), partial(read_evaluation, of)
        return Kind(name, command, holds, read, partial(records, caption="Accuracy"))
    if name == "written":
        return Kind(title, command, partial(has, f"{of}.csv"), partial(read_written, of))
    if name == "perplexity":
        table = partial(records, caption="Perplexity by length in tokens")
        return Kind(title, command, lambda f: bool(curves_in(f)), read_curves, table)
    return Kind(title, command, partial(has, of), partial(read_zero_shot, of), zero_shot_table)


def has(name: str, folder: Path) -> bool:
    return (folder / name).is_file()


def pictures_in(folder: Path) -> Pictures:
    """The pictures in a folder; numbers in names order by value, run_2 before run_10."""
    paths = folder.glob("[!.]*.[pP][nN][gG]")
    return Pictures(sorted(paths, key=lambda path: natural(path.name)))


def natural(name: str) -> list[tuple[int, str]]:
    parts = re.split(r"(\d+)", name)
    return [(int(part), "") if n % 2 else (-1, part) for n, part in enumerate(parts)]


def made_by(folder: Path) -> Block:
    """The processes that produced a folder, if they were recorded."""
    processes = [
        "\n".join(f"{key}: {value}" for key, value in process.items())
        for process in provenance.read(folder)
    ]
    if not processes:
        return "Command, commit and machine were not recorded."
    return Details("Command, commit and machine", [code("\n\n".join(processes))])


# ---- csv files and the tables beside them


def columns_of(path: Path) -> tuple[str, ...]:
    """Returns the first line of a csv file; nothing if it is none."""
    with suppress(OSError, ValueError, csv.Error), path.open(newline="", encoding="utf-8") as file:
        return tuple(next(csv.reader(file), ()))
    return ()


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


def shown(folder: Path, *texts: Block) -> Found:
    """Texts of a folder, its pictures and its provenance."""
    return Found(blocks=[f"### {folder}", *texts, pictures_in(folder), made_by(folder)])


def text_of(path: Path) -> str:
    """Reads a markdown file with a table."""
    if not has_table(text := path.read_text(encoding="utf-8")):
        raise ValueError(f"{path} holds no table; create it again")
    return text


def read_written(stem: str, folder: Path) -> Found:
    """Reads stem.csv, and the tables of stem.md unless only the rows were kept."""
    rows = rows_of(folder / f"{stem}.csv")
    if has(f"{stem}.md", folder):
        return shown(folder, text_of(folder / f"{stem}.md"))
    names = {key: key.replace("_", " ") for key in rows[0]}
    return shown(folder, records({names[k]: rounded(row[k]) for k in row} for row in rows))


def rounded(cell: str) -> str:
    """Rounds a number with a decimal point to four digits."""
    with suppress(ValueError):
        return number(float(cell)) if "." in cell else cell
    return cell


# ---- comparisons and evaluations


def holds_comparison(belongs: Callable[[list[Run]], bool], folder: Path) -> bool:
    """Whether a folder has saved results of runs that belong here."""
    with suppress(OSError, ValueError):
        return is_saved(folder) and belongs(read_saved(folder))
    return False


def read_comparison(folder: Path) -> Found:
    """The table of a comparison. If it was not kept, it is computed from the rows."""
    kept = has(TABLE, folder)
    runs = read_saved(folder)
    return shown(folder, *([text_of(folder / TABLE)] if kept else tables_of(runs)))


def tables_of(runs: list[Run]) -> list[str]:
    """Tables of saved runs: of each task, or of learning rates if the runs were not evaluated. Each
    seed may have a base of its own."""
    if not any(run.asked for run in runs):
        return [rates.table(rates.choices(runs))]
    by_task: dict[str, list[Run]] = {}
    for run in runs:
        task = next((asked["task"] for asked in run.asked.values() if "task" in asked), "")
        by_task.setdefault(task, []).append(run)
    groups = {
        task: groups_of(runs, across=["*"], within=["base_*", "tokenizer"])
        for task, runs in by_task.items()
    }
    return [f"{task}\n\n{markdown(Comparison(each, {}))}" for task, each in groups.items()]


def read_evaluation(kind: str, folder: Path) -> Found:
    """A row with 95 % (Wilson) intervals of accuracy, and the pictures."""
    asked, table = module_of(kind).read_evaluation(folder)
    check_weights(folder.parent, folder.name, asked["model"])
    view = view_of(kind)
    row = {"evaluation": folder, "encoding": encoding_of(folder.parent)} | view.about(asked)
    for column in view.columns([asked], table):
        row[column.title] = "-"
        if found := share(column.of(table)):
            percent = (100 * found[key] for key in ("accuracy", "low", "high"))
            row[column.title] = "{:.1f} ({:.1f} to {:.1f})".format(*percent)
    return Found([row], [Details(f"Pictures of {folder}", [pictures_in(folder)])])


def curves_in(folder: Path) -> list[Path]:
    """Returns the tables of perplexity in a folder, under any name. One with the usual name and
    other columns is among them, so that its reader refuses it."""
    return [
        path
        for path in sorted(folder.glob("[!.]*.csv"))
        if path.name == "perplexity.csv" or columns_of(path) == curves.COLUMNS
    ]


def read_curves(folder: Path) -> Found:
    """A row per model, text and convention, a column per length. Hashes are shown if a table has
    several."""
    rows = []
    for path in curves_in(folder):
        rows_of(path)
        table = pd.DataFrame(curves.read_curves(path)[0]).astype({"length": int, "tokens": int})
        table["perplexity"] = table["perplexity"].astype(float).map("{:.3f}".format)
        series = [column for column in curves.ABOUT if column != "length"]
        shown = [x for x in series if not x.endswith("_hash") or table[x].nunique() > 1]
        for _, group in table.groupby(series, sort=False):
            about = {key: value for key, value in group.iloc[0][shown].items() if value}
            ends = dict.fromkeys((group["tokens"].min(), group["tokens"].max()))
            scored = " to ".join(f"{n:,}" for n in ends)
            lengths = dict(zip(group["length"], group["perplexity"], strict=True))
            rows.append({"table": path, **about, "scored tokens": scored, **lengths})
    drawn = [path.with_suffix(".png") for path in curves_in(folder)]
    drawn = Pictures([path for path in drawn if path.is_file()])
    return Found(rows, [Details(f"By length, and the loss by position: {folder}", [drawn])])


def read_zero_shot(name: str, folder: Path) -> Found:
    rows_of(folder / name)
    return Found(lm_eval.read([folder / name]))


def zero_shot_table(rows: list[Row]) -> str:
    """One table of all models; the rows themselves if the tasks differ."""
    try:
        return lm_eval.table(rows)
    except ValueError as error:
        return f"No common table: {error}.\n\n{records(rows)}"


# ---- training runs


def settings_of(folder: Path) -> dict[str, Any]:
    """Returns the flat configuration of a run: of the present training, else of its weights.

    Raises:
        ValueError: if neither can be read.
    """
    return read_configuration(folder, CONFIGURATION if has(CONFIGURATION, folder) else TRAINED)


def task_of(settings: dict[str, Any]) -> str:
    """Returns the class of a run's task, or "" if it was not recorded."""
    return str(settings.get("task._target_") or "")


def encoding_of(folder: Path) -> str:
    """Returns the encoding of the run in a folder, or "" if it is unknown."""
    for name in (TRAINED, CONFIGURATION):
        with suppress(OSError, ValueError):
            return str(read_configuration(folder, name).get("position.name", ""))
    return ""


def is_run(folder: Path) -> bool:
    return any(has(name, folder) for name in (CONFIGURATION, TRAINED, MetricsFile.FILE))


def runs(belongs: Callable[[dict[str, Any]], bool], command: str) -> Kind:
    """Training runs whose settings `belongs` accepts."""

    def holds(folder: Path) -> bool:
        with suppress(OSError, ValueError):
            return is_run(folder) and belongs(settings_of(folder))
        return False

    return Kind("runs", command, holds, read_run, partial(records, caption="Training runs"))


def achieved_in(report: dict[str, Any]) -> Iterable[tuple[str, Any]]:
    """Yields the measurements of a report by name; perplexities by multiples of the training
    length."""
    for name, value in report.items():
        if name == "perplexity":
            yield from ((f"perplexity {row['times']}x", row["perplexity"]) for row in value)
            if report.get("scored_bytes"):  # others: of the mean bytes per token of a whole text
                yield "bits per byte", value[0]["bits_per_byte"]
        elif isinstance(value, dict) and name not in FACTS:
            yield from ((f"{name} {key}", each) for key, each in value.items())
        elif name not in FACTS:
            yield name.replace("_", " "), value


def read_run(folder: Path) -> Found:
    """A row of the run, and its report, pictures, provenance and configuration. The report counts
    only if it is of the planned number of steps.

    Raises:
        ValueError or others: for damaged files.
    """
    settings, metrics = settings_of(folder), []
    most = settings["trainer.max_steps"]
    if has(MetricsFile.FILE, folder):
        path = folder / MetricsFile.FILE
        metrics = read_metrics(path)
        if len(metrics) + 1 < len(path.read_text().splitlines()):  # the last may be half-written
            raise ValueError(f"{path}, line {len(metrics) + 1}, is damaged")
    steps = max((row["step"] for row in metrics), default=None)
    planned = last_step(reached(metrics, settings.get("task.criterion")), most)
    report = {}
    if has("report/report.json", folder):
        report = json.loads((folder / "report" / "report.json").read_text())
        report = report if report["steps"] == planned else {}
    trained = has(TRAINED, folder) and read_configuration(folder, TRAINED)
    done, left = f"{steps or 0:,} of {planned:,} steps are done", None
    if steps is not None and steps < planned:
        left = f"{done}: the same command continues"
    elif not trained or trained["trainer.max_steps"] != most:
        left = f"{done}, and {TRAINED} is missing or of others"
    elif not report and (has(WEIGHTS, folder) or has(ADAPTER, folder)):
        left = "trained, and no report written: the same command writes it"
    row = {
        "run": str(folder),
        "encoding": settings.get("position.name", ""),
        **({"method": settings["peft.name"]} if settings.get("peft.name") else {}),
        "seed": settings.get("seed"),
        "state": "finished" if left is None else "unfinished",
        "steps": planned if steps is None else steps,
        "parameters": report.get("parameters"),
        **dict(achieved_in(report)),
        "tokens/s": report.get("tokens_per_second"),
        "memory, GiB": report.get("peak_memory_gib"),
    }
    blocks: list[Block] = []
    if left is not None:
        losses = {key: each[key] for each in metrics for key in LOSSES if key in each}
        last = [f"{LOSSES[key]} loss {value:.4f}" for key, value in losses.items()]
        blocks.append(", ".join([left, *last]) + ".")
    if has("report/report.md", folder):
        text = (folder / "report" / "report.md").read_text(encoding="utf-8", errors="replace")
        blocks.append(text.partition("\n")[2])
    given = [f"{key}: {value}" for key, value in settings.items() if value is not None]
    blocks += [pictures_in(folder / "report"), made_by(folder)]
    blocks.append(Details("Configuration", [code("\n".join(given))]))
    shown = {key: value if key == "run" else number(value) for key, value in row.items()}
    return Found([shown], [Details(str(folder), blocks)], left)
