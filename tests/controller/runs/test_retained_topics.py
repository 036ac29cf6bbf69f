"""Housekeeping of the broker: the leader clears an ended run after an hour, anybody after a day, each its own part."""

import pytest

from controller.runs.retained_topics import ANYBODY_AFTER_S, LEADER_AFTER_S, MAX_RUNS, RetainedTopics
from publishers.messages.topics import ParsedTopic, Topics
from tests.controller.messages import rank_status
from tests.fakes import MIDNIGHT_S, FakeBus

TOPICS = Topics()
NODE = "node-a"


def address(rank: int = 0, run: str = "run-1") -> ParsedTopic:
    """Return the topic of a rank's status, taken apart."""
    return ParsedTopic(leaf="status", job="resnet50", run=run, rank=rank)


def bus_with_a_run() -> FakeBus:
    """Return a broker that retains every topic of a run with two ranks."""
    bus = FakeBus()
    for topic in (
        TOPICS.rank("resnet50", "run-1", 0, "status"),
        TOPICS.rank("resnet50", "run-1", 1, "status"),
        TOPICS.run("resnet50", "run-1", "profile"),
        TOPICS.run("resnet50", "run-1", "plan"),
        TOPICS.run("resnet50", "run-1", "energy"),
        TOPICS.run_on_node("resnet50", "run-1", NODE),
        TOPICS.run_on_node("resnet50", "run-1", NODE, "profile"),
    ):
        bus.publish(topic, b"retained", qos=1, retain=True)
    return bus


def test_the_leader_clears_an_ended_run_after_an_hour() -> None:
    bus = bus_with_a_run()
    retained = RetainedTopics(TOPICS, bus, node=NODE)
    for rank in (0, 1):
        retained.record(address(rank), rank_status(state="finished"), now_s=MIDNIGHT_S, ours=True)
    retained.clear_due(MIDNIGHT_S + LEADER_AFTER_S - 1)
    assert len(bus.retained) == 7
    retained.clear_due(MIDNIGHT_S + LEADER_AFTER_S)
    assert bus.retained == {}


def test_a_node_without_rank_0_waits_a_day() -> None:
    bus = bus_with_a_run()
    retained = RetainedTopics(TOPICS, bus, node=NODE)
    retained.record(address(0), rank_status(state="lost"), now_s=MIDNIGHT_S, ours=False)
    retained.record(address(1), rank_status(state="lost"), now_s=MIDNIGHT_S, ours=True)
    retained.clear_due(MIDNIGHT_S + ANYBODY_AFTER_S - 1)
    assert len(bus.retained) == 7
    retained.clear_due(MIDNIGHT_S + ANYBODY_AFTER_S)
    assert bus.retained == {}


def test_a_run_with_a_heartbeat_is_not_cleared() -> None:
    bus = bus_with_a_run()
    retained = RetainedTopics(TOPICS, bus, node=NODE)
    retained.record(address(), rank_status(), now_s=MIDNIGHT_S, ours=True)
    retained.clear_due(MIDNIGHT_S + 2 * LEADER_AFTER_S)
    retained.record(address(), rank_status(), now_s=MIDNIGHT_S + ANYBODY_AFTER_S, ours=True)
    retained.clear_due(MIDNIGHT_S + ANYBODY_AFTER_S + 10)
    assert len(bus.retained) == 7


def test_a_run_that_went_silent_is_cleared_after_a_day() -> None:
    bus = bus_with_a_run()
    retained = RetainedTopics(TOPICS, bus, node=NODE)
    for rank in (0, 1):
        retained.record(address(rank), rank_status(), now_s=MIDNIGHT_S, ours=True)
    retained.clear_due(MIDNIGHT_S + ANYBODY_AFTER_S)
    assert bus.retained == {}


def test_a_run_is_not_ended_while_one_of_its_ranks_runs() -> None:
    bus = bus_with_a_run()
    retained = RetainedTopics(TOPICS, bus, node=NODE)
    retained.record(address(0), rank_status(), now_s=MIDNIGHT_S, ours=True)
    retained.record(address(1), rank_status(state="finished"), now_s=MIDNIGHT_S, ours=True)
    retained.clear_due(MIDNIGHT_S + LEADER_AFTER_S)
    assert len(bus.retained) == 7


def test_a_run_is_cleared_once() -> None:
    bus = bus_with_a_run()
    retained = RetainedTopics(TOPICS, bus, node=NODE)
    retained.record(address(), rank_status(state="finished"), now_s=MIDNIGHT_S, ours=True)
    retained.clear_due(MIDNIGHT_S + LEADER_AFTER_S)
    n_sent = len(bus.sent)
    retained.clear_due(MIDNIGHT_S + 2 * ANYBODY_AFTER_S)
    assert len(bus.sent) == n_sent


def test_the_number_of_remembered_runs_is_bounded() -> None:
    retained = RetainedTopics(TOPICS, FakeBus(), node=NODE)
    for number in range(MAX_RUNS + 100):
        retained.record(address(run=f"run-{number}"), rank_status(), now_s=MIDNIGHT_S, ours=False)
    assert len(retained._runs) == MAX_RUNS


def test_the_number_of_remembered_ranks_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.runs.retained_topics.MAX_RANKS", 100)
    retained = RetainedTopics(TOPICS, FakeBus(), node=NODE)
    for number in range(300):
        retained.record(address(number % 30, run=f"run-{number // 30}"), rank_status(), now_s=MIDNIGHT_S, ours=False)
    assert [run for _, run in retained._runs] == ["run-7", "run-8", "run-9"]


def test_a_node_clears_no_part_of_its_own_where_it_had_no_rank() -> None:
    bus = bus_with_a_run()
    retained = RetainedTopics(TOPICS, bus, node=NODE)
    for rank in (0, 1):
        retained.record(address(rank), rank_status(state="lost"), now_s=MIDNIGHT_S, ours=False)
    retained.clear_due(MIDNIGHT_S + ANYBODY_AFTER_S)
    assert list(bus.retained) == [TOPICS.run_on_node("resnet50", "run-1", NODE, leaf) for leaf in ("energy", "profile")]
