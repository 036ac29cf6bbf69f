"""How often a source is asked: once per step of its data, less often while it fails, and never sooner than it says.

closed ──a failure──► open ──the pause is over──► one trial ──success──► closed
                            ▲                              │
                            └────────── failure ───────────┘      (each pause twice as long as the one before)
"""

import math
from dataclasses import dataclass
from typing import Final

from policies.providers.base import SignalError, SignalRefusedError

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
