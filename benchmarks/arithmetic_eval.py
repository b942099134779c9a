"""Cost of evaluating a grid: cached decoding of equal prompts in batches, or cell by cell.

python benchmarks/arithmetic_eval.py
python benchmarks/arithmetic_eval.py --samples 100 --only cached --rounds 1   # the grid of a run

The model is random (4 layers of 128, 4 heads) and rarely ends an answer by itself. Times of several
processes include their start of several seconds, so give them enough work.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import transformers

from arithmetic import Problems, character_tokenizer
from arithmetic.decoding import answers
from arithmetic.grid_plan import Batch, plan
from benchmarks.harness import Comparison, parser, show
from benchmarks.models import SMALL, decoder
from benchmarks.timing import Work
from tape import TapeForCausalLM
from tape.analysis.cost import configuration
from tape.command import expected_errors
from tape.evaluation.workers import side_by_side
from tape.positions import ENCODINGS


def build(position: str, digits: int, folder: Path) -> TapeForCausalLM:
    """Returns a model that is also saved in a folder, with its tokenizer."""
    tokenizer = character_tokenizer()
    length = Problems(max_first=digits, max_second=digits).length
    sizes = {"hidden": 128, "mlp": 512, "vocabulary": len(tokenizer), "length": length}
    config = configuration(SMALL | sizes, {"name": position})
    config.eos_token_id, config.pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id
    model = decoder(config, "sdpa").eval()
    for part in (model, tokenizer):
        part.save_pretrained(folder)
    return model


def cells(batches: list[Batch]) -> list[Batch]:
    """Returns the same questions, one cell per batch."""
    found: dict[tuple[int, int], list] = {}
    for batch in batches:
        for question in batch.questions:
            found.setdefault((question.n, question.m), []).append(question)
    return [
        Batch(
            questions, max(n, m) + 2, len(questions[0].prompt) + max(n, m) + 2, batches[0].problems
        )
        for (n, m), questions in found.items()
    ]


@expected_errors()
def main() -> None:
    counts = {
        "digits": (20, 1, "the longest operands"),
        "samples": (10, 1, "questions of each cell"),
        "batch": (256, 1, "questions decoded together"),
        "processes": (2, 1, "of the way with several"),
    }
    found = parser(__doc__, ([*ENCODINGS], ["rope", "tape"]), rounds=(3, 1), **counts)
    found.add_argument("--only", default="", help="ways whose name begins so")
    arguments = found.parse_args()
    batches = plan(Problems(), arguments.digits, arguments.samples, 0, arguments.batch)

    def prepare(method: str, way: str) -> Work:
        folder, tokenizer = Path(work) / method, character_tokenizer()
        model = build(method, arguments.digits, folder)
        if "processes" in way:
            answered = side_by_side(folder, answers, arguments.processes)
            return lambda: len([*answered(dict(enumerate(batches)))])
        cached = way == "cached"
        asked = batches if cached else cells(batches)
        return lambda: len([answers(model, tokenizer, batch, cached) for batch in asked])

    ways = ["cell by cell", "cached", f"cached, {arguments.processes} processes"]
    if not (chosen := [way for way in ways if way.startswith(arguments.only)]):
        raise ValueError(f"--only {arguments.only!r}: no way begins so: {', '.join(ways)}")
    comparisons = [
        Comparison(method, chosen, partial(prepare, method), warm_up=0)
        for method in arguments.methods
    ]
    questions = {"amount": sum(len(batch.questions) for batch in batches), "unit": "questions"}
    with TemporaryDirectory() as work:
        show("arithmetic_eval", arguments, comparisons, title="decoding", **questions)


if __name__ == "__main__":
    transformers.logging.disable_progress_bar()
    main()
