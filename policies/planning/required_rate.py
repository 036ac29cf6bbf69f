"""How fast a run has to be from here on, by what was promised: within a slowdown, by a deadline, within a budget.

A run that says how many iterations it will have gets a time for what is left. One that does not may end at any moment,
so the promise is kept at every moment: a ledger of the time that was allowed and taken, which is not overdrawn.
"""

import math
from dataclasses import dataclass
from typing import Final

from policies.planning.dispatch import MeritOrder
from policies.planning.objectives import Progress, SlowdownObjective
from policies.planning.signal_outlook import DAY_S
from policies.vocabulary.power_curve import Hull
from policies.vocabulary.profile import PowerProfile, ProfilePoint
from policies.vocabulary.units import JOULES_PER_KWH

SETTLE_S: Final = 6 * 3_600.0
"""Without a known end, lost time is paid back over hours, and saved time is spent over hours: what is left when the
run ends is a promise broken, or a saving missed."""
MAX_RESERVE: Final = 0.003
"""The slowdown kept back where the rate at the prior limit is not known any better than that."""
RESERVE_SHARE: Final = 0.1
"""At most this share of the slowdown that is allowed is kept back."""
MIN_ACTIVE_RATIO: Final = 0.05
"""A run that has paused longer than this much of its time so far will not go on so."""
SURELY: Final = 1 + 1e-6
"""Rates that are higher by less are not, but for rounding."""
BISECTIONS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class RequiredRate:
    """What is needed of a run.

    Attributes:
        mean_per_s: the mean rate over the horizon [1/s]; infinite where it is too late for any.
        horizon_s: how far the plan reaches [s].
        detail: the same for people.
        at_least_per_s: a rate that the coming period must have, whatever the plan says [1/s].
        is_beyond: whether it cannot be had: the run is to come as near to it as it can.
    """

    mean_per_s: float
    horizon_s: float
    detail: str
    at_least_per_s: float = 0.0
    is_beyond: bool = False


def rate_for_slowdown(
    profile: PowerProfile, objective: SlowdownObjective, progress: Progress, *, period_s: float
) -> RequiredRate:
    """Return what a bound on the slowdown, against the rate at the highest limit, asks for."""
    reserve = min(_uncertainty_ratio(profile.fastest), RESERVE_SHARE * (objective.max_slowdown - 1))
    highest_per_s, allowed = profile.fastest.iterations_per_s, objective.max_slowdown - reserve
    left = progress.left_iterations
    if left is not None:
        left_s = allowed * (progress.n_iterations + left) / highest_per_s - progress.active_s
        return _within(highest_per_s, left, left_s, period_s, f"{left:,.0f} iterations in {_hours(left_s)}")
    even_per_s = highest_per_s / allowed
    # Nobody is faster than the reference: a run that seems to have saved more than it was allowed has a wrong one.
    credit_s = min(
        allowed * progress.n_iterations / highest_per_s - progress.active_s, (allowed - 1) * progress.active_s
    )
    mean_per_s = even_per_s * (1 - credit_s / SETTLE_S)
    return RequiredRate(
        mean_per_s=mean_per_s,
        horizon_s=DAY_S,
        at_least_per_s=mean_per_s if credit_s < 0 else even_per_s * (1 - credit_s / period_s),
        is_beyond=mean_per_s > highest_per_s * SURELY,
        detail=f"time in hand {credit_s:+.0f} s",
    )


def rate_for_deadline(
    hull: Hull, deadline_s: float, progress: Progress, *, now_s: float, period_s: float
) -> RequiredRate | None:
    """Return what a deadline asks for, as pauses have been until now; None where the run's length is not known."""
    left, elapsed_s = progress.left_iterations, now_s - progress.started_at_s
    if left is None:
        return None
    active_ratio = min(max(progress.active_s / elapsed_s, MIN_ACTIVE_RATIO), 1.0) if elapsed_s > period_s else 1.0
    left_s = (deadline_s - now_s) * active_ratio
    detail = f"{left:,.0f} iterations in {_hours(left_s)} to the deadline"
    return _within(hull.fastest.iterations_per_s, left, left_s, period_s, detail)


def rate_for_budget(market: MeritOrder, budget: float, progress: Progress) -> RequiredRate | None:
    """Return the highest mean rate that a budget allows; None where the run's length, or what is spent, is not known.

    The signal times kWh is in the budget's unit.
    """
    left = progress.left_iterations
    if left is None or progress.spent is None:
        return None
    rest, rates_per_s = budget - progress.spent, market.hull.iterations_per_s

    def price_of(rate_per_s: float) -> float:
        return market.mean_work_price(rate_per_s) * left / JOULES_PER_KWH

    low_per_s, high_per_s = float(rates_per_s[0]), float(rates_per_s[-1])
    least, most = price_of(low_per_s), price_of(high_per_s)
    for _ in range(BISECTIONS if least < rest < most else 0):
        middle_per_s = (low_per_s + high_per_s) / 2
        if price_of(middle_per_s) <= rest:
            low_per_s = middle_per_s
        else:
            high_per_s = middle_per_s
    return RequiredRate(
        mean_per_s=high_per_s if most <= rest else low_per_s,
        horizon_s=left / low_per_s,
        detail=f"{rest:.4g} of {budget:.4g} left for {left:,.0f} iterations, which take {least:.4g} to {most:.4g}",
        is_beyond=least > rest,
    )


def _within(highest_per_s: float, left_iterations: float, left_s: float, period_s: float, detail: str) -> RequiredRate:
    """Return what so many iterations in so much time ask for, such that the highest rate can still make the rest."""
    mean_per_s = left_iterations / left_s if left_s > 0 else math.inf
    rest = highest_per_s * max(left_s - period_s, 0.0)
    return RequiredRate(
        mean_per_s=mean_per_s,
        horizon_s=left_s if left_s > 0 else period_s,
        detail=detail,
        at_least_per_s=max(left_iterations - rest, 0.0) / min(period_s, left_s) if left_s > 0 else mean_per_s,
        is_beyond=mean_per_s > highest_per_s * SURELY,
    )


def _uncertainty_ratio(point: ProfilePoint) -> float:
    """Return how well a rate is known, as a share of it, within reason."""
    if point.iterations_per_s_ci is None:
        return MAX_RESERVE
    return min(point.iterations_per_s_ci / point.iterations_per_s, MAX_RESERVE)


def _hours(duration_s: float) -> str:
    return f"{duration_s / 3_600:.2f} h"
