"""A lane: its provider is asked once a step, and less often when it fails; what it cannot say is told once.

A lane and what it was told: what of it is kept, revised, joined, forgotten, and what outlives the process.
"""

import asyncio
import logging
import math
from dataclasses import replace

import numpy as np
import pytest

from controller.signal.source_state import HISTORY_S, REACHES_S, SourceState
from policies.providers.base import SignalLimitedError, SignalRefusedError, SignalUnavailableError
from policies.providers.catalogue import Source
from policies.vocabulary.freshness import Freshness
from policies.vocabulary.signal import ESTIMATED, Signal
from tests.controller.signal.source_bench import DAY_S, HOUR_S, Asked, every_five_minutes, lane_of, look
from tests.fakes import MIDNIGHT_S, FixedProvider, Shelf, flat_signal


async def test_a_provider_is_asked_once_a_step() -> None:
    provider = Asked(flat_signal(300.0))
    await look(lane_of(provider), *every_five_minutes(0.01, 6))
    assert [math.floor(hour) for hour in provider.asked_h] == [0, 1, 2, 3, 4, 5]
    assert all(hour % 1 < 0.1 for hour in provider.asked_h)


async def test_a_process_asks_a_little_later_than_another() -> None:
    provider = Asked(flat_signal(300.0))
    await look(lane_of(provider, jitter_ratio=0.999), *every_five_minutes(0.01, 6))
    assert all(0.0999 <= hour % 1 < 0.2 for hour in provider.asked_h[1:])


async def test_a_provider_that_is_late_is_asked_again_within_the_step_but_not_at_every_look() -> None:
    provider = Asked(flat_signal(300.0).between(0, MIDNIGHT_S))
    await look(lane_of(provider), *every_five_minutes(0.0, 1.99))
    assert 8 <= len(provider.asked_h) <= 13


async def test_a_provider_that_fails_is_asked_less_and_less_often_and_at_once_again_when_it_is_back() -> None:
    provider = Asked(flat_signal(300.0))
    provider.error = SignalUnavailableError("503")
    lane = lane_of(provider)
    await look(lane, *np.arange(0, 3, 1 / 120).tolist())
    pauses_s = np.diff(provider.asked_h) * HOUR_S
    assert pauses_s[0] < 60
    assert (np.diff(pauses_s) > -31).all()
    assert pauses_s[-1] == pytest.approx(900, abs=31)
    provider.error = None
    await look(lane, *every_five_minutes(3, 4))
    assert lane.fault == ""


async def test_what_a_provider_asks_for_is_done() -> None:
    provider = Asked(flat_signal(300.0))
    provider.error = SignalLimitedError("429", retry_after_s=2 * HOUR_S)
    await look(lane_of(provider), *every_five_minutes(0, 1.99))
    assert len(provider.asked_h) == 1


async def test_a_provider_that_wants_to_be_left_alone_is_left_alone_by_every_question() -> None:
    provider = Asked(flat_signal(300.0))
    provider.forecast_error = SignalLimitedError("429", retry_after_s=2 * HOUR_S)
    await look(lane_of(provider), *every_five_minutes(0.01, 1.99))
    assert len(provider.asked_h) == 1


async def test_a_provider_that_refuses_is_asked_once_an_hour() -> None:
    provider = Asked(flat_signal(300.0))
    provider.error = SignalRefusedError("401")
    await look(lane_of(provider), *every_five_minutes(0, 2.99))
    assert len(provider.asked_h) == 3


async def test_at_first_two_days_are_asked_for_and_then_more_and_more_of_the_past_once() -> None:
    provider = Asked(flat_signal(300.0, start_s=MIDNIGHT_S - 100 * DAY_S, hours=24 * 110))
    lane = lane_of(provider)
    await look(lane, *np.arange(0.5, 0.9, 1 / 60).tolist())
    now_s = MIDNIGHT_S + 0.5 * HOUR_S
    assert provider.since_s[0] == now_s - REACHES_S[0]
    assert np.diff(provider.since_s[1:]).max() < 0
    assert len(provider.since_s) == len(REACHES_S)
    assert lane.known is not None
    assert lane.known.starts_s[0] == pytest.approx(now_s - HISTORY_S, abs=HOUR_S)
    await look(lane, 1.5)
    assert provider.since_s[-1] == MIDNIGHT_S - REACHES_S[0], "then what may have been revised, and no more"


