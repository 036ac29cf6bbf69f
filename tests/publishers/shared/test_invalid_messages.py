"""Invalid messages: every one counted, one a minute and topic logged, memory bounded."""

import pytest

from publishers.shared.log_once import InvalidMessages


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_a_topic_is_logged_once_a_minute_and_every_message_counted(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    invalid = InvalidMessages(clock)
    for second in range(180):
        clock.now_s = float(second)
        invalid.add("a/topic", "malformed")
    assert invalid.n_messages == 180
    lines = [record.getMessage() for record in caplog.records]
    assert lines == ["a/topic: invalid message dropped: malformed"] * 3


def test_each_topic_is_logged_by_itself(caplog: pytest.LogCaptureFixture) -> None:
    invalid = InvalidMessages(Clock())
    invalid.add("a", "malformed")
    invalid.add("b", "malformed")
    assert len(caplog.records) == 2


def test_a_flood_of_topics_takes_bounded_memory_and_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    invalid = InvalidMessages(clock)
    for number in range(10_000):
        clock.now_s = number * 0.06  # ten minutes
        invalid.add(f"topic/{number}", "malformed")
    assert (invalid.n_messages, len(invalid.limiter)) == (10_000, invalid.limiter.MAX_KEYS)
    assert len(caplog.records) == 10 * invalid.limiter.MAX_LINES


def test_long_topics_and_faults_make_short_lines_and_are_not_kept(caplog: pytest.LogCaptureFixture) -> None:
    invalid = InvalidMessages(Clock())
    invalid.add("t" * 60_000, "f" * 10_000)
    assert len(caplog.records[0].getMessage()) < 500
    assert max(len(str(key)) for key in invalid.limiter._logged_at_s) <= 256


def test_a_clock_that_was_stepped_back_does_not_silence_a_topic(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    invalid = InvalidMessages(clock)
    invalid.add("a", "malformed")
    clock.now_s -= 3_600.0
    invalid.add("a", "malformed")
    assert len(caplog.records) == 2
