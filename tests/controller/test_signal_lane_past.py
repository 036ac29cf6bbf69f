"""A lane and what it was told: what of it is kept, revised, joined, forgotten, and what outlives the process."""

import math
from dataclasses import replace

import numpy as np

from controller.signal_lane import Lane
from policies.freshness import Freshness
from policies.providers.base import SignalUnavailableError
from policies.providers.catalogue import Source
from policies.signal import ESTIMATED
from tests.controller.lane_bench import DAY_S, HOUR_S, Asked, lane_of, look
from tests.fakes import MIDNIGHT_S, Shelf, flat_signal


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
    await look(Lane(Source(provider=provider, key="lifecycle"), store=shelf, jitter_ratio=0.0), 0.5)
    silent = Asked(None)
    lane = Lane(Source(provider=silent, key="direct"), store=shelf, jitter_ratio=0.0)
    await look(lane, 0.9)
    assert lane.known is None


async def test_a_file_is_not_kept() -> None:
    shelf = Shelf()
    await look(Lane(Source(provider=Asked(flat_signal(300.0)), is_kept=False), store=shelf, jitter_ratio=0.0), 0.5)
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
