"""Cost of every encoding: arithmetic, parameters and memory, next to the paper's Table 3.

python -m tape.analysis.cost                                     # the paper's model: seconds
python -m tape.analysis.cost --layers 32 --hidden 4096 --heads 32 --mlp 11008 --length 4096
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tqdm import tqdm

from tape import TapeConfig, origin
from tape.analysis import counting, formulas
from tape.analysis.cost_table import Cost, markdown, table
from tape.command import Parser, expected_errors, result_folder
from tape.files import write_text
from tape.names import check_integer
from tape.positions import ENCODINGS

# The paper's model trained from scratch, and the sequence length of its Table 3.
SHAPE = {
    "layers": 12,
    "hidden": 768,
    "heads": 12,
    "kv_heads": None,
    "mlp": 3072,
    "vocabulary": 32000,
    "length": 1024,
}
HELP = {"kv_heads": "by default as many as heads", "length": "tokens of the sequence"}


def configuration(shape: dict[str, int | None], position: dict[str, Any]) -> TapeConfig:
    """Returns a decoder's configuration with the given length as its training length.

    Raises:
        ValueError: for an invalid shape, or one that this encoding does not support.
    """
    for name, value in shape.items():
        if name != "kv_heads" or value is not None:
            check_integer(f"--{name}", value, most=10**4 if name == "layers" else 10**7)
    if shape["hidden"] % shape["heads"]:
        raise ValueError(
            f"--hidden {shape['hidden']} must be a multiple of --heads {shape['heads']}"
        )
    return TapeConfig(
        vocab_size=shape["vocabulary"],
        hidden_size=shape["hidden"],
        intermediate_size=shape["mlp"],
        num_hidden_layers=shape["layers"],
        num_attention_heads=shape["heads"],
        num_key_value_heads=shape["kv_heads"],
        max_position_embeddings=shape["length"],
        position=position,
        bos_token_id=None,
        eos_token_id=None,
    )


def encodings(shape: dict[str, int | None]) -> Iterator[dict[str, Any]]:
    """Yields all encodings, then TAPE's ablations: the widths of the paper's Table 7 at its 12
    heads, and the variants of Table 6."""
    yield from ({"name": name} for name in ENCODINGS)
    heads = shape["heads"]
    for width in (heads, 2 * heads, 8 * heads, 16 * heads):
        yield {"name": "tape", "width": width}
    for without in ("attention", "feed_forward", "equivariant"):
        yield {"name": "tape", without: False}
    if shape["kv_heads"] in (None, heads):  # other variants do not support grouped queries
        yield {"name": "tape", "tensorial": False}
        yield {"name": "tape", "equivariant": False, "tensorial": False}


def label(position: dict[str, Any]) -> str:
    """Returns the encoding's name, then its arguments as on a command line."""
    name, *arguments = position.items()
    return " ".join([name[1], *(f"{key}={str(value).lower()}" for key, value in arguments)])


def cost_of(config: TapeConfig, encoding: str, length: int) -> Cost:
    """Computes the cost of an encoding, and checks the formulas against torch's counters.

    Raises:
        ValueError: if torch's counts differ from the formulas.
    """
    eager, sdpa = (counting.fake_model(config, kernel) for kernel in ("eager", "sdpa"))
    macs, flops = counting.operations(eager, length)
    expected = sum(formulas.multiply_adds(config, length).values()), formulas.flops(config, length)
    if (macs, flops) != expected:
        raise ValueError(
            f"{encoding}: torch counts {macs} MACs and {flops} FLOPs, the formulas give "
            f"{expected[0]} and {expected[1]}; add the difference to tape/analysis/formulas.py"
        )
    return Cost(
        encoding,
        macs=macs,
        flops=flops,
        parameters=eager.num_parameters(),
        activations_eager=counting.saved_bytes(eager, length),
        activations_sdpa=counting.saved_bytes(sdpa, length),
        cache=counting.cached_bytes(sdpa, length),
    )


def run(shape: dict[str, int | None], out: Path) -> str:
    """Writes cost.csv and cost.md to a folder; returns the latter.

    Raises:
        ValueError, OSError: before anything is written, for invalid input or an unusable folder.
    """
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out {out} is a file; give a folder")
    positions = list(encodings(shape))
    configs = [configuration(shape, position) for position in positions]
    labels = [label(position) for position in positions]
    costs = [
        cost_of(config, name, shape["length"])
        for config, name in zip(configs, tqdm(labels, disable=None), strict=True)
    ]
    tape = configs[labels.index("tape")]
    text = markdown(costs, tape, shape["length"], beside_paper=shape == SHAPE)
    write_text(out / "cost.csv", table(costs, shape["length"]))
    write_text(out / "cost.md", text)
    origin.record(out)
    return text


def parse(given: list[str] | None = None) -> argparse.Namespace:
    parser = Parser(
        prog="python -m tape.analysis.cost",
        description="Cost of every encoding: arithmetic, parameters and memory.",
    )
    for name, default in SHAPE.items():
        about = HELP.get(name, "")
        if default is not None:
            about += f" (default: {default})"
        parser.add_argument(f"--{name}", type=int, default=default, help=about)
    parser.add_argument("--out", type=result_folder, default=Path("output/cost"), help="a folder")
    return parser.parse_args(given)


@expected_errors()
def main(given: list[str] | None = None) -> None:
    arguments = parse(given)
    print(run({name: getattr(arguments, name) for name in SHAPE}, arguments.out))
    print(f"also in {arguments.out}, as cost.csv and cost.md")


if __name__ == "__main__":
    main()
