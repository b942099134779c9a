"""How long the training of a sweep takes, before it begins and without torch."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tape.sweep.checks import compose_run
from tape.sweep.plan import Run, duration

UTILIZATION = 0.4  # of a matrix product's speed; small models reach 0.3 to 0.6 (docs/efficiency.md)


def tokens(settings: Mapping[str, Any]) -> int:
    """Returns the tokens that a run trains on, at most and per process."""
    trainer = settings["trainer"]
    steps = trainer["max_steps"] * trainer["gradient_accumulation_steps"]
    return steps * trainer["per_device_train_batch_size"] * settings["length"]


def flops_per_token(settings: Mapping[str, Any]) -> int:
    """Returns FLOPs of a training step per token: two per multiply-add of the matrices and of
    the full scores, and twice as many in the backward pass. Encodings are not counted."""
    model = settings["model"]
    hidden, heads = model["hidden_size"], model["num_attention_heads"]
    width = model.get("head_dim") or hidden // heads
    keys = model["num_key_value_heads"] or heads
    layer = 2 * hidden * width * (heads + keys) + 3 * hidden * model["intermediate_size"]
    layer += 2 * settings["length"] * heads * width
    vocabulary = model["vocab_size"] or settings["vocab_size"]
    return 6 * (model["num_hidden_layers"] * layer + vocabulary * hidden)


def product_flops() -> float:
    """Measures FLOP/s of a product of large matrices on all cores, the best of three."""
    size, best = 2048, float("inf")
    matrix = np.ones((size, size), dtype=np.float32)
    for _ in range(3):
        begun = time.perf_counter()
        matrix @ matrix
        best = min(best, time.perf_counter() - begun)
    return 2 * size**3 / best


def estimate(runs: Sequence[Run]) -> str | None:
    """Describes the training of runs: tokens, and the time on this CPU. None for no runs, for
    models that are loaded and for other programs than train.py, whose size is not known here."""
    first = {run.row: run for run in reversed(runs)}
    known = {row: compose_run(run.train) for row, run in first.items()}
    if not runs or any(settings is None or settings["base_model"] for settings in known.values()):
        return None
    work = [(tokens(known[run.row]), flops_per_token(known[run.row])) for run in runs]
    text = f"{len(runs)} runs, up to {sum(each for each, _ in work):,} tokens of training"
    if shutil.which("nvidia-smi"):
        return text
    seconds = sum(each * flops for each, flops in work) / (UTILIZATION * product_flops())
    text += f": about {duration(seconds)} on this CPU, without evaluation"
    if any(settings["task"].get("criterion") is not None for settings in known.values()):
        text += "; runs stop earlier if they reach their criterion"
    return text
