"""Answers runs that ask for a batch size: with a trial, or the default while the database is away.

What each run was told first: that it trains with, whatever else is answered later, or stands in the database.

Where the database fails, one process may answer the default while another one still gets a trial from it. Both hear
what comes first on the bus, and go by it.

Answers to runs that ask for a batch size: from the desk, or the default where the desk cannot say.
"""

import asyncio
import logging
import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final, TypeVar

from msgspec.structs import replace

from policies.service.bus.event_queue import EventQueue
from policies.service.bus.events import DefaultAnswered
from policies.service.errors import PolicyError, StoreUnavailableError
from policies.service.metrics import Metrics
from policies.service.ports import MessageBus, TrialDesk
from policies.service.trials.lifecycle import RUN_HAS_ENDED
from policies.service.trials.records import Trial
from publishers.messages.codec import encode
from publishers.messages.training import TrialAnswer, TrialRequest

MAX_RUNS: Final = 16_384
PATIENCE_S: Final = 10.0
"""How long a run asks, every second."""
Run = tuple[str, str]
T = TypeVar("T")


class AnswerCache:
    """The questions and answers that were heard of a bounded number of runs."""

    def __init__(self) -> None:
        self._questions: OrderedDict[Run, TrialRequest] = OrderedDict()
        self._answers: OrderedDict[Run, TrialAnswer] = OrderedDict()
        self._asked_s: OrderedDict[Run, float] = OrderedDict()
        self._answered_s: OrderedDict[Run, float] = OrderedDict()

    def asking_since_s(self, job: str, request: TrialRequest, *, loop_s: float) -> float:
        """Remember what a run asks; return since when it has asked without an answer, on the loop's clock."""
        run = (job, request.run)
        _remember(self._questions, run, request)
        since_s = self._asked_s.get(run, -math.inf)
        if loop_s - since_s > PATIENCE_S:  # it had given up, and begins anew
            since_s = loop_s
        _remember(self._asked_s, run, since_s)
        return since_s

    def note_answer(self, job: str, answer: TrialAnswer, *, at_s: float, loop_s: float) -> DefaultAnswered | None:
        """Remember what a run is told first, and when last; return what the desk must learn of it, if anything."""
        run = (job, answer.run)
        _remember(self._answered_s, run, loop_s)
        self._asked_s.pop(run, None)
        if run in self._answers:
            return None
        _remember(self._answers, run, answer)
        question = self._questions.get(run)
        if question is None or not is_without_desk(answer) or answer.batch_size not in question.batch_sizes:
            return None
        return DefaultAnswered(
            job=job,
            run=answer.run,
            at_s=at_s,
            batch_sizes=tuple(sorted(set(question.batch_sizes))),
            default_batch_size=answer.batch_size,
            reason=answer.reason,
            detail=answer.detail,
        )

    def is_settled(self, job: str, run: str, *, since_s: float) -> bool:
        """Return whether a run was answered after a moment on the loop's clock: it takes an answer to any question."""
        return self._answered_s.get((job, run), -math.inf) >= since_s

    def of(self, job: str, run: str) -> TrialAnswer | None:
        """Return what a run was told first; None where nothing is known of that."""
        return self._answers.get((job, run))


def is_without_desk(answer: TrialAnswer) -> bool:
    """Return whether an answer is a default for want of the database."""
    return answer.lease_s is None and answer.reason == StoreUnavailableError.reason


def _remember(known: OrderedDict[Run, T], run: Run, value: T) -> None:
    known[run] = value
    known.move_to_end(run)
    if len(known) > MAX_RUNS:
        known.popitem(last=False)


TIMEOUT_S: Final = 5.0
"""For an answer, with the time in the mailbox: a run asks for 10 s, every second, and must still hear the default."""
TRUST_S: Final = 3.0
"""For how long another process, which has claimed the question, is trusted to answer it: it may have died."""
FOLLOW_S: Final = 0.05
"""How much later a process claims questions while another one is faster: in a fleet one answers, and the database has
one claim to write; when that one is slow or gone, the others are there."""
LOOK_S: Final = 0.25
MAX_ENDED: Final = 4_096
MAX_DETAIL: Final = 1_024

_LATE: Final = f"the database did not answer in {TIMEOUT_S:g} s"

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingRequest:
    """A request for a batch size, heard at `at_s`; on the loop's clock, first at `first_s` and again at `last_s`."""

    job: str
    request: TrialRequest
    at_s: float
    first_s: float
    last_s: float

    @property
    def due_s(self) -> float:
        """Return when it must be answered, on the loop's clock."""
        return self.first_s + TIMEOUT_S


