"""The forecaster: its tiers, its reach, its state, and the provider's own forecast."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from policies.forecasting import MAX_LAG_S, Forecast, ForecasterState, advance, persistence
from policies.vocabulary.signal import Signal
from policies.vocabulary.units import DAY_S, HOUR_S
from tests.policies.forecasting.grids import START_S, grid, until, weather

NAN = float("nan")


def forecast(history: Signal, now_s: float | None = None, provided: Signal | None = None) -> Forecast:
    _, made = advance(
        None, history=history, provider_forecast=provided, now_s=history.ends_s if now_s is None else now_s
    )
    assert made is not None
    return made


def walked(
    whole: Signal, first_day: float, n_hours: int, given: dict[float, Signal] | None = None
) -> list[tuple[float, ForecasterState, Forecast]]:
    """Forecast each hour from a day on; return the times, states and forecasts."""
    state: ForecasterState | None = None
    seen = []
    for hour in range(n_hours):
        now_s = START_S + first_day * DAY_S + hour * HOUR_S
        provided = (given or {}).get(now_s)
        state, made = advance(state, history=until(whole, now_s), provider_forecast=provided, now_s=now_s)
        assert state is not None
        assert made is not None
        seen.append((now_s, state, made))
    return seen


@pytest.mark.parametrize(
    ("days", "source"),
    [(2.9, "persistence"), (3.1, "ridge"), (13.9, "ridge"), (14.1, "regression"), (60, "regression")],
)
def test_the_tier_grows_with_the_history(days: float, source: str) -> None:
    assert forecast(grid(weather(days))).signal.source == source


@pytest.mark.parametrize("step_s", [300.0, 900.0, 1_800.0, 3_600.0])
@pytest.mark.parametrize("days", [1, 5, 20])
def test_it_reaches_from_the_last_value_to_a_day_from_now(step_s: float, days: int) -> None:
    history = grid(weather(days, step_s=step_s), step_s=step_s)
    made = forecast(history, history.ends_s + 1.4 * HOUR_S).signal
    assert (made.starts_s[0], made.ends_s) == (history.ends_s, history.ends_s + 25.4 * HOUR_S)
    assert np.diff(made.starts_s) == pytest.approx(np.full(len(made) - 1, step_s))
    assert (made.kind, made.zone, made.unit, made.issued_at_s) == ("average", "DE", "g/kWh", history.ends_s + 5_040)
    assert made.estimated.all()
    assert made.value_at(history.ends_s + HOUR_S) is not None


def test_the_horizon_may_be_longer() -> None:
    history = grid(weather(20))
    _, made = advance(None, history=history, provider_forecast=None, now_s=history.ends_s, horizon_s=3 * DAY_S)
    assert made is not None
    assert len(made.signal) == len(made.lower) == len(made.upper) == 72


@pytest.mark.parametrize(("lag_s", "is_some"), [(0.0, True), (MAX_LAG_S, True), (MAX_LAG_S + 1, False)])
def test_no_forecast_from_an_old_value(lag_s: float, is_some: bool) -> None:
    history = grid(weather(20))
    _, made = advance(None, history=history, provider_forecast=None, now_s=history.ends_s + lag_s)
    assert (made is not None) == is_some


def test_no_forecast_without_values_or_of_a_constant() -> None:
    for history in (grid([]), grid([NAN, NAN]), replace(grid([5.0]), ends_s=float("inf"))):
        state, made = advance(None, history=history, provider_forecast=None, now_s=START_S + HOUR_S)
        assert made is None
        assert state is None


def test_future_values_are_ignored() -> None:
    values = weather(30)
    changed = values.copy()
    changed[-24:] = 5_000.0
    now_s = START_S + 29 * DAY_S - 1
    one, other = (forecast(grid(series), now_s).signal.values for series in (values, changed))
    assert one.tolist() == other.tolist()


def test_repeating_days_are_forecast_exactly() -> None:
    day = weather(1)
    made = forecast(grid(np.tile(day, 30))).signal
    assert made.values == pytest.approx(day, rel=1e-3)


@pytest.mark.parametrize("days", [1, 5, 20, 60])
@pytest.mark.parametrize("value", [300.0, 1e-4])
def test_a_constant_stays(days: int, value: float) -> None:
    made = forecast(grid(np.full(days * 24, value)))
    assert made.signal.values == pytest.approx(np.full(24, value), rel=1e-6, abs=1e-3)


def test_a_price_may_be_negative_and_jump() -> None:
    values = weather(30) / 1_000 - 0.3
    values[500] = 4.0
    made = forecast(grid(values, kind="price", unit="EUR/kWh"))
    assert made.signal.values.min() < 0
    assert np.isfinite(made.signal.values).all()


def test_carbon_stays_near_the_range_of_its_past() -> None:
    values = weather(30)
    values[-30:] = np.linspace(values.max(), 3 * values.max(), 30)  # a trend that no model should continue
    made = forecast(grid(values)).signal.values
    assert made.max() <= 1.3 * values.max()
    assert made.min() >= 0.7 * values.min()


def test_weeks_of_history_give_intervals_at_once() -> None:
    made = forecast(grid(weather(30)))
    assert (made.lower < made.signal.values).all()
    assert (made.signal.values < made.upper).all()
    widths = made.upper - made.lower
    assert widths[0] < widths[11]


def test_intervals_appear_with_verified_errors() -> None:
    seen = walked(grid(weather(4)), 1, 40)
    assert np.isnan(seen[0][2].lower).all()
    assert not np.isnan(seen[-1][2].lower[:12]).any()


def test_errors_are_kept_when_the_tier_changes() -> None:
    seen = walked(grid(weather(5)), 1, 52)
    sources = [made.signal.source for _, _, made in seen]
    assert (sources[0], sources[-1]) == ("persistence", "ridge")
    assert not np.isnan([made.lower[11] for _, _, made in seen[sources.index("ridge") - 1 :]]).any()


def test_a_shrunk_history_lowers_the_tier() -> None:
    values = weather(31)
    state = walked(grid(values), 30, 3)[-1][1]
    now_s = START_S + 30 * DAY_S + 3 * HOUR_S
    _, made = advance(state, history=until(grid(values), now_s, days=1), provider_forecast=None, now_s=now_s)
    assert made is not None
    assert made.signal.source == "persistence"


def test_intervals_cover_90_percent() -> None:
    values = weather(52)
    covered = []
    for hour, (_, _, made) in enumerate(walked(grid(values), 30, 24 * 20)):
        came = values[30 * 24 + hour :][:24]
        covered.append((made.lower <= came) & (came <= made.upper))
    assert np.mean(covered, axis=0)[[0, 2, 5, 11]] == pytest.approx(np.full(4, 0.9), abs=0.04)


def test_the_same_history_changes_nothing() -> None:
    history = grid(weather(30))
    state, one = advance(None, history=history, provider_forecast=None, now_s=history.ends_s)
    again, other = advance(state, history=history, provider_forecast=None, now_s=history.ends_s + 10)
    assert one is not None
    assert other is not None
    assert again is state
    assert other.signal.values[:24].tolist() == one.signal.values.tolist()


def test_a_moving_window_of_the_same_values_changes_nothing() -> None:
    whole = grid(weather(61))
    state = None
    states = []
    for late_s in (5, 10, 15):
        now_s = whole.ends_s + late_s
        state, _ = advance(state, history=until(whole, now_s), provider_forecast=None, now_s=now_s)
        states.append(state)
    assert states[0] is states[1] is states[2]


def test_a_revision_is_used() -> None:
    values = weather(30)
    state, one = advance(None, history=grid(values), provider_forecast=None, now_s=START_S + 30 * DAY_S)
    values[-1] += 20
    _, other = advance(state, history=grid(values), provider_forecast=None, now_s=START_S + 30 * DAY_S)
    assert one is not None
    assert other is not None
    assert other.signal.values[0] > one.signal.values[0] + 10


@pytest.mark.parametrize(("hours", "is_refitted"), [(23, False), (24, True)])
def test_it_refits_daily(hours: int, is_refitted: bool) -> None:
    seen = walked(grid(weather(32)), 30, hours + 1)
    assert (seen[-1][1].fitted_s != seen[0][1].fitted_s) == is_refitted


@pytest.mark.parametrize(
    "changed",
    [
        grid(weather(30), kind="marginal"),
        grid(weather(30, step_s=1_800.0), step_s=1_800.0),
        replace(grid(weather(30)), zone="FR"),
        grid(weather(20)),
    ],
)
def test_another_series_starts_fresh(changed: Signal) -> None:
    state = walked(grid(weather(31)), 30, 24)[-1][1]
    after, made = advance(state, history=changed, provider_forecast=None, now_s=changed.ends_s)
    _, fresh = advance(None, history=changed, provider_forecast=None, now_s=changed.ends_s)
    assert made is not None
    assert fresh is not None
    assert made.signal.values.tolist() == fresh.signal.values.tolist()
    assert after is not None
    assert after.fitted_s == changed.ends_s


def test_learning_does_not_depend_on_the_call_rate() -> None:
    whole = grid(weather(33))
    hourly = walked(whole, 30, 49)[-1][2]
    state, made = None, None
    for minute in range(0, 48 * 60 + 1, 7):
        now_s = START_S + 30 * DAY_S + minute * 60
        state, made = advance(state, history=until(whole, now_s), provider_forecast=None, now_s=now_s)
    now_s = START_S + 32 * DAY_S
    state, made = advance(state, history=until(whole, now_s), provider_forecast=None, now_s=now_s)
    assert made is not None
    assert made.signal.values == pytest.approx(hourly.signal.values, rel=0.02)
    assert made.upper == pytest.approx(hourly.upper, rel=0.05)


def oracle_forecasts(values: NDArray[np.float64], error: float) -> dict[float, Signal]:
    """Return a provider's forecast at each hour: the truth with an error of that standard deviation."""
    rng = np.random.default_rng(7)
    provided = {}
    for hour in range(len(values) - 24):
        now_s = START_S + hour * HOUR_S
        provided[now_s] = grid(values[hour:][:25] + error * rng.normal(), start_s=now_s, source="oracle")
    return provided


