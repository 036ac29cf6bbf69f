"""Plans the target power limit of one run, and its pauses, once a period.

`policies.planning` decides; this passes it the configuration, and turns its decision into the target of the run's GPUs:
now and (where two limits share a period) later. No clock, no GPU, no bus.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import msgspec

from controller.config import EnergyConfig, PlanRules, deadline_s
from controller.control.curve_learning import posterior_mean
from controller.control.multi_node import NodeShare, joint_profile
from controller.ports import Provenance, Target
from controller.ports.orders import Goal
from policies.planning import (
    BudgetObjective,
    CurrentLimit,
    DeadlineObjective,
    Decision,
    EtaObjective,
    Objective,
    PlannedPause,
    Progress,
    SlackOptions,
    SlowdownObjective,
    SwitchingRules,
    choose_power_limit,
)
from policies.planning.hours_ahead import Evidence, ExpectedSaving, PlannedMix, expected_saving, hours_ahead
from policies.savings.interval import MAX_CI90_RATIO, MIN_LOOKS, NORMAL_QUANTILE
from policies.vocabulary.power_curve import fit_curve
from policies.vocabulary.profile import PowerProfile
from policies.vocabulary.signal import Signal
from publishers.messages.codec import MAX_TIME_S
from publishers.messages.reports import MAX_SCHEDULED, NodeProfile, RunSchedule, ScheduleEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanInputs:
    """What a plan rests on beside the curve: the time [Unix s], the signal, and the progress of the run.

    `share` is this node's part of a run on several nodes, and `node_profiles` is what the others have published; None:
    there are no others. `slack` is how the run may use time to spare, its idle power that of this node's GPUs alone;
    None: it may not. `time_limit_s` is when its scheduler ends it [Unix s]; None: it has not said.
    """

    now_s: float
    history: Signal | None
    forecast: Signal | None
    progress: Progress
    provenance: Provenance
    share: NodeShare | None = None
    node_profiles: Sequence[NodeProfile] = ()
    slack: SlackOptions | None = None
    time_limit_s: float | None = None

    @property
    def n_nodes(self) -> int:
        """Return on how many nodes the run is, as far as they have said so."""
        return 1 if self.share is None else 1 + len(self.node_profiles)

    def joint(self, own: PowerProfile) -> PowerProfile:
        """Return the curve of all nodes of the run at the limits of this node's own."""
        return own if self.share is None else joint_profile(own, self.share, self.node_profiles)


@dataclass(frozen=True, slots=True)
class Explore:
    """A block of refinement, which tries out a limit that may be the best: `n_block` counts from 1."""

    n_block: int


@dataclass(frozen=True, slots=True)
class Look:
    """A comparison with the highest limit, after so many that are done."""

    n_pairs: int


