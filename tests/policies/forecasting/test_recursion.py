"""The autoregression: its iteration, its coefficients, and its ridge variant."""

import numpy as np
import pytest
from numpy.typing import NDArray

from policies.forecasting import recursion
from policies.forecasting.series import Series, past_of, series_of
from tests.policies.forecasting.grids import HOUR_S, grid, weather


def series(values: NDArray[np.float64], step_s: float = HOUR_S) -> Series:
    signal = grid(values, step_s=step_s)
    past = past_of(signal, signal.ends_s)
    assert past is not None
    return series_of(signal, past, max_days=60)


def fitted(told: Series, *, is_shrunk: bool = False) -> recursion.Recursion:
    return recursion.fit(told, np.ones(len(told.values)), is_shrunk=is_shrunk)


def step_by_step(model: recursion.Recursion, told: Series, n_leads: int) -> list[float]:
    """Iterate as the equation stands."""
    values = told.values.tolist()
    for _ in range(n_leads):
        phase = float(told.phase(np.array([len(values)]))[0])
        season = [1.0, np.sin(phase), np.cos(phase), np.sin(2 * phase), np.cos(2 * phase)]
        before = [values[-lag] for lag in (1, 2, 3)] + [values[-told.day], values[-told.day - 1]]
        weights = [*model.recent, *model.yesterday]
        values.append(float(np.dot(model.season, season) + np.dot(weights, before)))
    return [float(value) for value in values[-n_leads:]]


@pytest.mark.parametrize("step_s", [HOUR_S, 900.0])
@pytest.mark.parametrize("is_shrunk", [False, True])
def test_a_product_gives_what_iteration_gives(step_s: float, is_shrunk: bool) -> None:
    told = series(weather(20, step_s=step_s), step_s)
    model = fitted(told, is_shrunk=is_shrunk)
    n_leads = 2 * told.day + 3
    assert recursion.continued(model, told, n_leads) == pytest.approx(step_by_step(model, told, n_leads))


def test_many_origins_at_once_are_the_same_as_each() -> None:
    told = series(weather(20))
    model = fitted(told)
    leads = np.array([1, 2, 5, 24])
    together = recursion.predict(model, told, told.values, np.array([300, 400, 479]), leads)
    for row, end in zip(together, (301, 401, 480), strict=True):
        assert row == pytest.approx(recursion.continued(model, told.until(end), 24)[leads - 1])


def test_the_coefficients_of_a_recursion_are_found() -> None:
    rng = np.random.default_rng(4)
    values = list(rng.normal(size=30))
    for _ in range(28 * 24):
        values.append(5 + 0.6 * values[-1] + 0.3 * values[-24] + 0.5 * rng.normal())
    model = fitted(series(np.array(values)))
    assert [model.recent[0], model.yesterday[0]] == pytest.approx([0.6, 0.3], abs=0.1)


def test_the_ridge_variant_of_noise_is_near_persistence() -> None:
    rng = np.random.default_rng(5)
    told = series(300 + np.cumsum(rng.normal(size=80)))
    changes = recursion.continued(fitted(told, is_shrunk=True), told, 6) - told.values[-1]
    free = recursion.continued(fitted(told), told, 6) - told.values[-1]
    assert np.abs(changes).max() < 0.5 * np.abs(free).max()


def test_a_constant_stays() -> None:
    told = series(np.full(100, 250.0))
    for is_shrunk in (False, True):
        assert recursion.continued(fitted(told, is_shrunk=is_shrunk), told, 30) == pytest.approx(np.full(30, 250.0))


def test_a_recursion_that_explodes_is_cut_off() -> None:
    assert np.abs(recursion._impulse(np.array([9.0, 0.0, 0.0]), 288)).max() == recursion.MAX_IMPULSE
