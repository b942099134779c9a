"""Shows answers of several encodings side by side: question, golds and all answers.

python -m scrolls.show --dataset_name quality --predictions scrolls/quality --out page.html
"""

from __future__ import annotations

import os
import sys
import textwrap
from pathlib import Path

from scrolls.answers import Reading, harmless, read, read_folder
from scrolls.scoring import Golds, add_task
from scrolls.tasks import TASKS
from tape.command import Parser, expected_errors
from tape.files import check_replaceable, write_text
from tape.results.html import mark, page

PROGRAM = "scrolls.show"
WIDTH = 100
TEMPLATE = Path(__file__).with_name("answers.html")


def text(reading: Reading) -> str:
    """Formats a reading as text; a star marks the best answers."""
    names = max(len(name) for name in reading.means)

    def scored(name: str, score: float, best: float | None) -> str:
        return f"{'*' if score == best else ' '} {name:{names}} {score:6.2f}"

    parts = [reading.title, ""]
    parts += [scored(name, mean, reading.best) for name, mean in reading.means.items()]
    parts += ["", *textwrap.wrap(reading.legend, WIDTH)]
    for number, asked in enumerate(reading.asked, start=1):
        question, answers = asked
        parts += ["", f"{number}. {harmless(question.id)}"]
        blocks = [("question", question.question)] * bool(question.question)
        blocks += [("gold", gold) for gold in question.outputs]
        blocks += [(scored(name, score, asked.best), said) for name, said, score in answers]
        for label, content in blocks:
            parts += _block(label, content, indent=names + 10)
    return "\n".join(parts)


def _block(label: str, content: str, indent: int) -> list[str]:
    lines = []
    for line in harmless(content).strip().splitlines() or ["(empty)"]:
        lines += textwrap.wrap(line, WIDTH - indent, replace_whitespace=False) or [""]
    first, *others = lines
    return [f"{label:{indent}}{first}", *(" " * indent + line for line in others)]


@expected_errors()
def main() -> None:
    parser = Parser(
        prog="python -m scrolls.show", description="Show answers of encodings side by side."
    )
    add_task(parser)
    add = parser.add_argument
    add("--predictions", type=Path, required=True, help="folder with one <TYPE>.json per encoding")
    add("--ids", nargs="+", help="show these questions only")
    add("--limit", type=int, default=20, help="maximum number of questions (default: 20)")
    add(
        "--sort",
        choices=("spread", "order"),
        default="spread",
        help="spread: largest differences first (default); order: as in the file",
    )
    add("--out", type=Path, help="HTML page to write as well")
    arguments = parser.parse_args()
    if arguments.limit < 1:
        raise ValueError(f"--limit {arguments.limit} must be at least 1")
    if arguments.out is not None:
        check_replaceable("--out", arguments.out, mark(PROGRAM))
    golds = Golds(arguments.split, arguments.data_dir, arguments.cache_dir, with_inputs=True)
    reference = golds.of(TASKS[arguments.dataset_name])
    predictions = read_folder(arguments.predictions, reference)
    limit = None if arguments.ids else arguments.limit
    reading = read(reference, predictions, arguments.ids, arguments.sort, limit)
    also = ""
    if arguments.out is not None:
        given = {"reading": reading, "harmless": harmless}
        write_text(arguments.out, page(TEMPLATE, PROGRAM, harmless(reading.title), **given))
        also = f"\n\nalso in {arguments.out}"
    try:
        print(text(reading) + also, flush=True)
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
