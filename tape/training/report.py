"""Report of a finished run in report/: tables and plots."""

import json
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from transformers import PreTrainedTokenizerBase

from tape.core.files import write_text
from tape.core.metrics import MetricsFile, read_metrics
from tape.data.blocks import TokenStream
from tape.data.ngrams import ORDERS, NGrams
from tape.data.text_bytes import text_bytes
from tape.evaluation.figures import write_figure
from tape.evaluation.scoring import Perplexity, perplexity
from tape.evaluation.tables import markdown_table
from tape.evaluation.windows import Window, spread
from tape.model.modeling import TapeForCausalLM

TEXT = """\
# {name}

{headline}

{table}

The last {stride} tokens of windows spread over the validation text are scored: {tokens:,} tokens, \
the same at every length. 1x is the length of the training sequences, {length:,} tokens{kept}.
"""
KEPT = "; the model keeps the {:,} of its base"
ABOUT_GRAMS = """
The n-gram models are interpolated Kneser-Ney models of the {:,} training tokens that the run saw.
"""


def scored_windows(
    model: TapeForCausalLM, stream: TokenStream, length: int, tokens: int
) -> dict[int, list[Window]]:
    """Returns windows of 1x, 2x and 4x the training length that score the same tokens, as far as
    the text and the encoding's range allow."""
    longest = model.model.position.max_positions or len(stream)
    lengths = [n * length for n in (1, 2, 4) if n * length <= min(longest, len(stream))]
    return {n: spread(len(stream), n, length // 2, lengths[-1], tokens) for n in lengths}


def places(windows: list[Window]) -> np.ndarray:
    """Returns where the scored tokens are in the text: (M,)."""
    return np.concatenate([np.arange(window.first, window.stop) for window in windows])


def counted(
    seen: np.ndarray, vocabulary: int, stream: TokenStream, windows: list[Window]
) -> dict[str, Perplexity]:
    """Computes the perplexity of n-gram models of `seen`, (N, L) training sequences, on the tokens
    that the windows score, for each n - 1 tokens of context that all windows and sequences have."""
    context = min(window.first - window.start for window in windows)
    orders = {name: n for name, n in ORDERS.items() if n <= min(context + 1, seen.shape[1])}
    model = NGrams(seen, vocabulary, max(orders.values())) if orders else None
    scored, found = places(windows), {}
    for name, n in orders.items():
        grams = stream.tokens[scored[:, None] + np.arange(1 - n, 1)]
        nll = -np.log(model.probabilities(grams, n)).mean()
        found[name] = Perplexity(n, len(scored), float(nll))
    return found


def facts(folder: Path, model: TapeForCausalLM) -> dict[str, Any]:
    """Returns facts common to all reports: the model and a summary of its training metrics, with
    medians of the log events."""
    file = folder / MetricsFile.FILE
    if not (metrics := read_metrics(file)):
        raise ValueError(f"{file} is missing, or its first row is damaged: the run is incomplete")

    def of(key: str, summary: Callable[[list[float]], float], digits: int) -> float | None:
        values = [row[key] for row in metrics if key in row]
        return round(summary(values), digits) if values else None

    return {
        "position": model.config.position,
        "attention": model.config._attn_implementation,
        "parameters": model.num_parameters(),
        "steps": max(row["step"] for row in metrics),
        "tokens_per_second": of("tokens_per_second", median, 1),
        "peak_memory_gib": of("peak_memory_gib", max, 2),
    }


def headline(facts: dict[str, Any]) -> str:
    parts = [f"position {facts['position']['name']}", f"attention {facts['attention']}"]
    parts += [f"{facts['parameters']:,} parameters", f"{facts['steps']:,} steps"]
    if facts["tokens_per_second"] is not None:
        parts.append(f"{facts['tokens_per_second']:,.0f} tokens/s in training (median)")
        parts.append(f"peak memory {facts['peak_memory_gib']} GiB")
    return ", ".join(parts)


def write_report(
    folder: Path,
    model: TapeForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    validation: TokenStream,
    length: int,
    tokens: int,
    seen: np.ndarray | None = None,
    base: TapeForCausalLM | None = None,
) -> str:
    """Writes folder/report/ and returns its text. `seen`, (N, L) training sequences, adds n-gram
    models of these. `base`, the model that training started from, adds its perplexities at the
    lengths that its encoding can read."""
    model.eval()
    windows = scored_windows(model, validation, length, tokens)
    scored = places(windows[length])
    scored_bytes = text_bytes(tokenizer, validation, scored)

    def scores(each: Perplexity) -> dict[str, float | None]:
        return {"perplexity": each.perplexity, "bits_per_byte": each.bits_per_byte(scored_bytes)}

    found = {n: scores(perplexity(model, validation.tokens, windows[n], n)) for n in windows}
    before: dict[int, float] = {}
    if base is not None:
        known = scored_windows(base.eval(), validation, length, tokens).keys() & windows.keys()
        before = {
            n: perplexity(base, validation.tokens, windows[n], n).perplexity for n in sorted(known)
        }
    summary = facts(folder, model) | {"scored_tokens": len(scored), "scored_bytes": scored_bytes}
    summary["perplexity"] = [{"length": n, "times": n // length, **found[n]} for n in found]
    for row in summary["perplexity"]:
        if row["length"] in before:
            row["base_perplexity"] = before[row["length"]]
    grams: dict[str, dict[str, float | None]] = {}
    if seen is not None:
        models = counted(seen, model.config.vocab_size, validation, windows[length])
        grams = {name: scores(each) for name, each in models.items()}
        listed = [{"model": name, **each} for name, each in grams.items()]
        summary["ngrams"] = {"tokens": seen.size, "models": listed}
    lines = [["window", "validation perplexity", "bits per byte"]]
    for name, each in ({f"{n} ({n // length}x)": found[n] for n in found} | grams).items():
        bits = each["bits_per_byte"]
        lines.append([name, f"{each['perplexity']:.2f}", "-" if bits is None else f"{bits:.4f}"])
    if before:
        cells = [f"{before[n]:.2f}" if n in before else "-" for n in found]
        cells = ["perplexity of the base", *cells, *["-"] * len(grams)]
        lines = [[*line, cell] for line, cell in zip(lines, cells, strict=True)]
    about, table = headline(summary), markdown_table(lines)
    longest = model.config.max_position_embeddings
    kept = KEPT.format(longest) if longest > length and base is not None else ""
    counts = {"stride": length // 2, "tokens": len(scored), "length": length, "kept": kept}
    text = TEXT.format(name=folder.name, headline=about, table=table, **counts)
    if grams:
        text += ABOUT_GRAMS.format(seen.size)
    publish(folder, summary, text)
    curves = {folder.name: [(n, each["perplexity"]) for n, each in found.items()]}
    curves["base"] = [*before.items()]
    curves |= {name: [(n, each["perplexity"]) for n in windows] for name, each in grams.items()}
    axes = {"xlabel": "window (tokens)", "ylabel": "validation perplexity", "xticks": [*windows]}
    draw(folder / "report" / "perplexity", curves, folder.name, **axes)
    return text


def publish(folder: Path, summary: dict[str, Any], text: str) -> None:
    """Writes the files of all reports: summary, text and a picture of the losses."""
    target, metrics = folder / "report", read_metrics(folder / MetricsFile.FILE)
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
        figure.legend(loc="outside right upper")
    write_figure(figure, target, ["png"])
