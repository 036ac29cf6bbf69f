"""Source states: polls, back-fill, faults, and what is kept, revised, joined, saved and loaded again."""

import logging
import math
from dataclasses import replace

import numpy as np
import pytest

from controller.signal.source_state import BACKFILL_REACHES_S, HISTORY_S, SourceState
from policies.providers.base import SignalLimitedError, SignalRefusedError, SignalUnavailableError
from policies.providers.catalogue import Source
from policies.vocabulary.freshness import Freshness
from policies.vocabulary.signal import ESTIMATED, Signal
from tests.controller.signal.source_bench import (
    DAY_S,
    HOUR_S,
    RecordingProvider,
    every_five_minutes,
    refresh_at,
    state_of,
)
from tests.fakes import MIDNIGHT_S, FakeHistoryStore, FixedProvider, flat_signal


async def test_a_provider_is_polled_once_a_step() -> None:
    provider = RecordingProvider(flat_signal(300.0))
    await refresh_at(state_of(provider), *every_five_minutes(0.01, 6))
    assert [math.floor(hour) for hour in provider.polled_h] == [0, 1, 2, 3, 4, 5]
    assert all(hour % 1 < 0.1 for hour in provider.polled_h)


async def test_a_late_provider_is_polled_again_within_the_step_but_not_at_every_refresh() -> None:
    provider = RecordingProvider(flat_signal(300.0).between(0, MIDNIGHT_S))
    await refresh_at(state_of(provider), *every_five_minutes(0.0, 1.99))
    assert 8 <= len(provider.polled_h) <= 13


async def test_a_failing_provider_is_polled_less_and_less_often_until_it_is_back() -> None:
    provider = RecordingProvider(flat_signal(300.0))
    provider.error = SignalUnavailableError("503")
    state = state_of(provider)
    await refresh_at(state, *np.arange(0, 3, 1 / 120).tolist())
    pauses_s = np.diff(provider.polled_h) * HOUR_S
    assert pauses_s[0] < 60
    assert (np.diff(pauses_s) > -31).all()
    assert pauses_s[-1] == pytest.approx(900, abs=31)
    provider.error = None
    await refresh_at(state, *every_five_minutes(3, 4))
    assert state.fault == ""


async def test_retry_after_holds_for_every_request() -> None:
    provider = RecordingProvider(flat_signal(300.0))
    provider.forecast_error = SignalLimitedError("429", retry_after_s=2 * HOUR_S)
    await refresh_at(state_of(provider), *every_five_minutes(0.01, 1.99))
    assert len(provider.polled_h) == 1


async def test_the_first_poll_asks_for_two_days_and_the_past_is_backfilled_once() -> None:
    provider = RecordingProvider(flat_signal(300.0, start_s=MIDNIGHT_S - 100 * DAY_S, hours=24 * 110))
    state = state_of(provider)
    await refresh_at(state, *np.arange(0.5, 0.9, 1 / 60).tolist())
    now_s = MIDNIGHT_S + 0.5 * HOUR_S
    assert provider.since_s[0] == now_s - BACKFILL_REACHES_S[0]
    assert np.diff(provider.since_s[1:]).max() < 0
    assert len(provider.since_s) == len(BACKFILL_REACHES_S)
    assert state.known is not None
    assert state.known.starts_s[0] == pytest.approx(now_s - HISTORY_S, abs=HOUR_S)
    await refresh_at(state, 1.5)
    assert provider.since_s[-1] == MIDNIGHT_S - BACKFILL_REACHES_S[0], "then what may have been revised, and no more"


