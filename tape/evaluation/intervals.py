"""How sure a measure is: 95 % intervals of shares, and of means over seeds."""

from __future__ import annotations

from statistics import NormalDist, stdev

from scipy.stats import t

Z = NormalDist().inv_cdf(0.975)


def wilson(correct: int, total: int) -> tuple[float, float]:
    """The 95 % interval of a share of which `correct` out of `total` were seen (Wilson 1927);
    unlike the normal one it says something where all are right, or none."""
    share, z2 = correct / total, Z * Z / total
    middle = share + z2 / 2
    spread = Z * ((share * (1 - share) + z2 / 4) / total) ** 0.5
    return max(0.0, (middle - spread) / (1 + z2)), min(1.0, (middle + spread) / (1 + z2))


def with_interval(correct: int, total: int) -> dict[str, float] | None:
    """A share with its interval, as results have it; None of nothing."""
    if not total:
        return None
    low, high = wilson(correct, total)
    return {
        "accuracy": correct / total,
        "low": low,
        "high": high,
        "correct": correct,
        "total": total,
    }


def student(values: list[float]) -> float:
    """Half the width of the 95 % interval of the mean, from two values or more (Student 1908)."""
    return float(t.ppf(0.975, len(values) - 1)) * stdev(values) / len(values) ** 0.5
