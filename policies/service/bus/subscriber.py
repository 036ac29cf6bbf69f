"""Subscribes to what runs publish: checks each message and queues it for the tasks that may wait for the database.

Handlers run inside the connection and must not wait. Retained messages arrive again with every connection, so the end
of a run is not missed if it was published while this service was disconnected.
"""

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

from policies.service.bus.event_queue import GRACE_S, EventQueue, PendingRunEnds
from policies.service.bus.events import (
    BatchSizesTimed,
    EnergyReported,
    Heartbeat,
    MetricReported,
    RunEnded,
    RunEvent,
    TrialFailed,
    merge,
)
from policies.service.bus.trial_responder import AnswerCache, PendingRequest
from policies.service.ports import MessageBus
from policies.service.records import IterationTime, JobKey, Timing
from publishers.messages.codec import DecodeError, decode
from publishers.messages.reports import RunEnergy
from publishers.messages.topics import PROBE, ParsedTopic, RunKey, Topics
from publishers.messages.training import Metric, RankStatus, TrialAnswer, TrialFailure, TrialRequest, TrialTimes
from publishers.mqtt.client import Handler
from publishers.shared.log_once import InvalidMessages
from publishers.shared.recent_dict import RecentDict

MAX_REQUESTS: Final = 1_024
MAX_EVENTS: Final = 65_536
MAX_HEARTBEATS: Final = 16_384
MAX_FAILURE: Final = 1_024

OfRun = TypeVar("OfRun", TrialRequest, TrialAnswer, TrialTimes, TrialFailure, Metric, RunEnergy, RankStatus)


