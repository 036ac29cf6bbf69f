"""When a source is polled: once per step of its data, with back-off after failures, never sooner than it allows.

How often a source is asked: once per step of its data, less often while it fails, and never sooner than it says.

closed ──a failure──► open ──the pause is over──► one trial ──success──► closed
                            ▲                              │
                            └────────── failure ───────────┘      (each pause twice as long as the one before)

Something that a provider is asked again and again: when it is due, and why it was not answered.
"""

import asyncio
import logging
import math
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Final

from policies.providers.base import SignalError, SignalRefusedError, SignalUnavailableError
from policies.providers.catalogue import Source
from policies.vocabulary.signal import Signal

FIRST_PAUSE_S: Final = 30.0
LONGEST_PAUSE_S: Final = 900.0
"""A source that is back after an outage is noticed within a quarter of an hour."""
REFUSED_PAUSE_S: Final = 3_600.0
"""A wrong token stays wrong; somebody may mend it at the source, though."""
LONGEST_WAIT_S: Final = 86_400.0
"""What a source may ask of us with Retry-After."""
ROUNDING_S: Final = 1.0
"""A clock that seems to have gone back by less has not."""
LATE_STEPS: Final = 0.25
"""How soon a source is asked again whose newest value is not there yet."""
LATE_PAUSE_S: Final = 600.0
JITTER_STEPS: Final = 0.1
"""A whole cluster must not ask in the same second: each process asks up to a tenth of a step later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Courtesy:
    """When a source was asked, when it may be asked again [Unix s], and how often it has failed since it answered."""

    asked_s: float = -math.inf
    next_s: float = -math.inf
    n_failures: int = 0

    def is_due(self, now_s: float) -> bool:
        """Return whether the source may be asked now; a clock that was stepped back does not silence it."""
        return now_s >= self.next_s or now_s < self.asked_s - ROUNDING_S


def after_answer(*, now_s: float, step_s: float, jitter_ratio: float, is_current: bool = True) -> Courtesy:
    """Return when to ask next after an answer: just after the next step of the data begins.

    Args:
        now_s: Unix time [s].
        step_s: the step of the data [s]; infinite where nothing ever changes.
        jitter_ratio: 0 to 1, another for each process.
        is_current: whether the answer held the value of now. Where it did not, the source is late, and is asked again
            within the step.
    """
    if math.isinf(step_s):
        return Courtesy(asked_s=now_s, next_s=now_s + LONGEST_WAIT_S)
    next_s = (now_s // step_s + 1 + JITTER_STEPS * jitter_ratio) * step_s
    if not is_current:
        pause_s = min(LATE_STEPS * step_s, LATE_PAUSE_S) * (1 + jitter_ratio / 2)
        next_s = min(next_s, now_s + pause_s)
    return Courtesy(asked_s=now_s, next_s=min(next_s, now_s + LONGEST_WAIT_S))


def after_failure(courtesy: Courtesy, error: SignalError, *, now_s: float, jitter_ratio: float) -> Courtesy:
    """Return when to ask next after a failure: twice as late each time, and not before the source allows it."""
    pause_s = min(FIRST_PAUSE_S * 2.0 ** min(courtesy.n_failures, 16), LONGEST_PAUSE_S)
    if isinstance(error, SignalRefusedError):
        pause_s = REFUSED_PAUSE_S
    pause_s *= 1.0 + jitter_ratio / 2
    wanted_s = min(error.retry_after_s or 0.0, LONGEST_WAIT_S)
    return Courtesy(asked_s=now_s, next_s=now_s + max(pause_s, wanted_s), n_failures=courtesy.n_failures + 1)


FETCH_TIMEOUT_S: Final = 45.0
"""For all requests of one question together; each has a time-out of its own besides."""

_LOGGER = logging.getLogger(__name__)


class Pause:
    """How long a source wants to be left alone, whatever it is asked.

    Attributes:
        until_s: until then [Unix s].
    """

    def __init__(self) -> None:
        self.until_s = 0.0


class Question:
    """One thing that is asked of a provider.

    Attributes:
        fault: why there was no answer when it was asked last; "" while all is well.
        was_asked: whether it was asked at all.
    """

    def __init__(self, source: Source, pause: Pause, *, jitter_ratio: float) -> None:
        self.fault = ""
        self.was_asked = False
        self._source = source
        self._pause = pause
        self._jitter_ratio = jitter_ratio
        self._courtesy = Courtesy()

    def is_due(self, now_s: float) -> bool:
        """Return whether it may be asked now."""
        is_left_alone = 0.0 < self._pause.until_s - now_s <= LONGEST_WAIT_S
        return self._courtesy.is_due(now_s) and not is_left_alone

    def forget(self) -> None:
        """Let it be asked again at once: the last answer was a part of what is wanted."""
        self._courtesy = Courtesy()

    async def ask(self, fetch: Awaitable[Signal | None], *, now_s: float) -> Signal | None:
        """Return the answer; None where there is none, because of `fault` or because nothing is known."""
        self.was_asked = True
        try:
            async with asyncio.timeout(FETCH_TIMEOUT_S):
                answer = await fetch
        except SignalError as error:
            self._fail(error, now_s)
        except TimeoutError:
            name = self._source.provider.name
            self._fail(SignalUnavailableError(f"{name}: no answer in {FETCH_TIMEOUT_S:g} s"), now_s)
        except Exception as error:  # a bug in one provider, or an answer that nobody thought of, must not free a GPU
            name = self._source.provider.name
            if not self.fault:
                _LOGGER.exception("%s: could not be understood", name)
            self._fail(SignalUnavailableError(f"{name}: could not be understood: {type(error).__name__}"), now_s)
        else:
            self.fault = ""
            self._courtesy = after_answer(
                now_s=now_s,
                step_s=self._source.provider.step_s,
                jitter_ratio=self._jitter_ratio,
                is_current=_is_current(answer, now_s=now_s, lag_s=self._source.lag_s),
            )
            return answer
        return None

    def _fail(self, error: SignalError, now_s: float) -> None:
        self.fault = str(error)
        self._courtesy = after_failure(self._courtesy, error, now_s=now_s, jitter_ratio=self._jitter_ratio)
        if error.retry_after_s:
            self._pause.until_s = max(self._pause.until_s, now_s + min(error.retry_after_s, LONGEST_WAIT_S))


def _is_current(answer: Signal | None, *, now_s: float, lag_s: float) -> bool:
    """Return whether an answer is as new as it can be: it tells of now, or of later."""
    if answer is None or not len(answer):
        return False
    tells_later = bool(answer.starts_s[-1] > now_s)
    return tells_later or answer.value_at(now_s) is not None or 0 < answer.age_s(now_s) <= lag_s
