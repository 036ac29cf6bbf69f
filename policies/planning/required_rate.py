"""The mean rate that an objective requires from here on: slowdown, deadline or budget.

A run that has announced its iterations gets a time for what is left. One that has not may end at any moment. So it is
planned day by day, as a run that ends when a day's work is done; and at every moment its time so far is within a narrow
corridor around what the bound allows: hardly any time is overdrawn when it ends, and hardly any is left unused.

Where former runs say when it may end (`run_length`), it is planned as one that ends there. In the last hours before
that the corridor holds as well.
"""

import math
from dataclasses import dataclass, replace
from typing import Final, Self

from policies.planning.dispatch import MeritOrder
from policies.planning.objectives import Progress, SlowdownObjective
from policies.planning.run_length import GuessedLength
from policies.vocabulary.power_curve import Hull
from policies.vocabulary.profile import PowerProfile, ProfilePoint
from policies.vocabulary.units import DAY_S, HOUR_S, JOULES_PER_KWH, duration_text

CHECKPOINT_S: Final = DAY_S
"""A run of unknown length is planned up to the next multiple of so much work, by its time at the highest limit."""
CORRIDOR: Final = 0.0005
"""By how much the slowdown so far of a run of unknown length may be above, or below, the bound;"""
CORRIDOR_SHARE: Final = 0.1
"""but at most by this share of what it allows."""
SETTLE_S: Final = 6 * HOUR_S
"""Time outside the corridor (profiling takes some, and a better measurement may find some) is settled over hours: at
once would cost more, as the last watts before the highest limit gain next to nothing."""
CROSSING_S: Final = 1_800.0
"""How soon the corridor may be crossed: in every short period again, limits far apart would follow one another."""
LEAST_GUESSED_S: Final = 2 * HOUR_S
"""Nearer to a guessed end, the run is planned as one of unknown length."""
MAX_RESERVE: Final = 0.003
"""The slowdown kept in reserve where the rate at the prior limit is not known any better than that."""
RESERVE_SHARE: Final = 0.1
"""At most this share of the allowed slowdown is kept in reserve."""
NORMAL_QUANTILE_99: Final = 2.33
"""A normal error is below so many standard deviations in 99 of 100 cases."""
TOLERANCE_RATIO: Final = 0.001
"""So much too low may a measured slowdown be: a reserve for smaller errors costs more than they do."""
OPEN_TOLERANCE_RATIO: Final = 0.0005
"""The same where the length is unknown, so that the time budget itself may be overdrawn for a while."""
MIN_ACTIVE_RATIO: Final = 0.05
"""The least share of time in which a run is expected to be active, however much it has paused so far."""
ROUNDING_FACTOR: Final = 1 + 1e-6
"""Rates that are higher by less are equal but for rounding."""
GUESSED_DEBT: Final = 0.01
"""The slowdown of a run whose length is guessed is never above its bound by more."""
BISECTIONS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class RequiredRate:
    """What an objective requires.

    Attributes:
        mean_per_s: the mean rate over the horizon [1/s]; infinite if the time is over.
        horizon_s: how far the plan reaches [s].
        detail: the same in words.
        minimum_now_per_s: the least mean rate of the coming period, whatever the dispatch [1/s].
        maximum_now_per_s: the highest [1/s].
        wanted_per_s: the lowest and the highest mean rate that the dispatch may have now, within those two [1/s].
        pace_per_s: by how much the least work that must be done by a time within the period grows [1/s].
        is_infeasible: whether no limit is fast (or cheap) enough.
        catch_up_per_s: the rate that makes up for what is overdrawn of the bound itself, whatever is kept in reserve
            [1/s]; 0 where nothing is.
    """

    mean_per_s: float
    horizon_s: float
    detail: str
    minimum_now_per_s: float = 0.0
    maximum_now_per_s: float = math.inf
    wanted_per_s: tuple[float, float] = (0.0, math.inf)
    pace_per_s: float = math.inf
    is_infeasible: bool = False
    catch_up_per_s: float = 0.0


