"""Runs that are over: their controller is waited for, and they may come back."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from policies.service.bus import event_queue as endings
from policies.service.bus.event_queue import PendingRunEnds
from policies.service.bus.events import RunEnded, RunEvent
from tests.policies.service.memory_desk import NOW_S


def ended(run: str = "r1", *, lost: bool = False) -> RunEnded:
    return RunEnded(job="resnet50", run=run, at_s=NOW_S, lost=lost, reached=False)


@asynccontextmanager
async def waiting(patience_s: float = 30.0) -> AsyncIterator[tuple[PendingRunEnds, list[RunEvent]]]:
    reported: list[RunEvent] = []
    waits = PendingRunEnds(reported.append, patience_s=patience_s)
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(waits.run())
        yield waits, reported
        task.cancel()


async def test_an_end_is_reported_when_the_controller_had_its_time() -> None:
    async with waiting() as (waits, reported):
        waits.expect(ended())
        await asyncio.sleep(29.9)
        assert reported == []
        await asyncio.sleep(0.2)
        assert reported == [ended()]


async def test_an_end_that_the_controller_has_told_is_not_reported_again() -> None:
    async with waiting() as (waits, reported):
        waits.expect(ended("r1"))
        waits.expect(ended("r2"))
        waits.forget("resnet50", "r1")
        await asyncio.sleep(60)
        assert reported == [ended("r2")]


async def test_an_end_that_is_said_again_is_the_newest_word_and_comes_no_later() -> None:
    async with waiting() as (waits, reported):
        waits.expect(ended(lost=True))
        await asyncio.sleep(20)
        waits.expect(ended(lost=False))
        await asyncio.sleep(10.1)
        assert reported == [ended(lost=False)]


async def test_a_crowd_of_ends_is_bounded() -> None:
    async with waiting() as (waits, reported):
        for number in range(endings.MAX_RUNS + 5):
            waits.expect(ended(f"r{number}"))
        assert [news.run for news in reported] == ["r0", "r1", "r2", "r3", "r4"]
