"""The first pass over the power limits: settle, measure, step down until energy per iteration rises.

Which limit to measure next, from what is measured: down from the prior limit, and not where nobody ever wants to go.

Below the limit of the least energy per iteration a job is slower and needs more: no price of energy, carbon or time
selects such a limit, and nearly all that a full sweep wastes is spent there. So the descent ends where energy per
iteration has risen. Limits that the draw never reaches measure the same as the prior one, and are left out; the lowest
one is, too, where not even peaks of the draw would reach it.

The first pass over the curve: settle, measure, and on to the next limit.

Where something beside us limits the GPU (a power brake, a lower limit from out of band), what is measured then is
recorded at the enforced limit, where it is true, and the limits between the two are left out, because they would
measure the same. A limit under which the enforced one will not stand still is left out too, after a few attempts.
A job that becomes another one in mid-profile is profiled from the start.
"""

import math
from dataclasses import dataclass, replace
from typing import Final, assert_never

from policies.profiling.measurement import (
    EMPTY,
    Observation,
    Scatter,
    Window,
    is_enough,
    may_be_enough,
    point_of,
    scatter_of,
    shows_change,
)
from policies.profiling.prior_curve import adopted, agrees_with, can_be_checked, check_limits_w
from policies.profiling.settings import GRID_W, ProfilerSettings
from policies.vocabulary.profile import LIMIT_TOLERANCE_W, PowerProfile, ProfilePoint

RISEN_TWICE: Final = 1.02
"""Energy per iteration has risen where it is this many times its least at two limits in a row …"""
RISEN_ONCE: Final = 1.08
"""… or this many times at one, where its noise does not explain that: a descent that ends too early is never mended."""
NOISE_CIS: Final = 1.5
"""Half-widths of the 95 % interval that noise may explain: three standard errors."""
PEAKS_OVER_MEAN: Final = 1.2
"""Limits hold within tens of milliseconds, the draw is a mean over iterations: limits above it still cut its peaks.
Most jobs' peaks are so far above it at most: there the way down goes on …"""
HIGHEST_PEAKS_OVER_MEAN: Final = 2.0
"""… but a job that waits half of the time, for data or its host, peaks at twice its mean, and in Zeus's traces there is
one that is cut by 6 % at 1.5 times. So the lowest limit is looked at unless it is above even that. Where it does not
bind, a look costs nothing; where it does, what it saves would else never be found."""


def next_limit_w(
    settings: ProfilerSettings, points: tuple[ProfilePoint, ...], attempted_w: tuple[float, ...] = ()
) -> float | None:
    """Return the limit to measure next, or None where the useful range is measured [W].

    Args:
        settings: the bounds.
        points: what is measured, in any order.
        attempted_w: limits that were asked for and not given; they are not asked for again.
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
        if here_w is None:  # what was enforced instead lies below: the limits between the two would measure the same
            here_w = next((p.power_limit_w for p in descending if p.power_limit_w < wanted_w), wanted_w)
            reached = _reached(settings, descending, here_w)
        wanted_w = _below_w(settings, reached, here_w)
        if wanted_w > here_w - LIMIT_TOLERANCE_W:
            return None


def has_risen(descending: list[ProfilePoint]) -> bool:
    """Return whether energy per iteration has risen on the way down through these points, by more than their noise."""
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
    power_ratios = [(point.power_ci_w or 0.0) / point.power_w for point in points]
    rate_ratios = [(point.iterations_per_s_ci or 0.0) / point.iterations_per_s for point in points]
    return math.hypot(*power_ratios, *rate_ratios)


def _reached(settings: ProfilerSettings, descending: list[ProfilePoint], wanted_w: float) -> list[ProfilePoint]:
    """Return the points down to a wanted limit, or to the first one below where the step does not lead past it."""
    low_w = max(settings.lowest_power_limit_w, wanted_w - GRID_W) - LIMIT_TOLERANCE_W
    return [point for point in descending if point.power_limit_w >= low_w]


def _nearest_w(reached: list[ProfilePoint], wanted_w: float) -> float | None:
    """Return the measured limit that stands for a wanted one, or None [W]."""
    lowest_w = reached[-1].power_limit_w if reached else math.inf
    return lowest_w if lowest_w <= wanted_w + GRID_W / 2 else None


def _below_w(settings: ProfilerSettings, reached: list[ProfilePoint], here_w: float) -> float:
    """Return the limit after this one: a step below, or where the draw begins to reach it; itself where none does."""
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


MAX_RESTARTS: Final = 8
"""A limit whose measurement begins anew more often than this is given up."""
MAX_RENEWALS: Final = 3
"""A job that keeps becoming another one is not profiled anew more often than this."""
CONTRADICTS_RATIO: Final = 0.05
"""A lower limit that makes a job this much faster, or thirstier, and more than noise does, did not: it is another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRecord:
    """What goes from limit to limit.

    Attributes:
        points: what is measured, in ascending order of the limit.
        attempted_w: limits that were wanted and not given, or given up [W].
        prior: another run's curve, until it is checked.
        n_renewals: how often the profile was begun anew.
    """

    points: tuple[ProfilePoint, ...] = ()
    attempted_w: tuple[float, ...] = ()
    prior: PowerProfile | None = None
    n_renewals: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settling:
    """The limit was changed: clocks and power still move; not counted."""

    course: SweepRecord
    power_limit_w: float
    settled_s: float = 0.0
    enforced_power_limit_w: float | None = None
    n_restarts: int = 0

    @property
    def points(self) -> tuple[ProfilePoint, ...]:
        """Return what is measured."""
        return self.course.points


