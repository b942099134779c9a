"""Cost of every encoding: arithmetic, parameters and memory, next to the paper's Table 3.

python -m tape.analysis.cost                                     # the paper's model: seconds
python -m tape.analysis.cost --layers 32 --hidden 4096 --heads 32 --mlp 11008 --length 4096
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from tqdm import tqdm

from tape import provenance
from tape.analysis import counting
from tape.command import Parser, expected_errors, result_folder
from tape.evaluation.tables import markdown_table
from tape.files import write_text
from tape.model import flops
from tape.model.configuration import TapeConfig
from tape.positions import ENCODINGS
from tape.validation import check_integer

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
# Llama 2 with 7B parameters.
LLAMA = SHAPE | {"layers": 32, "hidden": 4096, "heads": 32, "mlp": 11008}
HELP = {"kv_heads": "by default as many as heads", "length": "tokens of the sequence"}
# Table 3 of arXiv 2501.00712 by encoding: G MACs, G FLOPs, parameters in units of 2^20.
PAPER = Path(__file__).with_name("table3.csv")
COUNTS = {"macs": ("MACs, G", 1e9), "flops": ("FLOPs, G", 1e9)}
COUNTS |= {"parameters": ("parameters, 2^20", 2**20)}
MEMORY = {
    "activations_eager": "activations, eager, KiB per token",
    "activations_sdpa": "activations, sdpa, KiB per token",
    "cache": "cache, KiB per token",
}
NOTE = """\
MACs: multiply-adds of one forward pass, with the whole N x N attention. FLOPs: two for each of
them, and one for each number that softmax, SiLU or ReLU is taken of. Both are counted by torch and
equal the formulas of tape/model/flops.py."""
MEMORY_NOTE = """\
In float32. Activations: what a forward pass up to the logits keeps for the backward pass, besides
the weights. Cache: keys, values and TAPE's state."""


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


def cost_of(config: TapeConfig, encoding: str, length: int) -> dict[str, str | int]:
    """Computes the cost of an encoding for one sequence, memory in bytes of all its tokens, and
    checks the formulas against torch's counters.

    Raises:
        ValueError: if torch's counts differ from the formulas.
    """
    eager, sdpa = (counting.fake_model(config, kernel) for kernel in ("eager", "sdpa"))
    counts = counting.operations(eager, length)
    expected = sum(flops.multiply_adds(config, length).values()), flops.flops(config, length)
    if counts != expected:
        raise ValueError(
            f"{encoding}: torch counts {counts[0]} MACs and {counts[1]} FLOPs, the formulas give "
            f"{expected[0]} and {expected[1]}; add the difference to tape/model/flops.py"
        )
    return {
        "encoding": encoding,
        "macs": counts[0],
        "flops": counts[1],
        "parameters": eager.num_parameters(),
        "activations_eager": counting.saved_bytes(eager, length),
        "activations_sdpa": counting.saved_bytes(sdpa, length),
        "cache": counting.cached_bytes(sdpa, length),
    }


def run(shape: dict[str, int | None], out: Path) -> str:
    """Writes cost.csv, with memory in bytes per token, and cost.md to a folder; returns the latter.

    Raises:
        ValueError: before anything is written, for invalid input.
    """
    length = shape["length"]
    configs = {label(position): configuration(shape, position) for position in encodings(shape)}
    bar = tqdm(configs.items(), disable=None)
    costs = pd.DataFrame([cost_of(config, name, length) for name, config in bar])
    costs[[*MEMORY]] /= length
    parts = [arithmetic(costs, shape == SHAPE), NOTE, memory(costs), MEMORY_NOTE]
    tape = configs["tape"]
    if tape.num_key_value_heads == tape.num_attention_heads:
        parts.append(difference(tape, length))
    text = "\n\n".join(parts) + "\n"
    write_text(out / "cost.csv", costs.round(2).to_csv(index=False))
    write_text(out / "cost.md", text)
    provenance.record(out)
    return text


def decimals(x: float) -> str:
    """Formats a number with two decimals, as in the paper; small ones with two digits."""
    return f"{x:.2f}" if x >= 0.01 or x == 0 else f"{x:.2g}"


def arithmetic(costs: pd.DataFrame, beside_paper: bool) -> str:
    """Tabulates multiply-adds, FLOPs and parameters, beside those of the paper if wanted."""
    paper = pd.read_csv(PAPER, dtype=str, index_col="encoding").reindex(costs["encoding"])
    table = {"encoding": costs["encoding"]}
    for name, (title, unit) in COUNTS.items():
        table[title] = map(decimals, costs[name] / unit)
        if beside_paper:
            table[f"{title}: paper"] = paper[name].fillna("")
    head = ["paper" if title.endswith(": paper") else title for title in table]
    return markdown_table([head, *zip(*table.values(), strict=True)])


def memory(costs: pd.DataFrame) -> str:
    """Tabulates activations and cache."""
    lines = [["encoding", *MEMORY.values()]]
    for _, cost in costs.iterrows():
        lines.append([cost["encoding"], *(f"{cost[kind] / 2**10:,.1f}" for kind in MEMORY)])
    return markdown_table(lines)


def difference(tape: TapeConfig, length: int) -> str:
    """Tabulates the multiply-adds that TAPE adds to RoPE in the authors' code, and here."""
    theirs, ours = flops.original(tape, length), flops.of_tape(tape, length)
    counted = {name: macs * (name in flops.COUNTED) for name, macs in theirs.items()}
    columns = (theirs, counted, ours)
    lines = [["TAPE adds, G MACs", "the authors' code", "of which in Table 3", "here"]]
    for name in {**theirs, **ours}:
        lines.append([name, *(decimals(x[name] / 1e9) if name in x else "" for x in columns)])
    lines.append(["all", *(decimals(sum(x.values()) / 1e9) for x in columns)])
    return markdown_table(lines)


@expected_errors()
def main(given: list[str] | None = None) -> None:
    parser = Parser(
        prog="python -m tape.analysis.cost",
        description="Cost of every encoding: arithmetic, parameters and memory.",
    )
    for name, default in SHAPE.items():
        about = HELP.get(name, "") + ("" if default is None else f" (default: {default})")
        parser.add_argument(f"--{name}", type=int, default=default, help=about)
    parser.add_argument("--out", type=result_folder, default="output/cost", help="a folder")
    arguments = parser.parse_args(given)
    print(run({name: getattr(arguments, name) for name in SHAPE}, arguments.out))
    print(f"also in {arguments.out}, as cost.csv and cost.md")


if __name__ == "__main__":
    main()
