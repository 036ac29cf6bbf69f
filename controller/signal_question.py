"""Something that a provider is asked again and again: when it is due, and why it was not answered."""

import asyncio
import logging
from collections.abc import Awaitable
from typing import Final

from policies.providers.base import SignalError, SignalUnavailableError
from policies.providers.catalogue import Source
from policies.providers.courtesy import LONGEST_WAIT_S, Courtesy, after_answer, after_failure
from policies.signal import Signal

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
