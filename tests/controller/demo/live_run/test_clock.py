"""The stepped clock: it stands still, and wakes who is due."""

import asyncio

from controller.demo.live_run.clock import ORIGIN_NS, SteppedClock
from controller.runtime.clock import NS_PER_S

START_S = 1_000_000.0


async def test_it_stands_still_between_steps() -> None:
    clock = SteppedClock(START_S)
    assert (clock.now_s(), clock.monotonic_ns()) == (START_S, ORIGIN_NS)
    await asyncio.sleep(0)
    assert clock.now_s() == START_S
    await clock.step_to(ORIGIN_NS + 90 * NS_PER_S)
    assert clock.now_s() == START_S + 90
    assert clock.time_s(ORIGIN_NS + 30 * NS_PER_S) == START_S + 30
    await clock.step_to(ORIGIN_NS)  # never back
    assert clock.now_s() == START_S + 90


async def test_it_wakes_who_is_due_and_lets_them_sleep_again() -> None:
    clock, woken = SteppedClock(START_S), list[tuple[str, float]]()

    async def tick(name: str, period_s: float) -> None:
        next_s = START_S
        while True:
            next_s = max(next_s + period_s, clock.now_s())
            await clock.sleep_until(next_s)
            woken.append((name, clock.now_s() - START_S))

    async with asyncio.TaskGroup() as tasks:
        ticking = [tasks.create_task(tick(name, period_s)) for name, period_s in (("fast", 2.0), ("slow", 5.0))]
        await asyncio.sleep(0)
        for step_s in (1, 2, 3, 5, 20):
            await clock.step_to(ORIGIN_NS + step_s * NS_PER_S)
        for task in ticking:
            task.cancel()
    assert woken == [("fast", 2), ("fast", 5), ("slow", 5), ("fast", 20), ("slow", 20)]


async def test_a_sleeper_that_was_cancelled_holds_nobody_up() -> None:
    clock = SteppedClock(START_S)
    async with asyncio.TaskGroup() as tasks:
        cancelled = tasks.create_task(clock.sleep_until(START_S + 1))
        waiting = tasks.create_task(clock.sleep_until(START_S + 2))
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.sleep(0)
        await clock.step_to(ORIGIN_NS + 2 * NS_PER_S)
        assert waiting.done()
    assert cancelled.cancelled()
