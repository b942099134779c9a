"""The results under some folders on one page: tape report output/ scrolls/ --out report/

Each folder with results has a section: its tables (.md) and pictures (.png), for a run those of its
report, and the command, commit and machine. A summary lists them, and they are in its order:
comparisons, other results, single runs, of each kind the newest first. Jinja2 and markdown-it
escape all values, and a policy in the head of the page allows no script.
"""

import argparse
import base64
import os
import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markdown_it import MarkdownIt
from markupsafe import Markup

from tape.core import provenance
from tape.core.files import check_folder, check_replaceable, write_text
from tape.core.progress import track
from tape.core.provenance import TRAINED
from tape.core.run_folder import CONFIGURATION
from tape.results.runs import RESULTS

KINDS = ("Comparisons", "Other results", "Single runs")  # of folders, in the order of the page
INDEX = "index.html"
MARK = '<meta name="generator" content="tape.results.report">'  # identifies pages of this program
# Tables, headings, lists and indented code; within a line, text is text and nothing else.
PARSER = MarkdownIt("zero").enable(["table", "heading", "list", "code"])
# Checkpoints of runs and journals of evaluations, whose results are beside them, and reports, which
# are a part of the run's section.
INTERNAL_FOLDERS = re.compile(r"\..*|checkpoint-\d+|shard-\d+-of-\d+|__pycache__|report")


def run(folders: Sequence[Path], out: Path) -> str:
    """Writes out/index.html; returns a line that counts its results. Raises a ValueError or an
    OSError if there are no results, or `out` holds another index.html."""
    check_folder(out)
    check_replaceable("--out", out / INDEX, MARK)
    found = dict.fromkeys(path for root in folders for path in walk(root))
    sections = [section_of(folder) for folder in track(found, desc="reading")]
    sections = [each for each in sections if each["texts"] or each["pictures"]]
    sections.sort(key=lambda each: (each["kind"], -each["time"]))
    sections = [each | {"number": number} for number, each in enumerate(sections, 1)]
    runs = [folder for folder in found if (folder / CONFIGURATION).is_file()]
    unfinished = [run for run in runs if not finished(run)]
    names = ", ".join(map(str, folders))
    if not (sections or unfinished):
        raise ValueError(f"no results in {names}: to create the first, run tape train")
    now = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
    about = f"Made {now} at commit {provenance.commit() or 'unknown'} on {provenance.machine()}."
    shown = {"unfinished": unfinished, "sections": sections, "kinds": KINDS}
    text = page(title=f"Results in {names}", about=about, **shown)
    write_text(out / INDEX, text)
    return (
        f"{out / INDEX}: {len(sections)} folders with results, {len(unfinished)} unfinished "
        f"runs, {len(text.encode()) / 2**20:.1f} MiB"
    )


def finished(run: Path) -> bool:
    """Whether a run's report is that of its latest command: a continued run has newer settings."""
    settings, trained = run / CONFIGURATION, run / TRAINED
    same = trained.is_file() and trained.read_bytes() == settings.read_bytes()
    return same and (run / "report" / "report.md").is_file()


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
    """Yields `root` and the folders under it, without following links; runs of any name."""

    def is_shown(folder: Path) -> bool:
        internal = INTERNAL_FOLDERS.fullmatch(folder.name)
        return not internal or (folder / CONFIGURATION).is_file()

    def refuse(error: OSError) -> NoReturn:
        raise error

    for name, folders, _ in os.walk(root, onerror=refuse):
        folders[:] = sorted(each for each in folders if is_shown(Path(name, each)))
        yield Path(name)


def kind_of(folder: Path) -> int:
    """Returns the index in KINDS of a folder; an evaluation in the folder of a run is of that."""
    if (folder / RESULTS).is_file() or (folder / "table.md").is_file():
        return 0
    of_a_run = any((each / CONFIGURATION).is_file() for each in (folder, *folder.parents))
    return 2 if of_a_run else 1


def first_row(texts: Sequence[str]) -> str:
    """Returns the first row of the first table in texts, with the heads of its columns."""
    lines = [line for text in texts for line in text.splitlines() if line.startswith("|")]
    if len(lines) < 3:
        return ""
    head, row = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines[0:3:2])
    return ", ".join(f"{name} {cell}" for name, cell in zip(head, row, strict=False))


def section_of(folder: Path) -> dict[str, Any]:
    """Returns the texts in markdown of a folder and of the report in it, pictures (name and data
    URL), the provenance, and what the summary says of it."""
    texts, pictures, times = [], [], [0.0]
    for path in (*sorted(folder.glob("[!.]*")), *sorted(folder.glob("report/[!.]*"))):
        if path.suffix in (".md", ".png"):
            times.append(path.stat().st_mtime)
        if path.suffix == ".md" and path.stem != "README":
            texts.append(re.sub("^# ", "### ", path.read_text(encoding="utf-8", errors="replace")))
        elif path.suffix == ".png":
            content = base64.b64encode(path.read_bytes()).decode()
            pictures.append((path.name, f"data:image/png;base64,{content}"))
    processes = [
        "\n".join(f"{key}: {value}" for key, value in process.items())
        for process in provenance.read(folder)
    ]
    origin = "\n\n".join(processes) or "not recorded"
    about = {"kind": kind_of(folder), "time": max(times), "first": first_row(texts)}
    about["changed"] = datetime.fromtimestamp(max(times)).isoformat(sep=" ", timespec="minutes")
    return about | {"folder": folder, "texts": texts, "pictures": pictures, "origin": origin}


def printable(text: str) -> str:
    """Escapes control characters, which generated text may contain."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)


def main(arguments: argparse.Namespace) -> None:
    print(run(arguments.folders, arguments.out))
