"""Gain in compute, on made-up curves whose gain is known."""

import numpy as np
import pytest
from conftest import refuses

from tape.results.gain import Curve, fit, gains

COSTS = np.array([1e13, 1.6e14, 2.6e15])


@pytest.mark.parametrize(("floor", "exponent"), [(1.5, 0.12), (0.8, 0.3), (0.0, 0.05)])
def test_a_curve_is_found_from_its_points(floor, exponent):
    curve = Curve(floor, 3 * 1e14**exponent, exponent)
    found = fit(COSTS, curve.loss(COSTS))
    between = np.geomspace(COSTS[0], COSTS[-1], 20)
    np.testing.assert_allclose(found.loss(between), curve.loss(between), rtol=2e-3)
    assert found.cost(curve.loss(5e14)) == pytest.approx(5e14, rel=0.03)
    assert Curve(1.0, 2.0, 0.1).cost(1.0) == np.inf


def test_curves_that_do_not_fall_and_too_few_points_are_refused():
    refuses("do not fall with the cost", fit, COSTS, [1.0, 1.1, 1.2])
    refuses("needs 3 or more", fit, COSTS[:2], [3.0, 2.0])
    refuses("must have one shape", gains, [np.ones((2, 3))] * 3, COSTS, [np.ones((2, 4))], [1e13])


def made_up(curve, costs, seeds=3, documents=40, noise=0.0, seed=0):
    """Losses (S, D) at each cost: documents differ by much, and seeds by `noise`."""
    random = np.random.RandomState(seed)
    of_documents = random.normal(0, 0.3, documents)
    of_documents -= of_documents.mean()
    shape = len(costs), seeds, 1
    return [*(curve.loss(costs)[:, None, None] + of_documents + random.normal(0, noise, shape))]


@pytest.mark.parametrize("gain", [0.5, 1.0, 1.7])
def test_the_gain_is_the_ratio_of_costs_at_the_same_loss(gain):
    """An encoding that needs 1 / gain of the reference's FLOPs for each loss; each FLOP takes it
    three times as long."""
    curve = Curve(1.5, 3 * 1e14**0.15, 0.15)
    reference = made_up(curve, COSTS)
    losses = made_up(curve, gain * COSTS[:2])
    for found in gains(reference, COSTS, losses, COSTS[:2], draws=100):
        assert found.value == pytest.approx(gain, rel=0.03)
        assert found.low <= found.value <= found.high
    seconds = COSTS / 1e12
    for found in gains(reference, seconds, losses, 3 * seconds[:2], draws=20):
        assert found.value == pytest.approx(gain / 3, rel=0.03)


def test_intervals_cover_the_gain_and_shrink_with_less_noise():
    curve, widths = Curve(1.5, 3 * 1e14**0.15, 0.15), []
    for noise in (0.02, 0.005):
        covered, wide = 0, []
        for seed in range(20):
            reference = made_up(curve, COSTS, 5, noise=noise, seed=seed)
            losses = made_up(curve, 1.5 * COSTS[:2], 5, noise=noise, seed=100 + seed)
            documents = reference[0].mean(0) - reference[0].mean()
            losses = [each - each.mean(0) + each.mean() + documents for each in losses]
            second = gains(reference, COSTS, losses, COSTS[:2], draws=200)[1]
            covered += second.low <= 1.5 <= second.high
            wide.append(np.log(second.high / second.low))
        assert covered >= 13  # of 20: with five seeds the bootstrap's intervals are too narrow
        widths.append(np.median(wide))
    assert widths[1] < 0.5 * widths[0]
