"""Leases where clocks differ, and runs that ask long after their end."""

import pytest
from msgspec.structs import replace

from policies.service.bus.subscriber import EventSubscriber
from policies.service.bus.trial_responder import TrialResponder
from policies.service.metrics import Metrics
from policies.service.trials.lifecycle import is_expired, with_ended_reason, with_expired_lease
from publishers.messages.codec import decode, encode
from publishers.messages.training import TrialAnswer
from tests.fakes import FakeBus
from tests.policies.service.memory_desk import LEASE_S, NOW_S, TOPICS, MemoryDesk, trial_request

JOB = "resnet50"
DAY_S = 86_400.0


def desk_with_a_trial() -> MemoryDesk:
    desk = MemoryDesk()
    desk.open()
    return desk


def test_a_run_that_was_heard_of_by_a_clock_ahead_has_its_lease_from_now_on() -> None:
    trial = replace(desk_with_a_trial().trials[JOB, "r1"], state="running", heard_at_s=NOW_S + DAY_S)
    mended = with_expired_lease(trial, NOW_S)
    assert (mended.state, mended.heard_at_s) == ("running", NOW_S)
    assert is_expired(mended, NOW_S + LEASE_S + 1.0)
    assert with_expired_lease(mended, NOW_S + LEASE_S + 1.0).state == "lost"


@pytest.mark.parametrize(("state", "since_end_s"), [("running", DAY_S), ("lost", DAY_S), ("reached", LEASE_S)])
def test_a_run_that_has_not_ended_or_only_just_is_told_its_trial_as_it_is(state: str, since_end_s: float) -> None:
    trial = replace(desk_with_a_trial().trials[JOB, "r1"], state=state, ended_at_s=NOW_S)
    assert with_ended_reason(trial, NOW_S + since_end_s) is trial


async def test_a_run_that_ended_long_ago_is_told_so_and_it_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    desk, bus = desk_with_a_trial(), FakeBus()
    desk.trials[JOB, "r1"] = with_ended_reason(
        replace(desk.trials[JOB, "r1"], state="reached", ended_at_s=NOW_S, cost_bound=5.0), NOW_S + DAY_S
    )
    listener = EventSubscriber(TOPICS, clock_s=lambda: NOW_S, hear_period_s=60.0, patience_s=30.0)
    answers = TrialResponder(
        listener.questions, desk=desk, bus=bus, first_answers=listener.first_answers, metrics=Metrics()
    )
    listener.subscribe(bus)
    for correlation in ("c1", "c2"):
        request = encode(trial_request(correlation=correlation))
        bus.publish(TOPICS.run(JOB, "r1", "trial/request"), request, qos=1)
        await answers.answer(await listener.questions.get())
    heard = [decode(payload, TrialAnswer) for payload in bus.payloads(TOPICS.run(JOB, "r1", "trial/answer"))]
    assert {(one.batch_size, one.reason, one.lease_s, one.recurrence) for one in heard} == {
        (64, "run_has_ended", None, None)
    }
    (said,) = (record.getMessage() for record in caplog.records)
    assert said == (
        "resnet50/r1: run r1 ended (reached) 86400 s ago: it is told the same batch size, and nothing is learned from "
        "it; give each recurrence a run id of its own"
    )
