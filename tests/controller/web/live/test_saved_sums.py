"""What was saved today: since the midnight of a zone, whatever its clocks do, and hardly ever a page's wait."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from sqlalchemy import Connection

from controller.history.energy_history.writing import write_messages
from controller.runtime.machine_zone import MACHINE_ZONE
from controller.web.live.saved_sums import ASKED_S, LONGER_S, MAX_ZONES, WAIT_S, SavedSums
from controller.web.pages.savings import savings_of
from tests.controller.history.energy_history.records import (
    TOPICS,
    machine_zone,
    measured,
    memory,
    run_message,
    run_record,
)
from tests.fakes import MIDNIGHT_S

HOUR_S = 3_600.0


class FakeStore:
    """A history in memory; `error` is raised by each read, which takes `takes_s`."""

    def __init__(self, connection: Connection) -> None:
        self.name = "memory"
        self.n_impossible = 0
        self.error: Exception | None = None
        self.takes_s = 0.0
        self.n_reads = 0
        self._connection = connection

    async def read(self, work: Callable[[Connection], Any], *, timeout_s: float) -> Any:  # noqa: ANN401 — as work returns
        """Return what `work` finds."""
        assert timeout_s > 0
        self.n_reads += 1
        await asyncio.sleep(self.takes_s)
        if self.error is not None:
            raise self.error
        return work(self._connection)

    async def write(self, *_: object, **__: object) -> None:
        """Not used."""

    async def close(self) -> None:
        """Not used."""


@pytest.mark.parametrize(("date", "day_hours"), [("2026-03-29", 23), ("2026-10-25", 25), ("2026-06-11", 24)])
async def test_a_day_begins_at_midnight_and_is_as_long_as_its_clocks_say(date: str, day_hours: int) -> None:
    with machine_zone("Europe/Berlin"), memory() as connection:
        midnight_s = datetime.fromisoformat(f"{date}T00:00").timestamp()
        used = (
            (-HOUR_S, 9e3, 90.0),
            (HOUR_S, 18e3, 180.0),
            ((day_hours - 1) * HOUR_S, 27e3, 270.0),
            ((day_hours + 1) * HOUR_S, 90e3, 900.0),
        )
        records = [
            run_record(time_s=midnight_s + at_s, energy_j=energy_j, carbon_g=carbon_g, duration_s=energy_j)
            for at_s, energy_j, carbon_g in used
        ]
        messages = [run_message(measured(record, saved_ratio=0.1)) for record in records]
        for (at_s, *_), message in zip(used, messages, strict=True):
            write_messages(connection, messages=[message], topics=TOPICS, session_s=None, now_s=midnight_s + at_s)
        sums = SavedSums(FakeStore(connection))
        end_s = midnight_s + day_hours * HOUR_S
        assert sums.at(end_s - 1, MACHINE_ZONE) is None
        await sums.refresh(end_s - 1)
        found = sums.at(end_s - 1, MACHINE_ZONE)
        assert found is not None
        assert found.since_s == midnight_s
        assert sums.at(end_s - 1, ZoneInfo("Europe/Berlin")) is found
        carbon = savings_of(found.today)[0]
        assert carbon.used == pytest.approx(180.0)
        assert carbon.saved == pytest.approx(20.0)
        assert found.week.carbon_g == pytest.approx(270.0)
        assert sums.at(end_s, MACHINE_ZONE) is None, "another day"
        await sums.refresh(end_s + 2 * HOUR_S)
        new = sums.at(end_s + 2 * HOUR_S, MACHINE_ZONE)
        assert new is not None
        assert new.today.carbon_g == pytest.approx(630.0)


async def test_the_longer_times_are_read_again_after_a_quarter_hour_or_midnight() -> None:
    with machine_zone("UTC"), memory() as connection:
        sums = SavedSums(FakeStore(connection))
        longer_s = []
        for now_s in (1e9, 1e9 + 60, 1e9 + LONGER_S, 1e9 + LONGER_S - 60, 1e9 + 86_400.0):
            await sums.refresh(now_s)
            found = sums.at(now_s, MACHINE_ZONE)
            assert found is not None
            longer_s.append(found.longer_s - 1e9)
        assert longer_s == [0.0, 0.0, LONGER_S, LONGER_S - 60, 86_400.0]


@pytest.mark.parametrize(
    ("error", "fault"), [(OSError("the disk is full"), "the disk is full"), (TimeoutError(), "10 s")]
)
async def test_what_cannot_be_read_is_said_and_the_last_sums_stay(error: Exception, fault: str) -> None:
    with memory() as connection:
        store = FakeStore(connection)
        sums = SavedSums(store)
        await sums.refresh(1e9)
        known = sums.at(1e9, MACHINE_ZONE)
        assert known is not None
        store.error = error
        await sums.refresh(1e9 + 60)
        assert fault in sums.fault
        assert sums.at(1e9 + 60, MACHINE_ZONE) is known
        store.error = None
        await sums.refresh(1e9 + 120)
        assert sums.fault == ""


@pytest.mark.parametrize(
    ("zone", "used_j"), [("Asia/Kathmandu", 2e3 + 4e3 + 8e3), ("UTC", 4e3 + 8e3), ("America/St_Johns", 8e3)]
)
async def test_today_begins_at_the_midnight_of_the_zone_that_is_asked_for(zone: str, used_j: float) -> None:
    with machine_zone("UTC"), memory() as connection:
        grown_j = 0.0
        # 00:00 on 15 November is 18:15 UTC of the day before in Kathmandu, and 03:30 UTC in St. John's.
        for at_s, more_j in (
            (-5.75 * HOUR_S - 60, 1e3),
            (-5.75 * HOUR_S + 60, 2e3),
            (60.0, 4e3),
            (3.5 * HOUR_S + 60, 8e3),
        ):
            grown_j += more_j
            record = run_record(time_s=MIDNIGHT_S + at_s, energy_j=grown_j, duration_s=grown_j)
            now_s = MIDNIGHT_S + at_s
            write_messages(connection, messages=[run_message(record)], topics=TOPICS, session_s=None, now_s=now_s)
        store = FakeStore(connection)
        sums = SavedSums(store)
        found = await sums.asked(MIDNIGHT_S + 4 * HOUR_S, ZoneInfo(zone))
        assert found is not None
        assert found.today.energy_j == used_j
        assert found.week.energy_j == grown_j
        assert await sums.asked(MIDNIGHT_S + 4 * HOUR_S + 30, ZoneInfo(zone)) is found
        assert store.n_reads == 1


async def test_zones_of_one_midnight_are_read_once_and_while_they_are_asked_for() -> None:
    with machine_zone("UTC"), memory() as connection:
        store = FakeStore(connection)
        sums = SavedSums(store)
        for zone in ("Europe/Berlin", "Europe/Paris", "Asia/Kathmandu"):
            await sums.asked(MIDNIGHT_S, ZoneInfo(zone))
        assert store.n_reads == 2
        for after_s, n_reads in ((ASKED_S, 4), (ASKED_S + 1, 2)):  # one is of powers
            store.n_reads = 0
            await sums.refresh(MIDNIGHT_S + after_s)
            assert store.n_reads == n_reads
        for hours in range(2 * MAX_ZONES):
            await sums.asked(MIDNIGHT_S, timezone(timedelta(hours=hours - 2 * MAX_ZONES)))
        store.n_reads = 0
        await sums.refresh(MIDNIGHT_S)
        assert store.n_reads == MAX_ZONES + 2


async def test_a_page_waits_for_a_new_day_but_not_for_long_nor_in_vain() -> None:
    with memory() as connection:
        store, clock = FakeStore(connection), asyncio.get_running_loop()
        sums = SavedSums(store)
        store.takes_s = 2 * WAIT_S
        begun_s = clock.time()
        assert await sums.asked(MIDNIGHT_S, UTC) is None
        assert clock.time() - begun_s == pytest.approx(WAIT_S)
        store.error = OSError("the disk is full")
        await sums.refresh(MIDNIGHT_S)
        begun_s = clock.time()
        assert await sums.asked(MIDNIGHT_S, UTC) is None
        assert clock.time() == begun_s
        store.error, store.takes_s = None, WAIT_S / 2
        await sums.refresh(MIDNIGHT_S)
        assert sums.at(MIDNIGHT_S, UTC) is not None


async def test_what_all_runs_drew_is_read_with_the_sums_and_stays_where_that_fails() -> None:
    with machine_zone("UTC"), memory() as connection:
        used = run_record(n_gpus=1, time_s=MIDNIGHT_S + 899.0, duration_s=900.0, energy_j=9e4)
        write_messages(connection, messages=[run_message(used)], topics=TOPICS, session_s=None)
        store = FakeStore(connection)
        sums = SavedSums(store)
        await sums.refresh(MIDNIGHT_S + 1_800.0)
        assert [power[:2] for power in sums.powers] == [(MIDNIGHT_S, 100.0)]
        store.error = OSError("away")
        await sums.refresh(MIDNIGHT_S + 86_400.0)
        assert [power[:2] for power in sums.powers] == [(MIDNIGHT_S, 100.0)]
        store.error = None
        await sums.refresh(MIDNIGHT_S + 86_400.0)
        assert sums.powers == []
