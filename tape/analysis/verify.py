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
PIECES = 8  # that the tokens are divided into when they are fewer than the positions
KEPT = 64  # tokens at most whose states and logits are compared
SHOWN = 8  # frequencies at most in the table
# The largest differences that rounding explains, as shares of the largest value.
ALLOWED = {torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 5e-2, torch.float64: 1e-5}
RECORDING = "tape_verify"  # the name of the backend that notes queries and keys
Parts = dict[tuple[int, str], Tensor]  # by layer and name, in the order in which they are computed
Record = tuple[Parts, Tensor]  # the parts and the logits


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
        return all(comparison.first is None for comparison in self.comparisons)


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
    texts = [random_text(config, n, tokens) for n in (length, math.ceil(BEYOND * length))]
    our_records = [recorded(ours, our_parts, *text) for text in texts]
    our_frequencies, our_factor, without = rotation(ours)
    windows = [layer.context.window or config.sliding_window for layer in ours.model.layers]
    theirs = None
    if read_object(folder / CONFIG).get("model_type") == TapeConfig.model_type:
        theirs = library_model(ours)
    del ours
    if theirs is None:
        theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True)
    their_records = [recorded(theirs.eval(), their_parts, *text) for text in texts]
    frequencies, their_factor = None, 1.0
    if (rotations := getattr(theirs.model, "rotary_emb", None)) is not None:
        their_factor = rotations.attention_scaling
        if our_frequencies is not None:
            frequencies = our_frequencies, rotations.inv_freq.clone()
    comparisons = [
        compare(one, other, ids.shape[1], int(places.max()) + 1, ALLOWED[dtype])
        for one, other, (ids, places) in zip(our_records, their_records, texts, strict=True)
    ]
    factors, name = (our_factor, their_factor), type(theirs).__name__
    return Certificate(name, dtype, comparisons, frequencies, factors, windows, without)


def rotation(model: TapeForCausalLM) -> tuple[Tensor | None, float, list[int]]:
    """Returns the frequencies (F,) of RoPE, None without it; the factor on cosines and sines; and
    the numbers of the layers that a mixture leaves without positions."""
    position, is_mixed = model.model.position, isinstance(model.model.position, Mixed)
    encodings = [position.entries[n] for n in position.places] if is_mixed else [position]
    rotary = [n for n, encoding in enumerate(encodings) if hasattr(encoding, "inv_freq")]
    without = sorted({*range(len(encodings))} - {*rotary}) if is_mixed else []
    if not rotary:
        return None, 1.0, without
    first = encodings[rotary[0]]
    return first.inv_freq.clone(), first.magnitude, without


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


def random_text(config: TapeConfig, length: int, tokens: int) -> tuple[Tensor, Tensor]:
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
def recorded(model: PreTrainedModel, hooked: Callable, ids: Tensor, places: Tensor) -> Record:
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
    """Notes outputs of the modules that both models name alike; yields the hooks, to add to."""
    hooks: list[Any] = []

    def output(layer: int, part: str, by_head: bool = False) -> Callable:
        def hook(module: nn.Module, arguments: Any, x: Any) -> None:
            x = x[0] if isinstance(x, tuple) else x
            note(layer, part, x.transpose(1, 2) if by_head and x.ndim == 4 else x)

        return hook

    add, ours = hooks.append, isinstance(model, TapeForCausalLM)
    for n, layer in enumerate(model.model.layers):
        add(layer.input_layernorm.register_forward_hook(output(n, "norm")))
        for letter, name in (("q", "queries"), ("k", "keys")):
            projection = getattr(layer.self_attn, f"{letter}_proj")
            module = getattr(layer.self_attn, f"{letter}_norm", None) or projection
            add(module.register_forward_hook(output(n, name, by_head=ours)))

        def entering(module: nn.Module, arguments: tuple[Tensor, ...], n: int = n) -> None:
            note(n, "attention", arguments[0])

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

            def enter(module: nn.Module, args: tuple, kwargs: dict[str, Any], n: int = n) -> Any:
                inputs = kwargs["inputs"]

                def kernel(request: Any) -> Any:
                    note_rotated(note, n, request.q, request.k, request.scaling)
                    return inputs.kernel(request)

                return args, kwargs | {"inputs": inputs._replace(kernel=kernel)}

            hooks.append(layer.register_forward_pre_hook(enter, with_kwargs=True))
        yield


