"""Leases end when their runs are not heard of, and not when it is us who cannot hear."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from policies.service.bus.lease_expiry import LeaseExpiry, period_s
from policies.service.metrics import Metrics
from tests.policies.service.memory_desk import LEASE_S, NOW_S, MemoryDesk


class Bench:
    """A desk with one open trial, looked at as time passes."""

    def __init__(self) -> None:
        self.desk = MemoryDesk()
        self.desk.open()
        self.can_hear = True

    @asynccontextmanager
    async def looking(self) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        leases = LeaseExpiry(
            self.desk,
            lease_s=LEASE_S,
            can_hear=lambda: self.can_hear,
            clock_s=lambda: NOW_S + loop.time(),
            metrics=Metrics(),
        )
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(leases.run())
            yield
            task.cancel()


def test_leases_are_looked_at_often_enough_and_not_too_often() -> None:
    assert [period_s(lease_s) for lease_s in (1.0, 100.0, 604_800.0)] == [1.0, 10.0, 60.0]


async def test_a_run_that_is_silent_for_its_lease_is_lost() -> None:
    bench = Bench()
    async with bench.looking():
        await asyncio.sleep(LEASE_S - 1)
        assert bench.desk.state() == "open"
        await asyncio.sleep(62)
        assert bench.desk.state() == "lost"


async def test_the_log_says_how_a_silent_run_ended(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    bench.desk.open(run="r2")
    await bench.desk.note_metric("resnet50", "r2", epoch=4, value=0.9, reached=True, now_s=NOW_S)
    caplog.set_level("INFO")
    async with bench.looking():
        await asyncio.sleep(LEASE_S + 62)
    assert sorted(record.getMessage() for record in caplog.records) == [
        "resnet50/r1: not heard of for 600 s: lost",
        "resnet50/r2: not heard of for 600 s: reached",
    ]


async def test_nobody_is_lost_while_nothing_can_be_heard_nor_right_after_that() -> None:
    bench = Bench()
    bench.can_hear = False
    async with bench.looking():
        await asyncio.sleep(10 * LEASE_S + 1)
        assert bench.desk.calls == []
        bench.can_hear = True
        await asyncio.sleep(61)
        assert bench.desk.calls == []
        await asyncio.sleep(60)
        assert bench.desk.state() == "lost"


async def test_a_database_that_is_away_delays_it(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    bench.desk.is_away = True
    async with bench.looking():
        await asyncio.sleep(2 * LEASE_S)
        bench.desk.is_away = False
        await asyncio.sleep(181)
        assert bench.desk.state() == "lost"
    assert caplog.records == []
