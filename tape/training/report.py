"""Report of a finished run in report/: tables, plots and a sample."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from transformers import PreTrainedTokenizerBase, set_seed

from tape.data.blocks import TokenStream
from tape.data.ngrams import ORDERS, NGrams
from tape.data.tokenizer import text_bytes
from tape.evaluation.figures import write_figure
from tape.evaluation.questions import plain_generation
from tape.evaluation.scoring import Perplexity, perplexity
from tape.evaluation.tables import markdown_table
from tape.evaluation.windows import Window, spread
from tape.files import write_text
from tape.model.modeling import TapeForCausalLM
from tape.runs.metrics import read_metrics

SAMPLE = 144  # tokens of the prompt and its continuation
TEXT = """\
# {name}

{headline}

{table}

The last {stride} tokens of windows spread over the validation text are scored: {tokens:,} tokens, \
the same at every length.

{grams}\
Continuation of a validation text (temperature 0.8, top-p 0.95), after the bar:

{sample}
"""
ABOUT_GRAMS = (
    "The n-gram models are interpolated Kneser-Ney models of the {:,} training tokens that the run "
    "saw.\n\n"
)


def scored_windows(
    model: TapeForCausalLM, stream: TokenStream, length: int, tokens: int
) -> dict[int, list[Window]]:
    """Returns windows of 1x, 2x and 4x the training length that score the same tokens, as far as
    the text and the encoding's range allow."""
    longest = model.model.position.max_positions or len(stream)
    lengths = [n * length for n in (1, 2, 4) if n * length <= min(longest, len(stream))]
    if not lengths:
        raise ValueError(
            f"windows of length={length} do not fit the validation text of {len(stream):,} tokens, "
            f"or the {longest:,} positions of the encoding"
        )
    return {n: spread(len(stream), n, lengths[-1], length // 2, tokens) for n in lengths}


def places(windows: list[Window]) -> np.ndarray:
    """Returns the places of the scored tokens in the text: (M,)."""
    return np.concatenate([np.arange(window.first, window.stop) for window in windows])


def counted(
    seen: np.ndarray, vocabulary: int, stream: TokenStream, windows: list[Window]
) -> dict[str, Perplexity]:
    """Computes the perplexity of n-gram models on the tokens that the windows score: of those
    models whose n - 1 tokens of context all windows have, and all training sequences.

    Args:
        seen: (N, L) training sequences.
    """
    context = min(window.first - window.start for window in windows)
    orders = {name: n for name, n in ORDERS.items() if n <= min(context + 1, seen.shape[1])}
    model = NGrams(seen, vocabulary, max(orders.values())) if orders else None
    scored, found = places(windows), {}
    for name, n in orders.items():
        grams = stream.tokens[scored[:, None] + np.arange(1 - n, 1)]
        nll = -np.log(model.probabilities(grams, n)).mean()
        found[name] = Perplexity(n, len(scored), float(nll))
    return found


def continuation(
    model: TapeForCausalLM, tokenizer: PreTrainedTokenizerBase, stream: TokenStream, seed: int
) -> tuple[str, str]:
    """Returns a prompt from the validation text (a third of SAMPLE tokens) and the model's
    continuation; fewer tokens if the encoding has fewer positions."""
    set_seed(seed)
    total = min(SAMPLE, model.model.position.max_positions or SAMPLE)
    ids = torch.from_numpy(stream.tokens[: total // 3].astype("int64"))[None].to(model.device)
    padding = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    with torch.no_grad(), model.evaluation_length(total), plain_generation(model):
        output = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=total - ids.shape[1],
            do_sample=True,
            temperature=0.8,
            top_p=0.95,
            pad_token_id=padding,
        )
    return tokenizer.decode(ids[0]), tokenizer.decode(output[0, ids.shape[1] :])


def facts(model: TapeForCausalLM, metrics: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns facts common to all reports: the model and a summary of its training metrics, with
    medians of the log events."""
    logged = {
        key: [row[key] for row in metrics if key in row]
        for key in ("tokens_per_second", "mfu", "data_share", "peak_memory_gib")
    }
    memory = round(max(logged.pop("peak_memory_gib"), default=0), 2)
    return {
        "position": model.config.position,
        "attention": model.config._attn_implementation,
        "parameters": model.num_parameters(),
        "steps": max(row["step"] for row in metrics),
        **{key: median(values) if values else None for key, values in logged.items()},
        "peak_memory_gib": memory,
    }


def headline(facts: dict[str, Any]) -> str:
    speed, mfu, waiting = (facts[key] for key in ("tokens_per_second", "mfu", "data_share"))
    return (
        f"position {facts['position']['name']}, attention {facts['attention']}, "
        f"{facts['parameters']:,} parameters, {facts['steps']:,} steps, "
        f"{'-' if speed is None else format(speed, ',.0f')} tokens/s in training (median)"
        f"{'' if mfu is None else f', {mfu:.1%} MFU'}"
        f"{'' if waiting is None else f', {waiting:.1%} of its time waiting for data (median)'}"
        f", peak memory {facts['peak_memory_gib']} GiB"
    )


def write_report(
    folder: Path,
    model: TapeForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    validation: TokenStream,
    length: int,
    tokens: int,
    seed: int,
    seen: np.ndarray | None = None,
) -> str:
    """Writes folder/report/ and returns its text, which is also printed. `seen`, (N, L) training
    sequences, adds n-gram models of these."""
    model.eval()
    windows = scored_windows(model, validation, length, tokens)
    found = {n: perplexity(model, validation.tokens, windows[n], n) for n in windows}
    scored = places(windows[length])
    scored_bytes = text_bytes(tokenizer, validation.tokens, scored)
    prompt, added = continuation(model, tokenizer, validation, seed)
    metrics = read_metrics(folder / "metrics.jsonl")

    def scores(each: Perplexity) -> dict[str, float | None]:
        return {"perplexity": each.perplexity, "bits_per_byte": each.bits_per_byte(scored_bytes)}

    summary = facts(model, metrics) | {
        "scored_tokens": len(scored),
        "scored_bytes": scored_bytes,
        "perplexity": [
            {"length": n, "times": n // length, **scores(each)} for n, each in found.items()
        ],
    }
    curves, about_grams = {folder.name: [(n, each.perplexity) for n, each in found.items()]}, ""
    grams: dict[str, Perplexity] = {}
    if seen is not None:
        grams = counted(seen, model.config.vocab_size, validation, windows[length])
        models = [{"model": name, **scores(each)} for name, each in grams.items()]
        summary["ngrams"] = {"tokens": seen.size, "models": models}
        about_grams = ABOUT_GRAMS.format(seen.size) if grams else ""
        curves |= {name: [(n, each.perplexity) for n in windows] for name, each in grams.items()}
    scored_as = {f"{n} ({n // length}x)": each for n, each in found.items()}
    scored_as |= grams
    lines = [["window", "validation perplexity", "bits per byte"]]
    for name, each in scored_as.items():
        bits = each.bits_per_byte(scored_bytes)
        lines.append([name, f"{each.perplexity:.2f}", "-" if bits is None else f"{bits:.4f}"])
    text = TEXT.format(
        name=folder.name,
        headline=headline(summary),
        table=markdown_table(lines),
        stride=length // 2,
        tokens=len(scored),
        grams=about_grams,
        sample=textwrap.indent(printable(f"{prompt}|{added}"), "    ", lambda line: True),
    )
    publish(folder, metrics, summary, text)
    axes = {"xlabel": "window (tokens)", "ylabel": "validation perplexity", "xticks": [*windows]}
    draw(folder / "report" / "perplexity", curves, folder.name, **axes)
    return text


def publish(
    folder: Path, metrics: list[dict[str, Any]], summary: dict[str, Any], text: str
) -> None:
    """Writes the files common to all reports: summary, text and a picture of the losses."""
    target = folder / "report"
    write_text(target / "report.json", json.dumps(summary, indent=1) + "\n")
    write_text(target / "report.md", text)
    curves = {
        label: [(row["step"], row[key]) for row in metrics if key in row]
        for label, key in (("training", "loss"), ("validation", "eval_loss"))
    }
    draw(target / "loss", curves, folder.name, xlabel="step", ylabel="loss (nats per token)")


def draw(target: Path, curves: dict[str, list[tuple[float, float]]], title: str, **axes) -> None:
    """Writes a picture of labelled points (x, y), with marks where they are few."""
    figure = Figure(figsize=(6, 4), layout="constrained")
    plot = figure.subplots()
    for label, points in curves.items():
        if points:  # a short run may have no log events
            style = "o-" if len(points) < 50 else "-"
            plot.plot(*zip(*points, strict=True), style, label=label, markersize=4)
    plot.set(title=title, **axes)
    plot.grid(alpha=0.3)
    if plot.lines:
        plot.legend()
    write_figure(figure, target, ["png"])


def printable(text: str) -> str:
    """Escapes control characters, which generated text may contain, for the terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)