class TrialResponder:
    """Takes questions from a mailbox and answers each where it asks to be answered.

    Args:
        questions: the mailbox; when it is full the oldest is dropped, because its run asks again.
        first_answers: what runs were told first, by whichever process.
    """

    def __init__(
        self,
        questions: EventQueue[PendingRequest],
        *,
        desk: TrialDesk,
        bus: MessageBus,
        first_answers: AnswerCache,
        metrics: Metrics,
    ) -> None:
        self._questions = questions
        self._desk = desk
        self._bus = bus
        self._first_answers = first_answers
        self._metrics = metrics
        self._follows = False
        self._ended: OrderedDict[tuple[str, str], None] = OrderedDict()

    async def run(self) -> None:
        """Answer until cancelled; several of these may run, so that one slow transaction does not hold the others."""
        while True:
            await self.answer(await self._questions.get())

    async def run_overdue(self) -> None:
        """Answer what has waited too long, until cancelled: while the database hangs, so do those who answer."""
        loop = asyncio.get_running_loop()
        while True:
            await self._questions.filled()
            oldest = self._questions.oldest()
            if oldest is None or loop.time() < oldest.due_s:
                await asyncio.sleep(LOOK_S)
            else:
                await self.answer(await self._questions.get())

    async def answer(self, question: PendingRequest) -> None:
        """Answer one question, unless another process does."""
        request = question.request
        if self._is_settled(question):
            return
        if asyncio.get_running_loop().time() < question.due_s:
            answer = await self._decide(question)
        else:  # a transaction that is cut off at its beginning costs a connection
            answer = self._answer_without_desk(question, _LATE)
        if answer is not None:
            self._bus.publish(request.reply_to, encode(answer), qos=1)
            answer_s = asyncio.get_running_loop().time() - question.first_s
            self._metrics.answered(answer.reason, over="bus", answer_s=answer_s)

    async def _decide(self, question: PendingRequest) -> TrialAnswer | None:
        """Return the answer; None where another process gives it."""
        try:
            async with asyncio.timeout_at(question.due_s):
                return await self._answer_of_desk(question)
        except StoreUnavailableError as error:
            return self._answer_without_desk(question, str(error))
        except TimeoutError:
            return self._answer_without_desk(question, _LATE)
        except PolicyError as error:
            return _default(question, error.reason, str(error))
        except Exception as error:  # a bug with one job must not leave the others without answers
            _LOGGER.exception("%s/%s: no batch size could be chosen", question.job, question.request.run)
            return _default(question, PolicyError.reason, repr(error))

    async def _answer_of_desk(self, question: PendingRequest) -> TrialAnswer | None:
        request = question.request
        if self._follows:
            await asyncio.sleep(FOLLOW_S)
            if self._is_settled(question):
                return None
        is_ours = await self._desk.claim(request.correlation, now_s=question.at_s)
        self._follows = not is_ours
        if not is_ours and asyncio.get_running_loop().time() < question.first_s + TRUST_S:
            return None
        first = self._first_answers.of(question.job, request.run)
        if first is not None and is_without_desk(first):  # it asks again, as after a restart: it is what it was told
            return _answer(question, await self._adopt(question, first))
        trial = await self._desk.ask(
            question.job,
            request.run,
            batch_sizes=request.batch_sizes,
            default_batch_size=request.default_batch_size,
            now_s=question.at_s,
        )
        first = self._first_answers.of(question.job, request.run)
        if first is not None and is_without_desk(first):  # a process without the database was faster
            return None
        if trial.reason == RUN_HAS_ENDED:
            self._note_ended(question, trial)
        return _answer(question, trial)

    def _note_ended(self, question: PendingRequest, trial: Trial) -> None:
        """Say once of a run that it asks though it has ended."""
        run = (question.job, trial.run)
        if run not in self._ended:
            _LOGGER.warning("%s/%s: %s", question.job, trial.run, trial.detail)
        self._ended[run] = None
        if len(self._ended) > MAX_ENDED:
            self._ended.popitem(last=False)

    async def _adopt(self, question: PendingRequest, first: TrialAnswer) -> Trial:
        return await self._desk.adopt(
            question.job,
            first.run,
            batch_sizes=question.request.batch_sizes,
            default_batch_size=question.request.default_batch_size,
            batch_size=first.batch_size,
            reason=first.reason,
            detail=first.detail,
            now_s=question.at_s,
        )

    def _is_settled(self, question: PendingRequest) -> bool:
        return self._first_answers.is_settled(question.job, question.request.run, since_s=question.last_s)

    def _answer_without_desk(self, question: PendingRequest, why: str) -> TrialAnswer | None:
        """Return what the run was told before, else the default; the listener hears it, and has the run taken in."""
        self._metrics.store_failed()
        if self._is_settled(question):
            return None
        first = self._first_answers.of(question.job, question.request.run)
        if first is not None and first.batch_size in question.request.batch_sizes:
            return replace(first, correlation=question.request.correlation)
        return _default(question, StoreUnavailableError.reason, why)


def _answer(question: PendingRequest, trial: Trial) -> TrialAnswer:
    is_of_one = trial.reason != RUN_HAS_ENDED  # whoever has no recurrence, and no lease, is said to teach nothing
    return TrialAnswer(
        run=question.request.run,
        correlation=question.request.correlation,
        batch_size=trial.batch_size,
        reason=trial.reason,
        detail=trial.detail,
        recurrence=trial.recurrence if is_of_one else None,
        cost_bound=trial.cost_bound,
        lease_s=trial.lease_s if is_of_one else None,
        untimed=list(trial.untimed),
    )


def _default(question: PendingRequest, reason: str, why: str) -> TrialAnswer:
    request = question.request
    return TrialAnswer(
        run=request.run,
        correlation=request.correlation,
        batch_size=request.default_batch_size,
        reason=reason,
        detail=why[:MAX_DETAIL],
    )
