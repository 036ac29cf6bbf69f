"""Regressions of the anomaly: the textbook's result, what they find, and what does not count."""

import numpy as np
import pytest
from numpy.typing import NDArray

from policies.forecasting import anomaly
from policies.forecasting.climatology import Climate, climate_of
from policies.forecasting.series import Series, past_of, series_of
from tests.policies.forecasting.grids import grid, weather

LEADS = np.array([1, 6, 24])
N_ROWS = 10_000


def series(values: NDArray[np.float64]) -> tuple[Series, Climate]:
    signal = grid(values)
    past = past_of(signal, signal.ends_s)
    assert past is not None
    told = series_of(signal, past, max_days=60)
    return told, climate_of(told)


def by_hand(told: Series, climate: Climate, index: int, lead: int, weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the coefficients of one regression, row by row and with an explicit penalty."""
    z, rows, targets, counted = climate.anomaly[index], [], [], []
    for origin in range(int(climate.firsts[index]), len(z) - lead):
        phase = float(told.phase(np.array([origin]))[0])
        now, one, two = z[origin], z[origin] - z[origin - 1], z[origin] - z[origin - 2]
        waves = [np.sin(phase), np.cos(phase)]
        twice = [np.sin(2 * phase), np.cos(2 * phase)]
        day = z[origin - 23 : origin + 1].mean()
        turning, standing = [one * wave for wave in waves], [now * wave for wave in (*waves, *twice)]
        rows.append([now, day, one, two, *turning, *standing, z[origin + lead - 24]])
        targets.append(z[origin + lead])
        counted.append(weights[origin + lead] * told.known[origin] * told.known[origin + lead])
    x, y, w = np.array(rows), np.array(targets), np.array(counted)
    centred = x - np.average(x, axis=0, weights=w)
    products = (centred * (w / w.sum())[:, None]).T @ centred
    penalty = (anomaly.SHRINKAGE_RATIO + 1e-7) * np.diag(np.diag(products))
    cross = (centred * (w / w.sum())[:, None]).T @ (y - np.average(y, weights=w))
    return np.linalg.solve(products + penalty, cross)


@pytest.mark.parametrize("index", [0, 1, 2])
def test_they_are_what_they_are_by_hand(index: int) -> None:
    values = weather(40)
    values[500:520] = np.nan
    told, climate = series(values)
    weights = 1 / told.values
    found = anomaly.fit(told, climate, LEADS, weights, max_rows=N_ROWS)
    for lead, coefficients in zip(LEADS, found[index], strict=True):
        expected = by_hand(told, climate, index, int(lead), weights)
        assert coefficients[1:] == pytest.approx(expected, rel=1e-5, abs=1e-8)


def test_fewer_rows_find_nearly_the_same() -> None:
    told, climate = series(weather(60))
    weights = np.ones(len(told.values))
    origin = np.array([len(told.values) - 1])
    said = [
        anomaly.predict(anomaly.fit(told, climate, LEADS, weights, max_rows=n), told, climate, origin, LEADS)
        for n in (300, N_ROWS)
    ]
    assert said[0][0] == pytest.approx(said[1][0], abs=12)
    assert (said[0] != said[1]).any()


def test_an_anomaly_that_decays_is_forecast_to_decay() -> None:
    rng = np.random.default_rng(8)
    values = [0.0]
    for _ in range(60 * 24 - 1):
        values.append(0.9 * values[-1] + rng.normal())
    told, climate = series(300 + np.array(values))
    damping = anomaly.fit_damping(told, climate, LEADS, max_rows=N_ROWS)
    assert damping == pytest.approx(0.9**LEADS, abs=0.1)


def test_where_nothing_differs_from_the_usual_nothing_will() -> None:
    told, climate = series(np.tile(np.arange(100.0, 124.0), 20))
    found = anomaly.fit(told, climate, LEADS, np.ones(480), max_rows=N_ROWS)
    assert anomaly.predict(found, told, climate, np.array([479]), LEADS) == pytest.approx(np.zeros((3, 1, 3)), abs=1e-6)
    assert (anomaly.fit_damping(told, climate, LEADS, max_rows=N_ROWS) >= 0).all()
