"""The clock and the memory counters of the benchmarks."""

from __future__ import annotations

import math
import os
import re
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.models import DEVICE
from tape.training.console import peak_flops

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or the profiler reports each start and stop
Work = Callable[[], Any]


class Spread(NamedTuple):
    """Median and quartiles; of fewer than three values the least and the greatest."""

    median: float
    first: float
    third: float

    @classmethod
    def of(cls, values: list[float]) -> Spread:
        few = len(values) < 3
        low, _, high = (min(values), 0, max(values)) if few else statistics.quantiles(values, n=4)
        return cls(statistics.median(values), low, high)

    @classmethod
    def of_ratios(cls, times: list[float], base: list[float]) -> Spread:
        """Of the ratios within rounds."""
        return cls.of([a / b for a, b in zip(times, base, strict=True)])

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.first:.2f} to {self.third:.2f})"


def synchronize() -> None:
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def in_turn(
    work: dict[str, Work], rounds: int, warm_up: int = 2, least: float = 0.0
) -> dict[str, list[float]]:
    """Times each method `rounds` times, one after the other in alternating order.

    Args:
        least: minimal duration of a measurement in seconds. Shorter work is repeated within it.

    Returns:
        Seconds per call, by method and round.
    """
    seconds: dict[str, list[float]] = {method: [] for method in work}
    calls = dict.fromkeys(work, 1)
    for number in range(-warm_up, rounds):
        for method in list(work) if number % 2 else list(work)[::-1]:
            synchronize()
            start = time.perf_counter()
            for _ in range(calls[method]):
                work[method]()
            synchronize()
            once = (time.perf_counter() - start) / calls[method]
            if number >= 0:
                seconds[method].append(once)
            else:
                calls[method] = max(1, math.ceil(least / once))
    return seconds


def matrix_product(dtype: torch.dtype) -> tuple[Work, int]:
    """Returns a product of square matrices on the device, and its FLOPs."""
    side = 8192 if DEVICE.type == "cuda" else 1024
    a, b = (torch.randn(side, side, device=DEVICE, dtype=dtype) for _ in range(2))
    return lambda: a @ b, 2 * side**3


def reference_rate(dtype: torch.dtype, product: float) -> tuple[str, float]:
    """Returns what speeds are compared with, and its FLOP/s: the peak of a known GPU, elsewhere
    `product`, those of a matrix product on this machine."""
    peak = peak_flops(DEVICE, dtype)
    return ("matrix product", product) if peak is None else ("peak", peak)


# ---- memory


def memory_in_use() -> int:
    """Returns bytes allocated on the device, or resident in this process."""
    if DEVICE.type == "cuda":
        return torch.cuda.memory_allocated()
    if sys.platform == "linux":
        return kib("/proc/self/status", "VmRSS")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def kib(table: str, key: str) -> int:
    """Bytes, from a line `key: number kB` of one of the kernel's tables."""
    lines = Path(table).read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(key)).split()[1])


@contextmanager
def limit_memory() -> Iterator[None]:
    """Makes a CPU refuse allocations beyond nine tenths of the free memory, where the system would
    kill this process or another."""
    if DEVICE.type != "cpu" or sys.platform != "linux":
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_DATA)
    limit = kib("/proc/self/status", "VmData") + kib("/proc/meminfo", "MemAvailable") * 9 // 10
    if resource.RLIM_INFINITY not in before:
        limit = min(limit, *before)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


# Names of attention in the fused kernels of torch, flash-attn and this package.
FUSED = re.compile(
    r"_scaled_dot_product_\w+|\w*flash_fwd\w*|\w*fmha\w*|\w*sdpa\w*|\w*flex_attention\w*"
    r"|_CausalAttention"
)
COUNTED = "counted calls"


def observed(work: Work, warm_up: int = 1, calls: int = 1) -> tuple[int, list[str], Any]:
    """Calls some work under torch's profiler.

    Args:
        warm_up: calls before memory is counted.
        calls: calls whose memory is counted.

    Returns:
        The peak of tensors in bytes above those before the counted calls; the fused kernels of
        attention, none if it was matrix products and a softmax; and what the last call returned.
    """
    activities = [torch.profiler.ProfilerActivity.CPU]
    if DEVICE.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
        torch.cuda.reset_peak_memory_stats()
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        for _ in range(warm_up):  # what the counted calls free must be allocated in the profiler
            work()
        synchronize()
        before = memory_in_use()
        if DEVICE.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        with torch.profiler.record_function(COUNTED):
            for _ in range(calls):
                result = work()
            synchronize()
    events = profile.profiler.kineto_results.events()
    found = (FUSED.search(event.name()) for event in events)
    names = {match[0] for match in found if match}
    other = ("backward", "_attention_math")  # the latter is torch's without a fused kernel
    kernels = sorted(name for name in names if not name.lower().endswith(other))
    if DEVICE.type == "cuda":
        return torch.cuda.max_memory_allocated() - before, kernels, result
    # The process may keep what was freed: its resident memory would say little.
    start = next(event.start_ns() for event in events if event.name() == COUNTED)
    used = peak = 0
    for at, change in sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]"):
        if at >= start:
            used += change
            peak = max(peak, used)
    return peak, kernels, result
