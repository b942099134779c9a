"""The results under some folders on one page: tape report output/ scrolls/ --out report/

Each folder with results has a section: the tables (.md) and pictures (.png) that commands wrote
there, and the command, commit and machine. What is unfinished or damaged comes first, then a table
of all runs. The page (page.html) needs nothing but itself. Jinja2 and markdown-it escape all
values, and a policy in its head allows no script.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markdown_it import MarkdownIt
from markupsafe import Markup
from tqdm import tqdm

from tape import parsers, provenance
from tape.command import expected_errors, in_one_line
from tape.evaluation.journal import Incomplete, join
from tape.evaluation.tables import markdown_table
from tape.files import check_folder, check_replaceable, read_object, write_text
from tape.runs.folder import CONFIGURATION, read_configuration
from tape.runs.metrics import MetricsFile, read_metrics
from tape.training.callbacks import last_step, reached
from tape.training.report import printable

INDEX = "index.html"
MARK = '<meta name="generator" content="tape.results.report">'  # identifies pages of this program
# Tables, headings, lists and indented code; within a line, text is text and nothing else.
PARSER = MarkdownIt("zero").enable(["table", "heading", "list", "code"])
# Checkpoints of runs and journals of evaluations, whose results are beside them, and reports, which
# are a part of the run's section.
INTERNAL_FOLDERS = re.compile(r"\..*|checkpoint-\d+|shard-\d+-of-\d+|__pycache__|report")


class Fault(NamedTuple):
    """Results that are unfinished, or damaged and cannot be shown."""

    place: Path
    state: str
    why: str


@contextmanager
def listing(place: Path, faults: list[Fault]) -> Iterator[None]:
    """Turns an error into a fault: damaged files can raise anything in a reader."""
    try:
        yield
    except Incomplete as error:
        faults.append(Fault(place, "unfinished", str(error)))
    except Exception as error:
        kind = "" if isinstance(error, (OSError, ValueError)) else f"{type(error).__name__}: "
        faults.append(Fault(place, "damaged", kind + in_one_line(error)))


def run(folders: Sequence[Path], out: Path) -> str:
    """Writes out/index.html; returns a line that counts its results.

    Raises:
        ValueError, OSError: if there are no results, or `out` holds another index.html.
    """
    check_folder(out)
    check_replaceable("--out", out / INDEX, MARK)
    faults: list[Fault] = []
    rows: list[dict[str, Any]] = []
    sections = []
    found = dict.fromkeys(path for root in folders for path in walk(root))
    for folder in tqdm(found, disable=None):
        if any((folder / name).is_file() for name in (CONFIGURATION, MetricsFile.FILE)):
            with listing(folder, faults):
                rows.append(read_run(folder, faults))
        if any(folder.glob("shard-*-of-*")):
            with listing(folder, faults):
                join(folder)  # raises Incomplete
        section = section_of(folder)
        if section["texts"] or section["pictures"]:
            sections.append(section)
    names = ", ".join(map(str, folders))
    if not (rows or sections or faults):
        raise ValueError(f"no results in {names}: to create the first, run tape train")
    now = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
    text = page(
        title=f"Results in {names}",
        about=f"Made {now} at commit {provenance.commit() or 'unknown'} on {provenance.machine()}.",
        faults=records(map(Fault._asdict, faults)) if faults else "",
        runs=records(rows) if rows else "",
        sections=sections,
    )
    write_text(out / INDEX, text)
    return (
        f"{out / INDEX}: {len(rows)} runs, {len(sections)} folders with results, {len(faults)} "
        f"unfinished or damaged, {len(text.encode()) / 2**20:.1f} MiB"
    )


def page(**given: Any) -> str:
    """Renders the template, of which `given` are the variables."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: value if isinstance(value, Markup) else printable(str(value)),
    )
    environment.filters["rendered"] = lambda text: Markup(PARSER.render(printable(text)))
    return environment.get_template("page.html").render(mark=Markup(MARK), **given)


def walk(root: Path) -> Iterator[Path]:
    """Yields `root` and the folders under it, without following links."""

    def refuse(error: OSError) -> NoReturn:
        raise error

    for name, folders, _ in os.walk(root, onerror=refuse):
        folders[:] = sorted(each for each in folders if not INTERNAL_FOLDERS.fullmatch(each))
        yield Path(name)


def read_run(folder: Path, faults: list[Fault]) -> dict[str, Any]:
    """Returns the row of a run, with its last losses; adds a fault if it is not finished. It is
    when the report of its last planned step is written; an earlier report does not count.

    Raises:
        ValueError or others: for damaged files.
    """
    settings, path = read_configuration(folder), folder / MetricsFile.FILE
    metrics = read_metrics(path) if path.is_file() else []
    steps = max((row["step"] for row in metrics), default=0)
    end = reached(metrics, settings.get("task.criterion"))
    planned = last_step(end, settings["trainer.max_steps"])
    path = folder / "report" / "report.json"
    report = read_object(path) if path.is_file() else {}
    if report.get("steps") != planned:
        report = {}
        missing = "" if steps < planned else ", but not reported"
        why = f"{steps:,} of {planned:,} steps are done{missing}: the same command continues"
        faults.append(Fault(folder, "unfinished", why))
    row = {
        "run": str(folder),
        "encoding": settings.get("position.name"),
        "method": settings.get("peft.name", ""),
        "seed": settings.get("seed"),
        "steps": steps,
        "parameters": report.get("parameters", ""),
        "tokens/s": report.get("tokens_per_second", ""),
    }
    for logged in metrics:
        row |= {key: logged[key] for key in ("loss", "eval_loss") if key in logged}
    return row


def section_of(folder: Path) -> dict[str, Any]:
    """Returns the texts in markdown of a folder and of the report in it, pictures (name and data
    URL), and the provenance."""
    texts, pictures = [], []
    for path in (*sorted(folder.glob("[!.]*")), *sorted(folder.glob("report/[!.]*"))):
        if path.suffix == ".md" and path.stem != "README":
            texts.append(re.sub("^# ", "### ", path.read_text(encoding="utf-8", errors="replace")))
        elif path.suffix == ".png":
            content = base64.b64encode(path.read_bytes()).decode()
            pictures.append((path.name, f"data:image/png;base64,{content}"))
    origin = "\n\n".join(
        "\n".join(f"{key}: {value}" for key, value in process.items())
        for process in provenance.read(folder)
    )
    origin = origin or "not recorded"
    return {"folder": folder, "texts": texts, "pictures": pictures, "origin": origin}


def records(rows: Iterable[dict[str, Any]]) -> str:
    """Returns a table with a column for every key; integers in groups of three, floats with at
    least four digits."""
    rows = list(rows)
    keys = list(dict.fromkeys(key for row in rows for key in row))

    def cell(value: Any) -> str:
        if isinstance(value, float):
            value = f"{value:,.1f}" if abs(value) >= 1000 else f"{value:#.4g}"
        elif isinstance(value, int) and not isinstance(value, bool):
            value = f"{value:,}"
        return " ".join(str(value).split()).replace("|", r"\|")

    return markdown_table([keys, *([cell(row.get(key, "")) for key in keys] for row in rows)])


@expected_errors()
def main(given: list[str] | None = None) -> None:
    arguments = parsers.report(given)
    print(run(arguments.folders, arguments.out))


if __name__ == "__main__":
    main()