async def test_a_failing_backfill_does_not_delay_the_present() -> None:
    provider = RecordingProvider(flat_signal(300.0, start_s=MIDNIGHT_S - 100 * DAY_S, hours=24 * 110))
    fetch = provider.fetch_history

    async def slow(*, since_s: float, now_s: float) -> Signal | None:
        if since_s < now_s - 3 * DAY_S:
            provider.polled_h.append((now_s - MIDNIGHT_S) / HOUR_S)
            raise SignalUnavailableError("too slow")
        return await fetch(since_s=since_s, now_s=now_s)

    provider.fetch_history = slow  # type: ignore[method-assign]
    state = state_of(provider)
    await refresh_at(state, *np.arange(0.5, 6, 1 / 60).tolist())
    assert state.fault == ""
    assert state.present(MIDNIGHT_S + 5.99 * HOUR_S, lasting_s=600.0).freshness is Freshness.FRESH
    assert len(provider.polled_h) < 40


async def test_a_missing_forecast_is_logged_once_and_the_history_works_without_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "controller.signal.source_state")
    provider = RecordingProvider(flat_signal(300.0))
    provider.forecast_error = SignalRefusedError("401: not in this plan")
    state = state_of(provider)
    await refresh_at(state, *every_five_minutes(0.01, 5))
    assert (state.fault, state.forecast_fault) == ("", "401: not in this plan")
    assert state.known is not None
    provider.forecast_error = None
    await refresh_at(state, *every_five_minutes(5, 8))
    assert caplog.messages == [
        "no forecast: 401: not in this plan",
        "fixed: the forecast is available again",
    ]


async def test_the_provider_s_forecast_is_blended_in() -> None:
    ahead = replace(flat_signal(350.0), source="theirs", estimated=ESTIMATED)
    state = state_of(RecordingProvider(flat_signal(300.0, start_s=MIDNIGHT_S - 9 * DAY_S), forecast=ahead))
    await refresh_at(state, 0.5)
    present = state.present(MIDNIGHT_S + 0.5 * HOUR_S, lasting_s=600.0)
    assert present.forecast is not None
    assert "theirs" in present.forecast.source
    assert present.forecast.value_at(MIDNIGHT_S + 20 * HOUR_S) == pytest.approx(350.0, rel=0.1)


async def test_the_provider_s_second_and_third_day_are_used() -> None:
    ahead = replace(flat_signal(350.0, hours=7 * 24), source="theirs", estimated=ESTIMATED)
    state = state_of(RecordingProvider(flat_signal(300.0, start_s=MIDNIGHT_S - 9 * DAY_S), forecast=ahead))
    await refresh_at(state, 0.5)
    present, own = state.present(MIDNIGHT_S + 0.5 * HOUR_S, lasting_s=600.0), state.forecast
    assert present.forecast is not None
    assert own is not None
    assert own.signal.ends_s <= MIDNIGHT_S + 25 * HOUR_S
    assert present.forecast.ends_s == MIDNIGHT_S + 72.5 * HOUR_S
    for hours in (30, 50, 72):
        assert present.forecast.value_at(MIDNIGHT_S + hours * HOUR_S) == 350.0


async def test_a_plan_of_one_day_keeps_its_forecast_and_the_log_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "controller.signal.source_state")
    ahead = replace(flat_signal(350.0, hours=7 * 24), source="theirs", estimated=ESTIMATED)
    history = flat_signal(300.0, start_s=MIDNIGHT_S - 9 * DAY_S, hours=24 * 12)
    provider = RecordingProvider(history, forecast=ahead)
    provider.longest_s = DAY_S
    state = state_of(provider)
    await refresh_at(state, *every_five_minutes(0.5, 26))
    assert state.forecast_fault == ""
    present = state.present(MIDNIGHT_S + 26 * HOUR_S, lasting_s=600.0)
    assert present.forecast is not None
    assert "theirs" in present.forecast.source
    provider.longest_s = math.inf
    await refresh_at(state, *every_five_minutes(26, 52))
    assert caplog.messages == [
        "a forecast of 24 h, as the provider refuses 72: 400: not so far",
        "fixed: a forecast of 72 h is allowed again",
    ]
    present = state.present(MIDNIGHT_S + 52 * HOUR_S, lasting_s=600.0)
    assert present.forecast is not None
    assert present.forecast.ends_s >= MIDNIGHT_S + (52 - 1 + 72) * HOUR_S


