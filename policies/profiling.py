"""The sweep that measures a job's power profile while it trains, as a state machine without a clock.

    begin ──► Settling ──settle_s──► Measuring ──window_s, 3 iterations──► Settling (the next limit) … ──► Profiled
                  ▲                      │
                  └── another limit came into force ──┘

It goes down from the prior limit, as Zeus does (arXiv:2208.06102), but settles and measures by time, and does not skip
the floor where the range does not divide by the step. The prior limit is measured for longer than the others: every
promise is made in terms of the rate there, and time at that limit is not lost.

The caller shows it observations: slices of time in which iterations ran, made while the limit that was *requested* is
the one wanted. `Observation.power_limit_w` is the one *enforced*. Where the two differ for as long as settling takes,
something beside us limits the GPU (a power brake, a lower limit from out of band), and what is measured then is
recorded at the enforced limit, where it is true; the limits between the two are left out, because they would measure
the same. A limit under which the enforced one will not stand still is left out too, after a few attempts.
"""

import math
from dataclasses import dataclass, replace
from typing import Final, assert_never

from policies.profile import PowerProfile, ProfilePoint

MIN_ITERATIONS: Final = 3.0
"""A point needs this many, however long they take."""
REFERENCE_WINDOWS: Final = 3
"""How many windows the first limit, the prior one, is measured for."""
MIN_WINDOWS: Final = 3
"""Fewer sub-windows say nothing about their scatter."""
MAX_RESTARTS: Final = 8
"""A limit whose enforced value changes more often than this while it is measured is given up."""
SAME_ENFORCED_W: Final = 1.0
"""Limits closer than this are one: GPUs round, and readings flicker by some mW."""


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """The limits to measure [W], descending, the prior one first; at each settle, then measure [s of iterations]."""

    power_limits_w: tuple[float, ...]
    settle_s: float
    window_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """A slice of time in which iterations ran.

    Attributes:
        power_limit_w: the limit enforced all the time [W].
        active_s: how long it was [s].
        n_iterations: how many iterations passed, with fractions of those that began or ended outside.
        energy_j: what all GPUs of the job used [J].
        iteration_times_s: how long each iteration took that ended in it, of the slowest rank [s]; empty where unknown.
    """

    power_limit_w: float
    active_s: float
    n_iterations: float
    energy_j: float
    iteration_times_s: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """Sums of squares and products over the sub-windows, for the confidence intervals; `_s2` is s², `_j_s` is J·s."""

    n_windows: int = 0
    square_s2: float = 0.0
    cross_iterations_s: float = 0.0
    square_iterations2: float = 0.0
    cross_j_s: float = 0.0
    square_j2: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settling:
    """The limit was changed: clocks and power still move; not counted."""

    points: tuple[ProfilePoint, ...]
    power_limit_w: float
    settled_s: float = 0.0
    enforced_power_limit_w: float | None = None
    n_restarts: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Measuring:
    """A limit is being measured."""

    points: tuple[ProfilePoint, ...]
    power_limit_w: float
    active_s: float = 0.0
    n_iterations: float = 0.0
    energy_j: float = 0.0
    sums: Sums = Sums()
    enforced_power_limit_w: float | None = None
    n_restarts: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiled:
    """Every limit of the plan is measured."""

    points: tuple[ProfilePoint, ...]


State = Settling | Measuring | Profiled


def sweep_plan(
    *, prior_power_limit_w: float, floor_power_limit_w: float, step_w: float, settle_s: float, window_s: float
) -> SweepPlan:
    """Return the sweep from the prior limit down by `step_w`, the floor last, also where the range does not divide.

    A floor that is not below the prior limit leaves the prior limit alone.

    Raises:
        ValueError: the step is not above 0.

    >>> sweep_plan(prior_power_limit_w=300, floor_power_limit_w=230, step_w=25, settle_s=2, window_s=10).power_limits_w
    (300.0, 275.0, 250.0, 230.0)
    """
    if step_w <= 0:
        raise ValueError(f"step_w = {step_w:g}: must be above 0 W")
    prior_w, floor_w = float(prior_power_limit_w), float(floor_power_limit_w)
    limits_w = [prior_w]
    while (next_w := prior_w - step_w * len(limits_w)) > floor_w + SAME_ENFORCED_W:
        limits_w.append(next_w)
    if floor_w < limits_w[-1] - SAME_ENFORCED_W:
        limits_w.append(floor_w)
    return SweepPlan(tuple(limits_w), settle_s, window_s)


def begin(plan: SweepPlan, known: PowerProfile | None = None) -> State:
    """Return the first state; limits that are known already (from before a restart) are not measured again.

    Known points outside the plan's range are forgotten: the prior limit or the floor has changed since.
    """
    low_w, high_w = plan.power_limits_w[-1] - SAME_ENFORCED_W, plan.power_limits_w[0] + SAME_ENFORCED_W
    points = () if known is None else tuple(p for p in known.points if low_w <= p.power_limit_w <= high_w)
    return _next(plan, points, below_w=math.inf)


def advance(plan: SweepPlan, state: State, observation: Observation) -> State:
    """Return the state after one more observation; one that cannot be (a counter gone back) changes nothing."""
    if isinstance(state, Profiled) or not _is_possible(observation):
        return state
    last_w = state.enforced_power_limit_w
    if last_w is not None and abs(observation.power_limit_w - last_w) > SAME_ENFORCED_W:
        if state.n_restarts >= MAX_RESTARTS:
            return _next(plan, state.points, below_w=state.power_limit_w)
        n_restarts = state.n_restarts + 1
        state = Settling(points=state.points, power_limit_w=state.power_limit_w, n_restarts=n_restarts)
    if isinstance(state, Settling) and state.settled_s >= plan.settle_s:
        state = Measuring(points=state.points, power_limit_w=state.power_limit_w, n_restarts=state.n_restarts)
    match state:
        case Settling():
            settled_s = state.settled_s + observation.active_s
            return replace(state, settled_s=settled_s, enforced_power_limit_w=observation.power_limit_w)
        case Measuring():
            measured = _with(state, observation)
            return _closed(plan, measured) if _is_enough(plan, measured) else measured
        case _:
            assert_never(state)


