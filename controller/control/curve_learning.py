"""The power curve of one run: measured in a first sweep, refined under the plan, dropped when the job drifts from it.

    Waiting ──begin_curve──► Profiling ──the curve is known roughly──► Planned   (a stored curve shortens the sweep, or
                                 ▲                                        │       spares it)
                                 └──────── the job drifts from it ────────┘

    NotProfiled, from any of them: it cannot be told what an iteration is; Waiting, once it can.

The parts are in `policies.profiling`; here is only their order. State in, state out: no clock, no GPU, no bus.
"""

import hashlib
import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from controller.accounting.meter_intervals import MeterInterval
from policies import profiling
from policies.profiling import Observation, ProfilerSettings, Refinement, posterior_curve, sampled_curve
from policies.profiling.drift import (
    ZERO_CUSUM,
    Drift,
    has_drifted,
    has_rested,
    is_only_power_off,
    update_drift,
    with_powers_renewed,
)
from policies.profiling.measurement import NORMAL_95, WINDOW_CV_RATIO
from policies.profiling.rhythm import NotProfiledReason
from policies.profiling.sweep import has_risen
from policies.vocabulary.profile import LIMIT_TOLERANCE_W, PowerProfile

MAX_DOUBLINGS = 10
"""How often the rest between sweeps doubles, at most, where a job drifts from one curve after the other."""
PUBLISHED_BLOCKS = 150
"""A curve that is known well is published and stored again after so many blocks: each of them moves it by a hair."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """The run has not shown all its ranks, iterations and GPUs yet."""

    name: ClassVar[Literal["waiting"]] = "waiting"
    n_drifts: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NotProfiled:
    """It cannot be told what an iteration of the run is; `reason`: why."""

    name: ClassVar[Literal["not_profiled"]] = "not_profiled"
    settings: ProfilerSettings
    reason: NotProfiledReason
    n_drifts: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiling:
    """The first sweep over the curve is under way.

    Attributes:
        settings: those of the profiler.
        sweep: what is measured so far.
        sweep_s: the time of iterations that the sweep has taken [s].
        n_drifts: how many curves the run has drifted from.
    """

    name: ClassVar[Literal["profiling"]] = "profiling"
    settings: ProfilerSettings
    sweep: profiling.State
    sweep_s: float = 0.0
    n_drifts: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """The curve is known; the limit follows the plan, and what is measured under it improves the curve.

    Attributes:
        settings: those of the profiler.
        refinement: the curve, and the measurement under way.
        drift: whether the job keeps to it.
        settled: the curve as it is stored, and but for the stalls published. Drift is measured against it: the refined
            one follows wherever the job goes.
        sweep_s: how long the first sweep took, or would have taken [s].
        n_drifts: how many curves the run has drifted from.
    """

    name: ClassVar[Literal["planned"]] = "planned"
    settings: ProfilerSettings
    refinement: Refinement
    drift: Drift
    settled: PowerProfile
    sweep_s: float
    n_drifts: int = 0

    @property
    def is_exploring(self) -> bool:
        """Return whether the plan should still try out what may be best."""
        return profiling.is_exploring(self.settings, self.refinement)

    @property
    def rest_after_s(self) -> float:
        """Return for how long a sweep the job rests [s]: one without a steady rate longer each time."""
        return self.sweep_s * 2.0 ** min(self.n_drifts, MAX_DOUBLINGS)

    @property
    def resolves_suspected_drift(self) -> bool:
        """Return whether drift is suspected, and will show or not: the job has rested long enough since its sweep."""
        return self.drift.is_suspected and has_rested(self.drift, sweep_s=self.rest_after_s)

    def has_settled_at(self, power_limit_w: float) -> bool:
        """Return whether the limit is that of the measurement under way, and has been for long enough."""
        last_w, settle = self.refinement.power_limit_w, self.refinement.settle
        return (
            last_w is not None
            and abs(last_w - power_limit_w) <= LIMIT_TOLERANCE_W
            and settle.is_over(self.settings.settle_s, is_seen=self.settings.sees_settling)
        )


CurveState = Waiting | NotProfiled | Profiling | Planned


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveUpdate:
    """What one more observation has changed.

    Attributes:
        state: what is known now.
        is_new: whether the measured curve has changed enough to be published and stored.
        dropped: the curve that the job has drifted from, if it just has: with its stalls, as it was published.
    """

    state: CurveState
    is_new: bool = False
    dropped: PowerProfile | None = None


def begin_curve(
    settings: ProfilerSettings,
    known: PowerProfile | None = None,
    prior: PowerProfile | None = None,
    *,
    n_drifts: int = 0,
) -> CurveState:
    """Return the first state.

    Args:
        settings: those of the profiler.
        known: what this job has measured already; it is not measured again.
        prior: the curve of a similar job: it is checked, and adopted or dropped.
        n_drifts: how many curves the run has drifted from.
    """
    sweep, n_blocks = profiling.begin(settings, known, prior), 0
    if known is not None and _is_complete(known, settings):
        sweep = profiling.Profiled(points=known.points)
        n_blocks = min(n_measurements_in(known) - len(settings.ladder_w()), settings.n_blocks)
    first = Profiling(settings=settings, sweep=sweep, n_drifts=n_drifts)
    return _after_sweep(first, Drift(rested_s=math.inf), n_blocks=n_blocks)


def advance_curve(state: CurveState, interval: MeterInterval, *, enforced_power_limit_w: float) -> CurveUpdate:
    """Return what is known after one more active interval, at a limit that was in force all the time."""
    observation = observation_of(interval, enforced_power_limit_w=enforced_power_limit_w)
    match state:
        case Profiling():
            return _measure(state, observation)
        case Planned():
            return _refine(state, observation)
        case Waiting() | NotProfiled():
            return CurveUpdate(state=state)


def observation_of(
    interval: MeterInterval, *, enforced_power_limit_w: float, warmth_w: tuple[float, ...] = ()
) -> Observation:
    """Return what an active interval shows of a limit, without the gaps between its iterations."""
    active_s = interval.duration_s - interval.gaps_s
    interpolated_j, instant_w = interval.interpolated_energy_j, interval.instant_power_w
    n_instants = 0.0 if instant_w is None else interval.n_instants
    return Observation(
        power_limit_w=enforced_power_limit_w,
        active_s=active_s,
        n_iterations=interval.n_iterations,
        energy_j=interval.energy_j - interval.gaps_energy_j,
        iteration_times_s=interval.iteration_times_s,
        warmth_w=warmth_w,
        interpolated_energy_j=None if interpolated_j is None else interpolated_j * active_s / interval.duration_s,
        n_instants=n_instants,
        instants_w=n_instants * (instant_w or 0.0),
        instants_w2=n_instants * (instant_w or 0.0) ** 2,
    )


def measured_in(state: CurveState) -> PowerProfile | None:
    """Return the curve as it is stored; None before anything is known.

    It is without the stalls: the next run measures without them, and would take a curve with them for another job's.
    """
    match state:
        case Profiling(sweep=sweep):
            return profiling.profile_of(sweep)
        case Planned(settled=settled):
            return settled
        case Waiting() | NotProfiled():
            return None


def with_stalls(measured: PowerProfile) -> PowerProfile:
    """Return a measured curve with its rates scaled to long-run averages that include stalls.

    A rate is measured robustly, since one stall among fifteen iterations would else pass for a slower limit. But a run
    has its stalls, at every limit; where they are one in a hundred, a budget of 3 % would be missed by a third of it.
    How much they take is known from all iterations together: their whole time over what their robust rates predict.

    >>> from policies.vocabulary.profile import ProfilePoint
    >>> points = (ProfilePoint(power_limit_w=300.0, power_w=250.0, iterations_per_s=2.0, n=100, active_s=51.0),)
    >>> round(with_stalls(PowerProfile(points)).fastest.iterations_per_s, 4)
    1.9608
    """
    robust_s = sum(point.n / point.iterations_per_s for point in measured.points)
    whole_s = sum(point.active_s for point in measured.points if point.n)
    if not (robust_s > 0 and whole_s > 0):
        return measured
    return measured.scaled(rate_ratio=robust_s / whole_s)


def posterior_mean(measured: PowerProfile) -> PowerProfile:
    """Return the most probable curve given the measurements, with its stalls."""
    return posterior_curve(with_stalls(measured))


def posterior_sample(measured: PowerProfile, *, job: str, run: str, n_block: int) -> PowerProfile:
    """Return a curve drawn from what is possible given the measurements, always the same for a block of a run.

    The rate at the highest limit stays: the promise of a plan is made in terms of it.
    """
    average = with_stalls(measured)
    seed = hashlib.blake2b(f"{job}/{run}/{n_block}".encode(), digest_size=16).digest()
    sample = sampled_curve(average, np.random.Generator(np.random.Philox(key=int.from_bytes(seed, "little"))))
    return sample.scaled(rate_ratio=posterior_curve(average).fastest.iterations_per_s / sample.fastest.iterations_per_s)


def n_measurements_in(measured: PowerProfile) -> int:
    """Return how many measurements a curve holds, by how well its rates are known."""
    n_windows = sum(
        (NORMAL_95 * WINDOW_CV_RATIO * point.iterations_per_s / point.iterations_per_s_ci) ** 2
        for point in measured.points
        if point.iterations_per_s_ci
    )
    return round(n_windows)


def _measure(state: Profiling, observation: Observation) -> CurveUpdate:
    sweep = profiling.advance(state.settings, state.sweep, observation)
    after = _after_sweep(replace(state, sweep=sweep, sweep_s=state.sweep_s + observation.active_s), Drift())
    return CurveUpdate(state=after, is_new=sweep.points != state.sweep.points or isinstance(after, Planned))


def _refine(state: Planned, observation: Observation) -> CurveUpdate:
    """Merge what was measured under the plan, unless the job has drifted from its curve: then it is profiled again."""
    settings, drift, before = state.settings, state.drift, state.refinement
    # Of lower limits, at which a person may pin a run, the curve says nothing that the job could have left.
    is_compared = observation.power_limit_w >= state.settled.points[0].power_limit_w - LIMIT_TOLERANCE_W
    if is_compared and state.has_settled_at(observation.power_limit_w):
        drift = update_drift(drift, observation, profile=state.settled, window_s=settings.block_s)
        if has_drifted(drift, sweep_s=state.rest_after_s):
            anew = Profiling(settings=settings, sweep=profiling.begin(settings), n_drifts=state.n_drifts + 1)
            return CurveUpdate(state=_after_sweep(anew, Drift()), dropped=with_stalls(state.settled))
        if is_only_power_off(drift):
            before = replace(before, profile=with_powers_renewed(before.profile, drift))
            state = replace(state, drift=replace(drift, power=ZERO_CUSUM), refinement=before, settled=before.profile)
            return CurveUpdate(state=state, is_new=True)
    else:
        drift = replace(drift, rested_s=drift.rested_s + observation.active_s)
    refinement = profiling.refine(settings, before, observation)
    if refinement.n_blocks == before.n_blocks:
        return CurveUpdate(state=replace(state, drift=drift, refinement=refinement))
    if drift.is_suspected:  # it may be another job by now, whose measurements belong on no curve of this one
        refinement = replace(refinement, profile=before.profile, n_blocks=before.n_blocks)
        return CurveUpdate(state=replace(state, drift=drift, refinement=refinement))
    after = replace(state, drift=drift, refinement=refinement)
    is_explored = state.is_exploring and not after.is_exploring
    if is_explored or refinement.n_blocks % PUBLISHED_BLOCKS == 0:
        return CurveUpdate(state=replace(after, settled=refinement.profile), is_new=True)
    return CurveUpdate(state=after)


def _after_sweep(state: Profiling, drift: Drift, *, n_blocks: int = 0) -> Profiling | Planned:
    """Return the state of the sweep, or (where it is done) what follows it, after some blocks of refinement."""
    settings, profile = state.settings, profiling.profile_of(state.sweep)
    if profile is None or profiling.target_power_limit_w(state.sweep) is not None:
        return state
    return Planned(
        settings=settings,
        refinement=profiling.begin_refinement(profile, n_blocks=n_blocks),
        drift=drift,
        settled=profile,
        sweep_s=max(state.sweep_s, len(settings.ladder_w()) * (settings.settle_s + settings.window_s)),
        n_drifts=state.n_drifts,
    )


def _is_complete(known: PowerProfile, settings: ProfilerSettings) -> bool:
    """Return whether a curve reaches from the prior limit down to the floor, or to where energy per iteration rises.

    One that was refined has points beside the limits of the first sweep, which then are not missing.
    """
    limits_w, lowest_w = known.power_limits_w, settings.floor_power_limit_w
    is_outside = limits_w[0] < lowest_w - LIMIT_TOLERANCE_W
    if is_outside or abs(limits_w[-1] - settings.prior_power_limit_w) > LIMIT_TOLERANCE_W:
        return False
    is_refined = n_measurements_in(known) > len(settings.ladder_w())
    reaches_down = limits_w[0] <= lowest_w + LIMIT_TOLERANCE_W or has_risen(list(reversed(known.points)))
    return is_refined and reaches_down