async def test_day_ahead_prices_are_followed_as_they_are() -> None:
    series = replace(flat_signal(0.1, start_s=MIDNIGHT_S - 9 * DAY_S), kind="price", unit="EUR/kWh")
    ahead = replace(series.between(MIDNIGHT_S + HOUR_S, math.inf), values=np.full(len(series) - 217, -0.02))
    state = state_of(RecordingProvider(series, forecast=ahead))
    await refresh_at(state, 0.5)
    present = state.present(MIDNIGHT_S + 0.5 * HOUR_S, lasting_s=600.0)
    assert present.forecast is not None
    assert present.forecast.value_at(MIDNIGHT_S + 12 * HOUR_S) == -0.02
    later = state.present(MIDNIGHT_S + 9.5 * HOUR_S, lasting_s=600.0)
    assert later.freshness is Freshness.FRESH, "settled prices do not age while nobody answers"
    assert later.history is not None
    assert later.history.value_at(MIDNIGHT_S + 9.5 * HOUR_S) == -0.02


async def test_measured_values_from_the_future_are_a_fault() -> None:
    provider = RecordingProvider(flat_signal(300.0))
    state = state_of(provider)

    async def early(*, since_s: float, now_s: float) -> Signal | None:
        return await FixedProvider.fetch_history(provider, since_s=since_s, now_s=now_s + 2 * HOUR_S)

    provider.fetch_history = early  # type: ignore[method-assign]
    await refresh_at(state, 0.5)
    assert "one clock is wrong by 1.5 h or more" in state.fault
    assert state.known is None


async def test_revised_values_replace_old_ones_and_dropped_ones_stay() -> None:
    provider = RecordingProvider(flat_signal(300.0, start_s=MIDNIGHT_S - 9 * DAY_S))
    state = state_of(provider)
    await refresh_at(state, 0.5, 0.51, 0.52, 0.53)
    assert provider.series is not None
    newer = provider.series.between(MIDNIGHT_S - HOUR_S, math.inf)
    provider.series = replace(newer, values=np.full(len(newer), 250.0))
    await refresh_at(state, 1.5)
    assert state.known is not None
    assert [state.known.value_at(MIDNIGHT_S + h * HOUR_S) for h in (-200, -2, -1, 0, 1)] == [300, 300, 250, 250, 250]


async def test_settled_prices_in_another_currency_are_not_joined_to_what_is_known() -> None:
    series = replace(flat_signal(0.1, start_s=MIDNIGHT_S - 9 * DAY_S), kind="price", unit="BGN/kWh")
    ahead = replace(series.between(MIDNIGHT_S + HOUR_S, math.inf), unit="EUR/kWh")
    state = state_of(RecordingProvider(series, forecast=ahead))
    await refresh_at(state, 0.5)
    present = state.present(MIDNIGHT_S + 0.5 * HOUR_S, lasting_s=600.0)
    assert present.history is not None
    assert present.history.unit == "BGN/kWh"


async def test_settled_prices_survive_a_restart() -> None:
    series = replace(flat_signal(0.1, start_s=MIDNIGHT_S - 9 * DAY_S), kind="price", unit="EUR/kWh")
    store = FakeHistoryStore()
    ahead = series.between(MIDNIGHT_S + HOUR_S, math.inf)
    await refresh_at(
        state_of(RecordingProvider(series.between(0, MIDNIGHT_S + HOUR_S), forecast=ahead), store=store), 0.5
    )
    silent = RecordingProvider(replace(series, values=series.values * 0))
    silent.error = SignalUnavailableError("503")
    state = state_of(silent, store=store)
    await refresh_at(state, 9.5)
    assert state.present(MIDNIGHT_S + 9.5 * HOUR_S, lasting_s=600.0).freshness is Freshness.FRESH


