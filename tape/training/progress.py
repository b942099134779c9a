"""Progress of a run: lines on the console, rows in metrics.jsonl."""

from __future__ import annotations

import json
import math
import resource
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
from tqdm import tqdm
from transformers import TrainerCallback

from tape.files import reading, write_text


class MetricsFile(TrainerCallback):
    """Writes one JSON object per log event to metrics.jsonl. A resumed run drops the lines of the
    steps that it repeats."""

    FILE = "metrics.jsonl"

    def on_train_begin(self, args, state, control, **kwargs):
        path = Path(args.output_dir) / self.FILE
        if state.is_world_process_zero and path.exists():
            kept = [row for row in read_metrics(path) if row["step"] <= state.global_step]
            write_text(path, "".join(json.dumps(row) + "\n" for row in kept))

    def on_log(self, args, state, control, logs=None, **kwargs):
        logs = logs or {}
        if "train_loss" in logs:  # the library's summary of the steps since the last start
            if state.global_step < state.max_steps:
                return
            logs = {"total_flos": logs["total_flos"]}
        if state.is_world_process_zero:
            with (Path(args.output_dir) / self.FILE).open("a") as file:
                file.write(json.dumps({"step": state.global_step, **logs}) + "\n")


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Returns the rows of a metrics.jsonl up to the first invalid one, e.g. the last line of a run
    that was killed while writing."""
    rows = []
    for line in path.read_text(errors="replace").splitlines():
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            break
        if not isinstance(row, dict) or not isinstance(row.get("step"), int):
            break
        rows.append(row)
    return rows


def metric_rows(folder: Path) -> list[dict[str, Any]]:
    """The metrics of a run in long form: losses by step, the median speed, the peak memory; none if
    the run keeps no metrics.

    Raises:
        ValueError: if the file is damaged, or has no training loss.
    """
    path = folder / MetricsFile.FILE
    if not path.exists():
        return []
    logged = read_metrics(path)
    if not any("loss" in row for row in logged):
        raise ValueError(f"{path} contains no training loss")
    rows = []
    with reading(path):
        for name, key in (("training loss", "loss"), ("validation loss", "eval_loss")):
            for row in logged:
                if key in row:
                    value = _measured(key, row[key])
                    rows.append(
                        {"measure": name, "step": row["step"], "value": value, "unit": "nats"}
                    )
        for name, key, of, unit in (
            ("speed", "tokens_per_second", median, "tokens/s"),
            ("peak memory", "peak_memory_gib", max, "GiB"),
        ):
            values = [_measured(key, row[key]) for row in logged if "loss" in row]
            rows.append({"measure": name, "value": of(values), "unit": unit})
    return [row | {"n": 1} for row in rows]


def _measured(key: str, value: Any) -> float:
    if not 0 <= float(value) < math.inf:
        raise ValueError(f"{key} must be finite and not negative")
    return float(value)


def _duration(seconds: int) -> str:
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"


def peak_memory() -> int:
    """Returns bytes: peak memory of the GPU, otherwise peak resident size of this process."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def product_flops(device: torch.device, dtype: torch.dtype) -> float:
    """Measures FLOP/s of a product of large matrices, the best of five."""
    size, seconds = 512 if device.type == "cpu" else 8192, []
    generator = torch.Generator().manual_seed(0)  # the run's random state is not touched
    matrix = torch.randn(size, size, generator=generator).to(device, dtype)
    for _ in range(5):
        began = time.perf_counter()
        product = matrix @ matrix
        product[0, 0].item()  # waits for the device
        seconds.append(time.perf_counter() - began)
    return 2 * size**3 / min(seconds)


class Console(TrainerCallback):
    """Prints a line per log event with tokens/s and time left, and a progress bar on a terminal.
    Adds the speed, the peak memory and the share of time spent waiting for data to the log.

    Args:
        flops: of a training step per token, forward and backward. Adds the model FLOP utilization:
            FLOP/s of training over those of a product of large matrices (`product_flops`).
    """

    def __init__(self, flops: float | None = None):
        self.flops = flops
        self.tokens = 0  # of all processes since the last log event, including padding
        self.seconds = 0.0  # of training steps, without evaluation and saving
        self.steps = self.steps_since_log = 0
        self.seconds_since_log = 0.0
        self.waited = 0.0  # seconds for batches since the last log event
        self.bar: tqdm | None = None

    def on_train_begin(self, args, state, control, **kwargs):
        if self.flops is not None:
            without_bf16 = torch.float16 if args.fp16 else torch.float32
            dtype = torch.bfloat16 if args.bf16 else without_bf16
            self.peak = product_flops(args.device, dtype) * args.world_size
        if state.is_world_process_zero:
            self.bar = tqdm(
                total=state.max_steps, initial=state.global_step, unit="step", disable=None
            )

    def on_step_begin(self, args, state, control, **kwargs):
        self.began = time.perf_counter()

    def on_step_end(self, args, state, control, **kwargs):
        elapsed = time.perf_counter() - self.began
        self.seconds, self.steps = self.seconds + elapsed, self.steps + 1
        self.seconds_since_log += elapsed
        self.steps_since_log += 1
        if self.bar is not None:
            self.bar.update(1)
        if state.global_step == state.max_steps and not any("loss" in x for x in state.log_history):
            control.should_log = True  # a run of fewer steps than logging_steps

    def on_log(self, args, state, control, logs=None, **kwargs):
        logs = logs if logs is not None else {}
        if "loss" in logs and self.steps_since_log:
            logs["tokens_per_second"] = round(self.tokens / self.seconds_since_log, 1)
            logs["peak_memory_gib"] = round(peak_memory() / 2**30, 3)
            share = self.waited / (self.waited + self.seconds_since_log)
            logs["data_share"] = round(share, 5)
            utilization = ""
            if self.flops is not None:
                logs["mfu"] = round(logs["tokens_per_second"] * self.flops / self.peak, 4)
                utilization = f" ({logs['mfu']:.1%} MFU)"
            self.seconds_since_log, self.steps_since_log, self.tokens = 0.0, 0, 0
            self.waited = 0.0
            left = int((state.max_steps - state.global_step) * self.seconds / self.steps)
            self._say(
                state,
                f"loss {logs['loss']:.4f}  lr {logs['learning_rate']:.2e}  "
                f"{logs['tokens_per_second']:,.0f} tokens/s{utilization}  "
                f"{_duration(left)} left",
            )
        elif "eval_loss" in logs:
            self._say(state, f"validation loss {logs['eval_loss']:.4f}")
        elif measured := {key: logs[key] for key in logs if key.startswith("eval_")}:
            named = (f"{key[5:].replace('_', ' ')} {x:.4f}" for key, x in measured.items())
            self._say(state, f"validation {', '.join(named)}")

    def on_train_end(self, args, state, control, **kwargs):
        if self.bar is not None:
            self.bar.close()

    def _say(self, state, line: str) -> None:
        if state.is_world_process_zero:
            tqdm.write(f"step {state.global_step}/{state.max_steps}  {line}")
