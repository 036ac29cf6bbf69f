"""Outliers: a single spike is rejected, a step that lasts is accepted."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.vocabulary.outliers import MIN_KNOWN, reject_spikes
from policies.vocabulary.signal import Signal, SignalKind

HOUR_S = 3_600.0


def day_after_day(n: int = 72, **leaps: float) -> Signal:
    """Return hours of a usual grid, some of them multiplied, as in `h50=10.0`."""
    return signal(_ordinary(n) * _factors(n, leaps))


def signal(values: np.ndarray[tuple[int], np.dtype[np.float64]], kind: SignalKind = "average") -> Signal:
    """Return hours with these values."""
    n = len(values)
    return Signal(
        kind=kind,
        zone="XX",
        source="typed",
        unit="g/kWh",
        starts_s=HOUR_S * np.arange(n, dtype=np.float64),
        values=values,
        ends_s=HOUR_S * n,
        issued_at_s=0.0,
    )


def _ordinary(n: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.asarray(250.0 + 150.0 * np.sin(np.arange(n) / 24 * 2 * math.pi))


def _factors(n: int, leaps: dict[str, float]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    factors = np.ones(n)
    for hour, factor in leaps.items():
        factors[int(hour[1:])] = factor
    return factors


def hours_of(starts_s: np.ndarray[tuple[int], np.dtype[np.float64]]) -> list[int]:
    """Return the rejected hours."""
    return [round(start_s / HOUR_S) for start_s in starts_s]


@pytest.mark.parametrize("factor", [10.0, 0.1, 1000.0])
@pytest.mark.parametrize("hour", [30, 54, 71])
def test_a_single_spike_is_rejected(hour: int, factor: float) -> None:
    whole = signal(_ordinary(72) * _factors(72, {f"h{hour}": factor}))
    believed, leaps_s = reject_spikes(whole)
    assert hours_of(leaps_s) == [hour]
    assert math.isnan(believed.values[hour])
    assert np.isnan(believed.values).sum() == 1


def test_a_step_is_accepted_once_confirmed() -> None:
    values = _ordinary(72)
    values[70:] *= 10.0
    assert hours_of(reject_spikes(signal(values[:71]))[1]) == [70]
    assert hours_of(reject_spikes(signal(values))[1]) == []


def test_two_different_spikes_in_a_row_are_rejected() -> None:
    assert hours_of(reject_spikes(day_after_day(h40=10.0, h41=0.05))[1]) == [40, 41]


def test_a_series_of_regime_switches_is_accepted() -> None:
    """A marginal intensity switches between regimes, from one power station to the next."""
    dice = np.random.default_rng(1)
    values = np.where(dice.random(200) < 0.2, 40.0, 420.0)
    assert hours_of(reject_spikes(signal(values, "marginal"))[1]) == []


def test_prices_are_always_accepted() -> None:
    values = np.where(np.arange(72) == 50, -3.0, 0.1)
    whole = signal(values, "price")
    assert reject_spikes(whole)[0] is whole


def test_a_very_short_history_rejects_nothing() -> None:
    assert hours_of(reject_spikes(day_after_day(MIN_KNOWN - 1, h3=10.0))[1]) == []
    assert hours_of(reject_spikes(day_after_day(MIN_KNOWN, h5=10.0))[1]) == [5]
    assert hours_of(reject_spikes(day_after_day(23, h22=10.0))[1]) == [22]


def test_in_fine_steps_half_an_hour_confirms() -> None:
    for n_wrong, wanted in ((1, 1), (5, 5), (7, 0)):
        values = np.asarray(300.0 + np.arange(600) % 7, dtype=np.float64)
        values[500 : 500 + n_wrong] *= 10.0
        whole = replace(signal(values), starts_s=300.0 * np.arange(600, dtype=np.float64), ends_s=300.0 * 600)
        assert len(reject_spikes(whole)[1]) == wanted


def test_a_gap_is_no_spike() -> None:
    values = _ordinary(72)
    values[10:20] = np.nan
    assert hours_of(reject_spikes(signal(values))[1]) == []


@given(
    st.lists(st.one_of(st.just(math.nan), st.floats(1e-3, 1e6)), max_size=60),
    st.sampled_from(["average", "marginal", "price"]),
)
def test_values_are_only_ever_removed(values: list[float], kind: SignalKind) -> None:
    whole = signal(np.array(values, dtype=np.float64), kind)
    believed, leaps_s = reject_spikes(whole)
    kept = np.isfinite(believed.values)
    assert (believed.values[kept] == whole.values[kept]).all()
    assert np.isfinite(whole.values).sum() - kept.sum() == len(leaps_s)


@given(st.lists(st.sampled_from([1.0, 1.1, 10.0, 11.0, 100.0, 0.1]), min_size=MIN_KNOWN, max_size=40))
def test_each_value_is_judged_by_the_last_accepted_one(factors: list[float]) -> None:
    values = 300.0 * np.array(factors)
    logs, limit = np.log(values), max(math.log(3.0), 1.5 * float(np.quantile(np.abs(np.diff(np.log(values))), 0.8)))
    accepted, rejected = logs[0], []
    for hour in range(1, len(values)):
        is_far = abs(logs[hour] - accepted) > limit
        is_confirmed = hour + 1 < len(values) and abs(logs[hour + 1] - logs[hour]) <= limit
        if is_far and not is_confirmed:
            rejected.append(hour)
        else:
            accepted = logs[hour]
    assert hours_of(reject_spikes(signal(values))[1]) == rejected
