"""The ears of the service: what comes on the bus is checked, and put where a task that may wait takes it.

Handlers run inside the connection and must not wait. Whatever is retained is heard again at every connection, so that
an end which was told while nobody listened is not missed.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, TypeVar

from policies.service.bus.event_queue import EventQueue, PendingRunEnds
from policies.service.bus.events import (
    BatchSizesTimed,
    EnergyReported,
    Heartbeat,
    MetricReported,
    RunEnded,
    RunEvent,
    TrialFailed,
    merged,
)
from policies.service.bus.trial_responder import AnswerCache, PendingRequest
from policies.service.ports import MessageBus
from policies.service.trials.records import IterationTime, Timing
from publishers.messages.codec import DecodeError, decode
from publishers.messages.reports import RunEnergy
from publishers.messages.topics import ParsedTopic, Topics
from publishers.messages.training import Metric, RankStatus, TrialAnswer, TrialFailure, TrialRequest, TrialTimes
from publishers.mqtt.client import Handler
from publishers.shared.invalid_messages import InvalidMessages

MAX_QUESTIONS: Final = 1_024
MAX_NEWS: Final = 65_536
MAX_HEARTBEATS: Final = 16_384
MAX_FAILURE: Final = 1_024


class EventSubscriber:
    """What is heard on the bus.

    Args:
        topics: those of the bus.
        clock_s: the time of day, Unix [s].
        hear_period_s: signs of life of a run that come sooner after another are not passed on.
        patience_s: how long the last word of a run's controller is waited for after its training process is gone.

    Attributes:
        complaints: about messages that are not what they should be.
        questions: when full, the oldest is dropped: its run asks again.
        news: when full, progress and signs of life are dropped; the end of a run only where there is nothing else.
        endings: the runs that are about to be over; its `run` is a task of the service.
        first_answers: what runs were told first, by whichever process.
    """

    def __init__(
        self, topics: Topics, *, clock_s: Callable[[], float], hear_period_s: float, patience_s: float
    ) -> None:
        self.complaints = InvalidMessages(clock_s)
        self.questions: EventQueue[PendingRequest] = EventQueue(MAX_QUESTIONS, name="questions")
        self.news: EventQueue[RunEvent] = EventQueue(MAX_NEWS, name="news of runs", merge=merged)
        self.endings = PendingRunEnds(self._pass_on, patience_s=patience_s)
        self.first_answers = AnswerCache()
        self._topics = topics
        self._clock_s = clock_s
        self._hear_period_s = hear_period_s
        self._heard_s: OrderedDict[tuple[str, str], float] = OrderedDict()

    def subscribe(self, bus: MessageBus) -> None:
        """Listen, from the next connection on or at once."""
        bus.subscribe(self._topics.all_runs("trial/request"), self._on(self._hear_request), qos=1)
        bus.subscribe(self._topics.all_runs("trial/answer"), self._on(self._hear_answer), qos=1)
        bus.subscribe(self._topics.all_runs("trial/times"), self._on(self._hear_times), qos=1)
        bus.subscribe(self._topics.all_runs("trial/failure"), self._on(self._hear_failure), qos=1)
        bus.subscribe(self._topics.all_runs("metric"), self._on(self._hear_metric), qos=1)
        bus.subscribe(self._topics.all_runs("energy"), self._on(self._hear_energy), qos=1)
        bus.subscribe(self._topics.rank("+", "+", 0, "status"), self._on(self._hear_status), qos=1)

    def _on(self, hear: Callable[[str, str, bytes], None]) -> Handler:
        """Return a handler that takes the topic apart and turns a bad message into a count."""

        def handle(topic: str, payload: bytes) -> None:
            address = self._topics.parse(topic)
            if address is None or address.job is None or address.run is None:
                self.complaints.add("(foreign topics)", f"not one of ours: {topic[:80]!r}")
            elif payload:  # an empty one clears what was retained
                try:
                    hear(address.job, address.run, payload)
                except DecodeError as error:
                    self.complaints.add(topic, str(error))

        return handle

    def _hear_request(self, job: str, run: str, payload: bytes) -> None:
        request = _of(decode(payload, TrialRequest), run)
        self._check_reply(job, run, request.reply_to)
        now_s = asyncio.get_running_loop().time()
        first_s = self.first_answers.asking_since_s(job, request, loop_s=now_s)
        question = PendingRequest(job=job, request=request, at_s=self._clock_s(), first_s=first_s, last_s=now_s)
        self.questions.put((job, run), question, owner=job)  # a repetition asks the same

    def _check_reply(self, job: str, run: str, reply_to: str) -> None:
        """Refuse to answer at topics that are not the run's own, or are for something else."""
        address = self._topics.parse(reply_to)
        is_below = reply_to.startswith(self._topics.run(job, run, ""))
        if not is_below or any(c in reply_to for c in "+#\0") or address not in {None, _answer_of(job, run)}:
            raise DecodeError(
                f"asks to be answered at {reply_to!r}: must be {self._topics.run(job, run, 'trial/answer')}"
            )

    def _hear_answer(self, job: str, run: str, payload: bytes) -> None:
        answer = _of(decode(payload, TrialAnswer), run)
        loop_s = asyncio.get_running_loop().time()
        news = self.first_answers.note_answer(job, answer, at_s=self._clock_s(), loop_s=loop_s)
        if news is not None:
            self._pass_on(news)

    def _hear_times(self, job: str, run: str, payload: bytes) -> None:
        told = _of(decode(payload, TrialTimes), run)
        times = tuple(
            IterationTime(batch_size=size, iteration_time_s=time_s)
            for size, time_s in zip(told.batch_sizes, told.iteration_times_s, strict=True)
        )
        timing = Timing(times=times, too_large=told.too_large, batch_size=told.batch_size)
        self._pass_on(BatchSizesTimed(job=job, run=run, at_s=self._clock_s(), timing=timing))

    def _hear_failure(self, job: str, run: str, payload: bytes) -> None:
        failure = _of(decode(payload, TrialFailure), run)
        words = f"{failure.reason}: {failure.detail}" if failure.detail else failure.reason
        news = TrialFailed(
            job=job, run=run, at_s=self._clock_s(), failure=words[:MAX_FAILURE], batch_size=failure.batch_size
        )
        self._pass_on(news)

    def _hear_metric(self, job: str, run: str, payload: bytes) -> None:
        metric = _of(decode(payload, Metric), run)
        news = MetricReported(
            job=job, run=run, at_s=self._clock_s(), epoch=metric.epoch, value=metric.value, reached=metric.reached
        )
        self._pass_on(news)

    def _hear_energy(self, job: str, run: str, payload: bytes) -> None:
        energy = _of(decode(payload, RunEnergy), run)
        if energy.final:
            self.endings.forget(job, run)
        self._pass_on(EnergyReported(job=job, run=run, at_s=self._clock_s(), energy=energy))

    def _hear_status(self, job: str, run: str, payload: bytes) -> None:
        status = _of(decode(payload, RankStatus), run)
        if status.state != "running":
            ended = RunEnded(
                job=job,
                run=run,
                at_s=self._clock_s(),
                lost=status.state == "lost",
                reached=bool(status.reached),
                batch_size=status.batch_size,
                n_ranks=status.world_size,
            )
            self.endings.expect(ended)
            return
        self.endings.forget(job, run)  # a connection that was lost came back
        if self._is_due(job, run):
            self._pass_on(Heartbeat(job=job, run=run, at_s=self._clock_s()))

    def _is_due(self, job: str, run: str) -> bool:
        """Return whether a run was not heard of for a while."""
        now_s, last_s = asyncio.get_running_loop().time(), self._heard_s.get((job, run))
        if last_s is not None and now_s - last_s < self._hear_period_s:
            return False
        self._heard_s[job, run] = now_s
        self._heard_s.move_to_end((job, run))
        if len(self._heard_s) > MAX_HEARTBEATS:
            self._heard_s.popitem(last=False)
        return True

    def _pass_on(self, news: RunEvent) -> None:
        self.news.put(news.key, news, lasting=news.is_lasting, owner=news.job)


OfRun = TypeVar("OfRun", TrialRequest, TrialAnswer, TrialTimes, TrialFailure, Metric, RunEnergy, RankStatus)


def _of(message: OfRun, run: str) -> OfRun:
    """Return a message that speaks of the run whose topic it came on.

    Raises:
        WireError: it speaks of another one.
    """
    if message.run != run:
        raise DecodeError(f"speaks of run {message.run}")
    return message


def _answer_of(job: str, run: str) -> ParsedTopic:
    return ParsedTopic(leaf="trial/answer", job=job, run=run)
