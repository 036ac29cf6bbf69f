"""The first sweep over the power limits: settle, measure, step down until energy per iteration rises.

Below the limit of the least energy per iteration a job is slower and needs more: no price of energy, carbon or time
selects such a limit, and nearly all that a full sweep wastes is spent there. So the descent ends where energy per
iteration has risen. Limits that the draw never reaches measure the same as the prior one, and are skipped; so is the
lowest one if not even peaks of the draw would reach it.

If something else limits the GPU (a power brake, a lower limit set out of band), the measurement counts for the enforced
limit, and the limits between the two are skipped, because they would measure the same. A limit under which the enforced
one keeps changing is skipped too, after a few attempts. A job that changes in the middle of the sweep is profiled from
the start.
"""

import math
from dataclasses import dataclass, replace
from typing import Final, assert_never

from policies.profiling.measurement import (
    EMPTY_WINDOW,
    NOT_SETTLED,
    PRIOR_SCATTER,
    Observation,
    Scatter,
    Settle,
    Window,
    estimate_point,
    has_minimum,
    is_known_early,
    is_precise_enough,
    scatter_from_points,
    shows_change_within,
)
from policies.profiling.prior_curve import adopt_prior, agrees_with, can_be_checked, check_limits_w
from policies.profiling.settings import GRID_W, ProfilerSettings
from policies.vocabulary.profile import LIMIT_TOLERANCE_W, PowerProfile, ProfilePoint

RISEN_TWICE: Final = 1.02
"""Energy per iteration has risen if it is this many times its least at two limits in a row …"""
RISEN_ONCE: Final = 1.08
"""… or this many times at one, beyond its noise: a descent that ends too early is never resumed."""
NOISE_CIS: Final = 1.5
"""Half-widths of the 95 % interval that noise may explain: three standard errors."""
PEAKS_OVER_MEAN: Final = 1.2
"""Limits hold within tens of milliseconds, while the measured draw is a mean over iterations: limits above it still cut
its peaks. Most jobs' peaks are at most so far above the mean; the descent goes on from there …"""
HIGHEST_PEAKS_OVER_MEAN: Final = 2.0
"""… but a job that waits half of the time, for data or its host, peaks at twice its mean, and one of Zeus's traces is
slowed by 6 % at 1.5 times. So the lowest limit is measured unless it is above even that. If it does not bind, measuring
it costs nothing; if it does, its saving would never be found otherwise."""
MAX_RESTARTS: Final = 8
"""A limit whose measurement restarts more often than this is skipped."""
MAX_RENEWALS: Final = 3
"""A job that keeps changing is not profiled again more often than this."""
CONTRADICTS_RATIO: Final = 0.05
"""If a lower limit is faster or draws more by this ratio, and beyond noise, the job has changed."""


def next_limit_w(
    settings: ProfilerSettings, points: tuple[ProfilePoint, ...], attempted_w: tuple[float, ...] = ()
) -> float | None:
    """Return the limit to measure next, or None if the useful range is measured [W].

    Args:
        settings: the bounds.
        points: the measured points, in any order.
        attempted_w: limits that were requested and not enforced; they are not requested again.
    """
    descending = sorted(points, key=lambda point: -point.power_limit_w)
    wanted_w = settings.prior_power_limit_w
    while True:
        reached = _reached(settings, descending, wanted_w)
        if has_risen(reached):
            return None
        here_w = _nearest_w(reached, wanted_w)
        if here_w is None and not _is_among(wanted_w, attempted_w):
            return wanted_w
        if here_w is None:  # a lower limit was enforced: those between the two would measure the same
            here_w = next((p.power_limit_w for p in descending if p.power_limit_w < wanted_w), wanted_w)
            reached = _reached(settings, descending, here_w)
        wanted_w = _below_w(settings, reached, here_w)
        if wanted_w > here_w - LIMIT_TOLERANCE_W:
            return None


def has_risen(descending: list[ProfilePoint]) -> bool:
    """Return whether energy per iteration has risen along these descending points, by more than their noise."""
    least, n_risen = None, 0
    for point in descending:
        if least is None or point.iteration_energy_j <= least.iteration_energy_j:
            least, n_risen = point, 0
            continue
        rise_ratio = point.iteration_energy_j / least.iteration_energy_j
        n_risen = n_risen + 1 if rise_ratio > RISEN_TWICE else 0
        if n_risen > 1 or rise_ratio > max(RISEN_ONCE, 1 + NOISE_CIS * _energy_ci_ratio(point, least)):
            return True
    return False


def _energy_ci_ratio(*points: ProfilePoint) -> float:
    """Return the half-width of the 95 % interval of the ratio of two energies per iteration."""
    return math.hypot(*(point.power_ci_ratio for point in points), *(point.rate_ci_ratio for point in points))


def _reached(settings: ProfilerSettings, descending: list[ProfilePoint], wanted_w: float) -> list[ProfilePoint]:
    """Return the points down to a limit, or to the first one within a grid step below it."""
    low_w = max(settings.lowest_power_limit_w, wanted_w - GRID_W) - LIMIT_TOLERANCE_W
    return [point for point in descending if point.power_limit_w >= low_w]


