"""python -m tape.report output/ scrolls/ --out report/"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from os.path import realpath
from pathlib import Path

from tqdm import tqdm

from tape.command import Parser, expected_errors
from tape.files import write_text
from tape.origin import commit, machine
from tape.report.experiment import gather
from tape.report.experiments import experiments
from tape.report.finding import Fault, walk
from tape.report.html import mark
from tape.report.page import PROGRAM, page

INDEX = "index.html"


def run(folders: Sequence[Path], out: Path) -> str:
    """Write out/index.html; a line that says what is in it.

    Raises:
        ValueError, OSError: if there is nothing to report, or `out` holds anything but a report.
    """
    check_out(out)
    for folder in folders:
        if not folder.is_dir():
            raise ValueError(
                f"{folder} is not a folder: give folders with results, such as output/"
            )
    faults: list[Fault] = []
    found = {realpath(each.path): each for root in folders for each in walk(root, out, faults)}
    sections = [
        gather(experiment, list(found.values())) for experiment in tqdm(experiments(), disable=None)
    ]
    faulty = [fault for section in sections for fault in section.faults] + faults
    count = sum(sum(section.found.values()) for section in sections)
    if not count and not faulty:
        raise ValueError(
            f"no results in {', '.join(map(str, folders))}: to create the first, run "
            f"{sections[0].missing[-1].command}"
        )
    text = page(f"Results in {', '.join(map(str, folders))}", about(), sections, faults)
    write_text(out / INDEX, text)
    unfinished = sum(fault.state == "unfinished" for fault in faulty)
    return (
        f"{out / INDEX}: {count} results, {unfinished} unfinished, {len(faulty) - unfinished} "
        f"broken, {len(text.encode()) / 2**20:.1f} MiB"
    )


def about() -> list[str]:
    """When and where the page was made."""
    now = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
    return [
        f"Made {now} at commit {commit() or 'unknown'} on {machine()}.",
        "A click on the title of a column sorts by it.",
    ]


def check_out(out: Path) -> None:
    """Raise a ValueError for a folder that holds anything but a report."""
    if not out.exists():
        return
    index = out / INDEX
    files = {path.name for path in out.iterdir()} if out.is_dir() else {out.name}
    if out.is_dir() and (not files or (files == {INDEX} and mark(PROGRAM) in _head(index))):
        return
    raise ValueError(
        f"--out {out} is neither empty nor a report "
        f"({', '.join(sorted(files)[:3])}): give a new or empty folder"
    )


def _head(path: Path) -> str:
    with path.open(encoding="utf-8", errors="replace") as file:
        return file.read(1000)


@expected_errors()
def main(given: list[str] | None = None) -> None:
    parser = Parser(
        prog="python -m tape.report",
        description="Every result under some folders on one page of html.",
    )
    parser.add_argument("folders", type=Path, nargs="+", help="with results: output, scrolls")
    parser.add_argument(
        "--out", type=Path, default=Path("report"), help="a folder (default: report)"
    )
    arguments = parser.parse_args(given)
    print(run(arguments.folders, arguments.out))


if __name__ == "__main__":
    main()
