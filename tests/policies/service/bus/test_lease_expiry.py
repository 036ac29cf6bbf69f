"""Leases of silent runs end, unless this process itself could not receive messages."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from policies.service.bus.lease_expiry import LeaseExpiry, period_s
from policies.service.metrics import Metrics
from tests.policies.service.memory_store import LEASE_S, NOW_S, MemoryTrials
from tests.policies.service.repositories import run_key


class Bench:
    """Leases that are checked as time passes."""

    def __init__(self) -> None:
        self.memory = MemoryTrials()
        self.can_receive = True

    @asynccontextmanager
    async def checking(self) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        leases = LeaseExpiry(
            self.memory.trials,
            lease_s=LEASE_S,
            can_receive=lambda: self.can_receive,
            clock_s=lambda: NOW_S + loop.time(),
            metrics=Metrics(),
        )
        await self.memory.open()
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(leases.run())
            yield
            task.cancel()


def test_leases_are_checked_often_enough_and_not_too_often() -> None:
    assert [period_s(lease_s) for lease_s in (1.0, 100.0, 604_800.0)] == [1.0, 10.0, 60.0]


async def test_a_run_that_is_silent_for_its_lease_is_lost() -> None:
    bench = Bench()
    async with bench.checking():
        await asyncio.sleep(LEASE_S - 1)
        assert await bench.memory.state() == "open"
        await asyncio.sleep(62)
        assert await bench.memory.state() == "lost"


async def test_the_log_says_how_a_silent_run_ended(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    caplog.set_level("INFO", logger="policies.service.bus")
    async with bench.checking():
        await bench.memory.open(run="r2")
        await bench.memory.trials.report_metric(
            run_key("r2", "resnet50"), epoch=4, value=0.9, reached=True, now_s=NOW_S
        )
        await asyncio.sleep(LEASE_S + 62)
    assert sorted(record.getMessage() for record in caplog.records) == [
        "alice/resnet50/r1: silent for 600 s: lost",
        "alice/resnet50/r2: silent for 600 s: reached",
    ]


async def test_nobody_is_lost_while_nothing_can_be_received_nor_right_after_that() -> None:
    bench = Bench()
    bench.can_receive = False
    async with bench.checking():
        await asyncio.sleep(10 * LEASE_S + 1)
        assert await bench.memory.state() == "open"
        bench.can_receive = True
        await asyncio.sleep(61)
        assert await bench.memory.state() == "open"
        await asyncio.sleep(60)
        assert await bench.memory.state() == "lost"


async def test_an_outage_of_the_database_delays_the_end_of_leases() -> None:
    bench = Bench()
    async with bench.checking():
        bench.memory.database.is_away = True
        await asyncio.sleep(2 * LEASE_S)
        bench.memory.database.is_away = False
        await asyncio.sleep(181)
        assert await bench.memory.state() == "lost"