Probe = Explore | Look
"""What a limit other than the plan's is set for: to learn from it for a short time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Probing:
    """A probe that is under way, since when [Unix s], and its target."""

    probe: Probe
    since_s: float
    target: Target


@dataclass(frozen=True, slots=True, kw_only=True)
class _Later:
    """What follows within the period: from when on [Unix s], its limit on the curve [W], and its target."""

    from_s: float
    planned_w: float
    target: Target


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MadePlan:
    """A plan as it was made: the decision, its objective, the curve that it was made on, and what else it rests on."""

    decision: Decision
    objective: Objective
    curve: PowerProfile
    inputs: PlanInputs


class PlannedTarget:
    """The target of the plan, or of a probe that refines the curve, and for how long it holds.

    Attributes:
        made: the latest plan, which holds also while a limit is looked at; None: there is none.
    """

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
        """Drop the plan and the probe, and the curve that they were made on."""
        self._fit: tuple[PowerProfile, PowerProfile] | None = None
        """A curve and the fine one through it: fitted once for all plans that are made on it."""
        self._probing: _Probing | None = None
        self._target: Target | None = None
        self._planned_s = 0.0
        self._later: _Later | None = None
        self._current: CurrentLimit | None = None
        self.made: MadePlan | None = None

    @property
    def is_probing(self) -> bool:
        """Return whether a limit other than the plan's is set, to learn from it."""
        return self._probing is not None

    @property
    def is_pausing(self) -> bool:
        """Return whether the run is to wait."""
        return self._target is not None and bool(self._target.pause_why)

    def drop_pause(self) -> None:
        """Plan anew, if the run is to wait now or later: it may not, or has not."""
        if self.is_pausing or (self._later is not None and self._later.target.pause_why):
            self._target = None

    def aim(self, rules: PlanRules) -> None:
        """Plan anew by other rules, of the same periods."""
        self._config = rules
        self.suspend()

    def with_rules(self, rules: PlanRules) -> "PlannedTarget":
        """Return what would plan by other rules."""
        return PlannedTarget(
            job=self._job, rules=rules, energy=self._energy, bounds_w=self._bounds_w, n_gpus=self._n_gpus
        )

    def suspend(self) -> None:
        """Drop the plan and the probe: another limit is held for a while, and then a new plan is made."""
        self._probing = self._target = self._later = self._current = self.made = None

    @property
    def is_probing_the_highest(self) -> bool:
        """Return whether the highest limit is being tried out, or looked at."""
        return self._probing is not None and self._probing.target.power_limit_w >= self._bounds_w[1]

    def current(self, now_s: float, probe: Probe | None) -> Target | None:
        """Return the target that still holds, or None where one is to be chosen.

        Args:
            now_s: Unix time [s]; a clock that was stepped back ends what was chosen after it.
            probe: what is to be learnt now; None: the plan holds.
        """
        probing, period_s = self._probing, self._rules.period_s
        if probe is not None:
            if probing is None or probing.probe != probe or not probing.since_s <= now_s < probing.since_s + period_s:
                return None
            return probing.target
        self._probing = None
        if self._target is None or not self._planned_s <= now_s < self._planned_s + period_s:
            return None
        later = self._later
        if later is not None and now_s >= later.from_s:
            if self._current is None or self._current.power_limit_w != later.planned_w:
                self._current = CurrentLimit(power_limit_w=later.planned_w, since_s=later.from_s)
            self._target, self._later = later.target, None
        return self._target

    def choose(self, measured: PowerProfile, inputs: PlanInputs) -> Target:
        """Return the target of the period that begins, planned on a measured curve."""
        probable = posterior_mean(measured)
        joint = inputs.joint(probable)
        if self._fit is None or self._fit[0] != joint:
            self._fit = joint, self._fitted(joint)
        curve = self._fit[1]
        if self._current is not None and self._current.since_s > inputs.now_s:  # the clock was stepped back
            self._current = replace(self._current, since_s=inputs.now_s)
        inputs = replace(inputs, slack=self._slack(inputs, probable, joint))
        objective = self._objective(inputs, max_power_w=self._max_power_w(inputs, probable, joint))
        decision = self._decide(curve, objective, self._rules, inputs)
        if self._current is None or self._current.power_limit_w != decision.power_limit_w:
            self._current = CurrentLimit(power_limit_w=decision.power_limit_w, since_s=inputs.now_s)
        self.made = MadePlan(decision=decision, objective=objective, curve=curve, inputs=inputs)
        self._target = self._as_target(decision, curve, inputs)
        self._planned_s = inputs.now_s
        self._later = None
        if decision.scheduled is not None:
            planned_w, from_s = decision.scheduled.power_limit_w, decision.scheduled.from_s
            speed_ratio = decision.scheduled.iterations_per_s / curve.fastest.iterations_per_s
            limit_w = self._requested_w(planned_w, curve)
            target = replace(self._target, power_limit_w=limit_w, speed_ratio=speed_ratio)
            self._later = _Later(from_s=from_s, planned_w=planned_w, target=target)
        elif decision.pause is not None:
            self._plan_pause(decision, decision.pause, inputs)
        return self._target

    def schedule(self, made: MadePlan, *, n_looks: int, evidence: Evidence | None = None) -> RunSchedule:
        """Return what a plan expects of the hours ahead; how slow and what saved, only where looks tell it.

        None of `evidence`: what is saved is not known.
        """
        now_s, curve, progress, objective = made.inputs.now_s, made.curve, made.inputs.progress, made.objective
        ahead = hours_ahead(made.decision, progress, now_s=now_s, period_s=self._rules.period_s, curve=curve)
        slowdown_ratio, error_ratio = ahead.slowdown_ratio, ahead.slowdown_error_ratio
        half_ratio = None
        if n_looks >= MIN_LOOKS and slowdown_ratio is not None and error_ratio is not None:
            half_ratio = NORMAL_QUANTILE * error_ratio * slowdown_ratio
        is_known = half_ratio is not None and half_ratio <= MAX_CI90_RATIO
        saving = None
        if n_looks >= MIN_LOOKS and evidence is not None:
            of_gpus = replace(
                evidence, host_power_w=made.inputs.n_nodes * self._energy.host_power_w, pue=self._energy.pue
            )
            saving = expected_saving(made.decision, ahead, of_gpus, now_s=now_s, curve=curve)
        has_known_end = ahead.ends_s is not None and ahead.ends_s <= MAX_TIME_S
        told, cut = ahead.mixes[:MAX_SCHEDULED], ahead.mixes[MAX_SCHEDULED:]
        schedule = RunSchedule(
            objective=self._config.objective,
            entries=[self._entry(each, curve) for each in told],
            until_s=cut[0].starts_s if cut else ahead.until_s,
            max_slowdown_ratio=objective.max_slowdown if isinstance(objective, SlowdownObjective) else None,
            deadline_s=objective.deadline_s if isinstance(objective, DeadlineObjective) else None,
            budget=objective.budget if isinstance(objective, BudgetObjective) else None,
            expected_end_s=ahead.ends_s if has_known_end else None,
            expected_slowdown_ratio=slowdown_ratio if is_known else None,
            expected_slowdown_ci90_ratio=half_ratio if is_known else None,
        )
        return msgspec.structs.replace(schedule, **_told_saving(saving))

    def _entry(self, planned: PlannedMix, curve: PowerProfile) -> ScheduleEntry:
        low, high, high_ratio = planned.mix
        is_pause = low.iterations_per_s == 0
        is_mixed = high is not low and not is_pause
        return ScheduleEntry(
            starts_s=planned.starts_s,
            power_limit_w=self._requested_w((high if is_pause else low).power_limit_w, curve),
            power_w=planned.power_w,
            speed_ratio=planned.rate_per_s / curve.fastest.iterations_per_s,
            second_power_limit_w=self._requested_w(high.power_limit_w, curve) if is_mixed else None,
            second_ratio=high_ratio if is_mixed else None,
            paused_ratio=1 - high_ratio if is_pause else None,
        )

    def _plan_pause(self, decision: Decision, pause: PlannedPause, inputs: PlanInputs) -> None:
        """Let the run wait for its part of the period, first or last."""
        if self._target is None:
            return
        running = replace(self._target, reason="deadline_signal")
        is_price = inputs.history is not None and inputs.history.kind == "price"
        later = "electricity is cheaper later" if is_price else "the grid is cleaner later"
        until = f"{datetime.fromtimestamp(pause.ends_s, UTC):%H:%M} UTC"
        why = f"until about {until}: {later}"
        waiting = replace(self._target, speed_ratio=None, detail=f"paused {why}; {decision.detail}", pause_why=why)
        is_first = pause.from_s <= inputs.now_s
        self._target, second = (waiting, running) if is_first else (running, waiting)
        from_s = pause.until_s if is_first else pause.from_s
        if from_s < inputs.now_s + self._rules.period_s:
            self._later = _Later(from_s=from_s, planned_w=decision.power_limit_w, target=second)

    def explore(
        self,
        sample: PowerProfile,
        inputs: PlanInputs,
        probe: Explore,
        *,
        measured: PowerProfile,
        block_s: float,
        which: str,
    ) -> Target:
        """Return the target of a short block of time, planned on a possible curve; the next choice is a new plan.

        Nothing is held on to, and no two limits share a block: it is over before that pays.
        """
        self._target = self._later = self._current = self.made = None
        rules = SwitchingRules(period_s=block_s, min_dwell_s=block_s, min_gain_ratio=0.0)
        inputs = replace(inputs, slack=None)
        joint = inputs.joint(sample)
        curve = self._fitted(joint)
        objective = self._objective(inputs, max_power_w=self._max_power_w(inputs, sample, joint))
        decision = self._decide(curve, objective, rules, inputs)
        target = Target(
            power_limit_w=self._requested_w(decision.power_limit_w, curve),
            reason="refining",
            detail=f"exploring a limit that may be the best: {which}",
            job=self._job,
            signal=_signal_text(decision.signal_value, inputs.history, inputs.provenance),
            speed_ratio=_speed_ratio(posterior_mean(measured), decision.power_limit_w),
        )
        return self.begin_probe(probe, target, now_s=inputs.now_s)

    def begin_probe(self, probe: Probe, target: Target, *, now_s: float) -> Target:
        """Return the target of a probe that begins; the plan goes on after it."""
        self._probing = _Probing(probe=probe, since_s=now_s, target=target)
        return target

    def _fitted(self, curve: PowerProfile) -> PowerProfile:
        whole = curve.with_overhead(host_power_w=self._energy.host_power_w, pue=self._energy.pue)
        return fit_curve(whole, step_w=self._config.step_w)

    def _slack(self, inputs: PlanInputs, own: PowerProfile, joint: PowerProfile) -> SlackOptions | None:
        """Return how the run may use time to spare, its idle power that of all its nodes, with overhead."""
        slack = inputs.slack
        if slack is None or slack.idle_power_w is None:
            return slack
        return replace(slack, idle_power_w=self._on_all_nodes_w(slack.idle_power_w, inputs, own, joint))

    def _max_power_w(self, inputs: PlanInputs, own: PowerProfile, joint: PowerProfile) -> float:
        """Return the sum of all GPUs' highest limits, those of other nodes by what they draw, with overhead [W]."""
        return self._on_all_nodes_w(self._n_gpus * self._bounds_w[1], inputs, own, joint)

    def _on_all_nodes_w(self, gpus_w: float, inputs: PlanInputs, own: PowerProfile, joint: PowerProfile) -> float:
        """Return a power of this node's GPUs as that of all nodes, by what their GPUs draw, with overhead [W]."""
        hosts_w = inputs.n_nodes * self._energy.host_power_w
        all_gpus_w = joint.fastest.power_w - (hosts_w - self._energy.host_power_w)  # the leader's own is not in it
        return self._energy.pue * (gpus_w * all_gpus_w / own.fastest.power_w + hosts_w)

    def _decide(self, curve: PowerProfile, objective: Objective, rules: SwitchingRules, inputs: PlanInputs) -> Decision:
        return choose_power_limit(
            profile=curve,
            objective=objective,
            rules=rules,
            history=inputs.history,
            forecast=inputs.forecast,
            now_s=inputs.now_s,
            progress=inputs.progress,
            current=self._current,
            slack=inputs.slack,
        )

    def _objective(self, inputs: PlanInputs, *, max_power_w: float) -> Objective:
        started_at_s = inputs.progress.started_at_s
        return objective_of(
            self._config, started_at_s=started_at_s, max_power_w=max_power_w, time_limit_s=inputs.time_limit_s
        )

    def _requested_w(self, chosen_w: float, curve: PowerProfile) -> float:
        """Return the limit to request for one of the curve [W].

        Its highest limit may be what a power brake allowed while it was measured: who wants that one wants whatever
        the GPU may have by now.
        """
        floor_w, ceiling_w = self._bounds_w
        return ceiling_w if chosen_w == curve.fastest.power_limit_w else min(max(chosen_w, floor_w), ceiling_w)

    def _as_target(self, decision: Decision, curve: PowerProfile, inputs: PlanInputs) -> Target:
        provenance, detail = inputs.provenance, decision.detail
        return Target(
            power_limit_w=self._requested_w(decision.power_limit_w, curve),
            reason=provenance.reason or decision.reason,
            detail=f"{provenance.detail}: {detail}" if provenance.detail else detail,
            job=self._job,
            signal=_signal_text(decision.signal_value, inputs.history, provenance),
            speed_ratio=decision.iterations_per_s / curve.fastest.iterations_per_s,
        )


