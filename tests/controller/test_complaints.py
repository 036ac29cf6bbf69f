"""Complaints about bad messages: every one counted, one a minute and topic told, memory bounded."""

import asyncio

import pytest

from controller.complaints import MAX_TOPICS, Complaints
from tests.fakes import LoopClock


async def test_a_topic_complains_once_a_minute_and_counts_every_message(caplog: pytest.LogCaptureFixture) -> None:
    complaints = Complaints(LoopClock())
    for _ in range(180):
        complaints.add("a/topic", "malformed")
        await asyncio.sleep(1)
    assert complaints.n_messages == 180
    assert [record.getMessage() for record in caplog.records] == ["a/topic: dropped: malformed"] * 3


async def test_topics_complain_independently(caplog: pytest.LogCaptureFixture) -> None:
    complaints = Complaints(LoopClock())
    complaints.add("a", "malformed")
    complaints.add("b", "malformed")
    assert len(caplog.records) == 2


async def test_a_flood_of_topics_is_remembered_for_a_bounded_number_of_them() -> None:
    complaints = Complaints(LoopClock())
    for number in range(10 * MAX_TOPICS):
        complaints.add(f"topic/{number}", "malformed")
    assert complaints.n_messages == 10 * MAX_TOPICS
    assert len(complaints._next_s) == MAX_TOPICS


async def test_long_topics_and_faults_make_short_lines(caplog: pytest.LogCaptureFixture) -> None:
    Complaints(LoopClock()).add("t" * 10_000, "f" * 10_000)
    assert len(caplog.records[0].getMessage()) < 500


async def test_a_clock_that_was_stepped_back_does_not_silence_a_topic(caplog: pytest.LogCaptureFixture) -> None:
    clock = LoopClock()
    complaints = Complaints(clock)
    complaints.add("a", "malformed")
    clock.start_s -= 3_600.0
    complaints.add("a", "malformed")
    assert len(caplog.records) == 2
