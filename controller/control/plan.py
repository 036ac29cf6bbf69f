"""The plan of one run, as a target: made once a period from its curve, the signal and its progress.

The decision itself is `policies.planning`; here it is asked with what is configured, and its answer becomes what the
run asks of its GPUs, now and (where two limits share a period) later. No clock, no GPU, no bus.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from controller.clock import is_due
from controller.config import EnergyConfig, PlanRules, deadline_s
from controller.control.curve_learning import posterior_mean
from controller.ports import Provenance, Target
from policies.planning import (
    BudgetObjective,
    CurrentLimit,
    DeadlineObjective,
    Decision,
    EtaObjective,
    Objective,
    Progress,
    ScheduledLimit,
    SlowdownObjective,
    SwitchingRules,
    choose_power_limit,
)
from policies.vocabulary.power_curve import fit_curve
from policies.vocabulary.profile import PowerProfile
from policies.vocabulary.signal import Signal


def alone(own: PowerProfile) -> PowerProfile:
    """Return the curve of a run that has no other node."""
    return own


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanInputs:
    """What a plan looks at beside the curve: the time [Unix s], the signal, and how far the run is.

    `joint` makes the curve of this node that of all nodes of the run.
    """

    now_s: float
    history: Signal | None
    forecast: Signal | None
    progress: Progress
    provenance: Provenance
    joint: Callable[[PowerProfile], PowerProfile] = alone


class PlannedTarget:
    """The target of the plan, and for how long it stands."""

    def __init__(
        self, *, job: str, rules: PlanRules, energy: EnergyConfig, bounds_w: tuple[float, float], n_gpus: int = 1
    ) -> None:
        self._job = job
        self._bounds_w = bounds_w
        self._n_gpus = n_gpus
        self._config = rules
        self._energy = energy
        self._rules = SwitchingRules(
            period_s=rules.period_s, min_dwell_s=rules.min_dwell_s, min_gain_ratio=rules.min_gain_ratio
        )
        self.reset()

    def reset(self) -> None:
        """Forget the plan, and what the curve of which it was made looked like."""
        self._fit: tuple[PowerProfile, PowerProfile] | None = None
        """A curve and the fine one through it: fitted once for all plans that are made on it."""
        self._target: Target | None = None
        self._later: tuple[ScheduledLimit, Target] | None = None
        self._present: CurrentLimit | None = None
        self._next_plan_s = 0.0

    def choose(self, measured: PowerProfile, outlook: PlanInputs) -> Target:
        """Return the target of the present period; where that is over, plan the next one on a measured curve."""
        is_over = is_due(self._next_plan_s, period_s=self._rules.period_s, now_s=outlook.now_s)
        if self._target is None or is_over:
            return self._plan(posterior_mean(measured), outlook)
        if self._later is not None and outlook.now_s >= self._later[0].from_s:
            (later, self._target), self._later = self._later, None
            self._present = CurrentLimit(power_limit_w=later.power_limit_w, since_s=later.from_s)
        return self._target

    def try_out(self, supposed: PowerProfile, outlook: PlanInputs, *, block_s: float, which: str) -> Target:
        """Return the target of a short block of time, planned on a curve as it may be; the next choice is a plan.

        Nothing is held on to, and no two limits share a block: it is over before that pays.
        """
        self._target = self._later = self._present = None
        rules = SwitchingRules(period_s=block_s, min_dwell_s=block_s, min_gain_ratio=0.0)
        joint = outlook.joint(supposed)
        curve = self._fitted(joint)
        decision = self._decide(curve, rules, outlook, max_power_w=self._max_power_w(supposed, joint))
        return Target(
            power_limit_w=self._asked_w(decision.power_limit_w, curve),
            reason="refining",
            detail=f"tries out what may be best: {which}",
            job=self._job,
            signal=_signal_text(decision.signal_value, outlook.history, outlook.provenance),
        )

    def _plan(self, probable: PowerProfile, outlook: PlanInputs) -> Target:
        joint = outlook.joint(probable)
        if self._fit is None or self._fit[0] != joint:
            self._fit = joint, self._fitted(joint)
        curve = self._fit[1]
        if self._present is not None and self._present.since_s > outlook.now_s:  # the clock was stepped back
            self._present = replace(self._present, since_s=outlook.now_s)
        decision = self._decide(curve, self._rules, outlook, max_power_w=self._max_power_w(probable, joint))
        if self._present is None or self._present.power_limit_w != decision.power_limit_w:
            self._present = CurrentLimit(power_limit_w=decision.power_limit_w, since_s=outlook.now_s)
        self._target = self._as_target(decision, curve, outlook)
        self._later = None
        if decision.scheduled is not None:
            later_w = self._asked_w(decision.scheduled.power_limit_w, curve)
            self._later = decision.scheduled, replace(self._target, power_limit_w=later_w)
        self._next_plan_s = outlook.now_s + self._rules.period_s
        return self._target

    def _fitted(self, curve: PowerProfile) -> PowerProfile:
        whole = curve.with_overhead(host_power_w=self._energy.host_power_w, pue=self._energy.pue)
        return fit_curve(whole, step_w=self._config.step_w)

    def _max_power_w(self, own: PowerProfile, joint: PowerProfile) -> float:
        """Return the sum of all GPUs' highest limits, those of other nodes by what they draw, with overhead [W]."""
        limits_w = self._n_gpus * self._bounds_w[1] * joint.fastest.power_w / own.fastest.power_w
        return self._energy.pue * (limits_w + self._energy.host_power_w)

    def _decide(
        self, curve: PowerProfile, rules: SwitchingRules, outlook: PlanInputs, *, max_power_w: float
    ) -> Decision:
        started_at_s = outlook.progress.started_at_s
        return choose_power_limit(
            profile=curve,
            objective=objective_of(self._config, started_at_s=started_at_s, max_power_w=max_power_w),
            rules=rules,
            history=outlook.history,
            forecast=outlook.forecast,
            now_s=outlook.now_s,
            progress=outlook.progress,
            current=self._present,
        )

    def _asked_w(self, chosen_w: float, curve: PowerProfile) -> float:
        """Return what to ask for to get a limit of the curve [W].

        Its highest one may be what a power brake allowed while it was measured: whoever wants that one wants whatever
        the GPU may have by now.
        """
        floor_w, ceiling_w = self._bounds_w
        return ceiling_w if chosen_w == curve.fastest.power_limit_w else min(max(chosen_w, floor_w), ceiling_w)

    def _as_target(self, decision: Decision, curve: PowerProfile, outlook: PlanInputs) -> Target:
        provenance, detail = outlook.provenance, decision.detail
        return Target(
            power_limit_w=self._asked_w(decision.power_limit_w, curve),
            reason=provenance.reason or decision.reason,
            detail=f"{provenance.detail}: {detail}" if provenance.detail else detail,
            job=self._job,
            signal=_signal_text(decision.signal_value, outlook.history, provenance),
        )


def objective_of(rules: PlanRules, *, started_at_s: float, max_power_w: float) -> Objective:
    """Return what is asked for a run that started at a time [Unix s], on GPUs with so much power [W]."""
    match rules.objective:
        case "slowdown":
            return SlowdownObjective(max_slowdown=rules.max_slowdown)
        case "eta":
            return EtaObjective(eta=rules.eta, max_power_w=max_power_w)
        case "deadline":
            return DeadlineObjective(deadline_s=deadline_s(rules.deadline, started_at_s=started_at_s))
        case "budget":
            return BudgetObjective(budget=rules.budget)


def _signal_text(value: float | None, history: Signal | None, provenance: Provenance) -> str | None:
    """Return the value that was decided on, its unit, and who says so; None where there was none."""
    if value is None or history is None or history.kind == "energy":
        return None
    return f"{value:.4g} {history.unit} ({provenance.source})" if provenance.source else f"{value:.4g} {history.unit}"
