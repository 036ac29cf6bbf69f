"""When a source is polled: once per step of its data, with back-off after failures, never sooner than it allows.

closed ──a failure──► open ──the pause is over──► one trial ──success──► closed
                            ▲                              │
                            └────────── failure ───────────┘      (each pause twice as long as the one before)
"""

import asyncio
import logging
import math
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Final

from policies.providers.base import Provider, SignalError, SignalRefusedError, SignalUnavailableError
from policies.vocabulary.signal import Signal

POLL_TIMEOUT_S: Final = 45.0
"""For all requests of one poll together; each request has a time-out of its own as well."""
FIRST_BACKOFF_S: Final = 30.0
MAX_BACKOFF_S: Final = 900.0
"""A source that is back after an outage is noticed within a quarter of an hour."""
REFUSED_BACKOFF_S: Final = 3_600.0
"""A wrong token stays wrong, but the fault may be corrected at the source."""
MAX_WAIT_S: Final = 86_400.0
"""The longest Retry-After that is obeyed."""
CLOCK_ROUNDING_S: Final = 1.0
"""A clock that seems to have gone back by less has not."""
LATE_RETRY_STEPS: Final = 0.25
"""A source whose newest value is not there yet is polled again after this part of a step."""
MAX_LATE_RETRY_S: Final = 600.0
JITTER_STEPS: Final = 0.1
"""A cluster must not poll in the same second: each process polls up to a tenth of a step later."""

_LOGGER = logging.getLogger(__name__)


@dataclass(slots=True)
class RateLimit:
    """What a source asks of all requests with Retry-After; shared by the schedules of one source.

    Attributes:
        until_s: no request before then [Unix s].
    """

    until_s: float = -math.inf


class PollSchedule:
    """The schedule of one kind of request to a provider: its history, its older history, or its forecast.

    Args:
        provider: the provider; its step may change with its answers.
        lag_s: how late its values usually are, beyond one step [s].
        jitter_ratio: 0 to 1, another value for each process.
        rate_limit: shared by all schedules of the provider.

    Attributes:
        fault: why the last poll failed; "" while all is well.
        was_polled: whether the provider was ever polled.
        next_s: when the next poll is due [Unix s].
        n_failures: polls that have failed since the last answer.
    """

    def __init__(
        self, provider: Provider, *, lag_s: float = 0.0, jitter_ratio: float = 0.0, rate_limit: RateLimit | None = None
    ) -> None:
        self.fault = ""
        self.was_polled = False
        self.next_s = -math.inf
        self.n_failures = 0
        self._polled_s = -math.inf
        self._provider = provider
        self._lag_s = lag_s
        self._jitter_ratio = jitter_ratio
        self._rate_limit = rate_limit or RateLimit()

    def is_due(self, now_s: float) -> bool:
        """Return whether the provider may be polled now; a clock that was stepped back does not silence it."""
        is_limited = 0.0 < self._rate_limit.until_s - now_s <= MAX_WAIT_S
        is_time = now_s >= self.next_s or now_s < self._polled_s - CLOCK_ROUNDING_S
        return is_time and not is_limited

    def reset(self) -> None:
        """Make the next poll due at once: the last answer was only a part of what is wanted."""
        self.next_s = self._polled_s = -math.inf
        self.n_failures = 0

    async def poll(self, fetch: Awaitable[Signal | None], *, now_s: float) -> Signal | None:
        """Return the answer; None where nothing is known, or where the poll failed: `fault` then says why."""
        self.was_polled = True
        name = self._provider.name
        try:
            async with asyncio.timeout(POLL_TIMEOUT_S):
                answer = await fetch
        except SignalError as error:
            self.record_failure(error, now_s=now_s)
        except TimeoutError:
            self.record_failure(SignalUnavailableError(f"{name}: no answer in {POLL_TIMEOUT_S:g} s"), now_s=now_s)
        except Exception as error:  # a bug in one provider, or an unforeseen answer, must not end the controller
            if not self.fault:
                _LOGGER.exception("%s: unexpected error", name)
            why = f"{name}: unexpected error: {type(error).__name__}"
            self.record_failure(SignalUnavailableError(why), now_s=now_s)
        else:
            self.record_answer(now_s=now_s, is_current=_is_current(answer, now_s=now_s, lag_s=self._lag_s))
            return answer
        return None

    def record_answer(self, *, now_s: float, is_current: bool = True) -> None:
        """Schedule the next poll just after the next step of the data begins.

        Args:
            now_s: when the provider answered [Unix s].
            is_current: whether the answer holds the value of now. Where it does not, the source is late, and is polled
                again within the step.
        """
        step_s = self._provider.step_s
        self.fault, self.n_failures, self._polled_s = "", 0, now_s
        if math.isinf(step_s):  # nothing ever changes
            self.next_s = now_s + MAX_WAIT_S
            return
        next_s = (now_s // step_s + 1 + JITTER_STEPS * self._jitter_ratio) * step_s
        if not is_current:
            retry_s = min(LATE_RETRY_STEPS * step_s, MAX_LATE_RETRY_S) * (1 + self._jitter_ratio / 2)
            next_s = min(next_s, now_s + retry_s)
        self.next_s = min(next_s, now_s + MAX_WAIT_S)

    def record_failure(self, error: SignalError, *, now_s: float) -> None:
        """Schedule the next poll after a failure: twice as late each time, and not before the source allows it."""
        backoff_s = min(FIRST_BACKOFF_S * 2.0 ** min(self.n_failures, 16), MAX_BACKOFF_S)
        if isinstance(error, SignalRefusedError):
            backoff_s = REFUSED_BACKOFF_S
        backoff_s *= 1.0 + self._jitter_ratio / 2
        retry_after_s = min(error.retry_after_s or 0.0, MAX_WAIT_S)
        self.fault, self._polled_s = str(error), now_s
        self.next_s = now_s + max(backoff_s, retry_after_s)
        self.n_failures += 1
        if retry_after_s:
            self._rate_limit.until_s = max(self._rate_limit.until_s, now_s + retry_after_s)


def _is_current(answer: Signal | None, *, now_s: float, lag_s: float) -> bool:
    """Return whether an answer is as new as it can be: it holds a value of now, or of later."""
    if answer is None or not len(answer):
        return False
    reaches_later = bool(answer.starts_s[-1] > now_s)
    return reaches_later or answer.value_at(now_s) is not None or 0 < answer.age_s(now_s) <= lag_s
