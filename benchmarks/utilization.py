"""Device utilization of runs: python benchmarks/utilization.py output/addition_20_adape ...

FLOPs of the forward and backward pass, counted by torch with full attention matrices and without
recomputation, at the training speed of one device, as a share of the peak FLOP/s of a known GPU in
16 bits (model FLOPs utilization, Chowdhery et al. 2022). On other devices and in float32, as a
share of the FLOP/s of a product of two large matrices on this machine.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median

import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig

from benchmarks.harness import parser, publish
from benchmarks.models import DEVICE, random_tokens
from benchmarks.timing import in_turn, matrix_product, reference_rate
from tape import TapeForCausalLM
from tape.command import Distinct, expected_errors
from tape.evaluation.tables import markdown_table
from tape.files import read_object
from tape.training.progress import MetricsFile, read_metrics
from tape.training.runs import TRAINED, last_complete, read_configuration, step_of

COLUMNS = ("run", "steps", "tokens/s", "TFLOP/s", "reference, TFLOP/s", "share")


def flops_per_token(folder: Path, length: int) -> float:
    """Returns training FLOPs per token of the model in a folder, for sequences of `length`
    tokens."""
    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    config._attn_implementation = "eager"  # the counter does not support every fused kernel
    model = TapeForCausalLM(config).to(DEVICE)
    ids = random_tokens(model, 1, length)
    with FlopCounterMode(display=False) as counter:
        model(ids, labels=ids, skip_logits=True).loss.backward()
    return counter.get_total_flops() / length


def row(folder: Path) -> list[str]:
    """Returns the cells of a run."""
    metrics = folder / MetricsFile.FILE
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder: give those of runs")
    settings = read_configuration(folder)
    if (folder / TRAINED).exists():
        read_object(folder / TRAINED)
    lines = metrics.read_text(errors="replace").splitlines() if metrics.exists() else []
    rows = read_metrics(metrics) if lines else []
    if lines and len(rows) < max(1, len(lines) - 1):  # the last may be half-written
        raise ValueError(f"{metrics}, line {len(rows) + 1}, is damaged: train again")
    saved = last_complete(folder)
    speeds = [row["tokens_per_second"] for row in rows if "tokens_per_second" in row]
    if saved is None or not speeds:  # the run has barely started
        return [folder.name, *"-" * (len(COLUMNS) - 1)]
    accumulated = settings["trainer.gradient_accumulation_steps"]
    of_a_device = settings["trainer.per_device_train_batch_size"] * accumulated
    speed = median(speeds) * of_a_device / settings["sequences_per_step"]
    half = {"trainer.bf16": torch.bfloat16, "trainer.fp16": torch.float16}
    dtype = next((half[key] for key in half if settings.get(key)), torch.float32)
    product, flops = matrix_product(dtype)
    fastest = min(in_turn({"": product}, 10, warm_up=1)[""])
    reference, rate = reference_rate(dtype, flops / fastest)
    used = speed * flops_per_token(saved, settings["length"])
    return [
        folder.name,
        f"{step_of(saved):,} of {settings['trainer.max_steps']:,}",
        f"{speed:,.0f}",
        f"{used / 1e12:.3g}",
        f"{rate / 1e12:.3g} ({reference}, {str(dtype).removeprefix('torch.')})",
        f"{used / rate:.1%}",
    ]


@expected_errors()
def main() -> None:
    found = parser(__doc__.replace(":", "\n\n", 1), rounds=None)
    found.add_argument("runs", type=Path, nargs="+", action=Distinct, help="folders of runs")
    arguments = found.parse_args()
    text = markdown_table([COLUMNS, *map(row, arguments.runs)])
    publish("utilization", arguments, text)


if __name__ == "__main__":
    main()
