"""Compares a checkpoint's model with transformers' own class: a certificate that the settings in
config.json take effect here as they do there.

Both get the same random tokens, at positions up to the trained length and to 1.5 times it. If the
logits differ, the first part of the first layer that differs is named.
"""

import argparse
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AutoModelForCausalLM, PreTrainedModel, logging
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from tape.core.files import read_object
from tape.encodings.mixed import Mixed
from tape.evaluation.tables import markdown_table
from tape.export.family import family_config
from tape.model.checkpoint import CONFIG, load_model
from tape.model.configuration import TapeConfig
from tape.model.families import WRITTEN
from tape.model.modeling import TapeForCausalLM

BEYOND = 1.5  # times the trained length
PIECES = 8  # of the tokens, when they are fewer than the positions
KEPT = 64  # tokens at most whose states and logits are compared
SHOWN = 8  # frequencies at most in the table
# Differences that rounding explains, as a share of the largest value.
ALLOWED = {torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 5e-2, torch.float64: 1e-5}
RECORDING = "tape_verify"  # the name of the backend that notes queries and keys
Parts = dict[tuple[int, str], Tensor]  # by layer and name, in the order in which they are computed


@dataclass(frozen=True)
class Comparison:
    """What two models compute from the same tokens.

    Attributes:
        length: the positions are below it.
        tokens: number of tokens.
        difference: the greatest of logits, in absolute value.
        largest: the largest logit, in absolute value.
        first: the layer and part that differ first, None if logits agree.
    """

    length: int
    tokens: int
    difference: float
    largest: float
    first: tuple[int, str] | None


@dataclass(frozen=True)
class Certificate:
    """Whether a checkpoint computes here what it does in transformers.

    Attributes:
        compared: the name of transformers' class.
        dtype: in which both were computed.
        comparisons: within the trained length, and beyond it.
        frequencies: (F,) radians per token of the rotations here, and (F,) those of the library;
            None without rotations.
        attention_factor: on cosines and sines, here and there.
        windows: of each layer; None: all tokens before.
        without_positions: numbers of the layers without positions.
    """

    compared: str
    dtype: torch.dtype
    comparisons: list[Comparison]
    frequencies: tuple[Tensor, Tensor] | None
    attention_factor: tuple[float, float]
    windows: list[int | None]
    without_positions: list[int]

    @property
    def equal(self) -> bool:
        return all(each.first is None for each in self.comparisons)


def verify(
    folder: str | Path, tokens: int = 1024, dtype: torch.dtype = torch.float32
) -> Certificate:
    """Compares the model in a folder, of a family of transformers or one of ours that transformers
    has a class for, with that class. Only one of them is in memory at a time.

    Args:
        tokens: the most to compute with. If the lengths are longer, pieces of consecutive tokens
            are spread evenly over the positions.

    Raises:
        ValueError: if there is no such class.
    """
    folder = Path(folder)
    ours = load_model(folder, dtype).cpu()
    config, length = ours.config, ours.config.max_position_embeddings
    cases = [case(config, n, tokens) for n in (length, math.ceil(BEYOND * length))]
    found = [recorded(ours, our_parts, *each) for each in cases]
    position = ours.model.position
    parts = [position.entries[n] for n in position.places] if isinstance(position, Mixed) else None
    rotary = [x for x in parts or [position] if hasattr(x, "inv_freq")]
    windows = [layer.context.window or config.sliding_window for layer in ours.model.layers]
    without = [n for n, x in enumerate(parts or ()) if not hasattr(x, "inv_freq")]
    here = (rotary[0].inv_freq.clone(), rotary[0].magnitude) if rotary else (None, 1.0)
    saved = None
    if read_object(folder / CONFIG).get("model_type") == TapeConfig.model_type:
        saved = library_model(ours)
    del ours, position, parts, rotary
    theirs = saved or AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, local_files_only=True
    )
    expected = [recorded(theirs.eval(), their_parts, *each) for each in cases]
    rotations = getattr(theirs.model, "rotary_emb", None)
    there = (None, 1.0)
    if rotations is not None:
        there = rotations.inv_freq.clone(), rotations.attention_scaling
    comparisons = [
        compare(*pair, ids.shape[1], int(places.max()) + 1, ALLOWED[dtype])
        for pair, (ids, places) in zip(zip(found, expected, strict=True), cases, strict=True)
    ]
    both = None if here[0] is None or there[0] is None else (here[0], there[0])
    factors = here[1], there[1]
    name = type(theirs).__name__
    return Certificate(name, dtype, comparisons, both, factors, windows, without)


