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
from tape.evaluation.decoding import plain_generation
from tape.evaluation.figures import write_figure
from tape.evaluation.scoring import Perplexity, perplexity
from tape.evaluation.tables import markdown_table
from tape.evaluation.windows import Window, spread
from tape.files import write_text
from tape.model.modeling import TapeForCausalLM
from tape.runs.metrics import read_metrics

SAMPLE = 144  # tokens of the prompt and its continuation


def scored_windows(
    model: TapeForCausalLM, stream: TokenStream, length: int, tokens: int
) -> dict[int, list[Window]]:
    """Returns windows of 1x, 2x and 4x the training length that score the same tokens, as far as
    the text and the encoding's range allow."""
    stride = length // 2
    longest = model.model.position.max_positions or len(stream)
    lengths = [n * length for n in (1, 2, 4) if n * length <= min(longest, len(stream))]
    if not lengths:
        raise ValueError(
            f"windows of length={length} do not fit the validation text of {len(stream):,} tokens, "
            f"or the {longest:,} positions of the encoding"
        )
    return {n: spread(len(stream), n, lengths[-1], stride, tokens) for n in lengths}


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
    if not orders:
        return {}
    model = NGrams(seen, vocabulary, max(orders.values()))
    scored = places(windows)
    found = {}
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
    """Returns facts common to all reports: the model and a summary of its training metrics."""

    def middle(key: str) -> float | None:
        values = [row[key] for row in metrics if key in row]
        return median(values) if values else None

    return {
        "position": model.config.position,
        "attention": model.config._attn_implementation,
        "parameters": model.num_parameters(),
        "steps": max(row["step"] for row in metrics),
        "tokens_per_second": middle("tokens_per_second"),
        "mfu": middle("mfu"),
        "product_share": middle("product_share"),
        "data_share": middle("data_share"),
        "peak_memory_gib": round(max(row.get("peak_memory_gib", 0) for row in metrics), 2),
    }


def headline(facts: dict[str, Any]) -> str:
    speed, share = facts["tokens_per_second"], facts["data_share"]
    of = {"mfu": "MFU", "product_share": "of this machine's matrix-product rate"}
    used = "".join(f", {facts[key]:.1%} {of[key]}" for key in of if facts[key] is not None)
    waiting = "" if share is None else f", {share:.1%} of its time waiting for data (median)"
    return (
        f"position {facts['position']['name']}, attention {facts['attention']}, "
        f"{facts['parameters']:,} parameters, {facts['steps']:,} steps, "
        f"{'-' if speed is None else format(speed, ',.0f')} tokens/s in training (median)"
        f"{used}{waiting}, peak memory {facts['peak_memory_gib']} GiB"
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
    results = [perplexity(model, validation.tokens, windows[n], n) for n in windows]
    scored_bytes = text_bytes(tokenizer, validation.tokens, places(windows[length]))
    prompt, added = continuation(model, tokenizer, validation, seed)
    metrics = read_metrics(folder / "metrics.jsonl")

    def scores(found: Perplexity) -> dict[str, float | None]:
        bits = found.bits_per_byte(scored_bytes)
        return {"perplexity": found.perplexity, "bits_per_byte": bits}

    summary = facts(model, metrics) | {
        "scored_tokens": results[0].tokens,
        "scored_bytes": scored_bytes,
        "perplexity": [
            {"length": found.length, "times": found.length // length, **scores(found)}
            for found in results
        ],
    }
    if seen is not None:
        counting = counted(seen, model.config.vocab_size, validation, windows[length])
        models = [{"model": name, **scores(found)} for name, found in counting.items()]
        summary["ngrams"] = {"tokens": seen.size, "models": models}
    text = _markdown(folder.name, summary, length // 2, prompt, added)
    publish(folder, metrics, summary, text)
    _plot_perplexity(summary, folder.name, folder / "report")
    return text


def publish(
    folder: Path, metrics: list[dict[str, Any]], summary: dict[str, Any], text: str
) -> None:
    """Writes the files common to all reports: summary, text and a picture of the losses."""
    target = folder / "report"
    write_text(target / "report.json", json.dumps(summary, indent=1) + "\n")
    write_text(target / "report.md", text)
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for key, label, style in (("loss", "training", "-"), ("eval_loss", "validation", "o-")):
        points = [(row["step"], row[key]) for row in metrics if key in row]
        if points:
            axes.plot(*zip(*points, strict=True), style, label=label, markersize=4)
    axes.set(xlabel="step", ylabel="loss (nats per token)", title=folder.name)
    axes.grid(alpha=0.3)
    if axes.lines:  # a short run may have no log events
        axes.legend()
    write_figure(figure, target / "loss", ["png"])


def _markdown(name: str, summary: dict[str, Any], stride: int, prompt: str, added: str) -> str:
    ngrams = summary.get("ngrams", {"tokens": 0, "models": []})
    lines = [["window", "validation perplexity", "bits per byte"]]
    for row in [*summary["perplexity"], *ngrams["models"]]:
        title = row["model"] if "model" in row else f"{row['length']} ({row['times']}x)"
        bits = "-" if row["bits_per_byte"] is None else f"{row['bits_per_byte']:.4f}"
        lines.append([title, f"{row['perplexity']:.2f}", bits])
    counting = (
        "The n-gram models are interpolated Kneser-Ney models of the "
        f"{ngrams['tokens']:,} training tokens that the run saw.\n\n"
    )
    return f"""\
# {name}

{headline(summary)}

{markdown_table(lines)}

The last {stride} tokens of windows spread over the validation text are scored: \
{summary["scored_tokens"]:,} tokens, the same at every length.

{counting * bool(ngrams["models"])}\
Continuation of a validation text (temperature 0.8, top-p 0.95), after the bar:

{textwrap.indent(printable(f"{prompt}|{added}"), "    ", lambda line: True)}
"""


def printable(text: str) -> str:
    """Escapes control characters, which generated text may contain, for the terminal."""
    return "".join(
        c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text
    )


def _plot_perplexity(summary: dict[str, Any], name: str, folder: Path) -> None:
    rows, ngrams = summary["perplexity"], summary.get("ngrams", {"models": []})["models"]
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for style, row in zip((":", "--", "-."), ngrams, strict=False):
        label = f"{row['model']} {row['perplexity']:.1f}"
        axes.axhline(row["perplexity"], ls=style, color="gray", label=label)
    axes.plot([row["length"] for row in rows], [row["perplexity"] for row in rows], "o-")
    for row in rows:
        axes.annotate(
            f"{row['perplexity']:.1f}",
            (row["length"], row["perplexity"]),
            textcoords="offset points",
            xytext=(0, 8),
            ha="center",
        )
    axes.set_xscale("log", base=2)
    titles = [f"{row['length']} ({row['times']}x)" for row in rows]
    axes.set_xticks([row["length"] for row in rows], titles)
    axes.margins(x=0.15)
    # Leaves room for the numbers and keeps small differences visibly small.
    values = [row["perplexity"] for row in [*rows, *ngrams]]
    axes.set_ylim(0.9 * min(values), 1.15 * max(values))
    axes.set(xlabel="window (tokens)", ylabel="validation perplexity", title=name)
    if ngrams:
        axes.legend()
    axes.grid(alpha=0.3)
    write_figure(figure, folder / "perplexity", ["png"])
