"""What each run was told first: that it trains with, whatever else is answered later, or stands in the database.

Where the database fails, one process may answer the default while another one still gets a trial from it. Both hear
what comes first on the bus, and go by it.
"""

import math
from collections import OrderedDict
from typing import Final, TypeVar

from policies.service.bus.news import Answered
from policies.service.errors import StoreUnavailableError
from publishers.wire import TrialAnswer, TrialRequest

MAX_RUNS: Final = 16_384
PATIENCE_S: Final = 10.0
"""How long a run asks, every second."""
Run = tuple[str, str]
T = TypeVar("T")


class FirstAnswers:
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

    def note_answer(self, job: str, answer: TrialAnswer, *, at_s: float, loop_s: float) -> Answered | None:
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
        return Answered(
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
