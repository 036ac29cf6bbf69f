"""Ridge regression, autoregression and anomaly regressions: textbook results, iteration, shrinkage."""

import numpy as np
import pytest
from numpy.typing import NDArray

from policies.forecasting.climatology import Climatologies, fit_climatologies
from policies.forecasting.regression import (
    MAX_RESPONSE,
    RIDGE_RATIO,
    Autoregression,
    _impulse_response,
    extrapolate_autoregression,
    fit_anomaly_damping,
    fit_anomaly_regressions,
    fit_autoregression,
    predict_anomalies,
    predict_autoregression,
    ridge_regression,
    ridge_regressions,
)
from policies.forecasting.series import Series
from policies.vocabulary.units import HOUR_S
from tests.policies.forecasting.grids import series, weather

RNG = np.random.default_rng(3)
FEATURES = RNG.normal(size=(200, 3)) + 5
TARGETS = 7 + FEATURES @ np.array([2.0, -1.0, 0.5]) + 0.1 * RNG.normal(size=200)
WEIGHTS = RNG.uniform(size=200)


def test_ridge_without_penalty_is_weighted_least_squares() -> None:
    columns = np.column_stack([np.ones(200), FEATURES]) * np.sqrt(WEIGHTS)[:, None]
    expected = np.linalg.lstsq(columns, TARGETS * np.sqrt(WEIGHTS), rcond=None)[0]
    assert ridge_regression(FEATURES, TARGETS, WEIGHTS, penalty_ratio=0.0) == pytest.approx(expected, rel=1e-4)


def test_a_penalty_shrinks_the_coefficients_and_leaves_the_mean() -> None:
    solved = ridge_regression(FEATURES, TARGETS, WEIGHTS, penalty_ratio=1.0)
    free = ridge_regression(FEATURES, TARGETS, WEIGHTS, penalty_ratio=0.0)
    assert np.linalg.norm(solved[1:]) < 0.7 * np.linalg.norm(free[1:])
    assert np.average(solved[0] + FEATURES @ solved[1:], weights=WEIGHTS) == pytest.approx(
        np.average(TARGETS, weights=WEIGHTS)
    )


def test_a_constant_column_has_no_coefficient() -> None:
    features = np.column_stack([FEATURES, np.full(200, 4.0)])
    solved = ridge_regression(features, TARGETS, WEIGHTS, penalty_ratio=0.0)
    assert solved[-1] == 0
    assert solved[1:-1] == pytest.approx([2.0, -1.0, 0.5], abs=0.05)


def test_zero_weights_give_zero() -> None:
    assert (ridge_regression(FEATURES, TARGETS, np.zeros(200), penalty_ratio=0.0) == 0).all()


def test_batched_regressions_equal_single_ones() -> None:
    own, targets = RNG.normal(size=(200, 4)), TARGETS[:, None] * np.arange(1, 5) + RNG.normal(size=(200, 4))
    weights = RNG.uniform(size=(200, 4)) * (RNG.uniform(size=(200, 4)) > 0.3)
    together = ridge_regressions(FEATURES, own, targets, weights, penalty_ratio=0.01)
    for index in range(4):
        columns = np.column_stack([FEATURES, own[:, index]])
        alone = ridge_regression(columns, targets[:, index], weights[:, index], penalty_ratio=0.01)
        assert together[index] == pytest.approx(alone, rel=1e-6, abs=1e-9)


def fitted(whole: Series, *, is_shrunk: bool = False) -> Autoregression:
    return fit_autoregression(whole, np.ones(len(whole.values)), is_shrunk=is_shrunk)


def step_by_step(model: Autoregression, whole: Series, n_leads: int) -> list[float]:
    """Iterate as the equation stands."""
    values = whole.values.tolist()
    for _ in range(n_leads):
        phase = float(whole.phase(np.array([len(values)]))[0])
        season = [1.0, np.sin(phase), np.cos(phase), np.sin(2 * phase), np.cos(2 * phase)]
        before = [values[-lag] for lag in (1, 2, 3)] + [values[-whole.day], values[-whole.day - 1]]
        weights = [*model.recent, *model.yesterday]
        values.append(float(np.dot(model.season, season) + np.dot(weights, before)))
    return [float(value) for value in values[-n_leads:]]


@pytest.mark.parametrize("step_s", [HOUR_S, 900.0])
@pytest.mark.parametrize("is_shrunk", [False, True])
def test_the_impulse_response_equals_iteration(step_s: float, is_shrunk: bool) -> None:
    whole = series(weather(20, step_s=step_s), step_s)
    model = fitted(whole, is_shrunk=is_shrunk)
    n_leads = 2 * whole.day + 3
    assert extrapolate_autoregression(model, whole, n_leads) == pytest.approx(step_by_step(model, whole, n_leads))


def test_many_origins_equal_single_ones() -> None:
    whole = series(weather(20))
    model = fitted(whole)
    leads = np.array([1, 2, 5, 24])
    together = predict_autoregression(model, whole, whole.values, np.array([300, 400, 479]), leads)
    for row, end in zip(together, (301, 401, 480), strict=True):
        assert row == pytest.approx(extrapolate_autoregression(model, whole.until(end), 24)[leads - 1])


