"""The clocks: domain time that can be scaled, and ticks that do not drift."""

import asyncio
import time

import pytest

from controller.runtime.clock import NS_PER_S, Now, ScaledClock, SystemClock, is_due, next_tick_s
from tests.fakes import MIDNIGHT_S, LoopClock


def test_the_system_clock_tells_the_time_of_the_system() -> None:
    clock = SystemClock()
    assert clock.now_s() == pytest.approx(time.time(), abs=60)
    assert clock.monotonic_ns() == pytest.approx(time.monotonic_ns(), abs=5 * NS_PER_S)


def test_a_scaled_clock_runs_faster_from_its_start() -> None:
    origin_ns = time.monotonic_ns() - 10 * NS_PER_S
    clock = ScaledClock(start_s=MIDNIGHT_S, rate=1_440.0, origin_ns=origin_ns)
    assert clock.now_s() - MIDNIGHT_S == pytest.approx(14_400, rel=0.1)
    assert (clock.monotonic_ns() - origin_ns) / NS_PER_S == pytest.approx(14_400, rel=0.1)


def test_two_scaled_clocks_with_the_same_numbers_agree() -> None:
    origin_ns = time.monotonic_ns()
    one, other = (ScaledClock(start_s=0.0, rate=60.0, origin_ns=origin_ns) for _ in range(2))
    assert other.now_s() == pytest.approx(one.now_s(), abs=60)


async def test_a_moment_on_the_monotonic_clock_has_a_time_of_day() -> None:
    clock = LoopClock()
    begin_ns = clock.monotonic_ns()
    await clock.sleep_until(MIDNIGHT_S + 90.0)
    now = Now.of(clock)
    assert now.wall_s == pytest.approx(MIDNIGHT_S + 90.0)
    assert now.wall_at_s(begin_ns) == pytest.approx(MIDNIGHT_S)
    assert now.monotonic_s == pytest.approx(begin_ns / NS_PER_S + 90.0)


async def test_a_sleeper_that_is_due_still_lets_others_run() -> None:
    others: list[str] = []
    asyncio.get_running_loop().call_soon(others.append, "ran")
    await SystemClock().sleep_until(0.0)
    assert others == ["ran"]


@pytest.mark.live
async def test_a_scaled_clock_sleeps_the_scaled_down_time() -> None:
    begin_ns = time.monotonic_ns()
    clock = ScaledClock(start_s=0.0, rate=36_000.0, origin_ns=begin_ns)
    await clock.sleep_until(1_800.0)
    assert clock.now_s() >= 1_800.0
    assert 0.05 <= (time.monotonic_ns() - begin_ns) / 1e9 < 10


@pytest.mark.live
async def test_the_system_clock_does_not_wake_early() -> None:
    clock = SystemClock()
    until_s = clock.now_s() + 0.02
    await clock.sleep_until(until_s)
    assert clock.now_s() >= until_s


def test_ticks_do_not_drift() -> None:
    assert next_tick_s(100.0, period_s=10.0, now_s=103.0) == 110.0


def test_missed_ticks_are_skipped() -> None:
    assert next_tick_s(100.0, period_s=10.0, now_s=147.0) == 147.0


async def test_periodic_work_on_virtual_time_keeps_its_rhythm_over_two_days() -> None:
    clock = LoopClock()
    tick_s = clock.now_s()
    for _ in range(48):
        tick_s = next_tick_s(tick_s, period_s=3_600.0, now_s=clock.now_s())
        await clock.sleep_until(tick_s)
    assert clock.now_s() == pytest.approx(MIDNIGHT_S + 2 * 86_400, abs=1e-3)


def test_after_a_clock_that_was_stepped_back_the_next_tick_is_a_period_away() -> None:
    assert next_tick_s(10_000.0, period_s=5.0, now_s=100.0) == 105.0


@pytest.mark.live
async def test_a_wall_clock_stepped_back_does_not_lengthen_a_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SystemClock()
    begin_s = clock.now_s()
    readings_s = iter([begin_s])
    monkeypatch.setattr(SystemClock, "now_s", lambda _: next(readings_s, begin_s - 3_600.0))
    async with asyncio.timeout(5):
        await clock.sleep_until(begin_s + 0.05)


@pytest.mark.parametrize(("due_s", "due"), [(99.0, True), (100.0, True), (100.1, False), (105.0, False), (105.1, True)])
def test_work_is_due_at_its_time_and_where_it_is_more_than_a_period_away(due_s: float, due: bool) -> None:
    assert is_due(due_s, period_s=5.0, now_s=100.0) is due
