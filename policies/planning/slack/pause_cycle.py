"""Turns a rate between the pause and the next point of the hull into a pause for a part of a period.

A pause lasts for some minutes at least, there is one in a period at most, and the period begins with what is in force:
a run that is paused goes on later, one that iterates is paused later, so that the pauses of two periods are one.
"""

import math
from dataclasses import dataclass
from typing import Final

from policies.vocabulary.power_curve import Hull
from policies.vocabulary.profile import ProfilePoint

MIN_PAUSE_S: Final = 300.0
"""A shorter pause is not worth what it takes to stop and to go on."""
ROUNDING_S: Final = 1e-6
ROUNDING_RATIO: Final = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseRules:
    """How long pauses are.

    Attributes:
        min_pause_s: at least [s].
        max_pause_s: at most, as the training says [s].
        min_run_s: how long the run iterates at least between a pause and the end of the period [s].
    """

    min_pause_s: float = MIN_PAUSE_S
    max_pause_s: float = math.inf
    min_run_s: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseCycle:
    """What a run does in a period: it waits, or iterates at a limit, and then the other; or one of them all the time.

    Attributes:
        pause_s: how long it waits in all, 0 if it does not [s].
        begins_paused: whether it waits first.
        running: the point at which it iterates.
        period_s: how long the period is [s].
    """

    pause_s: float
    begins_paused: bool
    running: ProfilePoint
    period_s: float

    @property
    def rate_per_s(self) -> float:
        """Return the mean rate [1/s]."""
        return self.running.iterations_per_s * (1 - self.pause_s / self.period_s)

    @property
    def changes_after_s(self) -> float | None:
        """Return when it changes from one to the other, from the begin of the period on [s]; None if it does not."""
        first_s = self.pause_s if self.begins_paused else self.period_s - self.pause_s
        return first_s if ROUNDING_S < first_s < self.period_s - ROUNDING_S else None


def pause_cycle_for(
    hull: Hull,
    rate_per_s: float,
    rules: PauseRules,
    *,
    period_s: float,
    paused_for_s: float | None,
    minimum_per_s: float = 0.0,
) -> PauseCycle | None:
    """Return the cycle whose mean rate is `rate_per_s`, as nearly as the rules allow; None: it needs no pause.

    The next period compensates what is too fast or too slow; but the rate is never below `minimum_per_s`, and no pause
    is longer than the training allows: both may end one early.

    Args:
        hull: the hull of the run at the present signal.
        rate_per_s: the rate that is planned [1/s].
        rules: how long pauses are.
        period_s: how long the period is [s].
        paused_for_s: for how long the run has been paused; None if it is not.
        minimum_per_s: the least mean rate that the objective allows [1/s].
    """
    if not hull.begins_with_pause or rate_per_s >= hull.points[1].iterations_per_s * (1 - ROUNDING_RATIO):
        return None
    running = hull.points[1]
    wanted_s = period_s * (1 - rate_per_s / running.iterations_per_s)
    late_s = period_s * max(1 - minimum_per_s / running.iterations_per_s, 0.0)
    return PauseCycle(
        pause_s=_pause_s(wanted_s, late_s, rules, period_s=period_s, paused_for_s=paused_for_s),
        begins_paused=paused_for_s is not None,
        running=running,
        period_s=period_s,
    )


def _pause_s(
    wanted_s: float, late_s: float, rules: PauseRules, *, period_s: float, paused_for_s: float | None
) -> float:
    """Return the length nearest to the wanted one that the rules allow, `late_s` at most [s]."""
    before_s = paused_for_s or 0.0
    least_s = min(max(rules.min_pause_s - before_s, 0.0), period_s)
    most_s = min(late_s, max(rules.max_pause_s - before_s, 0.0))
    if paused_for_s is None:
        may_end, most_s = True, most_s if rules.max_pause_s >= rules.min_pause_s else 0.0
    else:
        may_end = least_s == 0
    within_s = min(max(wanted_s, least_s), period_s - rules.min_run_s, most_s)
    allowed_s = [length_s for length_s in (least_s, within_s, period_s) if least_s <= length_s <= most_s]
    allowed_s += [0.0] if may_end else []
    return min(allowed_s or [min(least_s, most_s)], key=lambda length_s: abs(length_s - wanted_s))
