"""Messages of runs become requests and events; invalid ones are counted."""

import asyncio

import pytest

from policies.service.bus.events import (
    BatchSizesTimed,
    EnergyReported,
    Heartbeat,
    MetricReported,
    RunEnded,
    TrialFailed,
)
from policies.service.bus.subscriber import EventSubscriber
from policies.service.records import IterationTime, Timing
from publishers.messages.codec import Message, encode
from publishers.messages.topics import RunKey
from publishers.messages.training import Metric, TrialFailure, TrialTimes
from tests.fakes import USER, FakeBus
from tests.policies.service.memory_store import NOW_S, TOPICS, final_energy, rank_status, run_energy, trial_request

JOB, RUN = "resnet50", "r1"


class Bench:
    """A subscriber on a bus in this process."""

    def __init__(self, *, heartbeat_period_s: float = 60.0) -> None:
        self.bus = FakeBus()
        self.subscriber = EventSubscriber(
            TOPICS, clock_s=lambda: NOW_S, heartbeat_period_s=heartbeat_period_s, grace_s=30.0
        )
        self.subscriber.subscribe(self.bus)

    def say(self, leaf: str, message: Message, *, run: str = RUN) -> None:
        self.bus.publish(TOPICS.run(RunKey(USER, JOB, run), leaf), encode(message), qos=1)

    def say_status(self, message: Message, *, rank: int = 0) -> None:
        self.bus.publish(TOPICS.rank("boot", RunKey(USER, JOB, RUN), rank, "status"), encode(message), qos=1)

    @property
    def n_bad(self) -> int:
        return self.subscriber.invalid_messages.n_messages


async def test_a_question_is_put_where_it_can_wait() -> None:
    bench = Bench()
    bench.say("trial/request", trial_request())
    (pending,) = bench.subscriber.requests.drain()
    assert (pending.run, pending.request, pending.at_s) == (RunKey(USER, JOB, RUN), trial_request(), NOW_S)


async def test_a_question_that_is_repeated_before_it_is_answered_waits_once() -> None:
    bench = Bench()
    for correlation in ("c1", "c2"):
        bench.say("trial/request", trial_request(correlation=correlation))
    (pending,) = bench.subscriber.requests.drain()
    assert pending.request.correlation == "c2"


@pytest.mark.parametrize(
    "reply_to",
    [
        "gridchase/v1/user/alice/job/other/run/r1/trial/answer",
        "gridchase/v1/user/alice/job/resnet50/run/r2/trial/answer",
        "gridchase/v1/user/alice/job/resnet50/run/r10",
        "gridchase/v1/user/alice/job/resnet50/run/r1/energy",
        "gridchase/v1/user/alice/job/resnet50/run/r1/command",
        "gridchase/v1/user/alice/job/resnet50/run/r1/#",
        "gridchase/v1/user/alice/job/resnet50/run/r1/+/x",
        "elsewhere",
    ],
)
async def test_nobody_is_answered_at_anothers_topic_or_where_it_means_something_else(reply_to: str) -> None:
    bench = Bench()
    bench.say("trial/request", trial_request(reply_to=reply_to))
    assert (len(bench.subscriber.requests), bench.n_bad) == (0, 1)


async def test_an_answer_may_go_anywhere_below_the_run() -> None:
    bench = Bench()
    bench.say("trial/request", trial_request(reply_to=TOPICS.run(RunKey(USER, JOB, RUN), "trial/answer/4711")))
    assert len(bench.subscriber.requests) == 1


async def test_metrics_failures_and_energy_become_events() -> None:
    bench = Bench()
    bench.say("metric", Metric(run=RUN, epoch=3, value=0.84, reached=True))
    bench.say("trial/failure", TrialFailure(run=RUN, batch_size=128, reason="out_of_memory", detail="CUDA"))
    bench.say("energy", run_energy())
    assert bench.subscriber.events.drain() == [
        MetricReported(user=USER, job=JOB, run=RUN, at_s=NOW_S, epoch=3, value=0.84, reached=True),
        TrialFailed(user=USER, job=JOB, run=RUN, at_s=NOW_S, failure="out_of_memory: CUDA", batch_size=128),
        EnergyReported(user=USER, job=JOB, run=RUN, at_s=NOW_S, energy=run_energy()),
    ]


