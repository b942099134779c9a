"""How fast every encoding is in every attention kernel: an attention layer, and a whole decoder.

python -m tape.analysis.speed                              # what this machine can, in minutes
python -m tape.analysis.speed --scopes layer --lengths 1024 --hidden 768 --heads 12    # Table 4

All methods take turns in one process. What was measured is kept after each comparison: the same
command continues.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from itertools import product
from pathlib import Path
from typing import Any

import torch
import transformers
from tqdm import tqdm

import tape
from tape.analysis import peers
from tape.analysis.comparison import SCOPES, Comparison, measure, methods
from tape.analysis.cost import HELP, SHAPE, configuration
from tape.analysis.measuring import DEVICE, limit_memory, machine, peak_flops
from tape.analysis.speed_figure import draw
from tape.analysis.speed_table import markdown, results, table
from tape.analysis.workloads import WORK, Load
from tape.attention import KERNELS
from tape.command import Parser, expected_errors, result_folder
from tape.evaluation.journal import Journal, Shard
from tape.files import write_text
from tape.names import check_integer
from tape.positions import ENCODINGS

LEAST_ROUNDS = 7  # quartiles of fewer say nothing
CONTINUES = 75  # the status of what the same command continues
PAPER = {name: value for name, value in SHAPE.items() if name != "length"}
ON_GPU = {
    "shape": PAPER,
    "backends": list(KERNELS),
    "lengths": [512, 1024, 2048, 4096, 8192, 16384, 32768],
    "dtype": "bfloat16",
    "compiled": ["no", "yes"],
    "new": 64,
    "rounds": 15,
}
ON_CPU = {
    "shape": PAPER | {"layers": 4, "hidden": 256, "heads": 4, "mlp": 1024, "vocabulary": 4096},
    "backends": [name for name in KERNELS if name != "flash_attention_2"],
    "lengths": [64, 256],
    "dtype": "float32",
    "compiled": ["no"],
    "new": 4,
    "rounds": LEAST_ROUNDS,
}
DEFAULT = ON_GPU if DEVICE.type == "cuda" else ON_CPU


def check(arguments: argparse.Namespace) -> None:
    """Raise a ValueError for what cannot be measured."""
    for length in arguments.lengths:
        check_integer("--lengths", length, most=10**7)
    for name, least in (("batch", 1), ("new", 1), ("rounds", LEAST_ROUNDS)):
        check_integer(f"--{name}", getattr(arguments, name), least, most=10**6)
    for name in ("lengths", "scopes", "work", "encodings", "peers", "backends", "compiled"):
        given = getattr(arguments, name)
        if len(set(given)) < len(given):
            raise ValueError(f"--{name} {' '.join(map(str, given))}: duplicate value")
    if "rope" not in arguments.encodings:
        raise ValueError(
            f"--encodings {' '.join(arguments.encodings)}: times are given beside those of rope; "
            f"add it"
        )
    if arguments.seconds is not None and not arguments.seconds > 0:
        raise ValueError(f"--seconds {arguments.seconds} must be above 0")
    if arguments.out.exists() and not arguments.out.is_dir():
        raise ValueError(f"--out {arguments.out} is a file; give a folder")


def plan(arguments: argparse.Namespace) -> list[Comparison]:
    """All comparisons, the short ones first."""
    dtype = getattr(torch, arguments.dtype)
    found = []
    for length, scope, compiled, backend, work in product(
        sorted(arguments.lengths),
        *(arguments.scopes, arguments.compiled, arguments.backends, arguments.work),
    ):
        new = arguments.new if scope == "model" else 1
        load = Load(work, arguments.batch, length, new, dtype, compiled == "yes")
        found.append(Comparison(scope, backend, load))
    return found


def code() -> str:
    """A hash of this package: what is measured."""
    root, found = Path(tape.__file__).parent, hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        found.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return found.hexdigest()[:16]


def header(arguments: argparse.Namespace, shape: dict[str, int | None]) -> dict[str, Any]:
    """What times depend on."""
    names = ("batch", "dtype", "new", "rounds", "lengths")
    names += ("scopes", "work", "compiled", "backends", "encodings", "peers")
    return {
        "machine": machine(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "x-transformers": peers.version("x-transformers"),
        "code": code(),
        **shape,
        **{name: getattr(arguments, name) for name in names},
    }


def run(arguments: argparse.Namespace) -> tuple[str, int]:
    """Measure what is not there yet, and write speed.csv, speed.md and the pictures.

    Returns:
        speed.md, and how many comparisons are left for another time.

    Raises:
        ValueError, OSError: for what cannot be measured or written, before anything is.
    """
    check(arguments)
    shape = {name: getattr(arguments, name) for name in PAPER}
    configuration(shape | {"length": max(arguments.lengths)}, {"name": "rope"})
    comparisons = plan(arguments)
    for comparison in comparisons:
        for name in arguments.encodings:
            comparison.config(shape, name)  # refuses what is no shape of a decoder
    about = header(arguments, shape)
    journal = Journal(arguments.out, Shard(1, 1), about | {"batches": len(comparisons)})
    measure_all(arguments, shape, comparisons, journal)
    found = results(journal.rows, comparisons, shape)
    text = markdown(found, about)
    write_text(arguments.out / "speed.csv", table(found))
    write_text(arguments.out / "speed.md", text)
    draw(found, arguments.out)
    return text, len(comparisons) - len(journal.rows)


def measure_all(
    arguments: argparse.Namespace,
    shape: dict[str, int | None],
    comparisons: list[Comparison],
    journal: Journal,
) -> None:
    """Append to the journal what it lacks, as far as the time goes."""
    end = time.monotonic() + (arguments.seconds or float("inf"))
    done = {row["batch"] for row in journal.rows}
    peak = peak_flops(getattr(torch, arguments.dtype)) if len(done) < len(comparisons) else None
    bar = tqdm(total=len(comparisons), initial=len(done), unit="comparison", disable=None)
    with bar, limit_memory(), torch._dynamo.config.patch(recompile_limit=64):
        for number, comparison in enumerate(comparisons):
            if number in done:
                continue
            if time.monotonic() > end and len(journal.rows) > len(done):
                break
            bar.set_description(str(comparison))
            taking_part = list(methods(comparison.scope, arguments.encodings, arguments.peers))
            rows = measure(comparison, taking_part, shape, arguments.rounds, bar.set_postfix_str)
            journal.append({"batch": number, "peak": peak, "methods": rows})
            bar.update()


def parse(given: list[str] | None = None) -> argparse.Namespace:
    parser = Parser(
        prog="python -m tape.analysis.speed",
        description="How fast every encoding is in every attention kernel.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )

    def several(name: str, choices: list[str], default: list[str], about: str, **how: Any) -> None:
        parser.add_argument(
            f"--{name}", nargs="+", choices=choices, default=default, help=about, **how
        )

    several("scopes", list(SCOPES), list(SCOPES), "an attention layer, a whole decoder")
    several("work", list(WORK), list(WORK), "what is timed")
    several("encodings", list(ENCODINGS), list(ENCODINGS), "rope among them")
    several("backends", list(KERNELS), DEFAULT["backends"], "attention kernels")
    several("compiled", ["no", "yes"], DEFAULT["compiled"], "without and with torch.compile")
    parser.add_argument(
        "--peers", nargs="*", choices=list(peers.PEERS), default=list(peers.PEERS), help="others"
    )
    parser.add_argument("--lengths", type=int, nargs="+", default=DEFAULT["lengths"], help="tokens")
    parser.add_argument("--batch", type=int, default=1, help="sequences")
    parser.add_argument("--new", type=int, default=DEFAULT["new"], help="tokens to decode")
    parser.add_argument(
        "--dtype", choices=["float32", "bfloat16", "float16"], default=DEFAULT["dtype"], help=" "
    )
    for name, default in DEFAULT["shape"].items():
        about = HELP.get(name, " ")
        parser.add_argument(f"--{name}", type=int, default=default, help=about)
    parser.add_argument("--rounds", type=int, default=DEFAULT["rounds"], help="at least 7")
    parser.add_argument("--seconds", type=float, help="begin no comparison after so many")
    parser.add_argument("--out", type=result_folder, default=Path("output/speed"), help="a folder")
    return parser.parse_args(given)


@expected_errors(continues=True)
def main(given: list[str] | None = None) -> None:
    arguments = parse(given)
    text, left = run(arguments)
    print(text)
    print(f"also in {arguments.out}, with speed.csv and pictures")
    if left:
        print(f"{left} comparisons are left: the same command continues")
        sys.exit(CONTINUES)


if __name__ == "__main__":
    main()