class EventSubscriber:
    """Turns messages into requests and events.

    Args:
        topics: those of the bus.
        clock_s: the time of day, Unix [s].
        heartbeat_period_s: how often at most a heartbeat of a run becomes an event [s].
        grace_s: how long the final energy of a run is awaited after its training process has ended [s].

    Attributes:
        invalid_messages: counts messages that are not valid.
        requests: when full, a waiting one is dropped: its run asks again.
        events: when full, progress and heartbeats are dropped; final events only where there is nothing else.
        run_ends: the runs that are about to be over; its `run` is a task of the service.
        answers: what runs were told first, by whichever process.
    """

    def __init__(
        self, topics: Topics, *, clock_s: Callable[[], float], heartbeat_period_s: float, grace_s: float = GRACE_S
    ) -> None:
        self.invalid_messages = InvalidMessages(clock_s)
        self.requests: EventQueue[PendingRequest] = EventQueue(MAX_REQUESTS, name="requests")
        self.events: EventQueue[RunEvent] = EventQueue(MAX_EVENTS, name="events of runs", merge=merge)
        self.run_ends = PendingRunEnds(self._queue, grace_s=grace_s)
        self.answers = AnswerCache()
        self._topics = topics
        self._clock_s = clock_s
        self._heartbeat_period_s = heartbeat_period_s
        self._heartbeat_s: RecentDict[RunKey, float] = RecentDict(MAX_HEARTBEATS)

    def subscribe(self, bus: MessageBus) -> None:
        """Subscribe, from the next connection on or at once."""
        topics = self._topics
        bus.subscribe(topics.run_filter("trial/request"), self._handler(TrialRequest, self._on_request), qos=1)
        bus.subscribe(topics.run_filter("trial/answer"), self._handler(TrialAnswer, self._on_answer), qos=1)
        bus.subscribe(topics.run_filter("trial/times"), self._handler(TrialTimes, self._on_times), qos=1)
        bus.subscribe(topics.run_filter("trial/failure"), self._handler(TrialFailure, self._on_failure), qos=1)
        bus.subscribe(topics.run_filter("metric"), self._handler(Metric, self._on_metric), qos=1)
        bus.subscribe(topics.run_filter("energy"), self._handler(RunEnergy, self._on_energy), qos=1)
        bus.subscribe(topics.rank_filter("status", rank=0), self._handler(RankStatus, self._on_status), qos=1)

    def _handler(self, kind: type[OfRun], on_message: Callable[[RunKey, OfRun], None]) -> Handler:
        """Return a handler that decodes messages of a kind, and counts invalid ones."""

        def handle(topic: str, payload: bytes) -> None:
            parsed = self._topics.parse(topic)
            if parsed is None or parsed.run is None:
                self.invalid_messages.add("(foreign topics)", f"not a topic of runs: {topic[:80]!r}")
            elif payload and parsed.run.job != PROBE:  # an empty one deletes a retained message
                try:
                    message = decode(payload, kind)
                    if message.run != parsed.run.run:
                        raise DecodeError(f"the payload is for run {message.run}, not for the topic's run")  # noqa: TRY301 — counted like any other
                    on_message(parsed.run, message)
                except DecodeError as error:
                    self.invalid_messages.add(topic, str(error))

        return handle

    def _on_request(self, key: RunKey, request: TrialRequest) -> None:
        self._check_reply_topic(key, request.reply_to)
        now_s = asyncio.get_running_loop().time()
        first_s = self.answers.asked_since_s(key, request, loop_s=now_s)
        pending = PendingRequest(run=key, request=request, at_s=self._clock_s(), first_s=first_s, last_s=now_s)
        self.requests.put(key, pending, job=JobKey.of(key))  # a repeated request replaces the one that waits

    def _check_reply_topic(self, key: RunKey, reply_to: str) -> None:
        """Refuse reply topics that belong to another run, or to another kind of message."""
        answer = self._topics.run(key, "trial/answer")
        is_below = reply_to.startswith(self._topics.run(key, ""))
        parsed = self._topics.parse(reply_to)
        is_other = parsed not in {None, ParsedTopic(leaf="trial/answer", run=key)}
        if not is_below or is_other or any(c in reply_to for c in "+#\0"):
            raise DecodeError(f"reply_to = {reply_to!r}: must be {answer}")

    def _on_answer(self, key: RunKey, answer: TrialAnswer) -> None:
        loop_s = asyncio.get_running_loop().time()
        event = self.answers.add_answer(key, answer, at_s=self._clock_s(), loop_s=loop_s)
        if event is not None:
            self._queue(event)

    def _on_times(self, key: RunKey, message: TrialTimes) -> None:
        times = tuple(
            IterationTime(batch_size=size, iteration_time_s=time_s)
            for size, time_s in zip(message.batch_sizes, message.iteration_times_s, strict=True)
        )
        timing = Timing(times=times, too_large=message.too_large, batch_size=message.batch_size)
        self._queue(BatchSizesTimed(user=key.user, job=key.job, run=key.run, at_s=self._clock_s(), timing=timing))

    def _on_failure(self, key: RunKey, message: TrialFailure) -> None:
        failure = f"{message.reason}: {message.detail}" if message.detail else message.reason
        self._queue(
            TrialFailed(
                user=key.user,
                job=key.job,
                run=key.run,
                at_s=self._clock_s(),
                failure=failure[:MAX_FAILURE],
                batch_size=message.batch_size,
            )
        )

    def _on_metric(self, key: RunKey, message: Metric) -> None:
        self._queue(
            MetricReported(
                user=key.user,
                job=key.job,
                run=key.run,
                at_s=self._clock_s(),
                epoch=message.epoch,
                value=message.value,
                reached=message.reached,
            )
        )

    def _on_energy(self, key: RunKey, energy: RunEnergy) -> None:
        if energy.final:
            self.run_ends.cancel(key)
        self._queue(EnergyReported(user=key.user, job=key.job, run=key.run, at_s=self._clock_s(), energy=energy))

    def _on_status(self, key: RunKey, status: RankStatus) -> None:
        at_s = self._clock_s()
        if status.state == "running":
            self.run_ends.cancel(key)  # a lost connection came back
            if self._is_heartbeat_due(key):
                self._queue(Heartbeat(user=key.user, job=key.job, run=key.run, at_s=at_s))
            return
        self.run_ends.schedule(
            RunEnded(
                user=key.user,
                job=key.job,
                run=key.run,
                at_s=at_s,
                lost=status.state == "lost",
                reached=bool(status.reached),
                batch_size=status.batch_size,
                n_ranks=status.world_size,
            )
        )

    def _is_heartbeat_due(self, run: RunKey) -> bool:
        now_s, last_s = asyncio.get_running_loop().time(), self._heartbeat_s.get(run)
        if last_s is not None and now_s - last_s < self._heartbeat_period_s:
            return False
        self._heartbeat_s[run] = now_s
        return True

    def _queue(self, event: RunEvent) -> None:
        self.events.put(event.key, event, job=event.job_key, is_final=event.is_final)
