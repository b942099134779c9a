"""Gain in compute: how much less an encoding needs than a reference to reach the same loss.

The losses of the reference at several costs give its curve L(C) = E + A C^-a, with E >= 0. The gain
of an encoding with loss l at cost c is C*(l) / c, where the reference reaches l at cost C*. Costs
are FLOPs, or seconds for the gain in wall time. Intervals are of the bootstrap over seeds, which
are paired between the encodings, and over documents.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tape.core.statistics import CONFIDENCE

EXPONENTS = np.geomspace(0.01, 2, 200)  # that are tried for a
LEAST = 3  # costs of a curve, which has three parameters
DRAWS = 2_000


class Curve(NamedTuple):
    """L(C) = floor + scale * C^-exponent."""

    floor: float
    scale: float
    exponent: float

    def loss(self, cost: np.ndarray | float) -> np.ndarray | float:
        return self.floor + self.scale * np.asarray(cost, float) ** -self.exponent

    def cost(self, loss: float) -> float:
        """Returns the cost at which the loss is reached; infinity at or below the floor."""
        if loss <= self.floor:
            return np.inf
        return float((self.scale / (loss - self.floor)) ** (1 / self.exponent))


class Gain(NamedTuple):
    """A gain with its 95 % interval; infinity: the reference would never reach the loss."""

    value: float
    low: float
    high: float


def fit(costs: Sequence[float], losses: Sequence[float]) -> Curve:
    """Fits the curve by least squares: for each exponent floor and scale have a closed form, in
    which a negative floor is replaced by 0.

    Args:
        costs: of three or more sizes, > 0.
        losses: at these costs; they have to fall on the whole.

    Raises:
        ValueError: for fewer costs, or losses that do not fall with the cost.
    """
    costs, losses = np.asarray(costs, float), np.asarray(losses, float)
    if len(costs) < LEAST or len({*costs}) < LEAST or costs.min() <= 0:
        raise ValueError(f"costs {costs.tolist()}: a curve needs {LEAST} or more that differ, > 0")
    unit = np.exp(np.log(costs).mean())  # keeps powers near 1
    powers = (costs / unit) ** -EXPONENTS[:, None]
    mean = powers.mean(-1, keepdims=True)
    scale = ((powers - mean) * (losses - losses.mean())).sum(-1) / ((powers - mean) ** 2).sum(-1)
    floor = losses.mean() - scale * mean[:, 0]
    through_zero = (powers * losses).sum(-1) / (powers**2).sum(-1)
    scale, floor = np.where(floor < 0, through_zero, scale), np.maximum(floor, 0)
    errors = ((floor[:, None] + scale[:, None] * powers - losses) ** 2).sum(-1)
    best = np.where(scale > 0, errors, np.inf).argmin()
    if scale[best] <= 0:
        raise ValueError(f"losses {losses.tolist()} do not fall with the cost: no curve fits them")
    exponent = float(EXPONENTS[best])
    return Curve(float(floor[best]), float(scale[best] * unit**exponent), exponent)


def gains(
    reference: Sequence[np.ndarray],
    reference_costs: Sequence[float],
    losses: Sequence[np.ndarray],
    costs: Sequence[float],
    draws: int = DRAWS,
    seed: int = 0,
) -> list[Gain]:
    """Computes the gain of an encoding at each of its costs.

    Args:
        reference: (S, D) losses of each seed on each document, at each cost.
        reference_costs: of a training of the reference.
        losses: (S, D) of the encoding, of the same seeds on the same documents.
        costs: of a training of the encoding.
        draws: samples of the bootstrap; samples without a falling curve are left out.

    Raises:
        ValueError: if the curve of the reference cannot be fitted, or losses have other shapes.
    """
    shapes = {np.shape(each) for each in (*reference, *losses)}
    if len(shapes) != 1 or len(next(iter(shapes))) != 2:
        raise ValueError(f"losses of shapes {sorted(shapes)} must have one shape: seeds, documents")
    ((seeds, documents),) = shapes
    random, found = np.random.RandomState(seed), []

    def at(rows: np.ndarray, columns: np.ndarray) -> list[float]:
        curve = fit(reference_costs, [each[rows][:, columns].mean() for each in reference])
        spent = zip(losses, costs, strict=True)
        return [curve.cost(each[rows][:, columns].mean()) / cost for each, cost in spent]

    values = at(np.arange(seeds), np.arange(documents))
    for _ in range(draws):
        try:
            found.append(
                at(random.randint(seeds, size=seeds), random.randint(documents, size=documents))
            )
        except ValueError:  # by chance, the losses of this sample do not fall
            continue
    tails = [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2]
    low, high = np.quantile(found, tails, axis=0, method="nearest")
    return [Gain(*each) for each in zip(values, low.tolist(), high.tolist(), strict=True)]
