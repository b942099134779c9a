"""What analyses of trained models share: the command, windows of a text, and what is inside a
decoder: attention weights and positional state of every layer, and numbers of them."""

import argparse
import re
from collections.abc import Callable, Iterable
from itertools import chain, count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
import transformers
from torch import Tensor

from tape.core import provenance
from tape.core.command import in_one_line, is_expected
from tape.core.files import write_text
from tape.core.provenance import TRAINED
from tape.evaluation.texts import asked_text
from tape.model.checkpoint import check_length, fingerprint, read_config
from tape.model.modeling import TapeForCausalLM
from tape.results.rows import grouped
from tape.results.runs import Run, settings_of
from tape.training.build import check_memory


def models(folders: list[Path]) -> dict[Path, dict[str, str]]:
    """Returns the first columns of each model's rows: `model`, the name of its folder, as given if
    two are equal; `row`, in tables, which runs that differ only in their seed share, labelled as in
    comparisons of runs; the `model_hash` and the encoding, `position`."""
    names = {folder: folder.resolve().name for folder in folders}
    if len({*names.values()}) < len(names):
        names = {folder: str(folder) for folder in folders}
    rows = dict(names)
    runs = [Run(f, *settings_of(f)) for f in folders if (f / TRAINED).is_file()]
    for label, group in grouped(runs):
        if len(group) > 1:
            label = f"{label}, seeds" if label in names.values() else label
            rows |= {run.folder: label for run in group}
    return {
        folder: {
            "model": name,
            "row": rows[folder],
            "model_hash": fingerprint(folder)[:16],
            "position": read_config(folder).position["name"],
        }
        for folder, name in names.items()
    }


def windows(
    arguments: argparse.Namespace, folder: Path, decoder: TapeForCausalLM, length: int
) -> tuple[str, Tensor]:
    """Returns the name of the text, and `--windows` of `length` tokens, spread evenly over it,
    (W, T)."""
    text = asked_text(arguments, folder, None)
    text.check(decoder.config.vocab_size)
    tokens = text.tokens
    if len(tokens) < length:
        raise ValueError(f"windows of {length} tokens: the text has {len(tokens):,}")
    last = len(tokens) - length
    starts = np.unique(np.linspace(0, last, min(arguments.windows, last + 1)).astype(int))
    found = [tokens[start : start + length].astype(np.int64) for start in starts]
    return text.name, torch.from_numpy(np.stack(found))


def carry_out(
    name: str,
    arguments: argparse.Namespace,
    measure: Callable[[argparse.Namespace, Path, dict[str, str]], Iterable[dict[str, Any]]],
    markdown: Callable[[pd.DataFrame], str],
    draw: Callable[[pd.DataFrame, Path], None] = lambda *_: None,
) -> None:
    """Measures all models: `measure` yields the rows of one, with the first columns of `models`.
    Writes the rows to <name>.csv, the tables of these, which it prints, to <name>.md, and figures.
    """
    transformers.logging.disable_progress_bar()
    rows: list[dict[str, Any]] = []
    for folder, about in models(arguments.model).items():
        try:
            rows += measure(arguments, folder, about)
        except Exception as error:
            if not is_expected(error):
                raise
            raise ValueError(f"--model {folder}: {in_one_line(error)}") from error
    frame = pd.DataFrame(rows)
    text = markdown(frame)
    write_text(arguments.out / f"{name}.csv", frame.to_csv(index=False))
    write_text(arguments.out / f"{name}.md", text + "\n")
    draw(frame, arguments.out)
    provenance.record(arguments.out)
    print(f"{text}\n\nalso in {arguments.out}")


def as_files(rows: Iterable[str]) -> dict[str, str]:
    """Maps rows to distinct file names."""
    found: dict[str, str] = {}
    for row in rows:
        name = re.sub(r"[^\w.=,-]+", "_", row).strip("_")[:80]
        names = chain([name], (f"{name}_{n}" for n in count(len(found) + 1)))
        found[row] = next(each for each in names if each not in found.values())
    return found


class Inside(NamedTuple):
    """Internals of one sequence by layer (of every recurrence), in float32 on the CPU."""

    attention: list[Tensor]  # weights (H, T, T); rows are queries
    states: list[Tensor | None]  # cosines and sines (K|1, T, 2, F) at the input; None for others


def dot_products(e_KT2F: Tensor) -> Tensor:
    """Returns Re(e_i conj(e_j)) of a state, summed over frequencies, (K|1, T, T)."""
    flat = e_KT2F.flatten(-2)
    return flat @ flat.mT


def check_size(model: TapeForCausalLM, length: int, owner: str, texts: int = 1) -> None:
    """Raises a ValueError if the model has fewer than `length` positions, or the weights of `texts`
    of that many tokens, which the settings `owner` ask for, exceed this machine's memory."""
    check_length(model, length, owner)
    config = model.config
    maps = texts * config.num_hidden_layers * config.num_recurrences * config.num_attention_heads
    needed = 8 * maps * length**2  # the model's and the copies on the CPU
    weights = f"of attention weights of {texts} texts"
    check_memory(needed, owner, weights, "take shorter texts, or fewer of them")


@torch.no_grad()
def look_inside(model: TapeForCausalLM, ids: Tensor, first: int = 0) -> Inside:
    """Runs a model on tokens (T,) whose positions start at `first`. Encodings with random positions
    need a matching `model.evaluation_length`."""
    states: list[Tensor | None] = []

    def record(module: torch.nn.Module, arguments: tuple) -> None:
        e = arguments[1]
        pairs = e is not None and e.ndim == 5 and e.shape[2] == len(ids[0]) and e.shape[3] >= 2
        states.append(e[0, ..., :2, :].float().cpu() if pairs else None)

    ids = ids.to(model.device)[None]
    positions = torch.arange(first, first + ids.shape[1], device=ids.device)[None]
    before = model.config._attn_implementation
    hooks = [layer.register_forward_pre_hook(record) for layer in model.model.layers]
    try:
        model.set_attn_implementation("eager")  # the only backend that returns weights
        how = {"position_ids": positions, "use_cache": False, "output_attentions": True}
        weights = model.model(ids, **how).attentions
    finally:
        model.set_attn_implementation(before)
        for hook in hooks:
            hook.remove()
    return Inside([layer[0].float().cpu() for layer in weights], states)


def by_distance(A_HTT: Tensor) -> Tensor:
    """Returns the mean weight at each distance, (T,), over heads and the queries of the second
    half, which all have half of the text before them."""
    T = A_HTT.shape[-1]
    means = [A_HTT.diagonal(-d, 1, 2)[:, max(0, T // 2 - d) :].mean() for d in range(T)]
    return torch.stack(means)