async def test_what_a_run_has_timed_becomes_an_event() -> None:
    bench = Bench()
    told = TrialTimes(run=RUN, batch_sizes=[32, 64], iteration_times_s=[0.5, 0.25], too_large=128, batch_size=64)
    bench.say("trial/times", told)
    times = tuple(IterationTime(batch_size=size, iteration_time_s=time_s) for size, time_s in ((32, 0.5), (64, 0.25)))
    timing = Timing(times=times, too_large=128, batch_size=64)
    (event,) = bench.subscriber.events.drain()
    assert event == BatchSizesTimed(user=USER, job=JOB, run=RUN, at_s=NOW_S, timing=timing)
    assert (event.outlives_outage, event.is_final) == (True, True)


async def test_of_progress_the_newest_waits_and_of_metrics_that_reached_the_first_too() -> None:
    bench = Bench()
    for epoch in range(3):
        bench.say("energy", run_energy(epochs=epoch + 1))
        bench.say("metric", Metric(run=RUN, epoch=epoch, value=0.5, reached=epoch > 0))
    waiting = bench.subscriber.events.drain()
    assert [event.energy.epochs for event in waiting if isinstance(event, EnergyReported)] == [3]
    assert [event.epoch for event in waiting if isinstance(event, MetricReported)] == [0, 1]


async def test_a_sign_of_life_is_passed_on_once_in_a_while() -> None:
    bench = Bench(heartbeat_period_s=60.0)
    for _ in range(13):
        bench.say_status(rank_status())
        await asyncio.sleep(10)
    assert len([event for event in bench.subscriber.events.drain() if isinstance(event, Heartbeat)]) == 1
    assert bench.subscriber._heartbeat_s[RunKey(USER, JOB, RUN)] >= 120 - 60


async def test_other_ranks_do_not_speak_for_the_run() -> None:
    bench = Bench()
    bench.say_status(rank_status(state="lost"), rank=1)
    await _patience(bench)
    assert bench.subscriber.events.drain() == []


@pytest.mark.parametrize("state", ["finished", "lost"])
async def test_an_end_is_news_when_no_controller_tells_more(state: str) -> None:
    bench = Bench()
    bench.say_status(rank_status(state=state, reached=True, batch_size=32, world_size=2))
    await _patience(bench)
    ended = RunEnded(
        user=USER, job=JOB, run=RUN, at_s=NOW_S, lost=state == "lost", reached=True, batch_size=32, n_ranks=2
    )
    assert bench.subscriber.events.drain() == [ended]


async def test_the_controllers_last_word_makes_the_end_of_the_process_old_news() -> None:
    bench = Bench()
    bench.say_status(rank_status(state="finished"))
    bench.say("energy", final_energy())
    await _patience(bench)
    assert bench.subscriber.events.drain() == [
        EnergyReported(user=USER, job=JOB, run=RUN, at_s=NOW_S, energy=final_energy())
    ]


async def test_a_process_that_was_lost_and_came_back_has_not_ended() -> None:
    bench = Bench()
    bench.say_status(rank_status(state="lost"))
    bench.say_status(rank_status(state="running"))
    await _patience(bench)
    assert bench.subscriber.events.drain() == [Heartbeat(user=USER, job=JOB, run=RUN, at_s=NOW_S)]


async def test_what_was_retained_while_nobody_listened_is_heard() -> None:
    bus = FakeBus()
    bus.publish(TOPICS.run(RunKey(USER, JOB, RUN), "energy"), encode(final_energy()), qos=1, retain=True)
    subscriber = EventSubscriber(TOPICS, clock_s=lambda: NOW_S, heartbeat_period_s=60.0, grace_s=30.0)
    subscriber.subscribe(bus)
    assert [type(event) for event in subscriber.events.drain()] == [EnergyReported]


async def test_a_bad_message_is_counted_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    for _ in range(3):
        bench.bus.publish(TOPICS.run(RunKey(USER, JOB, RUN), "metric"), b"\xc1")
        bench.say("energy", run_energy(run="another"))
    bench.bus.publish(TOPICS.run(RunKey(USER, JOB, RUN), "energy"), b"")  # a retained message that was cleared
    assert (bench.n_bad, len(bench.subscriber.events)) == (6, 0)
    assert len(caplog.records) == 2


async def _patience(bench: Bench) -> None:
    """Let the time pass in which a controller may tell more."""
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(bench.subscriber.run_ends.run())
        await asyncio.sleep(31)
        task.cancel()