async def test_a_past_that_cannot_be_had_does_not_keep_the_present_from_us() -> None:
    provider = Asked(flat_signal(300.0, start_s=MIDNIGHT_S - 100 * DAY_S, hours=24 * 110))
    fetch = provider.fetch_history

    async def slow(*, since_s: float, now_s: float) -> Signal | None:
        if since_s < now_s - 3 * DAY_S:
            provider.asked_h.append((now_s - MIDNIGHT_S) / HOUR_S)
            raise SignalUnavailableError("too slow")
        return await fetch(since_s=since_s, now_s=now_s)

    provider.fetch_history = slow  # type: ignore[method-assign]
    lane = lane_of(provider)
    await look(lane, *np.arange(0.5, 6, 1 / 60).tolist())
    assert lane.fault == ""
    assert lane.present(MIDNIGHT_S + 5.99 * HOUR_S, lasting_s=600.0).freshness is Freshness.FRESH
    assert len(provider.asked_h) < 40


async def test_an_answer_that_nobody_thought_of_is_a_fault_and_told_with_its_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    provider = Asked(flat_signal(300.0))
    provider.error = RecursionError("too deep")
    lane = lane_of(provider)
    await look(lane, *every_five_minutes(0.01, 2))
    assert lane.fault == "fixed: could not be understood: RecursionError"
    assert len([record for record in caplog.records if record.exc_info]) == 1


async def test_a_missing_forecast_is_told_once_and_history_works_without_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "controller.signal.source_state")
    provider = Asked(flat_signal(300.0))
    provider.forecast_error = SignalRefusedError("401: not in this plan")
    lane = lane_of(provider)
    await look(lane, *every_five_minutes(0.01, 5))
    assert (lane.fault, lane.forecast_fault) == ("", "401: not in this plan")
    assert lane.known is not None
    provider.forecast_error = None
    await look(lane, *every_five_minutes(5, 8))
    assert caplog.messages == [
        "no forecast: 401: not in this plan",
        "fixed: its forecast is there again",
    ]


async def test_what_the_provider_forecasts_takes_part_in_the_forecast() -> None:
    ahead = replace(flat_signal(350.0), source="theirs", estimated=ESTIMATED)
    lane = lane_of(Asked(flat_signal(300.0, start_s=MIDNIGHT_S - 9 * DAY_S), forecast=ahead))
    await look(lane, 0.5)
    present = lane.present(MIDNIGHT_S + 0.5 * HOUR_S, lasting_s=600.0)
    assert present.forecast is not None
    assert "theirs" in present.forecast.source
    assert present.forecast.value_at(MIDNIGHT_S + 20 * HOUR_S) == pytest.approx(350.0, rel=0.1)


async def test_day_ahead_prices_are_followed_as_they_are() -> None:
    series = replace(flat_signal(0.1, start_s=MIDNIGHT_S - 9 * DAY_S), kind="price", unit="EUR/kWh")
    ahead = replace(series.between(MIDNIGHT_S + HOUR_S, math.inf), values=np.full(len(series) - 217, -0.02))
    lane = lane_of(Asked(series, forecast=ahead))
    await look(lane, 0.5)
    present = lane.present(MIDNIGHT_S + 0.5 * HOUR_S, lasting_s=600.0)
    assert present.forecast is not None
    assert present.forecast.value_at(MIDNIGHT_S + 12 * HOUR_S) == -0.02
    later = lane.present(MIDNIGHT_S + 9.5 * HOUR_S, lasting_s=600.0)
    assert later.freshness is Freshness.FRESH, "settled prices do not age while nobody answers"
    assert later.history is not None
    assert later.history.value_at(MIDNIGHT_S + 9.5 * HOUR_S) == -0.02


async def test_measured_values_from_the_future_are_a_fault() -> None:
    provider = Asked(flat_signal(300.0))
    lane = lane_of(provider)

    async def early(*, since_s: float, now_s: float) -> Signal | None:
        return await FixedProvider.fetch_history(provider, since_s=since_s, now_s=now_s + 2 * HOUR_S)

    provider.fetch_history = early  # type: ignore[method-assign]
    await look(lane, 0.5)
    assert "one clock is wrong by 1.5 h or more" in lane.fault
    assert lane.known is None


async def test_a_provider_that_never_answers_costs_bounded_time() -> None:
    provider = Asked(None)

    async def hang(*, since_s: float, now_s: float) -> Signal | None:
        del since_s, now_s
        await asyncio.Event().wait()
        return None

    provider.fetch_history = hang  # type: ignore[method-assign]
    lane = lane_of(provider)
    began_s = asyncio.get_running_loop().time()
    await look(lane, 0.5)
    assert asyncio.get_running_loop().time() - began_s < 60
    assert "no answer" in lane.fault


