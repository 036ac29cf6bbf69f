"""A history on the regular grid: steps, gaps, and future values."""

import numpy as np
import pytest

from policies.forecasting.series import Series, build_series, history_extent, sample
from policies.vocabulary.signal import Signal
from policies.vocabulary.units import DAY_S, HOUR_S
from tests.policies.forecasting.grids import START_S, grid, weather

NAN = float("nan")


def series(signal: Signal, now_s: float | None = None, *, days: int = 60) -> Series:
    past = history_extent(signal, signal.ends_s if now_s is None else now_s)
    assert past is not None
    return build_series(signal, past, max_days=days)


@pytest.mark.parametrize(
    ("step_s", "expected_s"), [(60.0, 300.0), (300.0, 300.0), (301.0, 300.0), (900.0, 900.0), (7200.0, 3600.0)]
)
def test_an_hour_is_a_whole_number_of_steps(step_s: float, expected_s: float) -> None:
    past = history_extent(grid([1.0] * 9, step_s=step_s), START_S + DAY_S)
    assert past is not None
    assert past.step_s == expected_s


def test_future_values_are_ignored() -> None:
    gridded = series(grid([1.0, 2.0, 3.0, 4.0]), START_S + 1.5 * HOUR_S)
    assert gridded.values.tolist() == [1.0, 2.0]
    assert gridded.end_s == START_S + 2 * HOUR_S


def test_a_series_ends_with_the_last_known_value() -> None:
    assert series(grid([1.0, 2.0, NAN, NAN])).end_s == START_S + 2 * HOUR_S


def test_an_empty_history_has_no_extent() -> None:
    assert history_extent(grid([NAN, NAN]), START_S + DAY_S) is None
    assert history_extent(grid([1.0]), START_S - 1) is None


def test_only_the_last_days_are_kept() -> None:
    values = weather(5)
    assert series(grid(values), days=2).values.tolist() == values[-48:].tolist()


def test_a_short_gap_is_interpolated_and_flagged() -> None:
    gridded = series(grid([100.0, NAN, 300.0, 400.0]))
    assert gridded.values.tolist() == [100.0, 200.0, 300.0, 400.0]
    assert gridded.known.tolist() == [True, False, True, True]


def test_a_long_gap_is_filled_with_the_daily_mean() -> None:
    values = np.tile(np.arange(1.0, 25.0), 4)
    gapped = values.copy()
    gapped[30:40] = NAN
    assert series(grid(gapped)).values == pytest.approx(values)


def test_jittered_starts_fall_on_the_grid() -> None:
    values = weather(3)
    rng = np.random.default_rng(2)
    regular = grid(values)
    jittered = Signal(
        kind="average",
        zone="DE",
        source="jitter",
        unit="g/kWh",
        starts_s=regular.starts_s + rng.uniform(-300, 300, len(values)),
        values=values,
        ends_s=regular.ends_s,
        issued_at_s=0.0,
    )
    assert series(jittered).values.tolist() == values.tolist()


def test_the_phase_is_that_of_the_day_in_utc() -> None:
    gridded = series(grid([1.0] * 24))
    assert gridded.phase(np.array([0, 12])) == pytest.approx([np.pi / 24, np.pi + np.pi / 24])


def test_parts_keep_their_place_in_time() -> None:
    gridded = series(grid(weather(4)))
    steps = np.array([90])
    assert gridded.last(2).phase(steps - 48) == pytest.approx(gridded.phase(steps))
    assert gridded.until(50).phase(np.array([3])) == pytest.approx(gridded.phase(np.array([3])))
    assert gridded.until(50).end_s == gridded.end_s - 46 * HOUR_S


def test_a_sample_outside_is_missing() -> None:
    one = grid([1.0, 2.0])
    times_s = START_S + np.array([-1.0, 0.0, 3_600.0, 7_199.0, 7_200.0])
    assert sample(one, times_s) == pytest.approx([NAN, 1.0, 2.0, 2.0, NAN], nan_ok=True)
    assert np.isnan(sample(grid([]), times_s)).all()