@dataclass(frozen=True, slots=True, kw_only=True)
class Measuring:
    """A limit is being measured."""

    course: SweepRecord
    power_limit_w: float
    enforced_power_limit_w: float
    window: Window = EMPTY
    n_restarts: int = 0

    @property
    def points(self) -> tuple[ProfilePoint, ...]:
        """Return what is measured."""
        return self.course.points


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiled:
    """The useful range is measured."""

    points: tuple[ProfilePoint, ...]


State = Settling | Measuring | Profiled


def begin(settings: ProfilerSettings, known: PowerProfile | None = None, prior: PowerProfile | None = None) -> State:
    """Return the first state.

    Args:
        settings: the bounds.
        known: what this job has measured already, before a restart; it is not measured again. Points outside the
            bounds are forgotten: the prior limit or the floor has changed since.
        prior: the curve of another GPU of the model, another driver or a neighbouring batch size; checked, then adopted
            or forgotten.
    """
    low_w, high_w = settings.lowest_power_limit_w - LIMIT_TOLERANCE_W, settings.prior_power_limit_w + LIMIT_TOLERANCE_W
    points = () if known is None else tuple(p for p in known.points if low_w <= p.power_limit_w <= high_w)
    usable = prior if prior is not None and can_be_checked(settings, prior) else None
    return _next(settings, SweepRecord(points=points, prior=usable))