def rules_for(rules: PlanRules, goal: Goal | None) -> PlanRules:
    """Return the rules of a run for which a person has set a goal; None: the configured ones."""
    if goal is None:
        return rules
    if goal.max_slowdown_ratio is not None:
        return msgspec.structs.replace(rules, objective="slowdown", max_slowdown=goal.max_slowdown_ratio)
    deadline = datetime.fromtimestamp(goal.deadline_s or 0.0, UTC).isoformat()
    return msgspec.structs.replace(rules, objective="deadline", deadline=deadline)


def objective_of(
    rules: PlanRules, *, started_at_s: float, max_power_w: float, time_limit_s: float | None = None
) -> Objective:
    """Return the objective of a run that started at a time [Unix s], on GPUs with so much power [W].

    A deadline is never later than the moment at which its scheduler ends it [Unix s].
    """
    match rules.objective:
        case "slowdown":
            return SlowdownObjective(max_slowdown=rules.max_slowdown)
        case "eta":
            return EtaObjective(eta=rules.eta, max_power_w=max_power_w)
        case "deadline":
            by_s = deadline_s(rules.deadline, started_at_s=started_at_s)
            return DeadlineObjective(deadline_s=by_s if time_limit_s is None else min(by_s, time_limit_s))
        case "budget":
            return BudgetObjective(budget=rules.budget)