def test_an_unverified_provider_counts_beyond_three_hours() -> None:
    values = weather(31)
    now_s = START_S + 30 * DAY_S
    alone = forecast(until(grid(values), now_s), now_s)
    provided = grid(np.full(25, 222.0), start_s=now_s, source="oracle")
    made = forecast(until(grid(values), now_s), now_s, provided)
    assert made.signal.source == "regression+oracle"
    assert made.signal.values[:3].tolist() == alone.signal.values[:3].tolist()
    assert made.signal.values[3:] == pytest.approx(np.full(21, 222.0))


@pytest.mark.parametrize(("error", "is_better"), [(1.0, True), (150.0, False)])
def test_a_provider_counts_by_its_errors(error: float, is_better: bool) -> None:
    values = weather(36)
    seen = walked(grid(values), 30, 24 * 4, oracle_forecasts(values, error))
    now_s, state, _ = seen[-1]
    provided = grid(np.full(25, 222.0), start_s=now_s, source="oracle")
    _, made = advance(state, history=until(grid(values), now_s), provider_forecast=provided, now_s=now_s)
    _, alone = advance(state, history=until(grid(values), now_s), provider_forecast=None, now_s=now_s)
    assert made is not None
    assert alone is not None
    share = (made.signal.values - alone.signal.values) / (222.0 - alone.signal.values)
    assert share[:12].mean() > 0.6 if is_better else share[:12].mean() < 0.25


