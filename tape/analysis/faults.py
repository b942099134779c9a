"""Effect of two faults of the original code on a trained model, each in isolation.

python -m tape.analysis.faults --model output/rope_local output/adape_local

* Positions were computed in the model's dtype: in bfloat16, 0 to 1,023 are 513 distinct positions,
  and 1,024 positions from 2,000 on are 68.
* The cache of RoPE's fused path stored keys before rotation, and rotated all of them by the
  position of the newest token, so its query saw no distances.

The faults are simulated around a model; the package's decoder has neither. The loss is that of the
second half of windows, either with the first half as context in one pass, or with the first half as
a prompt and the second half decoded token by token.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from tape.analysis.texts import Model, Rows, carry_out, parser_of, tabulate, windows
from tape.command import Distinct, integer
from tape.evaluation.scoring import exp
from tape.evaluation.tables import markdown_table, over_seeds
from tape.model.cache import GrowingCache
from tape.model.checkpoint import check_length, load
from tape.model.modeling import TapeForCausalLM
from tape.positions import Positions
from tape.positions.rotary import RoPE, apply_rotary
from tape.positions.sampling import IndexSampler
from tape.training.build import check_memory

ORIGIN = 2000  # the largest of the original's random origins
BATCH = 8  # windows per batch
NO_FAULT = "none"  # the row without a fault
NOTE = """\
Of the second half of each window. Means over seeds, with 95 % intervals (Student); the loss is in
nats per token, its difference of the same model on the same tokens."""


class Changed(IndexSampler):
    """Changes the coordinates of another sampler."""

    consecutive = False

    def __init__(self, sampler: IndexSampler, change: Callable[[Tensor], Tensor]):
        self.sampler, self.change = sampler, change
        self.max_positions, self.draw = sampler.max_positions, sampler.draw

    def __call__(
        self, query: Tensor, key: Tensor, training: bool, extent: int | None = None
    ) -> tuple[Tensor, Tensor, int | None]:
        drawn = self.sampler(query, key, training, extent)
        query, key = map(self.change, drawn[:2])
        return query, key, int(key.max()) + 1


@contextmanager
def changed_positions(model: TapeForCausalLM, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Changes coordinates (B|1, T) wherever a model uses them."""
    position = model.model.position
    own = position.sampler
    position.sampler = Changed(own, change)
    try:
        yield
    finally:
        position.sampler = own


def in_bfloat16(coordinates: Tensor) -> Tensor:
    return coordinates.to(torch.bfloat16).to(coordinates.dtype)


def scored(logits: Tensor, targets: Tensor) -> Tensor:
    """Returns negative log-likelihoods, (B, T)."""
    return F.cross_entropy(logits.transpose(1, 2).float(), targets, reduction="none")


@torch.no_grad()
def at_once(model: TapeForCausalLM, ids_BL: Tensor) -> Tensor:
    """Returns losses of the second half of windows, in one pass."""
    half = ids_BL.shape[1] // 2
    logits = model(ids_BL[:, :-1], use_cache=False).logits[:, half - 1 :]
    return scored(logits, ids_BL[:, half:])


@torch.no_grad()
def decoded(model: TapeForCausalLM, ids_BL: Tensor, rerotated: bool) -> Tensor:
    """Returns the same losses, decoded token by token after a prompt.

    Args:
        rerotated: cached keys get the newest token's position. Rotating queries and keys by the
            same angle gives the products of unrotated ones.
    """
    half, cache, position = ids_BL.shape[1] // 2, GrowingCache(), model.model.position
    logits = [model(ids_BL[:, :half], past_key_values=cache, logits_to_keep=1).logits]
    if rerotated:
        where = torch.arange(half, device=ids_BL.device)[None]
        e = position.state(Positions(where, where), torch.float32)
        back = torch.stack((e[..., 0, :], -e[..., 1, :]), dim=-2)
        for layer in cache.layers:
            layer.keys = apply_rotary(layer.keys.to(e.dtype), back).to(layer.keys.dtype)
        for layer in model.model.layers:
            layer.context.rotate = lambda q, k, e: (q, k)
    try:
        for t in range(half, ids_BL.shape[1] - 1):
            logits.append(model(ids_BL[:, t : t + 1], past_key_values=cache).logits)
    finally:
        if rerotated:
            for layer in model.model.layers:
                del layer.context.rotate
    return scored(torch.cat(logits, dim=1), ids_BL[:, half:])