def _speed_ratio(curve: PowerProfile, power_limit_w: float) -> float:
    """Return the rate at a limit, as a share of that at the highest."""
    return curve.at(power_limit_w)[1] / curve.fastest.iterations_per_s


def _signal_text(value: float | None, history: Signal | None, provenance: Provenance) -> str | None:
    """Return the value that the decision rests on, its unit and its source; None where there was none."""
    if value is None or history is None or history.kind == "energy":
        return None
    return f"{value:.4g} {history.unit} ({provenance.source})" if provenance.source else f"{value:.4g} {history.unit}"


def _told_saving(saving: ExpectedSaving | None) -> dict[str, float]:
    """Return what a plan expects to save with its intervals, by field, as far as it is known to a point."""
    if saving is None:
        return {}
    told: dict[str, float] = {}
    for name, ratio, error_ratio in (
        ("saved", saving.signal_ratio, saving.signal_error_ratio),
        ("saved_energy", saving.energy_ratio, saving.energy_error_ratio),
    ):
        if ratio is not None and error_ratio is not None and NORMAL_QUANTILE * error_ratio <= MAX_CI90_RATIO:
            told |= {f"expected_{name}_ratio": ratio, f"expected_{name}_ci90_ratio": NORMAL_QUANTILE * error_ratio}
    return told
