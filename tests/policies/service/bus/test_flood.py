"""One job floods the bus: the others lose nothing, and what is lost is counted for Prometheus."""

import pytest

from policies.service.bus import subscriber as listener_module
from policies.service.bus.events import MetricReported
from policies.service.bus.subscriber import MAX_QUESTIONS, EventSubscriber
from policies.service.metrics import Metrics
from publishers.messages.codec import encode
from publishers.messages.training import Metric, TrialFailure
from tests.fakes import FakeBus
from tests.policies.service.memory_desk import NOW_S, TOPICS, trial_request

N_FLOOD = 2 * MAX_QUESTIONS


def a_listener() -> tuple[EventSubscriber, FakeBus]:
    listener, bus = EventSubscriber(TOPICS, clock_s=lambda: NOW_S, hear_period_s=60.0, patience_s=30.0), FakeBus()
    listener.subscribe(bus)
    return listener, bus


async def test_a_run_that_reaches_its_target_at_every_epoch_waits_once_with_the_earliest() -> None:
    listener, bus = a_listener()
    for epoch in (*range(3, 500), 2, 500):
        bus.publish(TOPICS.run("job", "r1", "metric"), encode(Metric(run="r1", epoch=epoch, value=0.9, reached=True)))
    assert listener.news.drain() == [MetricReported(job="job", run="r1", at_s=NOW_S, epoch=2, value=0.9, reached=True)]


async def test_a_flood_of_questions_of_one_job_leaves_those_of_others() -> None:
    listener, bus = a_listener()
    for job, run in (("quiet", "r1"), *(("loud", f"r{number}") for number in range(N_FLOOD))):
        request = trial_request(run=run, reply_to=TOPICS.run(job, run, "trial/answer"))
        bus.publish(TOPICS.run(job, run, "trial/request"), encode(request))
    assert [question.job for question in listener.questions.drain()].count("quiet") == 1


async def test_a_flood_of_ends_of_one_job_leaves_those_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener_module, "MAX_NEWS", 1_000)
    listener, bus = a_listener()
    for number in range(1_100):
        job, run = ("quiet" if number == 50 else "loud"), f"r{number}"
        failure = TrialFailure(run=run, batch_size=32, reason="out_of_memory")
        bus.publish(TOPICS.run(job, run, "trial/failure"), encode(failure))
    assert listener.news.lost == 100
    assert [news.job for news in listener.news.drain()].count("quiet") == 1


def test_what_others_count_is_shown_as_it_is_when_it_is_asked_for() -> None:
    metrics, losses = Metrics(), {"a": 0}
    metrics.watch("losses", "What was lost.", {"a": lambda: losses["a"]})
    losses["a"] = 3
    assert b'gridchase_policy_losses_total{what="a"} 3.0' in metrics.text()
