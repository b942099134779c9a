"""Device utilization of runs: python benchmarks/utilization.py output/addition_20_adape ...

Model FLOPs utilization (Chowdhery et al. 2022): FLOPs of the forward and backward pass, counted by
torch with full attention matrices and without recomputation, at the training speed of one device,
divided by the FLOP/s that the device reaches in a product of two large matrices in the run's dtype.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median

import torch
from measuring import publish, table, table_folder
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig

from tape import TapeForCausalLM
from tape.analysis.decoders import random_tokens
from tape.analysis.measuring import DEVICE, peak_flops
from tape.command import Parser, expected_errors
from tape.training.progress import MetricsFile, read_metrics
from tape.training.runs import last_complete, read_configuration, step_of


def flops_per_token(folder: Path, length: int) -> float:
    """Returns training FLOPs per token of the model in a folder, for sequences of `length`
    tokens."""
    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    config._attn_implementation = "eager"  # the counter does not support every fused kernel
    model = TapeForCausalLM(config).to(DEVICE)
    ids = random_tokens(model, 1, length)
    with FlopCounterMode(display=False) as counter:
        model(ids, labels=ids).loss.backward()
    return counter.get_total_flops() / length


def row(folder: Path) -> dict[str, str]:
    columns = ("run", "steps", "tokens/s", "TFLOP/s", "peak", "MFU")
    metrics = folder / MetricsFile.FILE
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder: give those of runs")
    lines = metrics.read_text(errors="replace").splitlines() if metrics.exists() else []
    rows = read_metrics(metrics) if lines else []
    if lines and len(rows) < max(1, len(lines) - 1):  # the last may be half-written
        raise ValueError(f"{metrics}, line {len(rows) + 1}, is damaged: train again")
    saved = last_complete(folder)
    speeds = [row["tokens_per_second"] for row in rows if "tokens_per_second" in row]
    if saved is None or not speeds:  # the run has barely started
        return {**dict.fromkeys(columns, "-"), "run": folder.name}
    settings = read_configuration(folder)
    in_turn = settings["trainer.gradient_accumulation_steps"]
    at_once = settings["trainer.per_device_train_batch_size"] * in_turn
    speed = median(speeds) * at_once / settings["sequences_per_step"]  # of one device of several
    half = {"trainer.bf16": torch.bfloat16, "trainer.fp16": torch.float16}
    dtype = next((half[key] for key in half if settings.get(key)), torch.float32)
    used, peak = speed * flops_per_token(saved, settings["length"]), peak_flops(dtype)
    return {
        "run": folder.name,
        "steps": f"{step_of(saved):,} of {settings['trainer.max_steps']:,}",
        "tokens/s": f"{speed:,.0f}",
        "TFLOP/s": f"{used / 1e12:.3g}",
        "peak": f"{peak / 1e12:.3g} ({str(dtype).removeprefix('torch.')})",
        "MFU": f"{used / peak:.1%}",
    }


if __name__ == "__main__":
    parser = Parser(description=__doc__.split(":")[0])
    parser.add_argument("runs", type=Path, nargs="+", help="folders of runs")
    parser.add_argument(
        "--out", type=table_folder, help="folder for the table; printed only by default"
    )
    arguments = parser.parse_args()
    with expected_errors():
        publish("utilization", table([row(run) for run in arguments.runs]), arguments.out)
