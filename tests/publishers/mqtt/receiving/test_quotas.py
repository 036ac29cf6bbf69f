"""Quotas of messages: who floods is not read, and nobody else is delayed."""

import pytest

from publishers.messages.topics import RunKey, Topics
from publishers.mqtt.receiving.quotas import (
    BURST_S,
    MAX_BUCKETS,
    MAX_FLOODS,
    RUN_MESSAGES_PER_S,
    SENDER_MESSAGES_PER_S,
    TELL_PERIOD_S,
    MessageQuotas,
)

TOPICS = Topics()
RUN, OTHER_RUN, OTHER_USER = RunKey("a", "j", "r"), RunKey("a", "j", "s"), RunKey("b", "j", "r")


def topic(run: RunKey) -> bytes:
    """Return where the iterations of a run are published."""
    return TOPICS.rank("boot", run, 0, "iterations").encode()


def n_allowed(quotas: MessageQuotas, run: RunKey, n_messages: int, now_s: float) -> int:
    """Return how many of the messages that come at once are let in."""
    return sum(quotas.allows(topic(run), now_s) for _ in range(n_messages))


def flood(quotas: MessageQuotas, user: str, now_s: float, n_messages: int = 6_000) -> int:
    """Send messages of ever-new jobs, and return how many are let in."""
    return sum(quotas.allows(topic(RunKey(user, f"j{k}", f"r{now_s}")), now_s) for k in range(n_messages))


def test_a_run_may_send_a_burst_and_then_its_share() -> None:
    quotas = MessageQuotas(TOPICS)
    burst = round(RUN_MESSAGES_PER_S * BURST_S)
    assert n_allowed(quotas, RUN, 10_000, 100.0) == burst
    assert quotas.n_dropped == 10_000 - burst
    assert n_allowed(quotas, RUN, 10_000, 101.0) == RUN_MESSAGES_PER_S
    assert n_allowed(quotas, RUN, 10_000, 50.0) == 0, "a clock that steps back gives nothing"


def test_the_flood_of_one_run_drops_nothing_of_another() -> None:
    quotas = MessageQuotas(TOPICS)
    n_allowed(quotas, RUN, 100_000, 100.0)
    assert n_allowed(quotas, OTHER_RUN, 100, 100.0) == 100
    assert n_allowed(quotas, OTHER_USER, 100, 100.0) == 100


def test_ever_new_jobs_of_a_user_share_one_quota_and_leave_that_of_others() -> None:
    quotas = MessageQuotas(TOPICS)
    assert flood(quotas, "a", 100.0) == SENDER_MESSAGES_PER_S * BURST_S
    assert flood(quotas, "a", 101.0) == SENDER_MESSAGES_PER_S
    assert n_allowed(quotas, OTHER_USER, 100, 101.0) == 100


def test_what_is_no_runs_has_the_quota_of_its_sender() -> None:
    quotas = MessageQuotas(TOPICS)
    plan = TOPICS.plan("n", RUN).encode()
    assert sum(quotas.allows(plan, 1.0) for _ in range(10_000)) == SENDER_MESSAGES_PER_S * BURST_S
    assert sum(quotas.allows(b"foreign", 1.0) for _ in range(10_000)) == SENDER_MESSAGES_PER_S * BURST_S
    assert list(quotas.surplus()) == ["node n", "foreign topics"]


def test_a_service_of_many_hosts_may_allow_more() -> None:
    quotas = MessageQuotas(TOPICS, sender_per_s=2_000.0, burst_s=10.0)
    assert flood(quotas, "a", 100.0, 30_000) == 20_000
    assert flood(quotas, "a", 101.0, 30_000) == 2_000


def test_a_flood_is_named_while_it_lasts_and_counted_by_user(caplog: pytest.LogCaptureFixture) -> None:
    quotas = MessageQuotas(TOPICS)
    for second in range(90):
        flood(quotas, "mal.lory", float(second), 1_500 if second else 6_000)
        n_allowed(quotas, OTHER_USER, 10, float(second))
    assert quotas.flooding(90.0) == ("user mal.lory",)
    assert quotas.surplus() == {"user mal.lory": quotas.n_dropped}
    assert caplog.text.count("user mal.lory: more messages a second than are read") == 2, "once a minute"
    assert quotas.flooding(90.0 + TELL_PERIOD_S) == ()


def test_the_topics_of_a_flood_are_told_once_a_second_for_each_sender() -> None:
    told = list[str]()
    quotas = MessageQuotas(TOPICS, on_surplus=told.append)
    for second in range(20):
        flood(quotas, "mallory", float(second), 1_500 if second else 6_000)
    n_allowed(quotas, OTHER_USER, 10_000, 20.0)
    assert sum("/user/mallory/" in each for each in told) <= 20 + BURST_S
    assert TOPICS.rank("boot", OTHER_USER, 0, "iterations") in told


def test_any_number_of_names_takes_bounded_memory() -> None:
    quotas = MessageQuotas(TOPICS)
    for number in range(MAX_BUCKETS + 100):
        quotas.allows(topic(RunKey(f"u{number}", "j", "r")), 1.0)
    for number in range(MAX_FLOODS + 5):
        n_allowed(quotas, RunKey(f"mallory-{number}", "j", "r"), round(RUN_MESSAGES_PER_S * BURST_S) + 1, 2.0)
    assert len(quotas._runs) == len(quotas._senders) == MAX_BUCKETS
    assert len(quotas.surplus()) == MAX_FLOODS
