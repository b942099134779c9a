"""How TAPE's learned state differs from RoPE's, and what a model loses without it.

* How far the state of each layer is from that of RoPE: its magnitude, and the phase between a query
  and a key, minus what RoPE's would be, by their distance.
* Attention by distance, up to the longest window.
* The loss of the last half of windows with changed states (INTERVENTIONS).
"""

import argparse
import math
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from tape.analysis import inside
from tape.core.progress import track
from tape.core.statistics import student
from tape.core.validation import look_up
from tape.encodings.tape import Tape, TapeLayer
from tape.evaluation.figures import write_figure
from tape.evaluation.tables import markdown_table, over_seeds
from tape.model import checkpoint
from tape.model.modeling import TapeForCausalLM
from tape.positions.base import Prepared, Tokens
from tape.training.build import check_memory

BATCH = 8  # windows per batch
NONE = "none"
LOOKED_AT = 4  # windows whose states are looked at
UNITS = {"phase": "phase beyond RoPE's, radians", "attention": "mean attention weight"}
NOTE = """\
Magnitude: mean over heads, frequencies and tokens of {looked} of the longest windows, at the input
of a layer. Phase: between a query of the second half and a key, minus RoPE's, its absolute value.
Loss: of the last half of each window, in nats per token; with an intervention, its difference from
the same model as trained, on the same tokens. Means over seeds, with 95 % intervals (Student)."""


def updating(model: TapeForCausalLM) -> list[TapeLayer]:
    """Returns the encoding's part in each layer that updates the state of a TAPE; raises a
    ValueError if there is none, or for another encoding."""
    found = [x.context for x in model.model.layers if isinstance(x.context, TapeLayer)]
    if not (found and isinstance(model.model.position, Tape)):
        raise ValueError(
            f"position {model.config.position['name']!r}: give a model with tape or tape_yarn, "
            "whose layers update the state"
        )
    return found


def _magnitude(e: Tensor) -> Tensor:
    return e.norm(dim=-2, keepdim=True)


def _constant(e_BKT2F: Tensor, rope: Tensor) -> Tensor:
    """Returns RoPE's state with one magnitude per head: the mean of e over texts, tokens and
    frequencies."""
    return rope * _magnitude(e_BKT2F).mean((0, 2, 4), keepdim=True) / _magnitude(rope)


# Parts of the update that are left out: as with P = 0 (`attends`), or W2 = 0 (`feed_forward`).
LEFT_OUT = {
    "initial": ("attends", "feed_forward"),  # all layers rotate by the state of RoPE
    "without_attention": ("attends",),
    "without_feed_forward": ("feed_forward",),
}
# What layers rotate by instead of their state e, given that of RoPE.
ROTATED_BY = {
    "phases": lambda e, rope: e / _magnitude(e).clamp(min=1e-6) * _magnitude(rope),
    "magnitudes": lambda e, rope: rope * _magnitude(e) / _magnitude(rope),
    "constant": _constant,
    # That of the row before in a batch, which has the same positions and another text.
    "other_text": lambda e, rope: e.roll(1, dims=0),
}
INTERVENTIONS = LEFT_OUT | ROTATED_BY


def intervene(model: TapeForCausalLM, name: str) -> None:
    """Changes the state of a loaded model for good; raises a ValueError for an unknown name, or a
    model whose layers do not update the state."""
    change, layers = look_up("intervention", name, INTERVENTIONS), updating(model)
    if name in LEFT_OUT:
        for layer, part in product(layers, change):
            setattr(layer, part, False)
        return
    position, first = model.model.position, []
    initial_state = position.state

    def state(*given: Any) -> Tensor:
        first[:] = [initial_state(*given)]
        return first[0]

    def prepare(
        original: Callable[..., Prepared], q: Tensor, k: Tensor, tokens: Tokens
    ) -> Prepared:
        if name == "other_text" and len(q) < 2:
            raise ValueError("intervention other_text: give batches of two texts or more")
        if name == "constant" and (q.shape[2] == 1 or tokens.real is not None):
            raise ValueError(
                "intervention constant: give whole texts without padding, as tape state does; it "
                "averages the magnitude over their tokens"
            )
        return original(q, k, tokens._replace(e=change(tokens.e, first[0])))

    position.state = state
    for layer in (layer.context for layer in model.model.layers):
        layer.prepare = partial(prepare, layer.prepare)


