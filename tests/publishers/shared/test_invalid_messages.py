"""Complaints about bad messages: every one counted, one a minute and topic told, memory bounded."""

import pytest

from publishers.shared.invalid_messages import MAX_TOPICS, InvalidMessages


def test_a_topic_complains_once_a_minute_and_counts_every_message(caplog: pytest.LogCaptureFixture) -> None:
    now_s = [0.0]
    complaints = InvalidMessages(lambda: now_s[0])
    for second in range(180):
        now_s[0] = float(second)
        complaints.add("a/topic", "malformed")
    assert complaints.n_messages == 180
    assert [record.getMessage() for record in caplog.records] == ["a/topic: dropped: malformed"] * 3


def test_a_flood_of_topics_is_remembered_for_a_bounded_number_of_them() -> None:
    complaints = InvalidMessages(lambda: 0.0)
    for number in range(10 * MAX_TOPICS):
        complaints.add(f"topic/{number}", "malformed")
    assert (complaints.n_messages, len(complaints._next_s)) == (10 * MAX_TOPICS, MAX_TOPICS)
