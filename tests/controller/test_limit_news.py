"""The news of a limit: all of it is published, what an operator needs is logged."""

import logging

import pytest

from controller.limit_news import QUIET_S, LimitNews
from controller.ports import Hold, LimitState, Target
from publishers.reports import LimitChange
from tests.fakes import LoopClock

TARGET = Target(power_limit_w=200.0, reason="refining", detail="tries out", job="resnet50", signal="100 g/kWh")


def state(power_limit_w: float) -> LimitState:
    """Return how a held limit stands."""
    return LimitState(
        hold=Hold.HELD,
        prior_power_limit_w=300.0,
        floor_power_limit_w=100.0,
        ceiling_power_limit_w=300.0,
        requested_power_limit_w=power_limit_w,
        enforced_power_limit_w=power_limit_w,
        since_ns=0,
    )


async def test_limits_for_one_reason_are_all_published_and_logged_once_in_a_while(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    clock, published = LoopClock(), list[LimitChange]()
    news = LimitNews("GPU-1", clock=clock, publish=lambda _, change: published.append(change))
    for number in range(20):
        news.tell("refining", "tries out", state=state(200.0 + number), target=TARGET)
        await clock.sleep_until(clock.now_s() + 2.0)
    assert len(published) == 20
    assert len(caplog.messages) == 1
    await clock.sleep_until(clock.now_s() + QUIET_S)
    news.tell("refining", "tries out", state=state(180.0), target=TARGET)
    assert len(caplog.messages) == 2, "still so, ten minutes later"


async def test_another_reason_is_logged_at_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    news = LimitNews("GPU-1", clock=LoopClock(), publish=lambda *_: None)
    for reason in ("refining", "slowdown_signal", "refining", "another_writer"):
        news.tell(reason, "because", state=state(200.0), target=TARGET)
    assert [message.split(": ")[2] for message in caplog.messages] == [
        "refining",
        "slowdown_signal",
        "refining",
        "another_writer",
    ]


async def test_the_same_twice_is_told_once() -> None:
    published = list[LimitChange]()
    news = LimitNews("GPU-1", clock=LoopClock(), publish=lambda _, change: published.append(change))
    for _ in range(3):
        news.tell("refining", "tries out", state=state(200.0), target=TARGET)
    assert [(change.power_limit_w, change.previous_power_limit_w) for change in published] == [(200.0, None)]
