"""The power curve of one run: measured in a first sweep, refined under the plan, dropped on drift.

The curves that a plan is made on: the measured one as a run lives it, as it probably is, as it may be. Pure.

What is known of a run's curve: measured in a first pass, refined under the plan, doubted where the job leaves it.

    Waiting ──begin──► Profiling ──the curve is known roughly──► Planned     (a stored curve shortens the first pass, or
                           ▲                                        │         spares it)
                           └──────── the job leaves its curve ──────┘

The insides are `policies.profiling` and `policies.profiling.drift`; here is only their order. No clock, no GPU, no bus.
"""

import hashlib
import math
from dataclasses import dataclass, replace

import numpy as np

from controller.accounting.energy_account import MeterInterval
from policies import profiling
from policies.profiling import Observation, ProfilerSettings, Refinement, posterior_curve, sampled_curve
from policies.profiling.drift import Drift, has_drifted, update_drift
from policies.profiling.measurement import NORMAL_95, WINDOW_CV_RATIO
from policies.profiling.sweep import has_risen
from policies.vocabulary.profile import PowerProfile


def with_stalls(measured: PowerProfile) -> PowerProfile:
    """Return a measured curve with the stalls in it: rates by which a run gets on over hours, not from stall to stall.

    A rate is measured robustly, since one stall among fifteen iterations would else pass for a slower limit. But a run
    has its stalls, at every limit; where they are one in a hundred, a budget of 3 % would be missed by a third of it.
    How much they take is known from all iterations together: their whole time over what their robust rates say.

    >>> from policies.vocabulary.profile import ProfilePoint
    >>> points = (ProfilePoint(power_limit_w=300.0, power_w=250.0, iterations_per_s=2.0, n=100, active_s=51.0),)
    >>> round(as_lived(PowerProfile(points)).fastest.iterations_per_s, 4)
    1.9608
    """
    robust_s = sum(point.n / point.iterations_per_s for point in measured.points)
    whole_s = sum(point.active_s for point in measured.points if point.n)
    if not (robust_s > 0 and whole_s > 0):
        return measured
    return _scaled(measured, robust_s / whole_s)


def posterior_mean(measured: PowerProfile) -> PowerProfile:
    """Return the most probable curve after what was measured, with its stalls."""
    return posterior_curve(with_stalls(measured))


def posterior_sample(measured: PowerProfile, *, job: str, run: str, n_block: int) -> PowerProfile:
    """Return a curve moved by what is not known of it, always in the same way for a block of a run.

    The rate at the highest limit stays: the promise of a plan is made in terms of it.
    """
    lived = with_stalls(measured)
    seed = hashlib.blake2b(f"{job}/{run}/{n_block}".encode(), digest_size=16).digest()
    moved = sampled_curve(lived, np.random.Generator(np.random.Philox(key=int.from_bytes(seed, "little"))))
    return _scaled(moved, posterior_curve(lived).fastest.iterations_per_s / moved.fastest.iterations_per_s)


def n_measurements_in(measured: PowerProfile) -> int:
    """Return how many measurements a curve holds, by how well its rates are known."""
    n_windows = sum(
        (NORMAL_95 * WINDOW_CV_RATIO * point.iterations_per_s / point.iterations_per_s_ci) ** 2
        for point in measured.points
        if point.iterations_per_s_ci
    )
    return round(n_windows)


def _scaled(curve: PowerProfile, rate_ratio: float) -> PowerProfile:
    """Return a curve with all rates multiplied."""
    return PowerProfile(
        tuple(
            replace(
                point,
                iterations_per_s=point.iterations_per_s * rate_ratio,
                iterations_per_s_ci=(
                    None if point.iterations_per_s_ci is None else point.iterations_per_s_ci * rate_ratio
                ),
            )
            for point in curve.points
        )
    )


SAME_W = 1.0
MAX_DOUBLINGS = 10
"""How often the rest between profiles doubles, at most, where a job leaves one curve after the other."""
REFERENCE_CI_RATIO = 0.006
"""A budget of 3 % means little where the rate that it is relative to is known to 2 %, as after the first pass."""
SHOWN_BLOCKS = 150
"""A curve that is known well is shown and stored again after so many blocks: each of them moves it by a hair."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """The run has not shown all its ranks, iterations and GPUs yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiling:
    """The first pass over the curve is under way, for `pass_s` of iterations so far."""

    settings: ProfilerSettings
    sweep: profiling.State
    pass_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """The curve is known; the limit follows the plan, and what is measured under it makes the curve better.

    Attributes:
        settings: those of the profiler.
        refinement: the curve, and the measurement under way.
        drift: whether the job keeps to it.
        settled: the curve as it is stored, and but for the stalls published. Drift is measured by it: the one that is
            refined follows wherever the job goes.
        pass_s: how long the first pass took, or would have taken [s].
    """

    settings: ProfilerSettings
    refinement: Refinement
    drift: Drift
    settled: PowerProfile
    pass_s: float

    @property
    def knows_its_reference(self) -> bool:
        """Return whether the rate at the highest limit is known well enough for a promise that is relative to it."""
        fastest = self.refinement.profile.fastest
        is_known = (fastest.iterations_per_s_ci or 0.0) <= REFERENCE_CI_RATIO * fastest.iterations_per_s
        return is_known or self.refinement.n_blocks >= self.settings.n_blocks

    @property
    def is_exploring(self) -> bool:
        """Return whether the plan should still try out what may be best."""
        return profiling.is_exploring(self.settings, self.refinement)

    def has_settled_at(self, power_limit_w: float) -> bool:
        """Return whether the limit is that of the measurement under way, and has been for long enough."""
        last_w, settled_s = self.refinement.power_limit_w, self.refinement.settled_s
        return last_w is not None and abs(last_w - power_limit_w) <= SAME_W and settled_s >= self.settings.settle_s