def rate_for_slowdown(
    profile: PowerProfile, objective: SlowdownObjective, progress: Progress, *, period_s: float
) -> RequiredRate:
    """Return what a bound on the slowdown, against the rate at the highest limit, requires."""
    bound_ratio = objective.max_slowdown
    allowed_ratio = max(bound_ratio - _reserve_ratio(profile.fastest, objective, progress), 1.0)
    so_far = _SoFar.of(progress, profile.fastest.iterations_per_s, period_s=period_s)
    end = _end_of(progress, so_far)
    if end is not None and end.is_planned_for:
        left_base_s = end.left_base_s
        left_s = allowed_ratio * (so_far.base_s + left_base_s) - so_far.active_s
        detail = _left_detail(end.left_iterations, left_s) + end.origin
        required = _within(so_far.highest_per_s, left_base_s * so_far.highest_per_s, left_s, period_s, detail)
        if end.guessed is not None:
            required = _with_bounded_debt(required, so_far, bound_ratio)
    else:
        so_far = replace(so_far, base_s=min(so_far.base_s, so_far.active_s))
        required = _rate_in_corridor(so_far, allowed_ratio, end)
        left_base_s = _checkpoint_s(so_far, bound_ratio) - so_far.base_s
    # What the reserve alone forbids is no failure: the bound may well be kept.
    rest_s = bound_ratio * (so_far.base_s + left_base_s) - so_far.active_s
    required = replace(required, is_infeasible=rest_s < left_base_s * (2 - ROUNDING_FACTOR))
    most = bound_ratio + _half_width_ratio(bound_ratio)
    late_s = so_far.active_s - most * so_far.base_s
    if end is not None or late_s <= so_far.active_s * (ROUNDING_FACTOR - 1):
        return required
    return replace(required, catch_up_per_s=so_far.highest_per_s / most * (1 + late_s / SETTLE_S))