def advance(settings: ProfilerSettings, state: State, observation: Observation) -> State:
    """Return the state after one more observation; one that cannot be (a counter gone back) changes nothing."""
    if isinstance(state, Profiled) or not observation.is_possible:
        return state
    last_w = state.enforced_power_limit_w
    if last_w is not None and abs(observation.power_limit_w - last_w) > LIMIT_TOLERANCE_W:
        state = _restarted(settings, state)
    match state:
        case Settling(settled_s=settled_s) if settled_s < settings.settle_s:
            return replace(
                state,
                settled_s=settled_s + observation.active_s,
                enforced_power_limit_w=observation.power_limit_w,
            )
        case Settling():
            state = Measuring(
                course=state.course,
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


def wanted_power_limit_w(state: State) -> float | None:
    """Return the limit to ask for [W], or None when the first pass is done."""
    return None if isinstance(state, Profiled) else state.power_limit_w


def profile_of(state: State) -> PowerProfile | None:
    """Return the curve as far as it is measured, or None before the first point."""
    return PowerProfile(state.points) if state.points else None


def progress_ratio(settings: ProfilerSettings, state: State) -> float:
    """Return how much of the first pass is done, from 0 to 1; it leaps to 1 where the rest need not be measured."""
    if isinstance(state, Profiled):
        return 1.0
    ladder_w = settings.ladder_w()
    n_done = sum(limit_w > state.power_limit_w + LIMIT_TOLERANCE_W for limit_w in ladder_w)
    begun = 0.5 if isinstance(state, Measuring) else 0.0
    return (n_done + begun) / (len(ladder_w) + 1)


def _next(settings: ProfilerSettings, course: SweepRecord) -> State:
    """Return the state that waits for the next limit."""
    if course.prior is not None and (not course.points or agrees_with(course.prior, course.points)):
        for limit_w in check_limits_w(settings, course.prior):
            if not _is_among(limit_w, (*course.attempted_w, *(p.power_limit_w for p in course.points))):
                return Settling(course=course, power_limit_w=limit_w)
        if course.points:
            return Profiled(points=adopted(settings, course.prior, course.points))
    course = replace(course, prior=None)
    next_w = next_limit_w(settings, course.points, course.attempted_w)
    return Profiled(points=course.points) if next_w is None else Settling(course=course, power_limit_w=next_w)


def _restarted(settings: ProfilerSettings, state: Settling | Measuring) -> State:
    """Return the state that measures the same limit anew, or the next one where this one will not stand still."""
    if state.n_restarts >= MAX_RESTARTS:
        attempted_w = (*state.course.attempted_w, state.power_limit_w)
        return _next(settings, replace(state.course, attempted_w=attempted_w))
    return Settling(course=state.course, power_limit_w=state.power_limit_w, n_restarts=state.n_restarts + 1)


def _measured(settings: ProfilerSettings, state: Measuring, observation: Observation) -> State:
    """Return the state after one more observation of the limit."""
    state = replace(
        state, window=state.window.with_slice(observation), enforced_power_limit_w=observation.power_limit_w
    )
    if not may_be_enough(settings, state.window):
        return state
    scatter = scatter_of(state.points).with_window(state.window)
    is_prior = abs(state.power_limit_w - settings.prior_power_limit_w) <= LIMIT_TOLERANCE_W
    if not is_enough(settings, state.window, scatter, is_prior=is_prior) and not _is_too_low(state, scatter):
        return state
    if shows_change(state.window, scatter) and state.n_restarts < MAX_RESTARTS:
        return _restarted(settings, state)
    return _closed(settings, state, scatter)


def _is_too_low(state: Measuring, scatter: Scatter) -> bool:
    """Return whether energy per iteration has clearly risen already: nobody needs to know by how much."""
    if not state.points:
        return False
    point = point_of(state.window, power_limit_w=state.enforced_power_limit_w, scatter=scatter)
    is_lowest = point.power_limit_w < state.points[0].power_limit_w - LIMIT_TOLERANCE_W
    return is_lowest and has_risen([*reversed(state.points), point])


def _closed(settings: ProfilerSettings, state: Measuring, scatter: Scatter) -> State:
    """Return the state after a limit has been measured."""
    wanted_w, enforced_w, course = state.power_limit_w, state.enforced_power_limit_w, state.course
    is_given = abs(enforced_w - wanted_w) <= LIMIT_TOLERANCE_W
    limit_w = wanted_w if is_given else enforced_w
    point = point_of(state.window, power_limit_w=limit_w, scatter=scatter)
    others = tuple(p for p in course.points if abs(p.power_limit_w - limit_w) > LIMIT_TOLERANCE_W)
    attempted_w = course.attempted_w if is_given else (*course.attempted_w, wanted_w)
    if _contradicts(point, others) and course.n_renewals < MAX_RENEWALS:
        return _next(settings, SweepRecord(points=(), prior=course.prior, n_renewals=course.n_renewals + 1))
    points = tuple(sorted((*others, point), key=lambda p: p.power_limit_w))
    return _next(settings, replace(course, points=points, attempted_w=attempted_w))


def _contradicts(point: ProfilePoint, others: tuple[ProfilePoint, ...]) -> bool:
    """Return whether a lower limit is faster, or draws more, than a higher one, by more than noise."""
    for other in others:
        lower, upper = sorted((point, other), key=lambda p: p.power_limit_w)
        rate_ci_ratio = _ci_ratio(lower.iterations_per_s_ci, lower.iterations_per_s) + _ci_ratio(
            upper.iterations_per_s_ci, upper.iterations_per_s
        )
        power_ci_ratio = _ci_ratio(lower.power_ci_w, lower.power_w) + _ci_ratio(upper.power_ci_w, upper.power_w)
        if lower.iterations_per_s > upper.iterations_per_s * (1 + max(CONTRADICTS_RATIO, NOISE_CIS * rate_ci_ratio)):
            return True
        if lower.power_w > upper.power_w * (1 + max(CONTRADICTS_RATIO, NOISE_CIS * power_ci_ratio)):
            return True
    return False


def _ci_ratio(ci: float | None, value: float) -> float:
    return (ci or 0.0) / value
