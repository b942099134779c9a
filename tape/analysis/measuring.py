"""The clock, the memory and the device that the speed of encodings is measured with."""

from __future__ import annotations

import math
import os
import platform
import re
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or the profiler reports each start and stop


def synchronize() -> None:
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


class Seconds:
    """Times of several methods, round by round."""

    def __init__(self, rounds: dict[str, list[float]]):
        self.rounds = rounds

    def median(self, method: str) -> float:
        return statistics.median(self.rounds[method])

    def spread(self, method: str) -> tuple[float, float]:
        """The quartiles of the times."""
        return _quartiles(self.rounds[method])

    def _ratios(self, method: str, base: str) -> list[float]:
        return [a / b for a, b in zip(self.rounds[method], self.rounds[base], strict=True)]

    def ratio(self, method: str, base: str) -> float:
        """Median over the rounds of the ratio within a round."""
        return statistics.median(self._ratios(method, base))

    def quartiles(self, method: str, base: str) -> tuple[float, float]:
        """Those of the ratios within a round."""
        return _quartiles(self._ratios(method, base))


def _quartiles(values: list[float]) -> tuple[float, float]:
    low, _, high = statistics.quantiles(values, n=4)
    return low, high


def in_turn(
    work: dict[str, Callable[[], object]], repeats: int, warm_up: int = 2, least: float = 0.0
) -> Seconds:
    """Time each piece of work `repeats` times, one after the other in alternating order.

    Args:
        least: seconds that a measurement takes at least: what is over sooner is done several times
            in it, and the time is that of one of them.
    """
    rounds: dict[str, list[float]] = {method: [] for method in work}
    times = dict.fromkeys(work, 1)
    for number in range(-warm_up, repeats):
        for method in list(work) if number % 2 else list(work)[::-1]:
            synchronize()
            start = time.perf_counter()
            for _ in range(times[method]):
                work[method]()
            synchronize()
            once = (time.perf_counter() - start) / times[method]
            if number >= 0:
                rounds[method].append(once)
            else:
                times[method] = max(1, math.ceil(least / once))
    return Seconds(rounds)


def peak_flops(dtype: torch.dtype) -> float:
    """FLOP/s of the best of ten products of square matrices on the device."""
    side = 8192 if DEVICE.type == "cuda" else 1024
    a, b = (torch.randn(side, side, device=DEVICE, dtype=dtype) for _ in range(2))
    seconds = in_turn({"product": lambda: a @ b}, 10, warm_up=1)
    return 2 * side**3 / min(seconds.rounds["product"])


def reset_peak() -> None:
    if DEVICE.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    elif sys.platform == "linux":
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from what is in use


def memory_in_use(peak: bool) -> int:
    """Bytes: on the device, or resident in this process; now, or at most so far."""
    if DEVICE.type == "cuda":
        return torch.cuda.max_memory_allocated() if peak else torch.cuda.memory_allocated()
    if sys.platform == "linux":
        key = "VmHWM" if peak else "VmRSS"
        return _kib("/proc/self/status", key)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _kib(table: str, key: str) -> int:
    """Bytes, from a line `key: number kB` of one of the kernel's tables."""
    lines = Path(table).read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(key)).split()[1])


@contextmanager
def limit_memory() -> Iterator[None]:
    """Have a CPU refuse to allocate more than nine tenths of the memory that is free now, where it
    would have this process, or another, killed."""
    if DEVICE.type != "cpu" or sys.platform != "linux":
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_DATA)
    limit = _kib("/proc/self/status", "VmData") + _kib("/proc/meminfo", "MemAvailable") * 9 // 10
    if resource.RLIM_INFINITY not in before:
        limit = min(limit, *before)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


# What attention is called by the fused kernels of torch, flash-attn and this package.
FUSED = re.compile(
    r"_scaled_dot_product_\w+|\w*flash_fwd\w*|\w*fmha\w*|\w*sdpa\w*|\w*flex_attention\w*"
    r"|_CausalAttention"
)
MEASURED = "what is measured"


def observed(work: Callable[[], object]) -> tuple[int, list[str]]:
    """Bytes of tensors at most while the work is done, above those from before; and the fused
    kernels that attention ran in, none if it was products of matrices and a softmax."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if DEVICE.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        work()  # what it frees the next time was allocated under the profiler then
        synchronize()
        reset_peak()
        before = memory_in_use(peak=False)
        with torch.profiler.record_function(MEASURED):
            work()
            synchronize()
    events = profile.profiler.kineto_results.events()
    found = (FUSED.search(event.name()) for event in events)
    kernels = {match[0] for match in found if match}
    other = ("backward", "_attention_math")  # the latter is torch's when it has no fused one
    kernels = sorted(name for name in kernels if not name.lower().endswith(other))
    if DEVICE.type == "cuda":
        return memory_in_use(peak=True) - before, kernels
    # The process may also keep what was freed: its resident memory would say little.
    start = next(event.start_ns() for event in events if event.name() == MEASURED)
    used = peak = 0
    for at, change in sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]"):
        if at >= start:
            used += change
            peak = max(peak, used)
    return peak, kernels


def machine() -> str:
    """What a time belongs to."""
    if DEVICE.type == "cuda":
        return f"one {torch.cuda.get_device_name()}"
    model = platform.machine()
    if sys.platform == "linux":
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
        model = names[0] if names else model
    return f"{torch.get_num_threads()} threads on {model}"