def test_autoregression_recovers_coefficients() -> None:
    rng = np.random.default_rng(4)
    values = list(rng.normal(size=30))
    for _ in range(28 * 24):
        values.append(5 + 0.6 * values[-1] + 0.3 * values[-24] + 0.5 * rng.normal())
    model = fitted(series(np.array(values)))
    assert [model.recent[0], model.yesterday[0]] == pytest.approx([0.6, 0.3], abs=0.1)


def test_the_ridge_variant_of_noise_is_near_persistence() -> None:
    rng = np.random.default_rng(5)
    whole = series(300 + np.cumsum(rng.normal(size=80)))
    changes = extrapolate_autoregression(fitted(whole, is_shrunk=True), whole, 6) - whole.values[-1]
    free = extrapolate_autoregression(fitted(whole), whole, 6) - whole.values[-1]
    assert np.abs(changes).max() < 0.5 * np.abs(free).max()


def test_a_constant_stays() -> None:
    whole = series(np.full(100, 250.0))
    for is_shrunk in (False, True):
        assert extrapolate_autoregression(fitted(whole, is_shrunk=is_shrunk), whole, 30) == pytest.approx(
            np.full(30, 250.0)
        )


def test_an_unstable_response_is_cut_off() -> None:
    assert np.abs(_impulse_response(np.array([9.0, 0.0, 0.0]), 288)).max() == MAX_RESPONSE


LEADS = np.array([1, 6, 24])
N_ROWS = 10_000


def with_climatologies(values: NDArray[np.float64]) -> tuple[Series, Climatologies]:
    whole = series(values)
    return whole, fit_climatologies(whole)


def by_hand(
    whole: Series, climatologies: Climatologies, index: int, lead: int, weights: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the coefficients of one regression, row by row and with an explicit penalty."""
    z, rows, targets, counted = climatologies.anomaly[index], [], [], []
    for origin in range(int(climatologies.first_steps[index]), len(z) - lead):
        phase = float(whole.phase(np.array([origin]))[0])
        now, one, two = z[origin], z[origin] - z[origin - 1], z[origin] - z[origin - 2]
        waves = [np.sin(phase), np.cos(phase)]
        twice = [np.sin(2 * phase), np.cos(2 * phase)]
        day = z[origin - 23 : origin + 1].mean()
        turning, standing = [one * wave for wave in waves], [now * wave for wave in (*waves, *twice)]
        rows.append([now, day, one, two, *turning, *standing, z[origin + lead - 24]])
        targets.append(z[origin + lead])
        counted.append(weights[origin + lead] * whole.known[origin] * whole.known[origin + lead])
    x, y, w = np.array(rows), np.array(targets), np.array(counted)
    centred = x - np.average(x, axis=0, weights=w)
    products = (centred * (w / w.sum())[:, None]).T @ centred
    penalty = (RIDGE_RATIO + 1e-7) * np.diag(np.diag(products))
    cross = (centred * (w / w.sum())[:, None]).T @ (y - np.average(y, weights=w))
    return np.linalg.solve(products + penalty, cross)


@pytest.mark.parametrize("index", [0, 1, 2])
def test_anomaly_regressions_equal_an_explicit_solution(index: int) -> None:
    values = weather(40)
    values[500:520] = np.nan
    whole, climatologies = with_climatologies(values)
    weights = 1 / whole.values
    found = fit_anomaly_regressions(whole, climatologies, LEADS, weights, max_rows=N_ROWS)
    for lead, coefficients in zip(LEADS, found[index], strict=True):
        expected = by_hand(whole, climatologies, index, int(lead), weights)
        assert coefficients[1:] == pytest.approx(expected, rel=1e-5, abs=1e-8)


def test_fewer_rows_give_nearly_the_same() -> None:
    whole, climatologies = with_climatologies(weather(60))
    weights = np.ones(len(whole.values))
    origin = np.array([len(whole.values) - 1])
    said = [
        predict_anomalies(
            fit_anomaly_regressions(whole, climatologies, LEADS, weights, max_rows=n),
            whole,
            climatologies,
            origin,
            LEADS,
        )
        for n in (300, N_ROWS)
    ]
    assert said[0][0] == pytest.approx(said[1][0], abs=12)
    assert (said[0] != said[1]).any()


def test_damping_is_the_autocorrelation() -> None:
    rng = np.random.default_rng(8)
    values = [0.0]
    for _ in range(60 * 24 - 1):
        values.append(0.9 * values[-1] + rng.normal())
    whole, climatologies = with_climatologies(300 + np.array(values))
    damping = fit_anomaly_damping(whole, climatologies, LEADS, max_rows=N_ROWS)
    assert damping == pytest.approx(0.9**LEADS, abs=0.1)


def test_no_anomaly_is_forecast_as_none() -> None:
    whole, climatologies = with_climatologies(np.tile(np.arange(100.0, 124.0), 20))
    found = fit_anomaly_regressions(whole, climatologies, LEADS, np.ones(480), max_rows=N_ROWS)
    assert predict_anomalies(found, whole, climatologies, np.array([479]), LEADS) == pytest.approx(
        np.zeros((3, 1, 3)), abs=1e-6
    )
    assert (fit_anomaly_damping(whole, climatologies, LEADS, max_rows=N_ROWS) >= 0).all()
