"""Answers runs that ask for a batch size: with a trial, or the default while the database is unavailable.

If the database fails, one process may answer with the default while another still gets a trial from it. Both see the
first answer on the bus and keep to it, because the run trains with that one.
"""

import asyncio
import logging
import math
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from policies.batch_size import Choice
from policies.service.bus.event_queue import EventQueue
from policies.service.bus.events import DefaultAnswered
from policies.service.bus.shares import RecentByRun
from policies.service.errors import PolicyError, StoreUnavailableError
from policies.service.metrics import Metrics
from policies.service.ports import MessageBus
from policies.service.records import Trial
from policies.service.trials.lifecycle import RUN_ID_REUSED
from policies.service.trials.repository import TrialRepository
from publishers.messages.codec import encode
from publishers.messages.topics import RunKey
from publishers.messages.training import TrialAnswer, TrialRequest
from publishers.shared.recent_dict import RecentDict

MAX_RUNS: Final = 16_384
PATIENCE_S: Final = 10.0
"""How long a run asks, every second."""
TIMEOUT_S: Final = 5.0
"""For an answer, with the time in the queue: a run asks for 10 s, every second, and must still receive the default."""
TRUST_S: Final = 3.0
"""How long another process that has claimed a request is trusted to answer it: it may have died."""
FOLLOW_S: Final = 0.05
"""How long a process delays its claim while another one is faster: then usually only one claim is written, and the
others answer when that process is slow or has ended."""
POLL_PERIOD_S: Final = 0.25
MAX_ENDED: Final = 4_096
MAX_DETAIL: Final = 1_024

_LATE: Final = f"the database did not answer in {TIMEOUT_S:g} s"

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingRequest:
    """A request for a batch size.

    Attributes:
        run, request: who asked, and what.
        at_s: when it was received, Unix time [s].
        first_s, last_s: when it was asked first and last, on the loop's clock [s].
    """

    run: RunKey
    request: TrialRequest
    at_s: float
    first_s: float
    last_s: float

    @property
    def due_s(self) -> float:
        """Return when it must be answered, on the loop's clock."""
        return self.first_s + TIMEOUT_S


@dataclass(slots=True)
class _Exchange:
    """The requests and answers of one run, times on the loop's clock."""

    request: TrialRequest | None = None
    first_answer: TrialAnswer | None = None
    asked_since_s: float = -math.inf
    answered_s: float = -math.inf


class AnswerCache:
    """What was asked by, and first answered to, a bounded number of runs, by whichever process."""

    def __init__(self) -> None:
        self._exchanges: RecentByRun[_Exchange] = RecentByRun(MAX_RUNS)

    def asked_since_s(self, run: RunKey, request: TrialRequest, *, loop_s: float) -> float:
        """Remember a request; return since when its run has asked without an answer, on the loop's clock."""
        exchange = self._of(run)
        exchange.request = request
        if loop_s - exchange.asked_since_s > PATIENCE_S:  # it had given up, and repeats its request
            exchange.asked_since_s = loop_s
        return exchange.asked_since_s

    def add_answer(self, run: RunKey, answer: TrialAnswer, *, at_s: float, loop_s: float) -> DefaultAnswered | None:
        """Remember an answer; return the event to store, if it is a first one that does not come from the database."""
        exchange = self._of(run)
        exchange.answered_s, exchange.asked_since_s = loop_s, -math.inf
        if exchange.first_answer is not None:
            return None
        exchange.first_answer, request = answer, exchange.request
        if request is None or not _is_without_database(answer) or answer.batch_size not in request.batch_sizes:
            return None
        return DefaultAnswered(
            user=run.user,
            job=run.job,
            run=run.run,
            at_s=at_s,
            batch_sizes=tuple(sorted(set(request.batch_sizes))),
            default_batch_size=answer.batch_size,
            reason=answer.reason,
            detail=answer.detail,
        )

    def is_answered(self, run: RunKey, *, since_s: float) -> bool:
        """Return whether a run was answered after a moment on the loop's clock: it accepts an answer to any request."""
        exchange = self._exchanges.get(run)
        return exchange is not None and exchange.answered_s >= since_s

    def first_answer(self, run: RunKey) -> TrialAnswer | None:
        """Return the first answer to a run, or None."""
        exchange = self._exchanges.get(run)
        return None if exchange is None else exchange.first_answer

    def default_answer(self, run: RunKey) -> TrialAnswer | None:
        """Return the first answer to a run, if it was the default because the database was unavailable."""
        first = self.first_answer(run)
        return first if first is not None and _is_without_database(first) else None

    def _of(self, run: RunKey) -> _Exchange:
        exchange = self._exchanges.get(run) or _Exchange()
        self._exchanges[run] = exchange
        return exchange