State = Waiting | Profiling | Planned


class CurveLearning:
    """The curve of one run, in the making."""

    def __init__(self) -> None:
        self.state: State = Waiting()
        self.n_left = 0
        """How many curves the run has left."""
        self._left: PowerProfile | None = None

    @property
    def profile(self) -> PowerProfile | None:
        """Return the curve as it is published and accounted by, with its stalls; None before anything is known."""
        measured = measured_in(self.state)
        return with_stalls(measured) if measured else None

    def begin(self, settings: ProfilerSettings, known: PowerProfile | None, prior: PowerProfile | None) -> None:
        """Start from what this job has measured already, or from the curve of something like it."""
        first, n_blocks = profiling.begin(settings, known, prior), 0
        if known is not None and _is_whole(known, settings):
            first = profiling.Profiled(points=known.points)
            n_blocks = min(n_measurements_in(known) - len(settings.ladder_w()), settings.n_blocks)
        self._enter(Profiling(settings=settings, sweep=first), Drift(rested_s=math.inf), n_blocks=n_blocks)

    def reset(self) -> None:
        """Forget the curve: the run's GPUs or ranks are others now."""
        self.state = Waiting()

    def take_left(self) -> PowerProfile | None:
        """Return the curve that the job has just left, once."""
        left, self._left = self._left, None
        return left

    def observe(self, piece: MeterInterval, *, enforced_power_limit_w: float) -> bool:
        """Take an active slice at a limit that was in force all the time; return whether the curve is to be kept."""
        observation = Observation(
            power_limit_w=enforced_power_limit_w,
            active_s=piece.duration_s,
            n_iterations=piece.n_iterations,
            energy_j=piece.energy_j,
            iteration_times_s=piece.iteration_times_s,
        )
        match self.state:
            case Profiling() as state:
                return self._measure(state, observation)
            case Planned() as state:
                return self._refine(self._watched(state, observation), observation)
            case Waiting():
                return False

    def _measure(self, state: Profiling, observation: Observation) -> bool:
        sweep = profiling.advance(state.settings, state.sweep, observation)
        self._enter(replace(state, sweep=sweep, pass_s=state.pass_s + observation.active_s), Drift())
        return sweep.points != state.sweep.points or isinstance(self.state, Planned)

    def _watched(self, state: Planned, observation: Observation) -> Planned | None:
        """Return the state that has looked for drift; None where the job has left its curve, and is profiled anew."""
        settings, drift = state.settings, state.drift
        if state.has_settled_at(observation.power_limit_w):
            drift = update_drift(drift, observation, profile=state.settled, window_s=settings.block_s)
        # A job without a steady rate is left in peace for longer and longer.
        if not has_drifted(drift, sweep_s=state.pass_s * 2 ** min(self.n_left, MAX_DOUBLINGS)):
            return replace(state, drift=drift)
        self._left, self.n_left = with_stalls(state.settled), self.n_left + 1
        self._enter(Profiling(settings=settings, sweep=profiling.begin(settings)), Drift())
        return None

    def _refine(self, state: Planned | None, observation: Observation) -> bool:
        """Merge what was measured under the plan; return whether the curve is to be shown and kept."""
        if state is None:
            return False
        before = state.refinement
        refinement = profiling.refine(state.settings, before, observation)
        if state.drift.is_suspected:  # it may be another job by now, whose measurements belong on no curve of this one
            refinement = replace(refinement, profile=before.profile, n_blocks=before.n_blocks)
        after = replace(state, refinement=refinement)
        has_grown = refinement.n_blocks > before.n_blocks
        is_learnt = has_grown and state.is_exploring and not after.is_exploring
        is_news = is_learnt or (has_grown and refinement.n_blocks % SHOWN_BLOCKS == 0)
        self.state = replace(after, settled=refinement.profile) if is_news else after
        return is_news

    def _enter(self, state: Profiling, drift: Drift, *, n_blocks: int = 0) -> None:
        """Go on with the first pass, or (where that is done) with what follows it, of which there were some blocks."""
        settings, profile = state.settings, profiling.profile_of(state.sweep)
        if profile is None or profiling.target_power_limit_w(state.sweep) is not None:
            self.state = state
            return
        self.state = Planned(
            settings=settings,
            refinement=profiling.begin_refinement(profile, n_blocks=n_blocks),
            drift=drift,
            settled=profile,
            pass_s=max(state.pass_s, len(settings.ladder_w()) * (settings.settle_s + settings.window_s)),
        )


def measured_in(state: State) -> PowerProfile | None:
    """Return the curve as it is stored; None before anything is known.

    It is without the stalls: the next run measures without them, and would take a curve with them for another job's.
    """
    match state:
        case Profiling(sweep=sweep):
            return profiling.profile_of(sweep)
        case Planned(settled=settled):
            return settled
        case Waiting():
            return None


def _is_whole(known: PowerProfile, settings: ProfilerSettings) -> bool:
    """Return whether a curve reaches from the prior limit down to the floor, or to where energy per iteration rises.

    One that was refined has points beside the limits of the first pass, which then are not missing.
    """
    limits_w = known.power_limits_w
    if abs(limits_w[-1] - settings.prior_power_limit_w) > SAME_W or limits_w[0] < settings.floor_power_limit_w - SAME_W:
        return False
    is_refined = n_measurements_in(known) > len(settings.ladder_w())
    reaches_down = limits_w[0] <= settings.floor_power_limit_w + SAME_W or has_risen(list(reversed(known.points)))
    return is_refined and reaches_down
