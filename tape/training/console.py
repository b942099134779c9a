"""Progress of a run on the console."""

from __future__ import annotations

import re
import resource
import sys
import time

import torch
from tqdm import tqdm
from transformers import TrainerCallback

# Dense FLOP/s in 16 bits, from the data sheets; the first name within that of the GPU counts.
PEAKS = {
    "B200": 2250e12,
    "H200 NVL": 835e12,
    "H200": 989e12,
    "GH200": 989e12,
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "A40": 150e12,
    "A30": 165e12,
    "L4": 121e12,
}


def peak_memory() -> int:
    """Returns bytes: peak memory of the GPU, otherwise peak resident size of this process."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def peak_flops(device: torch.device, dtype: torch.dtype) -> float | None:
    """Returns the peak FLOP/s of a GPU in 16 bits; None in float32, for which tensor cores may or
    may not be used, for a part of a GPU and for devices that PEAKS does not list."""
    if device.type != "cuda" or dtype.itemsize != 2:
        return None
    name = torch.cuda.get_device_name(device)
    known = (peak for gpu, peak in PEAKS.items() if re.search(rf"\b{gpu}\b", name))
    return None if "MIG" in name else next(known, None)


class Console(TrainerCallback):
    """Prints a line per log event with tokens/s and time left, and on a terminal a progress bar
    unless every step has its line. Adds the speed, the peak memory and the share of time spent
    waiting for data to the log.

    Args:
        flops: of a training step per token, forward and backward. Adds the model FLOP utilization
            (`mfu`), FLOP/s of training over the device's peak, where that is known.
    """

    def __init__(self, flops: float | None = None):
        self.flops, self.peak = flops, None
        self.tokens = 0  # of all processes since the last log event, including padding
        self.waited = 0.0  # seconds for batches since the last log event
        self.seconds, self.steps = 0.0, 0  # since then in steps, without evaluation and saving
        self.bar: tqdm | None = None

    def on_train_begin(self, args, state, control, **kwargs):
        if self.flops is not None:
            in_16_bits = torch.bfloat16 if args.bf16 else torch.float16 if args.fp16 else None
            self.peak = peak_flops(args.device, in_16_bits or torch.float32)
        if state.is_world_process_zero and state.logging_steps != 1:  # where steps have no line
            how = {"unit": "step", "leave": False, "disable": None}
            self.bar = tqdm(total=state.max_steps, initial=state.global_step, **how)

    def on_step_begin(self, args, state, control, **kwargs):
        self.began = time.perf_counter()

    def on_step_end(self, args, state, control, **kwargs):
        self.seconds, self.steps = self.seconds + time.perf_counter() - self.began, self.steps + 1
        if self.bar is not None:
            self.bar.update(1)
        if state.global_step == state.max_steps and not any("loss" in x for x in state.log_history):
            control.should_log = True  # a run of fewer steps than logging_steps

    def on_log(self, args, state, control, logs, **kwargs):
        if "loss" in logs and self.steps:
            speed = self.tokens / self.seconds
            logs["tokens_per_second"] = round(speed, 1)
            logs["peak_memory_gib"] = round(peak_memory() / 2**30, 3)
            logs["data_share"] = round(self.waited / (self.waited + self.seconds), 5)
            line = f"loss {logs['loss']:.4f}  lr {logs['learning_rate']:.2e}  {speed:,.0f} tokens/s"
            if self.peak is not None:
                logs["mfu"] = round(speed * self.flops / (args.world_size * self.peak), 4)
                line += f" ({logs['mfu']:.1%} MFU)"
            left = (state.max_steps - state.global_step) * self.seconds / self.steps
            self._say(state, f"{line}  {tqdm.format_interval(left)} left")
            self.tokens, self.waited, self.seconds, self.steps = 0, 0.0, 0.0, 0
        elif measured := {key: logs[key] for key in logs if key.startswith("eval_")}:
            measured = {"eval_loss": measured["eval_loss"]} if "eval_loss" in logs else measured
            named = (f"{key[5:].replace('_', ' ')} {x:.4f}" for key, x in measured.items())
            self._say(state, f"validation {', '.join(named)}")

    def on_train_end(self, args, state, control, **kwargs):
        if self.bar is not None:
            self.bar.close()

    def _say(self, state, line: str) -> None:
        if state.is_world_process_zero:
            tqdm.write(f"step {state.global_step}/{state.max_steps}  {line}")