def _nearest_w(reached: list[ProfilePoint], wanted_w: float) -> float | None:
    """Return the measured limit that stands for a limit, or None [W]."""
    lowest_w = reached[-1].power_limit_w if reached else math.inf
    return lowest_w if lowest_w <= wanted_w + GRID_W / 2 else None


def _below_w(settings: ProfilerSettings, reached: list[ProfilePoint], here_w: float) -> float:
    """Return the limit after this one: a step below, or where the draw begins to reach it; itself if none does."""
    next_w = settings.below_w(here_w)
    if not reached:
        return next_w
    mean_w = reached[-1].power_w / settings.n_gpus
    if HIGHEST_PEAKS_OVER_MEAN * mean_w < settings.lowest_power_limit_w:
        return here_w  # no limit that may be set does anything
    draw_w = round(PEAKS_OVER_MEAN * mean_w / GRID_W) * GRID_W
    return next_w if next_w <= draw_w else settings.clear_of_floor_w(draw_w)


def _is_among(limit_w: float, limits_w: tuple[float, ...]) -> bool:
    return any(abs(limit_w - other_w) <= LIMIT_TOLERANCE_W for other_w in limits_w)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRecord:
    """What is known from limit to limit.

    Attributes:
        points: the measured points, ascending.
        attempted_w: limits that were requested and not enforced, or skipped [W].
        prior: another run's curve, until it is checked.
        n_renewals: how often the sweep was restarted from the beginning.
        scatter: the scatter of iterations, as the points have shown it.
    """

    points: tuple[ProfilePoint, ...] = ()
    attempted_w: tuple[float, ...] = ()
    prior: PowerProfile | None = None
    n_renewals: int = 0
    scatter: Scatter = PRIOR_SCATTER


@dataclass(frozen=True, slots=True, kw_only=True)
class Settling:
    """The limit was changed; clocks and power still move, and nothing counts."""

    record: SweepRecord
    power_limit_w: float
    settle: Settle = NOT_SETTLED
    enforced_power_limit_w: float | None = None
    n_restarts: int = 0

    @property
    def points(self) -> tuple[ProfilePoint, ...]:
        """Return the measured points."""
        return self.record.points


@dataclass(frozen=True, slots=True, kw_only=True)
class Measuring:
    """A limit is being measured."""

    record: SweepRecord
    power_limit_w: float
    enforced_power_limit_w: float
    window: Window = EMPTY_WINDOW
    n_restarts: int = 0

    @property
    def points(self) -> tuple[ProfilePoint, ...]:
        """Return the measured points."""
        return self.record.points


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiled:
    """The useful range is measured."""

    points: tuple[ProfilePoint, ...]


State = Settling | Measuring | Profiled


def begin(settings: ProfilerSettings, known: PowerProfile | None = None, prior: PowerProfile | None = None) -> State:
    """Return the first state.

    Args:
        settings: the bounds.
        known: points measured before a restart; they are not measured again. Points outside the bounds are dropped: the
            prior limit or the floor has changed since.
        prior: the curve of another GPU of the model, another driver or a neighbouring batch size; checked, then adopted
            or dropped.
    """
    low_w, high_w = settings.lowest_power_limit_w - LIMIT_TOLERANCE_W, settings.prior_power_limit_w + LIMIT_TOLERANCE_W
    points = () if known is None else tuple(p for p in known.points if low_w <= p.power_limit_w <= high_w)
    usable = prior if prior is not None and can_be_checked(settings, prior) else None
    return _next(settings, SweepRecord(points=points, prior=usable, scatter=scatter_from_points(points)))


def advance(settings: ProfilerSettings, state: State, observation: Observation) -> State:
    """Return the state after one more observation; an invalid one (a counter was reset) changes nothing."""
    if isinstance(state, Profiled) or not observation.is_possible:
        return state
    last_w = state.enforced_power_limit_w
    if last_w is not None and abs(observation.power_limit_w - last_w) > LIMIT_TOLERANCE_W:
        state = _restarted(settings, state)
    match state:
        case Settling(settle=settle) if not settle.is_over(settings.settle_s, is_seen=settings.sees_settling):
            return replace(
                state,
                settle=settle.with_observation(observation),
                enforced_power_limit_w=observation.power_limit_w,
            )
        case Settling():
            state = Measuring(
                record=state.record,
                power_limit_w=state.power_limit_w,
                enforced_power_limit_w=observation.power_limit_w,
                n_restarts=state.n_restarts,
            )
            return _measured(settings, state, observation)
        case Measuring():
            return _measured(settings, state, observation)
        case Profiled():
            return state
        case _:
            assert_never(state)


def target_power_limit_w(state: State) -> float | None:
    """Return the limit to request [W], or None if the first sweep is done."""
    return None if isinstance(state, Profiled) else state.power_limit_w


def profile_of(state: State) -> PowerProfile | None:
    """Return the curve as far as it is measured, or None before the first point."""
    return PowerProfile(state.points) if state.points else None


