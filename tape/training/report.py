"""The end of a run: what was learned, as tables, plots and a sample, in report/."""

from __future__ import annotations

import json
import resource
import sys
import textwrap
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from transformers import PreTrainedTokenizerBase, set_seed

from tape.data.blocks import TokenStream
from tape.evaluation.perplexity import Perplexity, sliding_perplexity, window_ends
from tape.files import write_text
from tape.modeling import TapeForCausalLM
from tape.training.trainer import read_metrics


def perplexities(
    model: TapeForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    stream: TokenStream,
    length: int,
    tokens: int,
) -> tuple[list[Perplexity], int]:
    """Perplexity at 1x, 2x and 4x the training length on the same tokens, as far as the text and
    the encoding's range go, and how many bytes of text those tokens are."""
    stride = length // 2
    lengths = [factor * length for factor in (1, 2, 4) if len(stream) >= factor * length]
    if not lengths:
        raise ValueError(
            f"the validation text has {len(stream):,} tokens, too few for windows of {length}"
        )
    ends = window_ends(len(stream), lengths[-1], stride, tokens)
    results = []
    for window in lengths:
        try:
            results.append(sliding_perplexity(model, stream.tokens, ends, window, stride))
        except ValueError as refusal:  # RandPE beyond the range that it was trained on
            print(f"perplexity at {window} left out: {refusal}", file=sys.stderr)
    scored = [stream.tokens[end - stride : end] for end in ends]
    texts = tokenizer.batch_decode(scored, skip_special_tokens=True)
    return results, sum(len(text.encode()) for text in texts)


def continuation(
    model: TapeForCausalLM, tokenizer: PreTrainedTokenizerBase, stream: TokenStream, seed: int
) -> tuple[str, str]:
    """A prompt of 48 tokens from the validation text and 96 tokens that the model adds to it."""
    set_seed(seed)
    prompt = torch.from_numpy(stream.tokens[:48].astype("int64"))[None].to(model.device)
    with torch.no_grad():
        output = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=96,
            do_sample=True,
            temperature=0.8,
            top_p=0.95,
            pad_token_id=tokenizer.pad_token_id or tokenizer.eos_token_id,
        )
    return tokenizer.decode(prompt[0]), tokenizer.decode(output[0, prompt.shape[1] :])


def write_report(
    folder: Path,
    model: TapeForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    validation: TokenStream,
    length: int,
    tokens: int,
    seed: int,
) -> str:
    """Write folder/report/ and return its text, which is also what the console shows."""
    model.eval()
    results, scored_bytes = perplexities(model, tokenizer, validation, length, tokens)
    prompt, added = continuation(model, tokenizer, validation, seed)
    metrics = read_metrics(folder / "metrics.jsonl")
    speeds = [row["tokens_per_second"] for row in metrics if "tokens_per_second" in row]
    summary: dict[str, Any] = {
        "position": model.config.position,
        "attention": model.config._attn_implementation,
        "parameters": model.num_parameters(),
        "steps": max(row["step"] for row in metrics),
        "tokens_per_second": median(speeds) if speeds else None,
        "peak_memory_gib": round(peak_memory() / 2**30, 2),
        "scored_tokens": results[0].tokens,
        "perplexity": [
            {
                "length": result.length,
                "times": result.length // length,
                "perplexity": result.perplexity,
                "bits_per_byte": result.bits_per_byte(scored_bytes),
            }
            for result in results
        ],
    }
    text = _markdown(folder.name, summary, results[0].stride, prompt, added)
    target = folder / "report"
    write_text(target / "report.json", json.dumps(summary, indent=1) + "\n")
    write_text(target / "report.md", text)
    _plot_loss(metrics, folder.name, target / "loss.png")
    _plot_perplexity(summary["perplexity"], folder.name, target / "perplexity.png")
    return text


def peak_memory() -> int:
    """Bytes: of the device, else the largest resident size of this process so far."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _markdown(name: str, summary: dict[str, Any], stride: int, prompt: str, added: str) -> str:
    speed = summary["tokens_per_second"]
    rows = [
        f"| {row['length']} ({row['times']}x) | {row['perplexity']:.2f} | "
        f"{row['bits_per_byte']:.4f} |"
        for row in summary["perplexity"]
    ]
    return "\n".join(
        [
            f"# {name}",
            "",
            f"position {summary['position']['name']}, attention {summary['attention']}, "
            f"{summary['parameters']:,} parameters, {summary['steps']:,} steps, "
            f"{'-' if speed is None else format(speed, ',.0f')} tokens/s in training (median), "
            f"peak memory {summary['peak_memory_gib']} GiB",
            "",
            "| window | validation perplexity | bits per byte |",
            "|---|---|---|",
            *rows,
            "",
            f"The last {stride} tokens of windows spread over the validation text are scored: "
            f"{summary['scored_tokens']:,} tokens, the same at every length.",
            "",
            "Continuation of a validation text (temperature 0.8, top-p 0.95), after the bar:",
            "",
            textwrap.indent(_printable(f"{prompt}|{added}"), "    ", lambda line: True),
            "",
        ]
    )


def _printable(text: str) -> str:
    """What a model says may hold any control character; a terminal should not obey them."""
    return "".join(
        c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text
    )


def _save(figure: plt.Figure, path: Path) -> None:
    figure.tight_layout()
    work = path.with_suffix(".tmp.png")
    figure.savefig(work, dpi=150)
    plt.close(figure)
    work.replace(path)


def _plot_loss(metrics: list[dict[str, Any]], name: str, path: Path) -> None:
    figure, axes = plt.subplots(figsize=(6, 4))
    for key, label, style in (("loss", "training", "-"), ("eval_loss", "validation", "o-")):
        points = [(row["step"], row[key]) for row in metrics if key in row]
        if points:
            axes.plot(*zip(*points, strict=True), style, label=label, markersize=4)
    axes.set(xlabel="step", ylabel="loss (nats per token)", title=name)
    axes.grid(alpha=0.3)
    axes.legend()
    _save(figure, path)


def _plot_perplexity(rows: list[dict[str, Any]], name: str, path: Path) -> None:
    figure, axes = plt.subplots(figsize=(6, 4))
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
    axes.set_xticks([row["length"] for row in rows])
    axes.set_xticklabels([f"{row['length']} ({row['times']}x)" for row in rows])
    axes.margins(x=0.15, y=0.25)
    axes.set(xlabel="window (tokens)", ylabel="validation perplexity", title=name)
    axes.grid(alpha=0.3)
    _save(figure, path)
