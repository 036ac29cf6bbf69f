"""Ridge regression: the textbook's result, many at once, and columns that do not vary."""

import numpy as np
import pytest

from policies.forecasting.least_squares import solve, solve_each

RNG = np.random.default_rng(3)
FEATURES = RNG.normal(size=(200, 3)) + 5
TARGETS = 7 + FEATURES @ np.array([2.0, -1.0, 0.5]) + 0.1 * RNG.normal(size=200)
WEIGHTS = RNG.uniform(size=200)


def test_without_a_penalty_it_is_weighted_least_squares() -> None:
    columns = np.column_stack([np.ones(200), FEATURES]) * np.sqrt(WEIGHTS)[:, None]
    expected = np.linalg.lstsq(columns, TARGETS * np.sqrt(WEIGHTS), rcond=None)[0]
    assert solve(FEATURES, TARGETS, WEIGHTS, penalty_ratio=0.0) == pytest.approx(expected, rel=1e-4)


def test_a_penalty_shrinks_the_coefficients_and_leaves_the_mean() -> None:
    solved = solve(FEATURES, TARGETS, WEIGHTS, penalty_ratio=1.0)
    free = solve(FEATURES, TARGETS, WEIGHTS, penalty_ratio=0.0)
    assert np.linalg.norm(solved[1:]) < 0.7 * np.linalg.norm(free[1:])
    assert np.average(solved[0] + FEATURES @ solved[1:], weights=WEIGHTS) == pytest.approx(
        np.average(TARGETS, weights=WEIGHTS)
    )


def test_what_does_not_vary_gets_no_coefficient() -> None:
    features = np.column_stack([FEATURES, np.full(200, 4.0)])
    solved = solve(features, TARGETS, WEIGHTS, penalty_ratio=0.0)
    assert solved[-1] == 0
    assert solved[1:-1] == pytest.approx([2.0, -1.0, 0.5], abs=0.05)


def test_no_weight_gives_nothing() -> None:
    assert (solve(FEATURES, TARGETS, np.zeros(200), penalty_ratio=0.0) == 0).all()


def test_many_at_once_are_the_same_as_one_by_one() -> None:
    own, targets = RNG.normal(size=(200, 4)), TARGETS[:, None] * np.arange(1, 5) + RNG.normal(size=(200, 4))
    weights = RNG.uniform(size=(200, 4)) * (RNG.uniform(size=(200, 4)) > 0.3)
    together = solve_each(FEATURES, own, targets, weights, penalty_ratio=0.01)
    for index in range(4):
        columns = np.column_stack([FEATURES, own[:, index]])
        alone = solve(columns, targets[:, index], weights[:, index], penalty_ratio=0.01)
        assert together[index] == pytest.approx(alone, rel=1e-6, abs=1e-9)