def _with_bounded_debt(required: RequiredRate, so_far: "_SoFar", bound_ratio: float) -> RequiredRate:
    """Return a rate with which the slowdown so far is at no time more than `GUESSED_DEBT` above its bound.

    A run may end long before its guessed end: its job may have changed.
    """
    most_s = so_far.base_s * (bound_ratio + GUESSED_DEBT) - so_far.active_s
    least_base_s = (so_far.period_s - most_s) / (bound_ratio + GUESSED_DEBT)
    least_per_s = min(max(least_base_s / so_far.period_s, 0.0), 1.0) * so_far.highest_per_s
    lowest_per_s, highest_per_s = required.wanted_per_s
    return replace(
        required,
        minimum_now_per_s=max(required.minimum_now_per_s, least_per_s),
        wanted_per_s=(max(lowest_per_s, least_per_s), max(highest_per_s, least_per_s)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _SoFar:
    """The time of a run so far, and what its work would have taken at the highest limit, at that limit's rate."""

    highest_per_s: float
    base_s: float
    active_s: float
    period_s: float

    @classmethod
    def of(cls, progress: Progress, highest_per_s: float, *, period_s: float) -> Self:
        """Return it by the run's ledger, or else by the rate."""
        base_s = progress.n_iterations / highest_per_s if progress.base_s is None else progress.base_s
        return cls(
            highest_per_s=highest_per_s,
            base_s=progress.former_base_s + base_s,
            active_s=progress.former_active_s + progress.active_s,
            period_s=period_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _End:
    """Where a run ends, or is taken to end.

    Attributes:
        left_iterations: the work until then.
        left_base_s: how long it takes at the highest limit [s].
        guessed: the guess that it comes from; None: it was told.
    """

    left_iterations: float
    left_base_s: float
    guessed: GuessedLength | None = None

    @property
    def is_planned_for(self) -> bool:
        """Return whether the work until then may be done in whatever hours are best."""
        return self.guessed is None or self.left_base_s >= LEAST_GUESSED_S

    @property
    def origin(self) -> str:
        """Return where it comes from, in words."""
        if self.guessed is None:
            return ""
        spread_ratio, n_runs = self.guessed.spread_ratio, self.guessed.n_runs
        return f", as guessed from {n_runs} former runs, whose lengths differ by {spread_ratio:.1%}"


def _end_of(progress: Progress, so_far: _SoFar) -> _End | None:
    """Return where the run ends, as told or else as guessed; None where nothing is known of it."""
    left, guessed = progress.left_iterations, None
    if left is None and progress.guessed is not None:
        guessed = progress.guessed
        left = guessed.total_iterations - progress.n_iterations
    if left is None or left <= 0:
        return None
    # By the run's own iterations so far: a job that has become slower than its profile has no less time for it.
    left_base_s = left / so_far.highest_per_s
    if progress.base_s is not None and progress.n_iterations > 0:
        left_base_s = left * progress.base_s / progress.n_iterations
    return _End(left_iterations=left, left_base_s=left_base_s, guessed=guessed)


def _rate_in_corridor(so_far: _SoFar, allowed_ratio: float, end: _End | None) -> RequiredRate:
    """Return the rate of a run of unknown length, in a corridor of its slowdown.

    With B the time of its work at the highest limit, A its active time and S the allowed slowdown: at any time

        (S - w)·B <= A <= (S + w)·B        w = min(CORRIDOR, CORRIDOR_SHARE·(S - 1))

    and A = S·B at the checkpoint. What is outside the corridor is settled at a rate of 1/SETTLE_S, or faster where the
    checkpoint is near, or a guessed end for which time was overdrawn. No limit is faster than the reference, so B is at
    most A; the caller sees to it.
    """
    highest_per_s, base_s, active_s, period_s = so_far.highest_per_s, so_far.base_s, so_far.active_s, so_far.period_s
    checkpoint_s = _checkpoint_s(so_far, allowed_ratio)
    left_s = allowed_ratio * checkpoint_s - active_s
    required = _within(highest_per_s, (checkpoint_s - base_s) * highest_per_s, left_s, period_s, "")
    settle_s = SETTLE_S if end is None else min(max(end.left_base_s, period_s), SETTLE_S)
    half_width_ratio = _half_width_ratio(allowed_ratio)
    most, least = allowed_ratio + half_width_ratio, allowed_ratio - half_width_ratio
    late_s, early_s = max(active_s - most * base_s, 0.0), max(least * base_s - active_s, 0.0)
    slow_per_s, spare = highest_per_s / most * (1 + late_s / settle_s), max(base_s - active_s / most, 0.0)
    fast_per_s, room = highest_per_s / least * (1 - early_s / settle_s), max(active_s / least - base_s, 0.0)
    at_once, gently = highest_per_s / period_s, highest_per_s / max(period_s, CROSSING_S)
    detail = _budget_detail(allowed_ratio * base_s - active_s, left_s)
    return replace(
        required,
        minimum_now_per_s=slow_per_s - spare * at_once,
        maximum_now_per_s=fast_per_s + room * at_once,
        wanted_per_s=(slow_per_s - spare * gently, fast_per_s + room * gently),
        pace_per_s=slow_per_s,
        detail=f"{detail}{end.origin}" if end is not None else detail,
    )


def _checkpoint_s(so_far: _SoFar, allowed_ratio: float) -> float:
    """Return after how much work the time is to be even again [s]: a day's, or two where one is too near.

    It may be, for what is overdrawn, even if the corridor allows that.
    """
    base_s = so_far.base_s
    checkpoint_s = CHECKPOINT_S * (math.floor((base_s + so_far.period_s) / CHECKPOINT_S) + 1)
    is_near = allowed_ratio * checkpoint_s - so_far.active_s < (checkpoint_s - base_s) * (2 - ROUNDING_FACTOR)
    return checkpoint_s + CHECKPOINT_S if is_near else checkpoint_s


def _half_width_ratio(allowed_ratio: float) -> float:
    """Return half the width of the corridor."""
    return min(CORRIDOR, CORRIDOR_SHARE * (allowed_ratio - 1))


def rate_for_deadline(
    hull: Hull, deadline_s: float, progress: Progress, *, now_s: float, period_s: float
) -> RequiredRate | None:
    """Return what a deadline requires, if the run pauses as it has so far; None if its length is unknown.

    Pauses that it was asked for say nothing of those to come.
    """
    left, elapsed_s = progress.left_iterations, now_s - progress.started_at_s - progress.asked_pause_s
    if left is None:
        return None
    active_ratio = min(max(progress.active_s / elapsed_s, MIN_ACTIVE_RATIO), 1.0) if elapsed_s > period_s else 1.0
    left_s = (deadline_s - now_s) * active_ratio
    detail = f"{_left_detail(left, left_s)} until the deadline"
    return _within(hull.fastest.iterations_per_s, left, left_s, period_s, detail)


def rate_for_budget(merit_order: MeritOrder, budget: float, progress: Progress) -> RequiredRate | None:
    """Return the highest mean rate that a budget allows; None if the run's length, or what it has spent, is unknown.

    The signal times kWh is in the budget's unit.
    """
    left = progress.left_iterations
    if left is None or progress.spent is None:
        return None
    rest, rates_per_s = budget - progress.spent, merit_order.hull.iterations_per_s

    def cost_of(rate_per_s: float) -> float:
        return merit_order.average_cost(rate_per_s) * left / JOULES_PER_KWH

    low_per_s, high_per_s = float(rates_per_s[0]), float(rates_per_s[-1])
    least, most = cost_of(low_per_s), cost_of(high_per_s)
    for _ in range(BISECTIONS if least < rest < most else 0):
        middle_per_s = (low_per_s + high_per_s) / 2
        if cost_of(middle_per_s) <= rest:
            low_per_s = middle_per_s
        else:
            high_per_s = middle_per_s
    return RequiredRate(
        mean_per_s=high_per_s if most <= rest else low_per_s,
        horizon_s=left / low_per_s,
        detail=f"{rest:.4g} of {budget:.4g} left for {left:,.0f} iterations, which cost {least:.4g} to {most:.4g}",
        is_infeasible=least > rest,
    )


def _within(highest_per_s: float, left_iterations: float, left_s: float, period_s: float, detail: str) -> RequiredRate:
    """Return the rate of so many iterations in so much time, such that the highest rate can still make up the rest."""
    mean_per_s = left_iterations / left_s if left_s > 0 else math.inf
    rest = highest_per_s * max(left_s - period_s, 0.0)
    minimum_per_s = max(left_iterations - rest, 0.0) / min(period_s, left_s) if left_s > 0 else mean_per_s
    return RequiredRate(
        mean_per_s=mean_per_s,
        horizon_s=left_s if left_s > 0 else period_s,
        detail=detail,
        minimum_now_per_s=minimum_per_s,
        wanted_per_s=(minimum_per_s, math.inf),
        pace_per_s=highest_per_s,
        is_infeasible=mean_per_s > highest_per_s * ROUNDING_FACTOR,
    )


def _reserve_ratio(fastest: ProfilePoint, objective: SlowdownObjective, progress: Progress) -> float:
    """Return the slowdown to keep in reserve for errors of what is measured.

    Where it is known how well the time at the highest limit is known, the budget is overrun by no more than the
    tolerance in 99 of 100 runs.
    """
    if progress.base_s is None:
        return min(_uncertainty_ratio(fastest), RESERVE_SHARE * (objective.max_slowdown - 1))
    tolerance_ratio = TOLERANCE_RATIO if progress.expected_left_iterations is not None else OPEN_TOLERANCE_RATIO
    return max(0.0, NORMAL_QUANTILE_99 * progress.base_error_ratio - tolerance_ratio)


def _uncertainty_ratio(point: ProfilePoint) -> float:
    if point.iterations_per_s_ci is None:
        return MAX_RESERVE
    return min(point.iterations_per_s_ci / point.iterations_per_s, MAX_RESERVE)


def _left_detail(left_iterations: float, left_s: float) -> str:
    time = f"{duration_text(left_s)} left" if left_s > 0 else "no time left"
    return f"{time} for {left_iterations:,.0f} iterations"


def _budget_detail(spare_s: float, left_s: float) -> str:
    """Return how far a run of unknown length is from the time that it is allowed so far, and until when that lasts."""
    if spare_s < 0:
        return f"{duration_text(-spare_s)} over the allowed time, to be recovered within {duration_text(left_s)}"
    return f"{duration_text(spare_s)} of the allowed time to spare, to be used within {duration_text(left_s)}"