def progress_ratio(settings: ProfilerSettings, state: State) -> float:
    """Return the progress of the first sweep, 0 to 1; it jumps to 1 if the rest need not be measured."""
    if isinstance(state, Profiled):
        return 1.0
    ladder_w = settings.ladder_w()
    n_done = sum(limit_w > state.power_limit_w + LIMIT_TOLERANCE_W for limit_w in ladder_w)
    begun = 0.5 if isinstance(state, Measuring) else 0.0
    return (n_done + begun) / (len(ladder_w) + 1)


def _next(settings: ProfilerSettings, record: SweepRecord) -> State:
    if record.prior is not None and (not record.points or agrees_with(record.prior, record.points)):
        for limit_w in check_limits_w(settings, record.prior):
            if not _is_among(limit_w, (*record.attempted_w, *(p.power_limit_w for p in record.points))):
                return Settling(record=record, power_limit_w=limit_w)
        if record.points:
            return Profiled(points=adopt_prior(settings, record.prior, record.points))
    record = replace(record, prior=None)
    next_w = next_limit_w(settings, record.points, record.attempted_w)
    return Profiled(points=record.points) if next_w is None else Settling(record=record, power_limit_w=next_w)


def _restarted(settings: ProfilerSettings, state: Settling | Measuring) -> State:
    """Return the state that measures the limit again, or the next one if the enforced limit keeps changing."""
    if state.n_restarts >= MAX_RESTARTS:
        attempted_w = (*state.record.attempted_w, state.power_limit_w)
        return _next(settings, replace(state.record, attempted_w=attempted_w))
    return Settling(record=state.record, power_limit_w=state.power_limit_w, n_restarts=state.n_restarts + 1)


def _measured(settings: ProfilerSettings, state: Measuring, observation: Observation) -> State:
    state = replace(
        state, window=state.window.with_observation(observation), enforced_power_limit_w=observation.power_limit_w
    )
    scatter = state.record.scatter.with_window(state.window)
    is_prior = abs(state.power_limit_w - settings.prior_power_limit_w) <= LIMIT_TOLERANCE_W
    if not has_minimum(settings, state.window):
        return _closed(settings, state, scatter) if _ends_early(settings, state, scatter, is_prior=is_prior) else state
    if not is_precise_enough(settings, state.window, scatter, is_prior=is_prior) and not _is_too_low(state, scatter):
        return state
    if shows_change_within(state.window, scatter) and state.n_restarts < MAX_RESTARTS:
        return _restarted(settings, state)
    return _closed(settings, state, scatter)


def _ends_early(settings: ProfilerSettings, state: Measuring, scatter: Scatter, *, is_prior: bool) -> bool:
    """Return whether a short window says enough of a limit; every objective is relative to the prior one."""
    return not is_prior and is_known_early(settings, state.window, scatter)


def _is_too_low(state: Measuring, scatter: Scatter) -> bool:
    """Return whether energy per iteration has clearly risen already, so that more precision is not needed."""
    if not state.points:
        return False
    point = estimate_point(state.window, power_limit_w=state.enforced_power_limit_w, scatter=scatter)
    is_lowest = point.power_limit_w < state.points[0].power_limit_w - LIMIT_TOLERANCE_W
    return is_lowest and has_risen([*reversed(state.points), point])


def _closed(settings: ProfilerSettings, state: Measuring, scatter: Scatter) -> State:
    wanted_w, enforced_w, record = state.power_limit_w, state.enforced_power_limit_w, state.record
    is_enforced = abs(enforced_w - wanted_w) <= LIMIT_TOLERANCE_W
    limit_w = wanted_w if is_enforced else enforced_w
    point = estimate_point(state.window, power_limit_w=limit_w, scatter=scatter)
    others = tuple(p for p in record.points if abs(p.power_limit_w - limit_w) > LIMIT_TOLERANCE_W)
    attempted_w = record.attempted_w if is_enforced else (*record.attempted_w, wanted_w)
    if _contradicts(point, others) and record.n_renewals < MAX_RENEWALS:
        return _next(settings, SweepRecord(points=(), prior=record.prior, n_renewals=record.n_renewals + 1))
    points = tuple(sorted((*others, point), key=lambda p: p.power_limit_w))
    return _next(settings, replace(record, points=points, attempted_w=attempted_w, scatter=scatter))


def _contradicts(point: ProfilePoint, others: tuple[ProfilePoint, ...]) -> bool:
    """Return whether a lower limit is faster, or draws more, than a higher one, by more than noise."""
    for other in others:
        lower, upper = sorted((point, other), key=lambda p: p.power_limit_w)
        rate_noise_ratio = NOISE_CIS * (lower.rate_ci_ratio + upper.rate_ci_ratio)
        power_noise_ratio = NOISE_CIS * (lower.power_ci_ratio + upper.power_ci_ratio)
        is_faster = lower.iterations_per_s > upper.iterations_per_s * (1 + max(CONTRADICTS_RATIO, rate_noise_ratio))
        if is_faster or lower.power_w > upper.power_w * (1 + max(CONTRADICTS_RATIO, power_noise_ratio)):
            return True
    return False
