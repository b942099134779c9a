"""How TAPE's learned state differs from RoPE's, and what a model loses without it.

tape state --model output/adape_local

* How far the state of each layer is from that of RoPE: its magnitude, and the phase between a query
  and a key, minus what RoPE's would be, by their distance.
* Attention by distance, up to the longest window.
* The loss of the last half of windows with changed states (tape/analysis/intervene.py).
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor
from tqdm import tqdm

from tape.analysis.inside import Inside, by_distance, check_size, look_inside, magnitudes
from tape.analysis.intervene import INTERVENTIONS, intervene, updating
from tape.analysis.texts import Model, Rows, carry_out, parser_of, tabulate, windows
from tape.analysis.visualize import as_files
from tape.command import Distinct, integer
from tape.evaluation.figures import write_figure
from tape.evaluation.tables import markdown_table, over_seeds
from tape.model.checkpoint import check_length, load
from tape.model.modeling import TapeForCausalLM
from tape.statistics import student
from tape.training.build import check_memory

BATCH = 8  # windows per batch
NONE = "none"
LOOKED_AT = 4  # windows whose states are looked at
NOTE = """\
Magnitude: mean over heads, frequencies and tokens of {looked} of the longest windows, at the input
of a layer. Phase: between a query of the second half and a key, minus RoPE's, its absolute value.
Loss: of the last half of each window, in nats per token; with an intervention, its difference from
the same model as trained, on the same tokens. Means over seeds, with 95 % intervals (Student)."""


def phase_by_distance(e_KTF: Tensor, first_TF: Tensor) -> Tensor:
    """Returns the mean of |arg(e_i conj(e_j)) - arg(f_i conj(f_j))| at each distance i - j, (T,),
    for a state e (K|1, T, 2 F) and that of RoPE, f (1, T, 2 F), over the i of the second half."""
    phase, first = (
        torch.complex(*x.double().unflatten(-1, (2, -1)).unbind(-2)) for x in (e_KTF, first_TF)
    )
    turned = phase * first.conj()  # RoPE's phase removed
    turned = turned / turned.abs().clamp(min=1e-12)
    T = turned.shape[1]
    starts = [max(d, T // 2) for d in range(T)]
    shifts = [
        (turned[:, i:] * turned[:, i - d : T - d].conj()).angle().abs().mean()
        for d, i in enumerate(starts)
    ]
    return torch.stack(shifts)


def geometry(model: TapeForCausalLM, texts: list[Inside]) -> Iterator[dict[str, Any]]:
    """Yields rows of the state and the attention of every layer, means over texts, and the
    Frobenius norms of the layer's maps. Distances are spread evenly on a logarithmic scale, with
    the trained one."""
    length = texts[0].attention[0].shape[-1]
    distances = {int(x) for x in np.geomspace(1, length - 1, 48)}
    distances.add(min(model.config.max_position_embeddings, length - 1))
    for layer in range(len(texts[0].attention)):
        sizes = torch.cat([magnitudes(x.states[layer]).flatten() for x in texts])
        found = {"magnitude": sizes.mean().item(), "magnitude_sd": sizes.std().item()}
        context = model.model.layers[layer % len(model.model.layers)].context
        for name, value in context.named_parameters():
            found[f"norm of {name}"] = value.norm().item()
        about = {"layer": layer + 1}
        yield from ({"measure": name} | about | {"value": x} for name, x in found.items())
        curves = {
            "phase": [phase_by_distance(x.states[layer], x.states[0]) for x in texts],
            "attention": [by_distance(x.attention[layer]) for x in texts],
        }
        for measure, each in curves.items():
            mean = torch.stack(each).mean(0)
            for distance in sorted(distances):
                value = mean[distance].item()
                yield {"measure": measure} | about | {"distance": distance, "value": value}


@torch.no_grad()
def losses_of(model: TapeForCausalLM, ids_BL: Tensor) -> Tensor:
    """Returns the losses of the second half of windows, (B, T), in nats per token."""
    half = ids_BL.shape[1] // 2
    logits = model(ids_BL[:, :-1], use_cache=False).logits[:, half - 1 :]
    targets = ids_BL[:, half:]
    return F.cross_entropy(logits.transpose(1, 2).float(), targets, reduction="none")


def rows(arguments: argparse.Namespace, of: Model) -> Iterator[dict[str, Any]]:
    """Yields the rows of one model."""
    model, _ = load(of.folder, torch.float32)
    updating(model)
    trained = model.config.max_position_embeddings
    lengths = sorted(arguments.lengths or [trained, 2 * trained, 4 * trained])
    check_length(model, lengths[-1], f"--lengths {lengths[-1]}")
    looked = min(LOOKED_AT, arguments.windows)
    check_size(model, f"--lengths {lengths[-1]}", lengths[-1], looked)
    logits = 8 * min(BATCH, arguments.windows) * lengths[-1] * model.config.vocab_size
    remedy = "give shorter ones, or fewer --windows"
    check_memory(logits, f"--lengths {lengths[-1]}", "of logits", remedy)
    about = of.about(model) | {"trained": trained, "looked": looked}
    texts = {length: windows(arguments, of.folder, model, length) for length in lengths}
    name, longest = texts[lengths[-1]]
    about["data"] = name
    with model.evaluation_length(lengths[-1]):
        inside = [look_inside(model, ids) for ids in longest[:: len(longest) // looked][:looked]]
    yield from (about | {"length": lengths[-1]} | row for row in geometry(model, inside))
    for change in tqdm([NONE, *INTERVENTIONS], desc=str(of.folder), disable=None):
        model, _ = load(of.folder, torch.float32)
        if change != NONE:
            intervene(model, change)
        for length in lengths:
            ids = torch.stack(texts[length][1]).to(model.device)
            with model.evaluation_length(length):
                # In batches of like size: one of a single text has no other text.
                parts = ids.tensor_split(math.ceil(len(ids) / BATCH))
                losses = torch.cat([losses_of(model, part) for part in parts])
            found = {"measure": "loss", "change": change, "length": length, "n": losses.numel()}
            yield about | found | {"value": losses.double().mean().item()}


def more(found: pd.DataFrame) -> pd.DataFrame:
    """Returns the rows of losses, with `more`: minus that of the same model as it is."""
    losses = found[found["measure"] == "loss"].copy()
    own = losses[losses["change"] == NONE].set_index(["model", "length"])["value"].rename("own")
    losses["more"] = losses["value"] - losses.join(own, on=["model", "length"])["own"]
    return losses


def markdown(found: Rows) -> str:
    """Tabulates, over the models of a row, the state by layer and the loss by intervention."""
    frame = pd.DataFrame(found)
    lines = [["model", "layer", "seeds", r"\|e\|", "phase at distance 1", "at the trained length"]]
    of_layers = frame[frame["measure"].isin(["magnitude", "phase"])]
    for (name, layer), group in of_layers.groupby(["row", "layer"], sort=False):
        phase = group[group["measure"] == "phase"]
        near = phase[phase["distance"] == 1]["value"].tolist()
        far = phase[phase["distance"] == phase["trained"]]["value"].tolist()
        size = group[group["measure"] == "magnitude"]["value"].tolist()
        cells = [over_seeds(x, 3) for x in (size, near, far)]
        lines.append([name, int(layer), len(size), *cells])
    losses = more(frame)
    lengths = sorted(losses["length"].unique())
    changed = [["model", "state", "seeds", *(f"loss, {length:,}" for length in lengths)]]
    for (name, change), group in losses.groupby(["row", "change"], sort=False):
        column = "value" if change == NONE else "more"
        of = [group.loc[group["length"] == length, column].tolist() for length in lengths]
        cells = [over_seeds(x, 4) for x in of]
        changed.append([name, "as trained" if change == NONE else change, len(of[0]), *cells])
    note = NOTE.format(looked=int(frame["looked"].max()))
    return "\n\n".join([markdown_table(lines), markdown_table(changed), note])


def draw(frame: pd.DataFrame, label: str) -> dict[str, Figure]:
    """Draws the phase and the attention by distance, a line per layer with the trained length
    marked, and the effects of the interventions: means over the models of a row."""
    units = {"phase": "phase beyond RoPE's, radians", "attention": "mean attention weight"}
    figures = {name: Figure(figsize=(5.4, 3.8), layout="constrained") for name in units}
    for measure, figure in figures.items():
        axes, rows = figure.subplots(), frame[frame["measure"] == measure]
        for layer, own in rows.groupby("layer"):
            mean = own.groupby("distance")["value"].mean()
            axes.plot(mean.index, mean, label=f"layer {int(layer)}")
        axes.axvline(rows["trained"].iloc[0], color="grey", ls=":", label="trained length")
        axes.set(xscale="log", xlabel="distance, tokens", ylabel=units[measure])
        axes.legend(fontsize=7)
        axes.grid(alpha=0.3)
        axes.set(title=label, yscale="linear" if measure == "phase" else "log")
    return figures | {"interventions": effects(more(frame), label)}


def effects(losses: pd.DataFrame, label: str) -> Figure:
    """Draws the loss with each intervention minus that as trained, a series per length."""
    lengths = sorted(losses["length"].unique())
    figure = Figure(figsize=(6.4, 3.8), layout="constrained")
    axes = figure.subplots()
    for n, length in enumerate(lengths):
        own = losses[losses["length"] == length]
        of = [own.loc[own["change"] == change, "more"].tolist() for change in INTERVENTIONS]
        places = np.arange(len(of)) + 0.2 * (n - (len(lengths) - 1) / 2)
        halves = [student(x) if len(x) > 1 else 0 for x in of]
        means = [*map(np.mean, of)]
        axes.errorbar(places, means, halves, fmt="o", capsize=3, label=f"{length:,} tokens")
    axes.axhline(0, color="grey", lw=0.8)
    names = [name.replace("_", "\n", 1) for name in INTERVENTIONS]
    axes.set_xticks(range(len(names)), names)
    axes.set(ylabel="loss - as trained, nats per token", title=label)
    axes.legend(fontsize=7)
    return figure


def run(arguments: argparse.Namespace) -> tuple[str, bool]:
    text, whole = tabulate(arguments, "state", partial(rows, arguments), markdown)
    frame = pd.read_csv(arguments.out / "state.csv")
    for label, name in as_files([*frame["row"].astype(str).unique()]).items():
        for kind, figure in draw(frame[frame["row"].astype(str) == label], label).items():
            write_figure(figure, arguments.out / f"{kind}_{name}")
    return text, whole


def parse(given: list[str] | None = None) -> argparse.Namespace:
    parser = parser_of(
        "state", "How TAPE's learned state differs from RoPE's, and what it is for.", 64
    )
    about = "window lengths; default: 1, 2 and 4 times the trained length"
    parser.add_argument("--lengths", type=integer(4), nargs="+", action=Distinct, help=about)
    arguments = parser.parse_args(given)
    if arguments.windows < 2:
        parser.error("--windows 1: give 2 or more, for the state of another text")
    return arguments


def main() -> None:
    carry_out(run, parse())


if __name__ == "__main__":
    main()
