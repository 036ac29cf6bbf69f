"""The walk forward: protocol, figures, baselines, and that it never looks ahead."""

from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from policies.forecasting.evaluation import (
    OURS,
    ForecastEvaluation,
    _by_hour_of_day,
    _compared_from_s,
    _stride,
    chase_linear,
    evaluate,
    last_value,
    same_time_yesterday,
)
from policies.forecasting.series import Series
from policies.vocabulary.units import DAY_S
from tests.policies.forecasting.grids import grid, series, weather


def ticks() -> Iterator[float]:
    """Yield a clock that advances by a second at each reading."""
    time_s = 0.0
    while True:
        time_s += 1.0
        yield time_s


def evaluated(values: NDArray[np.float64], **changes: object) -> ForecastEvaluation:
    clock = ticks()
    found = evaluate(grid(values, **changes), stopwatch_s=lambda: next(clock))  # type: ignore[arg-type]
    assert found is not None
    return found


def test_a_ramp_has_known_errors() -> None:
    values = np.arange(1_000.0, 1_000.0 + 24 * 12)
    found = evaluated(values)
    assert (found.step_s, found.n_origins) == (3_600.0, 24 * 7 + 1)  # 4 days are history, the last is only compared
    assert found.mae["persistence"] == pytest.approx(
        {"1h": 1, "3h": 3, "6h": 6, "12h": 12, "24h": 24, "mean_1_24h": 12.5}
    )
    assert found.mae["seasonal"]["6h"] == pytest.approx(24)
    came = values[96 + 6 - 1 : 96 + 6 - 1 + found.n_origins]
    assert found.mape_ratio["persistence"]["6h"] == pytest.approx(np.mean(6 / came))


def test_horizons_are_hourly_means_at_any_step() -> None:
    values = np.arange(1_000.0, 1_000.0 + 48 * 12)
    found = evaluated(values, step_s=1_800.0)
    assert (found.step_s, found.mae["persistence"]["1h"], found.mae["persistence"]["24h"]) == (1_800.0, 1.5, 47.5)


def test_a_long_series_has_sixty_days_of_history() -> None:
    assert _compared_from_s(5.0, 5.0 + 365 * DAY_S) == 5.0 + 60 * DAY_S
    assert _compared_from_s(5.0, 5.0 + 30 * DAY_S) == 5.0 + 10 * DAY_S


@pytest.mark.parametrize(("day", "stride"), [(24, 1), (48, 1), (96, 5), (144, 5), (288, 7)])
def test_origins_cover_all_times_of_the_day(day: int, stride: int) -> None:
    assert _stride(day) == stride
    assert len({index * stride % day for index in range(day)}) == day


def test_the_forecaster_beats_the_baselines() -> None:
    found = evaluated(weather(70))
    for horizon in ("1h", "3h", "6h", "mean_1_24h"):
        ours = found.mape_ratio[OURS][horizon]
        assert ours is not None
        assert all(ours < (rows[horizon] or 0) for name, rows in found.mape_ratio.items() if name != OURS)
    assert found.coverage_90_ratio == pytest.approx(dict.fromkeys(found.coverage_90_ratio, 0.9), abs=0.06)
    assert set(found.coverage_90_ratio) == {"1h", "3h", "6h", "12h", "24h", "mean_1_24h"}


def test_coverage_is_given_by_the_hour_of_the_day_of_the_values() -> None:
    found = evaluated(weather(40))
    for horizon, overall in found.coverage_90_ratio.items():
        by_hour = [share for share in found.hourly_coverage_90_ratio[horizon] if share is not None]
        assert len(by_hour) == 24
        assert np.mean(by_hour) == pytest.approx(overall, abs=0.01)
    assert all(width is not None and width > 0 for width in found.interval_width.values())


def test_means_by_the_hour_of_the_day() -> None:
    leads = np.arange(24)
    hours = np.array([leads % 24, (leads + 12) % 24])
    values = np.where(hours == 6, 0.0, 1.0)
    values[0, 6], values[1, 7] = np.nan, 0.5  # 6 h of the first row, 19 h of the second
    means = _by_hour_of_day(values, hours)
    expected = [1.0] * 24
    expected[6], expected[19] = 0.0, 0.75
    assert means["mean_1_24h"] == expected
    assert means["1h"] == [1.0, *[None] * 11, 1.0, *[None] * 11]


def test_nothing_after_the_origin_is_used() -> None:
    values = weather(16)
    seen: list[float] = []

    def spy(series: Series, n_leads: int) -> NDArray[np.float64]:
        n_told = round((series.end_s - whole.starts_s[0]) / 3_600)
        assert series.values[-1] == values[n_told - 1]
        seen.append(series.end_s)
        return np.zeros(n_leads)

    whole = grid(values)
    found = evaluate(whole, stopwatch_s=lambda: 0.0, baselines={"spy": spy})
    changed = values.copy()
    changed[-24:] *= 3  # compared with, but never given
    other = evaluate(grid(changed), stopwatch_s=lambda: 0.0, baselines={"spy": spy})
    assert found is not None
    assert other is not None
    assert found.n_origins == other.n_origins == len(seen) / 2
    assert max(seen) <= whole.ends_s - DAY_S


def test_prices_have_no_relative_errors() -> None:
    found = evaluated((weather(12) - 300) / 1_000, kind="price", unit="EUR/kWh")
    assert set(found.mape_ratio[OURS].values()) == {None}
    assert all(value is not None for value in found.mae[OURS].values())


def test_gaps_do_not_count() -> None:
    values = weather(20)
    values[300:330] = np.nan
    found = evaluated(values)
    assert found.mae[OURS]["24h"] is not None
    assert found.n_origins < 24 * 13


def test_refits_and_forecasts_are_timed() -> None:
    found = evaluated(weather(43))
    assert (found.fit_s, found.forecast_s) == (1.0, 1.0)


def test_a_short_or_empty_series_has_no_evaluation() -> None:
    assert evaluate(grid([float("nan")] * 400), stopwatch_s=lambda: 0.0) is None
    assert evaluate(grid([1.0] * 20), stopwatch_s=lambda: 0.0) is None


def test_progress_is_reported() -> None:
    steps: list[tuple[int, int]] = []
    evaluate(grid(weather(8)), stopwatch_s=lambda: 0.0, progress=lambda done, total: steps.append((done, total)))
    assert steps[0][0] == 1
    assert steps[-1][0] == steps[-1][1] == len(steps)


def test_persistence_baseline() -> None:
    assert last_value(series(np.array([1.0, 2.0])), 3).tolist() == [2.0, 2.0, 2.0]


def test_seasonal_baseline() -> None:
    values = weather(3)
    assert same_time_yesterday(series(values), 30).tolist() == [*values[-24:], *values[-24:-18]]


def test_chase_baseline_fits_a_linear_process() -> None:
    walk = series(np.zeros(25))
    phase = walk.phase(np.arange(60))
    values = [200.0]
    for step in range(1, 60):
        values.append(100 + 20 * np.sin(phase[step]) - 10 * np.cos(phase[step]) + 0.5 * values[-1])
    walk = series(np.array(values[:36]))
    assert chase_linear(walk, 24) == pytest.approx(values[36:], rel=1e-3)


def test_chase_baseline_stays_within_bounds() -> None:
    values = 100 * 1.1 ** np.arange(30, dtype=np.float64)
    assert chase_linear(series(values), 24).max() <= 1.3 * values.max()