async def test_the_history_of_other_settings_is_not_loaded() -> None:
    store = FakeHistoryStore()
    provider = RecordingProvider(flat_signal(300.0))
    await refresh_at(SourceState(Source(provider=provider, key="lifecycle"), store=store, jitter_ratio=0.0), 0.5)
    silent = RecordingProvider(None)
    state = SourceState(Source(provider=silent, key="direct"), store=store, jitter_ratio=0.0)
    await refresh_at(state, 0.9)
    assert state.known is None


async def test_a_history_is_saved_every_ten_minutes_at_most_and_at_the_end() -> None:
    store = FakeHistoryStore()
    starts_s = MIDNIGHT_S + 60.0 * np.arange(240, dtype=np.float64)
    provider = RecordingProvider(
        replace(flat_signal(300.0), starts_s=starts_s, values=starts_s, ends_s=starts_s[-1] + 60)
    )
    provider.step_s = 60.0
    state = state_of(provider, store=store)
    n_saved = []
    for minute in (30, 32, 35, 39, 41, 45):
        await state.refresh(MIDNIGHT_S + 60 * minute + 1)
        n_saved.append(len(store.saved[state.source.key]))
    state.save(MIDNIGHT_S + 60 * 45 + 1)
    assert n_saved[0] == n_saved[3] < n_saved[4] == n_saved[5] < len(store.saved[state.source.key])


async def test_the_history_of_a_file_is_not_saved() -> None:
    store = FakeHistoryStore()
    await refresh_at(
        SourceState(
            Source(provider=RecordingProvider(flat_signal(300.0)), is_persistent=False), store=store, jitter_ratio=0.0
        ),
        0.5,
    )
    assert store.saved == {}


async def test_the_provider_s_forecast_is_used_for_a_day_at_most() -> None:
    ahead = replace(flat_signal(350.0), source="theirs", estimated=ESTIMATED)
    provider = RecordingProvider(flat_signal(300.0, start_s=MIDNIGHT_S - 9 * DAY_S, hours=480), forecast=ahead)
    state = state_of(provider)
    await refresh_at(state, 0.5)
    provider.forecast_error = SignalUnavailableError("503")
    await refresh_at(state, 23.0, 25.0)
    later = state.present(MIDNIGHT_S + 25.0 * HOUR_S, lasting_s=600.0)
    assert later.forecast is not None
    assert "theirs" not in later.forecast.source


async def test_a_series_in_another_unit_begins_anew() -> None:
    provider = RecordingProvider(flat_signal(300.0))
    state = state_of(provider)
    await refresh_at(state, 0.5)
    provider.series = replace(flat_signal(0.3), unit="kg/kWh")
    await refresh_at(state, 1.5)
    assert state.known is not None
    assert set(state.known.values) == {0.3}


async def test_the_history_survives_a_restart() -> None:
    store = FakeHistoryStore()
    await refresh_at(state_of(RecordingProvider(flat_signal(300.0)), store=store), 0.5)
    silent = RecordingProvider(None)
    silent.error = SignalUnavailableError("503")
    state = state_of(silent, store=store)
    await refresh_at(state, 0.9)
    present = state.present(MIDNIGHT_S + 0.9 * HOUR_S, lasting_s=600.0)
    assert present.freshness is Freshness.FRESH
    assert present.history is not None
    assert present.history.value_at(MIDNIGHT_S + 0.9 * HOUR_S) == 300.0


async def test_memory_is_bounded_by_sixty_days() -> None:
    provider = RecordingProvider(flat_signal(300.0, start_s=MIDNIGHT_S - 100 * DAY_S, hours=24 * 200))
    state = state_of(provider)
    await refresh_at(state, *np.arange(0, 24 * 90, 12.0).tolist())
    assert state.known is not None
    assert len(state.known) <= 60 * 24 + 1