@contextmanager
def their_parts(model: PreTrainedModel, note: Callable) -> Iterator[None]:
    def attention(
        module: nn.Module, q: Tensor, k: Tensor, v: Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        note_rotated(note, module.layer_idx, q, k, kwargs["scaling"])
        return sdpa_attention_forward(module, q, k, v, *args, **kwargs)

    AttentionInterface.register(RECORDING, attention)
    AttentionMaskInterface.register(RECORDING, sdpa_mask)
    before = model.config._attn_implementation
    model.set_attn_implementation(RECORDING)
    try:
        with shared_parts(model, note):
            yield
    finally:
        model.set_attn_implementation(before)


def compare(ours: Record, theirs: Record, tokens: int, length: int, allowed: float) -> Comparison:
    """Compares logits and, if they differ by more than a share `allowed`, the parts."""
    (our_parts, our_logits), (parts, logits) = ours, theirs
    difference, largest = (our_logits - logits).abs().max().item(), logits.abs().max().item()
    first = None
    if not difference <= allowed * largest:  # also true for NaN
        differing = (k for k in parts if not close(our_parts[k], parts[k], k[1], allowed))
        first = next(differing, (max(layer for layer, _ in parts) + 1, "logits"))
    return Comparison(length, tokens, difference, largest, first)


def close(x: Tensor, y: Tensor, part: str, allowed: float) -> bool:
    """Returns whether two values of a part agree. Projections may differ in their scale, into which
    the scaling of scores can be folded."""
    if part in ("queries", "keys"):
        x, y = (values / values.abs().max().clamp(min=1e-30) for values in (x, y))
    return bool((x - y).abs().max() <= allowed * y.abs().max())


def frequency_table(certificate: Certificate) -> str:
    ours, theirs = certificate.frequencies
    turns = ours * certificate.comparisons[0].length / (2 * math.pi)
    rows = [("frequency", "radians per token", "in transformers", "turns in trained length")]
    for n in torch.linspace(0, len(ours) - 1, min(SHOWN, len(ours))).long().tolist():
        other = f"{theirs[n]:.4g}" if n < len(theirs) else "none"
        rows.append((n, f"{ours[n]:.4g}", other, f"{turns[n]:.3g}"))
    return markdown_table(rows)


def describe(certificate: Certificate, folder: Path) -> str:
    """Formats a certificate."""
    rows = [("positions below", "tokens", "greatest difference", "largest logit", "differs first")]
    for case in certificate.comparisons:
        first = "nothing" if case.first is None else f"layer {case.first[0]}: {case.first[1]}"
        difference, largest = f"{case.difference:.2g}", f"{case.largest:.3g}"
        rows.append((f"{case.length:,}", f"{case.tokens:,}", difference, largest, first))
    dtype = str(certificate.dtype).removeprefix("torch.")
    parts = [f"{folder} here and as {certificate.compared} of transformers, in {dtype}"]
    parts.append(markdown_table(rows))
    if certificate.frequencies is not None:
        factors = " and ".join(f"{factor:.4g}" for factor in certificate.attention_factor)
        parts.append(frequency_table(certificate))
        parts.append(f"factor on cosines and sines, here and in transformers: {factors}")
    windows = [f"layer {n}: {window}" for n, window in enumerate(certificate.windows) if window]
    if windows and len({*certificate.windows}) == 1:
        windows = [f"all layers: {certificate.windows[0]}"]
    parts.append(f"windows: {', '.join(windows) or 'none'}")
    without = ", ".join(map(str, certificate.without_positions))
    parts.append(f"layers without positions: {without or 'none'}")
    tested = max(case.tokens for case in certificate.comparisons)
    if (widest := max((window or 0 for window in certificate.windows), default=0)) >= tested:
        parts.append(f"not tested: a window of {widest:,} tokens; --tokens {2 * widest} tests it")
    parts.append("equal" if certificate.equal else "DIFFERENT")
    return "\n\n".join(parts)


def main(given: argparse.Namespace) -> None:
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    certificate = verify(given.folder, given.tokens, getattr(torch, given.dtype))
    print(describe(certificate, given.folder))
    if not certificate.equal:
        sys.exit(1)