Measured = Callable[[Tensor], Tensor]


def faults_of(model: TapeForCausalLM, length: int) -> dict[str, Measured]:
    """Returns the measurements for windows of `length` tokens. The first has no fault; those
    without a fault at a later origin show the effect of the origin alone."""

    def moved(change: Callable[[Tensor], Tensor], ids: Tensor) -> Tensor:
        with changed_positions(model, change):
            return at_once(model, ids)

    found = {
        NO_FAULT: partial(at_once, model),
        "positions in bfloat16": partial(moved, in_bfloat16),
    }
    position = model.model.position
    if position.max_positions is None or position.max_positions >= ORIGIN + length:
        found |= {
            f"none, positions from {ORIGIN:,}": partial(moved, lambda p: p + ORIGIN),
            f"positions in bfloat16 from {ORIGIN:,}": partial(
                moved, lambda p: in_bfloat16(p + ORIGIN)
            ),
        }
    found["none, decoded"] = partial(decoded, model, rerotated=False)
    if type(position) is RoPE and position.magnitude == 1 and position.sampler.consecutive:
        found["decoded, cached keys turned anew"] = partial(decoded, model, rerotated=True)
    return found


def check_logits(model: TapeForCausalLM, length: int, windows: int) -> None:
    """Raises a ValueError if the logits of a batch exceed this machine's memory."""
    logits = 8 * min(BATCH, windows) * length * model.config.vocab_size
    remedy = "give shorter ones, or fewer --windows"
    check_memory(logits, f"--lengths {length}", "of logits", remedy)


def rows(arguments: argparse.Namespace, of: Model) -> Iterator[dict[str, Any]]:
    """Yields a row per fault and length of one model."""
    folder = of.folder
    model, _ = load(folder, torch.float32)
    trained = model.config.max_position_embeddings
    lengths = arguments.lengths or [trained, 2 * trained, 4 * trained]
    check_length(model, max(lengths), f"--lengths {max(lengths)}")
    about = of.about(model) | {"trained": trained}
    for length in lengths:
        check_logits(model, length, arguments.windows)
        text, texts = windows(arguments, folder, model, length)
        ids = torch.stack(texts).to(model.device)
        faults = faults_of(model, length)
        for fault, measure in tqdm(faults.items(), desc=f"{folder}, {length:,}", disable=None):
            with model.evaluation_length(length):
                losses = torch.cat([measure(part) for part in ids.split(BATCH)])
            nll = losses.double().mean().item()
            yield about | {
                "data": text,
                "fault": fault,
                "length": length,
                "tokens": losses.numel(),
                "nll": nll,
                "perplexity": exp(nll),
            }


def markdown(found: Rows) -> str:
    """Tabulates by length perplexities, and the loss minus that without a fault of the same model
    on the same tokens, over the models of a row."""
    frame = pd.DataFrame(found)
    right = frame[frame["fault"] == NO_FAULT].set_index(["model", "length"])["nll"].rename("right")
    frame["more"] = frame["nll"] - frame.join(right, on=["model", "length"])["right"]
    lengths = sorted(frame["length"].unique())
    tables = []
    for column, title, digits in (
        ("perplexity", "perplexity", 2),
        ("more", f"loss - {NO_FAULT}", 4),
    ):
        lines = [["model", "fault", "seeds", *(f"{title}, {length:,}" for length in lengths)]]
        for (name, fault), rows in frame.groupby(["row", "fault"], sort=False):
            if column == "more" and fault == NO_FAULT:
                continue
            of = [rows.loc[rows["length"] == length, column].tolist() for length in lengths]
            lines.append([name, fault, max(map(len, of)), *(over_seeds(x, digits) for x in of)])
        tables.append(markdown_table(lines))
    return "\n\n".join([*tables, NOTE])


def run(arguments: argparse.Namespace) -> tuple[str, bool]:
    return tabulate(arguments, "faults", partial(rows, arguments), markdown)


def parse(given: list[str] | None = None) -> argparse.Namespace:
    parser = parser_of("faults", "Effect of faults of the original code on a trained model.", 64)
    about = "window lengths; default: 1, 2 and 4 times the trained length"
    parser.add_argument("--lengths", type=integer(4), nargs="+", action=Distinct, help=about)
    return parser.parse_args(given)


def main() -> None:
    carry_out(run, parse())


if __name__ == "__main__":
    main()
