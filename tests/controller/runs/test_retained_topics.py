"""Housekeeping of the broker: the leader clears an ended run after an hour, a follower its own part after a day."""

import pytest

from controller.runs.retained_topics import ANYBODY_AFTER_S, LEADER_AFTER_S, MAX_RUNS, RetainedTopics
from publishers.messages.topics import Topics
from tests.controller.messages import BOOT_ID, rank_status
from tests.fakes import KEY, MIDNIGHT_S, FakeBus

TOPICS = Topics()
NODE = "node-a"


def bus_with_a_run() -> FakeBus:
    """Return a broker that retains every topic of a run with two ranks."""
    bus = FakeBus()
    for topic in (
        TOPICS.rank(BOOT_ID, KEY, 0, "status"),
        TOPICS.rank(BOOT_ID, KEY, 1, "status"),
        TOPICS.run(KEY, "profile"),
        TOPICS.run(KEY, "schedule"),
        TOPICS.run(KEY, "energy"),
        TOPICS.run_on_node(KEY, NODE),
        TOPICS.run_on_node(KEY, NODE, "profile"),
    ):
        bus.publish(topic, b"retained", qos=1, retain=True)
    return bus


def test_the_leader_clears_an_ended_run_after_an_hour() -> None:
    bus = bus_with_a_run()
    retained = RetainedTopics(TOPICS, bus, node=NODE, boot_id=BOOT_ID)
    for rank in (0, 1):
        retained.record(KEY, rank, rank_status(state="finished"), now_s=MIDNIGHT_S)
    retained.clear_due(MIDNIGHT_S + LEADER_AFTER_S - 1)
    assert len(bus.retained) == 7
    retained.clear_due(MIDNIGHT_S + LEADER_AFTER_S)
    assert bus.retained == {}


def test_a_node_without_rank_0_waits_a_day() -> None:
    bus = bus_with_a_run()
    retained = RetainedTopics(TOPICS, bus, node=NODE, boot_id=BOOT_ID)
    retained.record(KEY, 1, rank_status(state="lost"), now_s=MIDNIGHT_S)
    retained.clear_due(MIDNIGHT_S + ANYBODY_AFTER_S - 1)
    assert len(bus.retained) == 7
    retained.clear_due(MIDNIGHT_S + ANYBODY_AFTER_S)
    assert len(bus.retained) == 4, "its rank and its own part"


def test_a_run_with_a_heartbeat_is_not_cleared() -> None:
    bus = bus_with_a_run()
    retained = RetainedTopics(TOPICS, bus, node=NODE, boot_id=BOOT_ID)
    retained.record(KEY, 0, rank_status(), now_s=MIDNIGHT_S)
    retained.clear_due(MIDNIGHT_S + 2 * LEADER_AFTER_S)
    retained.record(KEY, 0, rank_status(), now_s=MIDNIGHT_S + ANYBODY_AFTER_S)
    retained.clear_due(MIDNIGHT_S + ANYBODY_AFTER_S + 10)
    assert len(bus.retained) == 7


def test_a_run_that_went_silent_is_cleared_after_a_day() -> None:
    bus = bus_with_a_run()
    retained = RetainedTopics(TOPICS, bus, node=NODE, boot_id=BOOT_ID)
    for rank in (0, 1):
        retained.record(KEY, rank, rank_status(), now_s=MIDNIGHT_S)
    retained.clear_due(MIDNIGHT_S + ANYBODY_AFTER_S)
    assert bus.retained == {}


def test_a_run_is_not_ended_while_one_of_its_ranks_runs() -> None:
    bus = bus_with_a_run()
    retained = RetainedTopics(TOPICS, bus, node=NODE, boot_id=BOOT_ID)
    retained.record(KEY, 0, rank_status(), now_s=MIDNIGHT_S)
    retained.record(KEY, 1, rank_status(state="finished"), now_s=MIDNIGHT_S)
    retained.clear_due(MIDNIGHT_S + LEADER_AFTER_S)
    assert len(bus.retained) == 7


def test_a_run_is_cleared_once() -> None:
    bus = bus_with_a_run()
    retained = RetainedTopics(TOPICS, bus, node=NODE, boot_id=BOOT_ID)
    retained.record(KEY, 0, rank_status(state="finished"), now_s=MIDNIGHT_S)
    retained.clear_due(MIDNIGHT_S + LEADER_AFTER_S)
    n_sent = len(bus.sent)
    retained.clear_due(MIDNIGHT_S + 2 * ANYBODY_AFTER_S)
    assert len(bus.sent) == n_sent


def test_the_number_of_remembered_runs_is_bounded() -> None:
    retained = RetainedTopics(TOPICS, FakeBus(), node=NODE, boot_id=BOOT_ID)
    for number in range(MAX_RUNS + 100):
        retained.record(KEY._replace(run=f"run-{number}"), 0, rank_status(), now_s=MIDNIGHT_S)
    assert len(retained._runs) == MAX_RUNS


def test_the_number_of_remembered_ranks_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.runs.retained_topics.MAX_RANKS", 100)
    retained = RetainedTopics(TOPICS, FakeBus(), node=NODE, boot_id=BOOT_ID)
    for number in range(300):
        retained.record(KEY._replace(run=f"run-{number // 30}"), number % 30, rank_status(), now_s=MIDNIGHT_S)
    assert [key.run for key in retained._runs] == ["run-7", "run-8", "run-9"]
