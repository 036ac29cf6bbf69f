"""What is known of a run's curve: measured in a first pass, refined under the plan, doubted where the job leaves it.

    Waiting ──begin──► Profiling ──the curve is known roughly──► Planned     (a stored curve shortens the first pass, or
                           ▲                                        │         spares it)
                           └──────── the job leaves its curve ──────┘

The insides are `policies.profiling` and `policies.drift`; here is only their order. No clock, no GPU, no bus.
"""

import math
from dataclasses import dataclass, replace

from controller.curves import as_lived
from controller.run_account import Slice
from policies import profiling
from policies.drift import Drift, has_left, watch
from policies.profile import PowerProfile
from policies.profiling import Observation, ProfilerSettings, Refinement

MAX_DOUBLINGS = 10
"""How often the rest between profiles doubles, at most, where a job leaves one curve after the other."""
DRIFT_BLOCKS = 5
"""A look for drift takes as long as so many blocks: a stall of some seconds is none."""
SHOWN_BLOCKS = 300
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
        shown: the curve as it is published and stored.
        pass_s: how long the first pass took, or would have taken [s].
    """

    settings: ProfilerSettings
    refinement: Refinement
    drift: Drift
    shown: PowerProfile
    pass_s: float

    @property
    def is_curious(self) -> bool:
        """Return whether the plan should still try out what may be best."""
        return profiling.is_curious(self.settings, self.refinement)


State = Waiting | Profiling | Planned


class Learning:
    """The curve of one run, in the making."""

    def __init__(self) -> None:
        self.state: State = Waiting()
        self.n_left = 0
        """How many curves the run has left."""
        self._left: PowerProfile | None = None

    @property
    def profile(self) -> PowerProfile | None:
        """Return the curve as it is published and stored; None before anything is known."""
        match self.state:
            case Profiling(sweep=sweep):
                profile = profiling.profile_of(sweep)
                return as_lived(profile) if profile else None
            case Planned(shown=shown):
                return shown
            case Waiting():
                return None

    def begin(self, settings: ProfilerSettings, known: PowerProfile | None, prior: PowerProfile | None) -> None:
        """Start from what this job has measured already, or from the curve of something like it."""
        first = profiling.begin(settings, known, prior)
        self._enter(Profiling(settings=settings, sweep=first), Drift(rested_s=math.inf))

    def reset(self) -> None:
        """Forget the curve: the run's GPUs or ranks are others now."""
        self.state = Waiting()

    def take_left(self) -> PowerProfile | None:
        """Return the curve that the job has just left, once."""
        left, self._left = self._left, None
        return left

    def observe(self, piece: Slice, *, enforced_power_limit_w: float) -> bool:
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
                return self._refine(self._watched(state, observation, piece.gaps_s), observation)
            case Waiting():
                return False

    def _measure(self, state: Profiling, observation: Observation) -> bool:
        sweep = profiling.advance(state.settings, state.sweep, observation)
        self._enter(replace(state, sweep=sweep, pass_s=state.pass_s + observation.active_s), Drift())
        return sweep.points != state.sweep.points or isinstance(self.state, Planned)

    def _watched(self, state: Planned, observation: Observation, gaps_s: float) -> Planned | None:
        """Return the state that has looked for drift; None where the job has left its curve, and is profiled anew.

        It is measured by the curve that is shown: the one that is refined follows wherever the job goes.
        """
        running = replace(observation, active_s=max(observation.active_s - gaps_s, 0.0))
        drift = watch(state.drift, running, profile=state.shown, window_s=DRIFT_BLOCKS * state.settings.block_s)
        # A job without a steady rate is left in peace for longer and longer.
        if not has_left(drift, sweep_s=state.pass_s * 2**self.n_left):
            return replace(state, drift=drift)
        self._left, self.n_left = state.shown, min(self.n_left + 1, MAX_DOUBLINGS)
        self._enter(Profiling(settings=state.settings, sweep=profiling.begin(state.settings)), Drift())
        return None

    def _refine(self, state: Planned | None, observation: Observation) -> bool:
        """Merge what was measured under the plan; return whether the curve is to be shown and kept."""
        if state is None:
            return False
        if state.drift.n_strikes:  # it may be another job by now: its measurements belong on no curve, or on a new one
            self.state = state
            return False
        refinement = profiling.refine(state.settings, state.refinement, observation)
        has_grown = refinement.n_blocks > state.refinement.n_blocks
        is_news = has_grown and (
            refinement.n_blocks == state.settings.n_blocks or refinement.n_blocks % SHOWN_BLOCKS == 0
        )
        shown = as_lived(refinement.profile) if is_news else state.shown
        self.state = replace(state, refinement=refinement, shown=shown)
        return is_news

    def _enter(self, state: Profiling, drift: Drift) -> None:
        """Go on with the first pass, or (where that is done) with what follows it."""
        settings, profile = state.settings, profiling.profile_of(state.sweep)
        if profile is None or profiling.wanted_power_limit_w(state.sweep) is not None:
            self.state = state
            return
        self.state = Planned(
            settings=settings,
            refinement=profiling.begin_refinement(profile),
            drift=drift,
            shown=as_lived(profile),
            pass_s=max(state.pass_s, len(settings.ladder_w()) * (settings.settle_s + settings.window_s)),
        )