class TrialResponder:
    """Takes requests from a queue and answers each at its reply topic.

    Args:
        requests: the queue; when it is full the oldest is dropped, because its run asks again.
        trials: where batch sizes come from.
        bus: where answers go.
        answers: what runs were told first, by whichever process.
        metrics: counts answers.
    """

    def __init__(
        self,
        requests: EventQueue[PendingRequest],
        *,
        trials: TrialRepository,
        bus: MessageBus,
        answers: AnswerCache,
        metrics: Metrics,
    ) -> None:
        self._requests = requests
        self._trials = trials
        self._bus = bus
        self._answers = answers
        self._metrics = metrics
        self._follows = False
        self._ended: RecentDict[RunKey, None] = RecentDict(MAX_ENDED)

    async def run(self) -> None:
        """Answer until cancelled; several of these may run, so that one slow transaction does not delay the others."""
        while True:
            await self.answer(await self._requests.get())

    async def run_overdue(self) -> None:
        """Answer what has waited too long, until cancelled: while the database hangs, so do the other tasks."""
        loop = asyncio.get_running_loop()
        while True:
            await self._requests.wait_for_item()
            oldest = self._requests.oldest()
            if oldest is None or loop.time() < oldest.due_s:
                await asyncio.sleep(POLL_PERIOD_S)
            else:
                await self.answer(self._requests.pop_oldest())

    async def answer(self, pending: PendingRequest) -> None:
        """Answer one request, unless another process does."""
        if self._is_answered(pending):
            return
        if asyncio.get_running_loop().time() < pending.due_s:
            answer = await self._answer_in_time(pending)
        else:  # cancelling a transaction at its beginning costs a connection
            answer = self._answer_without_database(pending, _LATE)
        if answer is not None:
            self._bus.publish(pending.request.reply_to, encode(answer), qos=1)
            answer_s = asyncio.get_running_loop().time() - pending.first_s
            self._metrics.count_answer(answer.reason, over="bus", answer_s=answer_s)

    async def _answer_in_time(self, pending: PendingRequest) -> TrialAnswer | None:
        """Return the answer; None where another process gives it."""
        try:
            async with asyncio.timeout_at(pending.due_s):
                return await self._answer_from_database(pending)
        except StoreUnavailableError as error:
            return self._answer_without_database(pending, str(error))
        except TimeoutError:
            return self._answer_without_database(pending, _LATE)
        except PolicyError as error:
            return _default(pending, error.reason, str(error))
        except Exception as error:  # a bug with one job must not leave the others without answers
            _LOGGER.exception("%s: no batch size could be chosen", pending.run)
            return _default(pending, PolicyError.reason, repr(error))

    async def _answer_from_database(self, pending: PendingRequest) -> TrialAnswer | None:
        """Return the answer; None where another process gives it: it claimed first, and there is still time."""
        if self._follows:
            await asyncio.sleep(FOLLOW_S)
            if self._is_answered(pending):
                return None
        run, request = pending.run, pending.request
        told = self._answers.default_answer(run)
        choice = None
        if told is not None:  # it asks again, as after a restart, and gets the same answer
            choice = Choice(batch_size=told.batch_size, reason=told.reason, detail=told.detail)
        found = await self._trials.claim(
            run,
            correlation=request.correlation,
            batch_sizes=request.batch_sizes,
            default_batch_size=request.default_batch_size,
            choice=choice,
            insists=asyncio.get_running_loop().time() >= pending.first_s + TRUST_S,
            now_s=pending.at_s,
        )
        self._follows = not found.is_first
        if found.trial is None:
            return None
        if told is None and self._answers.default_answer(run) is not None:  # a process without the database was faster
            return None
        if found.trial.reason == RUN_ID_REUSED:
            self._log_ended(found.trial)
        return _answer(pending, found.trial)

    def _log_ended(self, trial: Trial) -> None:
        """Log once that a run asks though it has ended."""
        if trial.key not in self._ended:
            _LOGGER.warning("%s: %s", trial.key, trial.detail)
        self._ended[trial.key] = None

    def _is_answered(self, pending: PendingRequest) -> bool:
        return self._answers.is_answered(pending.run, since_s=pending.last_s)

    def _answer_without_database(self, pending: PendingRequest, why: str) -> TrialAnswer | None:
        """Return the earlier answer to the run, else the default, which the subscriber receives and stores later."""
        self._metrics.count_store_failure()
        if self._is_answered(pending):
            return None
        first = self._answers.first_answer(pending.run)
        if first is not None and first.batch_size in pending.request.batch_sizes:
            return replace(first, correlation=pending.request.correlation)
        return _default(pending, StoreUnavailableError.reason, why)


def _is_without_database(answer: TrialAnswer) -> bool:
    """Return whether an answer is the default because the database was unavailable."""
    return answer.lease_s is None and answer.reason == StoreUnavailableError.reason


def _answer(pending: PendingRequest, trial: Trial) -> TrialAnswer:
    is_learned_from = trial.reason != RUN_ID_REUSED  # no recurrence and no lease tell the run that it is not
    return TrialAnswer(
        run=pending.request.run,
        correlation=pending.request.correlation,
        batch_size=trial.batch_size,
        reason=trial.reason,
        detail=trial.detail,
        recurrence=trial.recurrence if is_learned_from else None,
        cost_bound=trial.cost_bound,
        lease_s=trial.lease_s if is_learned_from else None,
        untimed=list(trial.untimed),
    )


def _default(pending: PendingRequest, reason: str, why: str) -> TrialAnswer:
    request = pending.request
    return TrialAnswer(
        run=request.run,
        correlation=request.correlation,
        batch_size=request.default_batch_size,
        reason=reason,
        detail=why[:MAX_DETAIL],
    )
