"""What was saved today: since the midnight of this machine's zone, whatever its clocks do, and never a page's wait."""

from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
from sqlalchemy import Connection

from controller.history.energy_history.writing import write_messages
from controller.web.live.saved_sums import LONGER_S, SavedSums
from controller.web.pages.savings import savings_of
from tests.controller.history.energy_history.records import (
    TOPICS,
    machine_zone,
    measured,
    memory,
    run_message,
    run_record,
)

HOUR_S = 3_600.0


class FakeStore:
    """A history in memory; `error` is raised by each read."""

    def __init__(self, connection: Connection) -> None:
        self.name = "memory"
        self.n_impossible = 0
        self.error: Exception | None = None
        self._connection = connection

    async def read(self, work: Callable[[Connection], Any], *, timeout_s: float) -> Any:  # noqa: ANN401 — as work returns
        """Return what `work` finds."""
        assert timeout_s > 0
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
        for number, message in enumerate(messages):
            write_messages(connection, messages=[message], topics=TOPICS, session_s=None, now_s=midnight_s + number)
        sums = SavedSums(FakeStore(connection))
        end_s = midnight_s + day_hours * HOUR_S
        assert sums.at(end_s - 1) is None
        await sums.refresh(end_s - 1)
        found = sums.at(end_s - 1)
        assert found is not None
        assert found.since_s == midnight_s
        carbon = savings_of(found.today)[0]
        assert carbon.used == pytest.approx(180.0)
        assert carbon.saved == pytest.approx(20.0)
        assert found.week.carbon_g == pytest.approx(270.0)
        assert sums.at(end_s) is None, "another day"
        await sums.refresh(end_s + 2 * HOUR_S)
        new = sums.at(end_s + 2 * HOUR_S)
        assert new is not None
        assert new.today.carbon_g == pytest.approx(630.0)


async def test_the_longer_times_are_read_again_after_a_quarter_hour_or_midnight() -> None:
    with machine_zone("UTC"), memory() as connection:
        sums = SavedSums(FakeStore(connection))
        longer_s = []
        for now_s in (1e9, 1e9 + 60, 1e9 + LONGER_S, 1e9 + LONGER_S - 60, 1e9 + 86_400.0):
            await sums.refresh(now_s)
            found = sums.at(now_s)
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
        known = sums.at(1e9)
        assert known is not None
        store.error = error
        await sums.refresh(1e9 + 60)
        assert fault in sums.fault
        assert sums.at(1e9 + 60) is known
        store.error = None
        await sums.refresh(1e9 + 120)
        assert sums.fault == ""