def wanted_power_limit_w(state: State) -> float | None:
    """Return the limit to ask for [W], or None when the sweep is done."""
    return None if isinstance(state, Profiled) else state.power_limit_w


def progress_ratio(plan: SweepPlan, state: State) -> float:
    """Return how much of the sweep is done, from 0 to 1."""
    match state:
        case Profiled():
            return 1.0
        case Settling(settled_s=settled_s):
            spent_s = min(settled_s, plan.settle_s)
        case Measuring(active_s=active_s):
            spent_s = plan.settle_s + min(active_s, _window_s(plan, state))
        case _:
            assert_never(state)
    n_done = sum(limit_w > state.power_limit_w for limit_w in plan.power_limits_w)
    return (n_done + spent_s / (plan.settle_s + _window_s(plan, state))) / len(plan.power_limits_w)


def profile_of(state: State) -> PowerProfile | None:
    """Return the curve as far as it is measured, or None before the first point."""
    return PowerProfile(state.points) if state.points else None


def _next(plan: SweepPlan, points: tuple[ProfilePoint, ...], *, below_w: float) -> State:
    """Return the state that waits for the highest limit of the plan below `below_w` that is not measured yet."""
    for limit_w in plan.power_limits_w:
        known = any(abs(point.power_limit_w - limit_w) <= SAME_ENFORCED_W for point in points)
        if limit_w < below_w - SAME_ENFORCED_W and not known:
            return Settling(points=points, power_limit_w=limit_w)
    return Profiled(points=points)


def _is_possible(observation: Observation) -> bool:
    quantities = (observation.active_s, observation.n_iterations, observation.energy_j, observation.power_limit_w)
    return all(math.isfinite(x) and x >= 0 for x in quantities) and observation.active_s > 0


def _is_enough(plan: SweepPlan, state: Measuring) -> bool:
    return state.active_s >= _window_s(plan, state) and state.n_iterations >= MIN_ITERATIONS and state.energy_j > 0


def _window_s(plan: SweepPlan, state: Settling | Measuring) -> float:
    return plan.window_s * (REFERENCE_WINDOWS if state.power_limit_w == plan.power_limits_w[0] else 1)


def _with(state: Measuring, observation: Observation) -> Measuring:
    """Return the measurement with one more sub-window."""
    time_s, n, energy_j = observation.active_s, observation.n_iterations, observation.energy_j
    sums = state.sums
    return replace(
        state,
        active_s=state.active_s + time_s,
        n_iterations=state.n_iterations + n,
        energy_j=state.energy_j + energy_j,
        sums=Sums(
            n_windows=sums.n_windows + 1,
            square_s2=sums.square_s2 + time_s * time_s,
            cross_iterations_s=sums.cross_iterations_s + n * time_s,
            square_iterations2=sums.square_iterations2 + n * n,
            cross_j_s=sums.cross_j_s + energy_j * time_s,
            square_j2=sums.square_j2 + energy_j * energy_j,
        ),
        enforced_power_limit_w=observation.power_limit_w,
    )


def _closed(plan: SweepPlan, state: Measuring) -> State:
    """Return the state after a limit has been measured."""
    sums = state.sums
    power_w, iterations_per_s = state.energy_j / state.active_s, state.n_iterations / state.active_s
    wanted_w, enforced_w = state.power_limit_w, state.enforced_power_limit_w or state.power_limit_w
    point = ProfilePoint(
        power_limit_w=wanted_w if abs(enforced_w - wanted_w) <= SAME_ENFORCED_W else enforced_w,
        power_w=power_w,
        iterations_per_s=iterations_per_s,
        power_ci_w=_ratio_ci(state, power_w, sums.cross_j_s, sums.square_j2),
        iterations_per_s_ci=_ratio_ci(state, iterations_per_s, sums.cross_iterations_s, sums.square_iterations2),
        n=int(state.n_iterations),
        active_s=state.active_s,
    )
    others = (p for p in state.points if abs(p.power_limit_w - point.power_limit_w) > SAME_ENFORCED_W)
    points = tuple(sorted((*others, point), key=lambda p: p.power_limit_w))
    return _next(plan, points, below_w=min(wanted_w, point.power_limit_w))


def _ratio_ci(state: Measuring, ratio: float, cross: float, square: float) -> float | None:
    """Return the half-width of the 95 % confidence interval of a ratio of sums, Σx/Σt, from the scatter of x - ratio·t.

    Sub-windows shorter than an iteration repeat what it says: only as many of them count as there were iterations.
    """
    n_windows = state.sums.n_windows
    n = min(float(n_windows), state.n_iterations)
    if n_windows < MIN_WINDOWS or n < MIN_WINDOWS:
        return None
    squares = max(0.0, square - 2 * ratio * cross + ratio * ratio * state.sums.square_s2)
    deviation = math.sqrt(squares * n_windows / (n_windows - 1) * n_windows / n) / state.active_s
    return _student_t_ratio(n - 1) * deviation


def _student_t_ratio(n_degrees: float) -> float:
    """Return the 97.5 % quantile of Student's t (Cornish-Fisher; 3 % low at 2 degrees of freedom, 0.2 % at 5)."""
    return 1.95996 + 2.372 / n_degrees + 2.823 / n_degrees**2 + 2.556 / n_degrees**3