def load(
    folder: Path,
    intervention: str | None = None,
    dtype: torch.dtype | None = None,
    position: dict[str, Any] | None = None,
) -> tuple[TapeForCausalLM, PreTrainedTokenizerBase]:
    """Returns the model of a run, changed by an intervention if one is named, and its tokenizer."""
    model, tokenizer = checkpoint.load(folder, dtype, position)
    if intervention is not None:
        intervene(model, intervention)
    return model, tokenizer


def phase_by_distance(e_KT2F: Tensor, first_T2F: Tensor) -> Tensor:
    """Returns the mean of |arg(e_i conj(e_j)) - arg(f_i conj(f_j))| at each distance i - j, (T,),
    for a state e and that of RoPE, f (1, T, 2, F), over the i of the second half."""
    phase, first = (torch.complex(*x.double().unbind(-2)) for x in (e_KT2F, first_T2F))
    turned = (phase * first.conj()).sgn()  # RoPE's phase removed
    T, shifts = turned.shape[1], []
    for d in range(T):
        i = max(d, T // 2)
        shifts.append((turned[:, i:] * turned[:, i - d : T - d].conj()).angle().abs().mean())
    return torch.stack(shifts)


def geometry(model: TapeForCausalLM, texts: list[inside.Inside]) -> Iterator[dict[str, Any]]:
    """Yields rows of the state and the attention of every layer, means over texts, and the
    Frobenius norms of its maps; distances are logarithmic, with the trained one."""
    length = texts[0].attention[0].shape[-1]
    distances = {int(x) for x in np.geomspace(1, length - 1, 48)}
    distances.add(min(model.config.max_position_embeddings, length - 1))
    for n in range(len(texts[0].attention)):
        layer = {"layer": n + 1}
        sizes = torch.cat([x.states[n].norm(dim=-2).flatten() for x in texts])
        found = {"magnitude": sizes.mean(), "magnitude_sd": sizes.std()}
        context = model.model.layers[n % len(model.model.layers)].context
        found |= {f"norm of {name}": x.norm() for name, x in context.named_parameters()}
        for measure, value in found.items():
            yield layer | {"measure": measure, "value": value.item()}
        phases = [phase_by_distance(x.states[n], x.states[0]) for x in texts]
        weights = [inside.by_distance(x.attention[n]) for x in texts]
        for measure, each in {"phase": phases, "attention": weights}.items():
            mean = torch.stack(each).mean(0).tolist()
            for d in sorted(distances):
                yield layer | {"measure": measure, "distance": d, "value": mean[d]}


@torch.no_grad()
def losses_of(model: TapeForCausalLM, ids_BL: Tensor) -> Tensor:
    """Returns the losses of the second half of windows, (B, T), in nats per token."""
    half = ids_BL.shape[1] // 2
    logits = model(ids_BL[:, :-1], use_cache=False).logits[:, half - 1 :]
    targets = ids_BL[:, half:]
    return F.cross_entropy(logits.transpose(1, 2).float(), targets, reduction="none")


def rows(
    arguments: argparse.Namespace, folder: Path, about: dict[str, str]
) -> Iterator[dict[str, Any]]:
    model, _ = load(folder, None, torch.float32)
    updating(model)
    trained = model.config.max_position_embeddings
    lengths = sorted(arguments.lengths or [trained, 2 * trained, 4 * trained])
    looked, size = min(LOOKED_AT, arguments.windows), f"--lengths {lengths[-1]}"
    inside.check_size(model, lengths[-1], size, looked)
    logits = 8 * min(BATCH, arguments.windows) * lengths[-1] * model.config.vocab_size
    check_memory(logits, size, "of logits", "give shorter ones, or fewer --windows")
    texts = {length: inside.windows(arguments, folder, model, length) for length in lengths}
    name, longest = texts[lengths[-1]]
    if len(longest) < 2:
        raise ValueError(
            f"{size}: the text has one such window, and no other text; give shorter ones"
        )
    looked = min(looked, len(longest))
    about = about | {"trained": trained, "looked": looked, "data": name}
    with model.evaluation_length(lengths[-1]):
        some = longest[:: len(longest) // looked][:looked]
        found = [inside.look_inside(model, ids) for ids in some]
    yield from (about | {"length": lengths[-1]} | row for row in geometry(model, found))
    for change in track([NONE, *INTERVENTIONS], desc=str(folder)):
        model, _ = load(folder, None if change == NONE else change, torch.float32)
        for length, (_, ids) in texts.items():
            # In batches of like size: one of a single text has no other text.
            parts = ids.to(model.device).tensor_split(math.ceil(len(ids) / BATCH))
            with model.evaluation_length(length):
                losses = torch.cat([losses_of(model, part) for part in parts])
            found = {"measure": "loss", "change": change, "length": length, "n": losses.numel()}
            yield about | found | {"value": losses.double().mean().item()}


def more(found: pd.DataFrame) -> pd.DataFrame:
    """Returns the rows of losses, with `more`: minus that of the same model as it is."""
    losses = found[found["measure"] == "loss"]
    own = losses[losses["change"] == NONE].set_index(["model", "length"])["value"].rename("own")
    return losses.join(own, on=["model", "length"]).eval("more = value - own")


def state_by_layer(frame: pd.DataFrame) -> str:
    """Tabulates magnitudes and phases over the models of a row."""
    lines = [["model", "layer", "seeds", r"\|e\|", "phase at distance 1", "at the trained length"]]
    measured = frame[frame["measure"].isin(["magnitude", "phase"])]
    for (name, layer), group in measured.groupby(["row", "layer"], sort=False):
        magnitude, phase = (group[group["measure"] == x] for x in ("magnitude", "phase"))
        near, far = (phase[phase["distance"] == d] for d in (1, phase["trained"]))
        cells = [over_seeds(rows["value"].tolist(), 3) for rows in (magnitude, near, far)]
        lines.append([name, int(layer), len(magnitude), *cells])
    return markdown_table(lines)


def loss_by_intervention(frame: pd.DataFrame) -> str:
    """Tabulates losses over the models of a row."""
    losses = more(frame)
    lengths = sorted(losses["length"].unique())
    lines = [["model", "state", "seeds", *(f"loss, {length:,}" for length in lengths)]]
    for (name, change), group in losses.groupby(["row", "change"], sort=False):
        label, column = ("as trained", "value") if change == NONE else (change, "more")
        by_length = [group.loc[group["length"] == length, column].tolist() for length in lengths]
        seeds, cells = max(map(len, by_length)), [over_seeds(x, 4) for x in by_length]
        lines.append([name, label, seeds, *cells])
    return markdown_table(lines)


def markdown(frame: pd.DataFrame) -> str:
    note = NOTE.format(looked=int(frame["looked"].max()))
    return "\n\n".join([state_by_layer(frame), loss_by_intervention(frame), note])


def curves(frame: pd.DataFrame, label: str, measure: str) -> Figure:
    """Draws the mean of a measure by distance, a line per layer; the trained length is marked."""
    figure = Figure(figsize=(5.4, 3.8), layout="constrained")
    axes, rows = figure.subplots(), frame[frame["measure"] == measure]
    means = rows.pivot_table("value", "distance", "layer")
    axes.plot(means, label=[f"layer {layer:.0f}" for layer in means])
    axes.axvline(rows["trained"].iloc[0], color="grey", ls=":", label="trained length")
    axes.set(xscale="log", xlabel="distance, tokens", ylabel=UNITS[measure], title=label)
    axes.set_yscale("linear" if measure == "phase" else "log")
    axes.legend(fontsize=7)
    axes.grid(alpha=0.3)
    return figure


def effects(losses: pd.DataFrame, label: str) -> Figure:
    """Draws the loss with each intervention minus that as trained, a series per length."""
    figure = Figure(figsize=(6.4, 3.8), layout="constrained")
    axes, lengths = figure.subplots(), losses.groupby("length")
    changes = [change for change in INTERVENTIONS if change in {*losses["change"]}]
    for n, (length, own) in enumerate(lengths):
        each = [own.loc[own["change"] == change, "more"].tolist() for change in changes]
        places = np.arange(len(each)) + 0.2 * (n - (len(lengths) - 1) / 2)
        halves = [student(x) if len(x) > 1 else 0 for x in each]
        means = [*map(np.mean, each)]
        axes.errorbar(places, means, halves, fmt="o", capsize=3, label=f"{length:,} tokens")
    axes.axhline(0, color="grey", lw=0.8)
    axes.set_xticks(range(len(changes)), [x.replace("_", "\n", 1) for x in changes])
    axes.set(ylabel="loss - as trained, nats per token", title=label)
    axes.legend(fontsize=7)
    return figure


def draw(frame: pd.DataFrame, out: Path) -> None:
    for label, name in inside.as_files(frame["row"].unique()).items():
        own = frame[frame["row"] == label]
        for measure in UNITS:
            write_figure(curves(own, label, measure), out / f"{measure}_{name}")
        write_figure(effects(more(own), label), out / f"interventions_{name}")


def main(arguments: argparse.Namespace) -> None:
    inside.carry_out("state", arguments, rows, markdown, draw)
