"""Steering one run: which limit it should have now, from what was observed. No clock, no GPU, no bus.

    Waiting ──begin──► Profiling ──the sweep is done──► Planned     (a stored profile shortens the sweep, or spares it)
                           ▲                              │
                           └──── the job leaves its curve ┘

The insides of both decisions are `policies.profiling` and `policies.planning`; here is only their order.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

from controller.config import EnergyConfig, PlanConfig, ProfilerConfig
from controller.ports import Provenance, Target
from controller.run_account import Slice
from policies import profiling
from policies.drift import Drift, has_left, watch
from policies.planning import (
    EtaObjective,
    Objective,
    Present,
    Progress,
    Rules,
    SlowdownObjective,
    choose_power_limit,
)
from policies.profile import PowerProfile
from policies.profiling import Observation, SweepPlan
from policies.signal import Signal

MAX_DOUBLINGS = 10
"""How often the rest between sweeps doubles, at most, where a job leaves one curve after the other."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """The run has not shown all its ranks, iterations and GPUs yet."""


@dataclass(frozen=True, slots=True)
class Profiling:
    """The sweep is under way."""

    plan: SweepPlan
    sweep: profiling.State


@dataclass(frozen=True, slots=True)
class Planned:
    """The curve is known; the limit follows the plan."""

    plan: SweepPlan
    profile: PowerProfile
    drift: Drift
    target: Target | None = None
    present: Present | None = None
    next_plan_s: float = 0.0


State = Waiting | Profiling | Planned


class Steering:
    """The decisions for one run, in their order."""

    def __init__(self, *, job: str, profiler: ProfilerConfig, plan: PlanConfig, energy: EnergyConfig) -> None:
        self.state: State = Waiting()
        self._job = job
        self._profiler = profiler
        self._energy = energy
        self._objective: Objective = (
            EtaObjective(eta=plan.eta) if plan.objective == "eta" else SlowdownObjective(max_slowdown=plan.max_slowdown)
        )
        self._base: Progress | None = None
        """Where the run was when it left its curve: a new curve has a new ledger of time."""
        self._left: PowerProfile | None = None
        self._n_left = 0
        self._is_paused = False
        self._unsettled_s = 0.0
        self._rules = Rules(period_s=plan.period_s, min_dwell_s=plan.min_dwell_s, min_gain_ratio=plan.min_gain_ratio)

    @property
    def name(self) -> Literal["waiting", "profiling", "planned"]:
        """Return the state as it is published."""
        match self.state:
            case Waiting():
                return "waiting"
            case Profiling():
                return "profiling"
            case Planned():
                return "planned"

    @property
    def profile(self) -> PowerProfile | None:
        """Return the curve as far as it is measured."""
        match self.state:
            case Profiling(sweep=sweep):
                return profiling.profile_of(sweep)
            case Planned(profile=profile):
                return profile
            case _:
                return None

    def begin(self, *, floor_power_limit_w: float, ceiling_power_limit_w: float, known: PowerProfile | None) -> None:
        """Start the sweep between two limits [W]; what is known already is not measured again."""
        plan = profiling.sweep_plan(
            prior_power_limit_w=ceiling_power_limit_w,
            floor_power_limit_w=floor_power_limit_w,
            step_w=self._profiler.step_w,
            settle_s=self._profiler.settle_s,
            window_s=self._profiler.window_s,
        )
        self._enter(plan, profiling.begin(plan, known), Drift(rested_s=math.inf))

    def reset(self) -> None:
        """Forget the curve: the run's GPUs or ranks are others now."""
        self.state = Waiting()

    def observe(self, piece: Slice, *, enforced_power_limit_w: float) -> bool:
        """Take an active slice at a limit that was in force all the time; return whether the curve has grown."""
        observation = Observation(
            power_limit_w=enforced_power_limit_w,
            active_s=piece.duration_s,
            n_iterations=piece.n_iterations,
            energy_j=piece.energy_j,
        )
        if self._is_paused:  # it came back at the highest limit, which is not the one that is measured
            return False
        if self._unsettled_s > 0:
            self._unsettled_s -= piece.duration_s
            return False
        match self.state:
            case Profiling(plan=plan, sweep=before):
                after = profiling.advance(plan, before, observation)
                self._enter(plan, after, Drift())
                return len(after.points) > len(before.points) or profiling.wanted_power_limit_w(after) is None
            case Planned(plan=plan, profile=profile, drift=drift):
                drift = watch(drift, observation, profile=profile, window_s=plan.window_s)
                self.state = replace(self.state, drift=drift)
                sweep_s = len(plan.power_limits_w) * (plan.settle_s + plan.window_s)
                if has_left(drift, sweep_s=sweep_s * 2**self._n_left):  # a job without a steady rate is left in peace
                    self._left, self._base, self._n_left = profile, None, min(self._n_left + 1, MAX_DOUBLINGS)
                    self._enter(plan, profiling.begin(plan), Drift())
        return False

    def take_left(self) -> PowerProfile | None:
        """Return the curve that the job has just left, once."""
        left, self._left = self._left, None
        return left

    def wait_at_the_top(self) -> Target | None:
        """Return the highest limit, for a pause in mid-sweep: no validation must run at whatever was being measured."""
        if not isinstance(self.state, Profiling):
            return None
        self._is_paused = True
        detail = "no iterations: the sweep waits at the highest limit"
        return Target(
            power_limit_w=self.state.plan.power_limits_w[0], reason="profiling_paused", detail=detail, job=self._job
        )

    def choose(
        self,
        *,
        now_s: float,
        history: Signal | None,
        forecast: Signal | None,
        progress: Progress,
        provenance: Provenance,
    ) -> Target | None:
        """Return the limit that the run should have now, with its reason; None while it has none to ask for."""
        if self._is_paused:
            self._is_paused, self._unsettled_s = False, self._profiler.settle_s
        if self._n_left and self._base is None:
            self._base = progress
        match self.state:
            case Profiling(plan=plan, sweep=sweep):
                return self._sweep_target(plan, sweep)
            case Planned(target=target, next_plan_s=next_plan_s) if target is not None and now_s < next_plan_s:
                return target
            case Planned():
                return self._plan(self.state, now_s, history, forecast, progress, provenance)
            case _:
                return None

    def _enter(self, plan: SweepPlan, sweep: profiling.State, drift: Drift) -> None:
        profile = profiling.profile_of(sweep)
        done = profiling.wanted_power_limit_w(sweep) is None and profile is not None
        self.state = Planned(plan, profile, drift) if done and profile else Profiling(plan, sweep)

    def _sweep_target(self, plan: SweepPlan, sweep: profiling.State) -> Target:
        wanted_w = profiling.wanted_power_limit_w(sweep)
        if wanted_w is None:
            detail = "no limit stood still long enough to be measured: the highest one is kept"
            return Target(power_limit_w=plan.power_limits_w[0], reason="not_profiled", detail=detail, job=self._job)
        n, n_all = len(sweep.points) + 1, len(plan.power_limits_w)
        return Target(
            power_limit_w=wanted_w, reason="profiling", detail=f"measures limit {n} of {n_all}", job=self._job
        )

    def _plan(
        self,
        state: Planned,
        now_s: float,
        history: Signal | None,
        forecast: Signal | None,
        progress: Progress,
        provenance: Provenance,
    ) -> Target:
        decision = choose_power_limit(
            profile=state.profile.with_overhead(host_power_w=self._energy.host_power_w, pue=self._energy.pue),
            objective=self._objective,
            rules=self._rules,
            history=history,
            forecast=forecast,
            now_s=now_s,
            progress=_since(self._base, progress),
            present=state.present,
        )
        present = state.present
        if present is None or present.power_limit_w != decision.power_limit_w:
            present = Present(power_limit_w=decision.power_limit_w, since_s=now_s)
        target = Target(
            power_limit_w=decision.power_limit_w,
            reason=provenance.doubt or decision.reason,
            detail=f"{provenance.sentence}: {decision.detail}" if provenance.sentence else decision.detail,
            job=self._job,
            signal=_signal_text(decision.signal_value, history, provenance),
        )
        self.state = replace(state, target=target, present=present, next_plan_s=now_s + self._rules.period_s)
        return target


def _signal_text(value: float | None, history: Signal | None, provenance: Provenance) -> str | None:
    """Return the value that was decided on, its unit, and who says so; None where there was none."""
    if value is None or history is None or history.kind == "energy":
        return None
    return f"{value:.4g} {history.unit} ({provenance.source})" if provenance.source else f"{value:.4g} {history.unit}"


def _since(base: Progress | None, progress: Progress) -> Progress:
    """Return the progress since `base`."""
    if base is None:
        return progress
    n_iterations = max(progress.n_iterations - base.n_iterations, 0.0)
    return replace(progress, n_iterations=n_iterations, active_s=max(progress.active_s - base.active_s, 0.0))