async def test_a_revised_value_replaces_the_old_one_and_what_is_told_no_more_stays() -> None:
    provider = Asked(flat_signal(300.0, start_s=MIDNIGHT_S - 9 * DAY_S))
    lane = lane_of(provider)
    await look(lane, 0.5, 0.51, 0.52, 0.53)
    assert provider.series is not None
    newer = provider.series.between(MIDNIGHT_S - HOUR_S, math.inf)
    provider.series = replace(newer, values=np.full(len(newer), 250.0))
    await look(lane, 1.5)
    assert lane.known is not None
    assert [lane.known.value_at(MIDNIGHT_S + h * HOUR_S) for h in (-200, -2, -1, 0, 1)] == [300, 300, 250, 250, 250]


async def test_settled_prices_in_another_currency_are_not_joined_to_what_is_known() -> None:
    series = replace(flat_signal(0.1, start_s=MIDNIGHT_S - 9 * DAY_S), kind="price", unit="BGN/kWh")
    ahead = replace(series.between(MIDNIGHT_S + HOUR_S, math.inf), unit="EUR/kWh")
    lane = lane_of(Asked(series, forecast=ahead))
    await look(lane, 0.5)
    present = lane.present(MIDNIGHT_S + 0.5 * HOUR_S, lasting_s=600.0)
    assert present.history is not None
    assert present.history.unit == "BGN/kWh"


async def test_settled_prices_outlive_the_process() -> None:
    series = replace(flat_signal(0.1, start_s=MIDNIGHT_S - 9 * DAY_S), kind="price", unit="EUR/kWh")
    shelf = Shelf()
    ahead = series.between(MIDNIGHT_S + HOUR_S, math.inf)
    await look(lane_of(Asked(series.between(0, MIDNIGHT_S + HOUR_S), forecast=ahead), store=shelf), 0.5)
    silent = Asked(replace(series, values=series.values * 0))
    silent.error = SignalUnavailableError("503")
    lane = lane_of(silent, store=shelf)
    await look(lane, 9.5)
    assert lane.present(MIDNIGHT_S + 9.5 * HOUR_S, lasting_s=600.0).freshness is Freshness.FRESH


async def test_what_was_kept_of_other_settings_is_not_taken_up() -> None:
    shelf = Shelf()
    provider = Asked(flat_signal(300.0))
    await look(SourceState(Source(provider=provider, key="lifecycle"), store=shelf, jitter_ratio=0.0), 0.5)
    silent = Asked(None)
    lane = SourceState(Source(provider=silent, key="direct"), store=shelf, jitter_ratio=0.0)
    await look(lane, 0.9)
    assert lane.known is None


async def test_a_file_is_not_kept() -> None:
    shelf = Shelf()
    await look(
        SourceState(Source(provider=Asked(flat_signal(300.0)), is_kept=False), store=shelf, jitter_ratio=0.0), 0.5
    )
    assert shelf.kept == {}


async def test_what_a_provider_forecast_takes_part_for_a_day_at_most() -> None:
    ahead = replace(flat_signal(350.0), source="theirs", estimated=ESTIMATED)
    provider = Asked(flat_signal(300.0, start_s=MIDNIGHT_S - 9 * DAY_S, hours=480), forecast=ahead)
    lane = lane_of(provider)
    await look(lane, 0.5)
    provider.forecast_error = SignalUnavailableError("503")
    await look(lane, 23.0, 25.0)
    later = lane.present(MIDNIGHT_S + 25.0 * HOUR_S, lasting_s=600.0)
    assert later.forecast is not None
    assert "theirs" not in later.forecast.source


async def test_a_series_in_another_unit_begins_anew() -> None:
    provider = Asked(flat_signal(300.0))
    lane = lane_of(provider)
    await look(lane, 0.5)
    provider.series = replace(flat_signal(0.3), unit="kg/kWh")
    await look(lane, 1.5)
    assert lane.known is not None
    assert set(lane.known.values) == {0.3}


async def test_what_was_told_outlives_the_process() -> None:
    shelf = Shelf()
    await look(lane_of(Asked(flat_signal(300.0)), store=shelf), 0.5)
    silent = Asked(None)
    silent.error = SignalUnavailableError("503")
    lane = lane_of(silent, store=shelf)
    await look(lane, 0.9)
    present = lane.present(MIDNIGHT_S + 0.9 * HOUR_S, lasting_s=600.0)
    assert present.freshness is Freshness.FRESH
    assert present.history is not None
    assert present.history.value_at(MIDNIGHT_S + 0.9 * HOUR_S) == 300.0


async def test_memory_is_bounded_by_sixty_days() -> None:
    provider = Asked(flat_signal(300.0, start_s=MIDNIGHT_S - 100 * DAY_S, hours=24 * 200))
    lane = lane_of(provider)
    await look(lane, *np.arange(0, 24 * 90, 12.0).tolist())
    assert lane.known is not None
    assert len(lane.known) <= 60 * 24 + 1
