"""The reach of a forecast: a plan that refuses three days gives one, and is not asked for three again at once."""

from typing import Final

import pytest

from policies.providers.base import SignalLimitedError, SignalRefusedError, SignalUnavailableError
from policies.providers.forecast_reach import REFUSED_FOR_S, ForecastReach
from tests.policies.providers.contract import DAY_S, HOUR_S, NOW_S, opened
from tests.policies.providers.fakes.api import Fault
from tests.policies.providers.fakes.electricity_maps import TOKEN
from tests.policies.providers.fakes.watttime import PASSWORD
from tests.policies.providers.sources.test_electricity_maps import ElectricityMapsBench
from tests.policies.providers.sources.test_watttime import WattTimeBench

Bench = ElectricityMapsBench | WattTimeBench
HORIZON_KEYS: Final = ("horizonHours", "horizon_hours")


@pytest.fixture(autouse=True)
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELECTRICITY_MAPS_TOKEN", TOKEN)
    monkeypatch.setenv("WATTTIME_PASSWORD", PASSWORD)


@pytest.fixture(params=[ElectricityMapsBench, WattTimeBench])
def bench(request: pytest.FixtureRequest) -> Bench:
    chosen: type[Bench] = request.param
    return chosen()


def horizons_h(bench: Bench) -> list[int]:
    """Return the horizons that were asked for [h]."""
    return [int(seen.query[key]) for seen in bench.api.requests for key in HORIZON_KEYS if key in seen.query]


async def test_a_plan_of_three_days_is_asked_for_them(bench: Bench) -> None:
    async with opened(bench) as case:
        reach = ForecastReach(case.provider, whole_s=3 * DAY_S, least_s=DAY_S)
        assert [await reach.fetch(NOW_S) is None for _ in range(2)] == [False, False]
    assert (horizons_h(bench), reach.refusal) == ([72, 72], "")


async def test_a_plan_of_one_day_gives_it_and_is_asked_for_three_once_a_day(bench: Bench) -> None:
    bench.api.longest_h = 24
    async with opened(bench) as case:
        reach = ForecastReach(case.provider, whole_s=3 * DAY_S, least_s=DAY_S)
        forecast = await reach.fetch(NOW_S)
        assert forecast is not None
        assert forecast.ends_s >= NOW_S + DAY_S - bench.step_s
        assert "HTTP 40" in reach.refusal
        for later_s in (HOUR_S, REFUSED_FOR_S - 1.0):
            bench.api.now_s = NOW_S + later_s
            await reach.fetch(NOW_S + later_s)
        assert [hours for hours in horizons_h(bench) if hours != 72] == [24, 24, 24]
        n_refused = len(horizons_h(bench)) - 3
        bench.api.longest_h, bench.api.now_s = 72, NOW_S + REFUSED_FOR_S
        await reach.fetch(NOW_S + REFUSED_FOR_S)
    assert horizons_h(bench) == [72] * n_refused + [24, 24, 24, 72], "all of the refused ones came first"
    assert reach.refusal == ""


async def test_a_clock_that_was_stepped_back_asks_for_the_whole_again(bench: Bench) -> None:
    bench.api.longest_h = 24
    async with opened(bench) as case:
        reach = ForecastReach(case.provider, whole_s=3 * DAY_S, least_s=DAY_S)
        await reach.fetch(NOW_S)
        bench.api.longest_h = 72
        await reach.fetch(NOW_S - 60.0)
    assert (horizons_h(bench)[-1], reach.refusal) == (72, "")


async def test_a_plan_without_any_forecast_refuses_and_nothing_is_remembered(bench: Bench) -> None:
    bench.api.longest_h = -1
    async with opened(bench) as case:
        reach = ForecastReach(case.provider, whole_s=3 * DAY_S, least_s=DAY_S)
        for _ in range(2):
            bench.api.requests.clear()
            with pytest.raises(SignalRefusedError):
                await reach.fetch(NOW_S)
            assert (horizons_h(bench)[0], horizons_h(bench)[-1], reach.refusal) == (72, 24, "")


@pytest.mark.parametrize(
    ("fault", "error"), [(Fault.TOO_MANY, SignalLimitedError), (Fault.BROKEN, SignalUnavailableError)]
)
async def test_a_failure_is_no_refusal_of_the_horizon(bench: Bench, fault: Fault, error: type[Exception]) -> None:
    async with opened(bench) as case:
        reach = ForecastReach(case.provider, whole_s=3 * DAY_S, least_s=DAY_S)
        await reach.fetch(NOW_S)
        bench.api.fault = fault
        with pytest.raises(error):
            await reach.fetch(NOW_S)
    assert (horizons_h(bench), reach.refusal) == ([72, 72], "")