def test_provider_skill_survives_a_new_tier() -> None:
    values = weather(18)
    seen = walked(grid(values), 12, 24 * 3, oracle_forecasts(values, 1.0))
    assert seen[0][2].signal.source == "ridge+oracle"
    assert seen[-1][2].signal.source == "regression+oracle"
    assert seen[-1][1].skill.n_paired[0] > 24 * 3 - 5


@pytest.mark.parametrize("changes", [{"kind": "marginal"}, {"unit": "%"}])
def test_a_provider_of_another_kind_or_unit_is_ignored(changes: dict[str, str]) -> None:
    history = grid(weather(20))
    provided = replace(grid(np.full(25, 222.0), start_s=history.ends_s), **changes)  # type: ignore[arg-type]
    assert forecast(history, provided=provided).signal.source == "regression"


def test_gaps_of_the_provider_are_filled_by_the_models() -> None:
    history = grid(weather(20))
    provided = grid([222.0] * 6 + [NAN] * 3 + [222.0] * 3, start_s=history.ends_s, source="oracle")
    made, alone = forecast(history, provided=provided).signal, forecast(history).signal
    assert made.values[6:9].tolist() == alone.values[6:9].tolist()
    assert made.values[12:].tolist() == alone.values[12:].tolist()
    assert made.values[9:12].tolist() == [222.0] * 3


def held(values: list[float], now_s: float) -> Signal | None:
    return persistence(
        grid(values, start_s=0.0, kind="marginal"), now_s=now_s, horizon_s=6 * HOUR_S, step_s=HOUR_S, max_age_s=HOUR_S
    )


def test_persistence_holds_the_last_value_over_the_horizon() -> None:
    made = held([100.0, 200.0], now_s=1.5 * HOUR_S)
    assert made is not None
    assert made.values.tolist() == [200.0] * 6
    assert (made.starts_s[0], made.ends_s) == (1.5 * HOUR_S, 7.5 * HOUR_S)
    assert (made.source, bool(made.estimated.all()), made.issued_at_s) == ("persistence", True, 1.5 * HOUR_S)
    assert (made.kind, made.zone, made.unit) == ("marginal", "DE", "g/kWh")


@pytest.mark.parametrize(("values", "now_s"), [([100.0, 999.0], 0.5 * HOUR_S), ([100.0, NAN], 1.5 * HOUR_S)])
def test_persistence_ignores_future_and_missing_values(values: list[float], now_s: float) -> None:
    made = held(values, now_s)
    assert made is not None
    assert set(made.values) == {100.0}


@pytest.mark.parametrize("values", [[100.0, 200.0], [NAN]])
def test_persistence_needs_a_recent_value(values: list[float]) -> None:
    assert held(values, now_s=3.5 * HOUR_S) is None