def library_model(model: TapeForCausalLM) -> PreTrainedModel:
    """Returns transformers' model with the weights of ours; raises a ValueError if there is none
    that computes the same."""
    for family in WRITTEN:
        try:
            config = family_config(model, family)
        except ValueError as error:
            refused = error
            continue
        theirs = AutoModelForCausalLM.from_config(config, dtype=model.dtype)
        theirs.load_state_dict({**theirs.state_dict(), **model.state_dict()})
        return theirs
    name = model.config.position["name"]
    raise ValueError(
        f"position {name!r}: no class of transformers computes it; give a model that tape export "
        "--format can write as one"
    ) from refused


def case(config: TapeConfig, length: int, tokens: int) -> tuple[Tensor, Tensor]:
    """Returns random token ids and their positions below `length`, (1, T) each."""
    count = min(tokens, length)
    if count < length:
        size = max(count // PIECES, 1)
        starts = torch.linspace(0, length - size, max(count // size, 2)).long()
        places = (starts[:, None] + torch.arange(size)).flatten()
    else:
        places = torch.arange(length)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(config.vocab_size, (1, len(places)), generator=generator)
    return ids, places[None]


@torch.no_grad()
def recorded(
    model: PreTrainedModel, hooked: Callable, ids: Tensor, places: Tensor
) -> tuple[Parts, Tensor]:
    """Returns the parts of all layers and the logits (K, V), of K tokens spread over the text."""
    rows = torch.linspace(0, ids.shape[1] - 1, min(KEPT, ids.shape[1])).long()
    parts: Parts = {}

    def note(layer: int, part: str, x_BTN: Tensor) -> None:
        parts[layer, part] = x_BTN[0, rows].flatten(1).float().clone()

    with hooked(model, note):
        logits = model(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),  # else gaps would begin new documents there
            position_ids=places,
            use_cache=False,
            logits_to_keep=rows,
        ).logits[0]
    return parts, logits.float()


@contextmanager
def shared_parts(model: PreTrainedModel, note: Callable) -> Iterator[list[Any]]:
    """Notes what has the same names in both models; yields the hooks, to add to."""
    hooks: list[Any] = []

    def output(layer: int, part: str, by_head: bool = False) -> Callable:
        def hook(module: nn.Module, given: Any, x: Any) -> None:
            x = x[0] if isinstance(x, tuple) else x
            note(layer, part, x.transpose(1, 2) if by_head and x.ndim == 4 else x)

        return hook

    ours = isinstance(model, TapeForCausalLM)
    for n, layer in enumerate(model.model.layers):
        add = hooks.append
        add(layer.input_layernorm.register_forward_hook(output(n, "norm")))
        for letter, name in (("q", "queries"), ("k", "keys")):
            attention = layer.self_attn
            module = getattr(attention, f"{letter}_norm", None) or getattr(
                attention, f"{letter}_proj"
            )
            add(module.register_forward_hook(output(n, name, by_head=ours)))

        def entering(module: nn.Module, given: tuple[Tensor, ...], n: int = n) -> None:
            note(n, "attention", given[0])

        add(layer.post_attention_layernorm.register_forward_pre_hook(entering))
        add(layer.register_forward_hook(output(n, "MLP")))
    try:
        yield hooks
    finally:
        for hook in hooks:
            hook.remove()


def note_rotated(note: Callable, layer: int, q_BHTD: Tensor, k_BKTD: Tensor, scale: float) -> None:
    note(layer, "rotation of queries", q_BHTD.transpose(1, 2) * scale)
    note(layer, "rotation of keys", k_BKTD.transpose(1, 2))


@contextmanager
def our_parts(model: TapeForCausalLM, note: Callable) -> Iterator[None]:
    with shared_parts(model, note) as hooks:
        for n, layer in enumerate(model.model.layers):

            def enter(module: nn.Module, given: tuple, named: dict[str, Any], n: int = n) -> Any:
                inputs = named["inputs"]

                def kernel(request: Any) -> Any:
                    note_rotated(note, n, request.q, request.k, request.scaling)
                    return inputs.kernel(request)

                return given, named | {"inputs": inputs._replace(kernel=kernel)}

            hooks.append(layer.register_forward_pre_hook(enter, with_kwargs=True))
        yield


@contextmanager
def their_parts(model: PreTrainedModel, note: Callable) -> Iterator[None]:
    def attention(
        module: nn.Module, q: Tensor, k: Tensor, v: Tensor, *given: Any, **named: Any
    ) -> Any:
        note_rotated(note, module.layer_idx, q, k, named["scaling"])
        return sdpa_attention_forward(module, q, k, v, *given, **named)

    AttentionInterface.register(RECORDING, attention)
    AttentionMaskInterface.register(RECORDING, sdpa_mask)
    before = model.config._attn_implementation
    model.set_attn_implementation(RECORDING)
    try:
        with shared_parts(model, note):
            yield
    finally:
        model.set_attn_implementation(before)


def compare(
    found: tuple[Parts, Tensor],
    expected: tuple[Parts, Tensor],
    tokens: int,
    length: int,
    allowed: float,
) -> Comparison:
    """Compares logits and, if they differ by more than a share `allowed`, the parts."""
    difference = (found[1] - expected[1]).abs().max().item()
    largest = expected[1].abs().max().item()
    first = None
    if not difference <= allowed * largest:  # also true for NaN
        first = next(
            (key for key, x in expected[0].items() if not close(found[0][key], x, key[1], allowed)),
            (len({layer for layer, _ in expected[0]}), "logits"),
        )
    return Comparison(length, tokens, difference, largest, first)


def close(x: Tensor, y: Tensor, part: str, allowed: float) -> bool:
    """Returns whether values agree: projections up to their scale, which may be that of scores."""
    if part in ("queries", "keys"):
        x, y = (each / each.abs().max().clamp(min=1e-30) for each in (x, y))
    return bool((x - y).abs().max() <= allowed * y.abs().max())


def describe(found: Certificate, folder: Path) -> str:
    """Formats a certificate."""
    rows = [("positions below", "tokens", "greatest difference", "largest logit", "differs first")]
    for each in found.comparisons:
        first = "nothing" if each.first is None else f"layer {each.first[0]}: {each.first[1]}"
        difference, largest = f"{each.difference:.2g}", f"{each.largest:.3g}"
        rows.append((f"{each.length:,}", f"{each.tokens:,}", difference, largest, first))
    dtype = str(found.dtype).removeprefix("torch.")
    parts = [f"{folder} here and as {found.compared} of transformers, in {dtype}"]
    parts.append(markdown_table(rows))
    if found.frequencies is not None:
        here, there = found.frequencies
        length = found.comparisons[0].length
        rows = [("frequency", "radians per token", "in transformers", "turns in trained length")]
        for n in torch.linspace(0, len(here) - 1, min(SHOWN, len(here))).long().tolist():
            other = f"{there[n]:.4g}" if n < len(there) else "none"
            rows.append((n, f"{here[n]:.4g}", other, f"{here[n] * length / (2 * math.pi):.3g}"))
        parts.append(markdown_table(rows))
        factors = " and ".join(f"{x:.4g}" for x in found.attention_factor)
        parts.append(f"factor on cosines and sines, here and in transformers: {factors}")
    windows = [f"layer {n}: {window}" for n, window in enumerate(found.windows) if window]
    if windows and len({*found.windows}) == 1:
        windows = [f"all layers: {found.windows[0]}"]
    parts.append(f"windows: {', '.join(windows) or 'none'}")
    without = ", ".join(map(str, found.without_positions))
    parts.append(f"layers without positions: {without or 'none'}")
    most = max(each.tokens for each in found.comparisons)
    if (reached := max((window or 0 for window in found.windows), default=0)) >= most:
        parts.append(f"not tested: a window of {reached:,} tokens; --tokens {2 * reached} tests it")
    parts.append("equal" if found.equal else "DIFFERENT")
    return "\n\n".join(parts)


def main(given: argparse.Namespace) -> None:
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    found = verify(given.folder, given.tokens, getattr(torch, given.dtype))
    print(describe(found, given.folder))
    if not found.equal:
        sys.exit(1)
