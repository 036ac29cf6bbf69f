"""The limit of one run, decided: to be measured, tried out, planned, or the highest where it cannot be profiled."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec

from controller.accounting.meter_intervals import MeterInterval
from controller.accounting.run_ledger import RunLedger, TimeBudgetStart
from controller.config import EnergyConfig, PlanRules, ProfilerConfig
from controller.control.curve_learning import (
    CurveState,
    CurveUpdate,
    NotProfiled,
    Planned,
    Profiling,
    Waiting,
    advance_curve,
    begin_curve,
    measured_in,
    observation_of,
    posterior_mean,
    posterior_sample,
    with_stalls,
)
from controller.control.plan import Explore, Look, MadePlan, PlanInputs, PlannedTarget, Probe, rules_for
from controller.ports import Target
from controller.ports.orders import Goal, GoalPreview, Pin, PinPreview
from policies import profiling
from policies.planning import Progress
from policies.planning.hours_ahead import Evidence, slowdown_after
from policies.planning.time_ledger import BaseTime
from policies.profiling import ProfilerSettings
from policies.profiling.measurement import Observation
from policies.profiling.paired_looks import SLOW_SETTLE_S, TOP_S
from policies.profiling.rhythm import NotProfiledReason
from policies.profiling.rhythm_track import RunRhythm
from policies.savings.books import Purpose
from policies.savings.interval import MIN_LOOKS, NORMAL_QUANTILE
from policies.vocabulary.profile import LIMIT_TOLERANCE_W, PowerProfile
from publishers.messages.reports import RunSchedule

UNBOUNDED_W: Final = (0.0, math.inf)
"""Of a run without a pin: its plan has bounds of its own."""
SAME_COUNT_RATIO: Final = 0.9
"""A count that falls by less goes on: of several ranks, by their work, it may fall a little."""
FOLLOW_S = 2.0
"""A change of limit takes so much longer on the other nodes of a run: there it goes by the broker."""
REFUSALS: Final[Mapping[NotProfiledReason, str]] = {
    "bursts_ambiguous": (
        "its marks come in bursts, which may be the batches of one step or the steps before a pause; let the training"
        " tell its steps: a framework's callback, or publisher.iteration() after each"
    ),
    "pauses_frequent": "one iteration in ten, or more, takes several times as long as the others",
    "pauses_unclear": "its pauses (a validation, a checkpoint, a wait) cannot be told from long iterations",
    "too_short": "it has too few iterations",
    "not_steady": "no limit was stable long enough to be measured",
}
"""Why a run is not profiled, in words for its owner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveStart:
    """From what a curve is learnt.

    Attributes:
        floor_power_limit_w: the lowest limit that every GPU takes [W].
        ceiling_power_limit_w: the highest one, the reference of every promise [W].
        known: what this job has measured already; it is not measured again.
        prior: the curve of a similar job: it is checked, and adopted or dropped.
        n_gpus: how many GPUs the power of an interval is the sum of.
    """

    floor_power_limit_w: float
    ceiling_power_limit_w: float
    known: PowerProfile | None = None
    prior: PowerProfile | None = None
    n_gpus: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionInputs:
    """What a decision rests on beside the curve.

    Attributes:
        now_s: Unix time [s].
        n_iterations: how many iterations the slowest process has done.
        rhythm: what is known of the rhythm of the run.
        waits_because: why nothing is to be measured now, in words for its owner; "": it may be.
        is_multi_node: whether the run has other nodes.
        pin: the limit at which a person holds the run; None: its plan decides.
        goal: what a person wants of the plan; None: the configured objective holds.
        bounds_w: with a pin: between which limits every GPU takes what is asked for, none above its prior limit (floor,
            ceiling) [W].
        curve_start: from what the curve is learnt; None: not now.
        plan: what a plan rests on.
    """

    now_s: float
    n_iterations: float
    rhythm: RunRhythm = field(default_factory=RunRhythm)
    waits_because: str = ""
    is_multi_node: bool = False
    pin: Pin | None = None
    goal: Goal | None = None
    bounds_w: tuple[float, float] = UNBOUNDED_W
    # These two are calls, because most decisions only find that a target still holds: the start of a curve takes a
    # search among all stored ones, and a plan a guess from all former runs of the job.
    curve_start: Callable[[], CurveStart | None]
    plan: Callable[[], PlanInputs]


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitDecision:
    """The limit that a run should have, and what follows from it for others.

    Attributes:
        target: the limit, with its reason; None: as before.
        purpose: what the limit is for; None: as before, while the run waits.
        voids_measurements: whether what was measured before is void: another curve holds from here on.
        not_profiled_reason: why the run is not profiled; None where it is, or will be.
    """

    target: Target | None
    purpose: Purpose | None
    voids_measurements: bool
    not_profiled_reason: NotProfiledReason | None


class LimitControl:
    """The decisions for one run, in their order. No clock, no GPU, no bus.

    While the curve is measured the limit is the one to measure next; then it is the limit of the plan: for the first
    blocks of time made on a curve drawn from what is possible, which tries out what may be best, then on the probable
    one. Now and then it is the highest one for some seconds: a look at what the limits are relative to it.

    Attributes:
        state: what is known of the curve.
        profile: the curve as it is published and accounted by, with its stalls; None before anything is known.
        budget_start: where the time budget of the run starts; None: at its beginning.
        ledger: the time at each limit since then, and what the limits are relative to the highest one.
        goal: what a person wants of the plan; None: the configured objective holds.
        rules: those of the plan, the goal included.
    """

    def __init__(
        self,
        *,
        job: str,
        run: str = "",
        profiler: ProfilerConfig,
        rules: PlanRules,
        energy: EnergyConfig,
        may_look: bool = True,
    ) -> None:
        self.state: CurveState = Waiting()
        self.profile: PowerProfile | None = None
        self.budget_start: TimeBudgetStart | None = None
        self.ledger = RunLedger()
        self._is_multi_node = False
        self._may_look = may_look
        self._length_s: float | None = None
        self._job = job
        self._run = run
        self._profiler = profiler
        self.goal: Goal | None = None
        self.rules = self._configured = rules
        self._energy = energy
        self._plan: PlannedTarget | None = None
        self._restarts_budget = False
        self._left: BaseTime | None = None
        """Of a curve that the job has left: how long the work of a second would have taken at the highest limit."""
        self._is_paused = False
        self._pinned: tuple[Pin, Target] | None = None
        self._unsettled_s = 0.0
        self._rhythm = RunRhythm()

    def decide(self, inputs: DecisionInputs) -> LimitDecision:
        """Return the limit that the run should have now, and what follows from it."""
        self._is_multi_node = inputs.is_multi_node
        voids_measurements = self._update_rhythm(inputs.rhythm)
        self._aim(inputs)
        start = inputs.curve_start() if isinstance(self.state, Waiting) else None
        if start is not None:
            self.begin(start)
        if inputs.pin is not None:
            if self._restarts_budget:  # now: what follows is lost time, for which the plan makes up
                self._restart_budget(inputs.plan().progress, inputs.now_s)
            return LimitDecision(
                target=self._pin(inputs.pin, inputs.bounds_w),
                purpose=Purpose.PINNED,
                voids_measurements=voids_measurements,
                not_profiled_reason=self.not_profiled_reason,
            )
        self._pinned = None
        waits_because, purpose = inputs.waits_because, None
        target = self._highest_while_waiting(waits_because) if waits_because else None
        not_profiled_reason = self.not_profiled_reason
        if target is None:
            target = self._current(inputs.now_s, inputs.n_iterations) or self._choose(inputs.plan())
            purpose = self._purpose
        return LimitDecision(
            target=target,
            purpose=purpose,
            voids_measurements=voids_measurements,
            not_profiled_reason=not_profiled_reason,
        )

    def _aim(self, inputs: DecisionInputs) -> None:
        """Let the plan follow another goal, or the configured one again: its time budget begins now.

        A controller that goes on with the goal of a former one goes on with its time budget.
        """
        goal, start = inputs.goal, self.budget_start
        if goal != self.goal:
            self.goal, self.rules = goal, rules_for(self._configured, goal)
            if self._plan is not None:
                self._plan.aim(self.rules)
        is_of_goal = (start and start.goal_set_at_s) == (goal and goal.set_at_s)
        if not (is_of_goal or self._restarts_budget):
            self.budget_start = self._starting_now(inputs.plan().progress, inputs.now_s)
            self.ledger.restart_times()
            if self._plan is not None:
                self._plan.suspend()

    @property
    def pin(self) -> Pin | None:
        """Return at what limit a person holds the run; None: its plan decides."""
        return None if self._pinned is None else self._pinned[0]

    def _pin(self, pin: Pin, bounds_w: tuple[float, float]) -> Target:
        """Return the target of a pin. The plan begins anew after it, and what was being measured goes on then."""
        if self._pinned is None:
            self.ledger.is_looking = False
            if self._plan is not None:
                self._plan.suspend()
        is_refining = isinstance(self.state, Planned) and not self.state.is_exploring
        self._is_paused = not is_refining  # neither the sweep nor a trial has asked for this limit
        limit_w = clamped_w(math.inf if pin.power_limit_w is None else pin.power_limit_w, bounds_w)
        speed = self._known_at(limit_w)
        speed_ratio = None if speed is None else speed[0]
        known = self._pinned
        is_same = known is not None and known[0] == pin and known[1].power_limit_w == limit_w
        if known is None or not is_same or (known[1].speed_ratio is None) != (speed_ratio is None):
            target = Target(
                power_limit_w=limit_w, reason="pinned", detail=pin.detail, job=self._job, speed_ratio=speed_ratio
            )
            self._pinned = known = pin, target
        return known[1]

    def _known_at(self, power_limit_w: float) -> tuple[float, float] | None:
        """Return the speed at a limit, as a share of full speed, and the power there [W]; None: not known yet."""
        if not isinstance(self.state, Planned):
            return None
        curve = posterior_mean(self.state.refinement.profile)
        if power_limit_w < curve.points[0].power_limit_w - LIMIT_TOLERANCE_W:
            return None
        power_w, rate_per_s = curve.at(power_limit_w)
        return rate_per_s / curve.fastest.iterations_per_s, power_w

    def preview(self, power_limit_w: float, duration_s: float, inputs: PlanInputs) -> PinPreview:
        """Return what a pin at a limit that the GPUs may have would do, as far as that is known.

        How much slower the run will have been is told as in records: only from so many looks on, with its interval.
        """
        is_bounded = self.rules.objective == "slowdown"
        seen = PinPreview(
            power_limit_w=power_limit_w, max_slowdown_ratio=self.rules.max_slowdown if is_bounded else None
        )
        known = self._known_at(power_limit_w)
        if known is None or not isinstance(self.state, Planned):
            return seen
        seen = replace(seen, speed_ratio=known[0], power_w=known[1])
        curve = posterior_mean(self.state.refinement.profile)
        if self.ledger.looks.n_looks(curve.fastest.power_limit_w) < MIN_LOOKS:
            return seen
        progress = self._with_base(_since(self.budget_start, inputs.progress))
        after = slowdown_after(progress, inputs.joint(curve), power_limit_w=power_limit_w, duration_s=duration_s)
        if after is None or after[1] is None:
            return seen
        half_ratio = NORMAL_QUANTILE * after[1] * after[0]
        return replace(seen, slowdown_ratio=after[0], slowdown_ci90_ratio=half_ratio)

    def preview_goal(self, goal: Goal, inputs: PlanInputs) -> GoalPreview:
        """Return what the plan would do with another goal, as far as the curve is known; nothing is changed."""
        if not isinstance(self.state, Planned) or self._plan is None:
            return GoalPreview()
        plan, present = self._plan.with_rules(rules_for(self._configured, goal)), self.made_plan
        if goal.max_slowdown_ratio is not None:
            since_now = _since(self._starting_now(inputs.progress, inputs.now_s), inputs.progress)
            inputs = replace(inputs, progress=replace(since_now, base_s=0.0, base_error_ratio=0.0))
        target = plan.choose(self.state.refinement.profile, inputs)
        made = plan.made
        then = None if made is None else plan.schedule(made, n_looks=self._n_looks(made))
        now = None if present is None else self.schedule(present)
        if then is None:
            return GoalPreview()
        first, end_s = then.entries[0], then.expected_end_s
        if self.pin is not None or (goal.until_s is not None and (end_s is None or end_s > goal.until_s)):
            then = msgspec.structs.replace(  # it is of another goal, too
                then, expected_end_s=None, expected_slowdown_ratio=None, expected_slowdown_ci90_ratio=None
            )
        return GoalPreview(
            planned_power_limit_w=first.power_limit_w,
            second_power_limit_w=first.second_power_limit_w,
            speed_ratio=first.speed_ratio,
            planned_reason=target.reason,
            expected_end_s=None if now is None else now.expected_end_s,
            planned_end_s=then.expected_end_s,
            planned_slowdown_ratio=then.expected_slowdown_ratio,
            planned_slowdown_ci90_ratio=then.expected_slowdown_ci90_ratio,
            time_limit_s=inputs.time_limit_s,
        )

    def begin(self, start: CurveStart) -> None:
        """Start to learn the curve between two limits."""
        config = self._profiler
        settings = ProfilerSettings(
            prior_power_limit_w=start.ceiling_power_limit_w,
            floor_power_limit_w=start.floor_power_limit_w,
            n_gpus=start.n_gpus,
            settle_s=config.settle_s,
            sees_settling=not self._is_multi_node,
            window_s=config.window_s,
            step_ratio=config.step_ratio,
            tolerance_ratio=config.tolerance_ratio,
            block_s=config.block_s,
            n_blocks=config.n_blocks,
        )
        self._plan = PlannedTarget(
            job=self._job,
            rules=self.rules,
            energy=self._energy,
            bounds_w=(start.floor_power_limit_w, start.ceiling_power_limit_w),
            n_gpus=start.n_gpus,
        )
        self.state = begin_curve(settings, start.known, start.prior, n_drifts=self.state.n_drifts)
        self._update_profile()

    def reset(self) -> None:
        """Drop the curve: the run's GPUs are others now."""
        self.state, self.profile, self._plan = Waiting(n_drifts=self.state.n_drifts), None, None

    def _update_rhythm(self, rhythm: RunRhythm) -> bool:
        """Take note of what is known of the rhythm of the run; return whether what was measured before is void.

        It is where it cannot be told any more what an iteration is, or where that has turned out to be something else.
        """
        before, self._rhythm = self._rhythm, rhythm
        if isinstance(self.state, Waiting):
            return False
        if isinstance(self.state, NotProfiled):
            if rhythm.not_profiled_reason is None:
                self.reset()
            else:
                self.state = replace(self.state, reason=rhythm.not_profiled_reason)
            return False
        is_planned = isinstance(self.state, Planned)  # then a wait that was taken for a pause is no more than a drift
        is_other = rhythm.unit != before.unit if is_planned else rhythm.regime != before.regime
        if rhythm.not_profiled_reason is None and not is_other:
            if (before.standing, rhythm.standing) == ("unknown", "known"):
                self._update_profile()
            return False
        settings, n_drifts = self.state.settings, self.state.n_drifts
        self.reset()
        if rhythm.not_profiled_reason is not None:
            self.state = NotProfiled(settings=settings, reason=rhythm.not_profiled_reason, n_drifts=n_drifts)
        self._restarts_budget = True
        return True

    @property
    def not_profiled_reason(self) -> NotProfiledReason | None:
        """Return why the run is not profiled; None where it is, or will be."""
        match self.state:
            case NotProfiled(reason=reason):
                return reason
            case Profiling(sweep=sweep) if profiling.target_power_limit_w(sweep) is None:
                return "not_steady"
        return None

    @property
    def made_plan(self) -> MadePlan | None:
        """Return the plan that the run follows, also in a look; None: it has none."""
        return self._plan.made if self._plan is not None and isinstance(self.state, Planned) else None

    def schedule(self, made: MadePlan, evidence: Evidence | None = None) -> RunSchedule | None:
        """Return what a plan of this run expects of the hours ahead, and to save by what is known of its limits."""
        if self._plan is None:
            return None
        schedule, goal = self._plan.schedule(made, n_looks=self._n_looks(made), evidence=evidence), self.goal
        if self.budget_start is not None and schedule.max_slowdown_ratio is not None:
            schedule = msgspec.structs.replace(schedule, budget_since_s=self.budget_start.since_s)
        if goal is None:
            return schedule
        return msgspec.structs.replace(schedule, goal_by=goal.by, goal_why=goal.why, goal_until_s=goal.until_s)

    def _n_looks(self, made: MadePlan) -> int:
        return self.ledger.looks.n_looks(made.curve.fastest.power_limit_w)

    @property
    def _purpose(self) -> Purpose:
        """Return what the limit that was last chosen is for."""
        if self.ledger.is_looking:
            return Purpose.LOOK
        return Purpose.FIRST_PASS if isinstance(self.state, Waiting | Profiling) else Purpose.PLAN

    def restart_time_budget(self) -> None:
        """Reset the time budget: what was seen so far at once, and its beginning at the next decision."""
        self._restarts_budget, self.ledger = True, self.ledger.on_new_curve()

    def observe(
        self, interval: MeterInterval, *, enforced_power_limit_w: float, warmth_w: tuple[float, ...] = ()
    ) -> CurveUpdate | None:
        """Learn from an active interval at a limit that was in force all the time; None where it does not count.

        Args:
            interval: what the run did.
            enforced_power_limit_w: the limit [W].
            warmth_w: how warm the boards were, as filtered powers [W].
        """
        if self._is_paused:  # it came back at the highest limit, which is not the one that is measured
            return None
        if self._unsettled_s > 0:
            self._unsettled_s -= interval.duration_s
            return None
        if self._is_held:
            return None
        if isinstance(self.state, Planned):
            self.state = self._observed_by_looks(
                self.state, observation_of(interval, enforced_power_limit_w=enforced_power_limit_w, warmth_w=warmth_w)
            )
        before = self.state
        update = advance_curve(before, interval, enforced_power_limit_w=enforced_power_limit_w)
        self.state = update.state
        if self._rhythm.standing == "unknown":  # what is measured holds once it is known what an iteration is
            return replace(update, is_new=False)
        if update.is_new or update.dropped:
            self._update_profile()
        if update.dropped and isinstance(before, Planned):
            self._restarts_budget, self._left = True, self._base_of_second(before.refinement.profile)
        return update

    def _base_of_second(self, measured: PowerProfile) -> BaseTime:
        """Return how long the work of a second on a curve would have taken at the highest limit, in the mean.

        Too few looks show no time that is left: the job may have been changing while its curve was measured.
        """
        base = self.ledger.base(measured, active_s=1.0)
        if self.ledger.looks.n_looks(measured.fastest.power_limit_w) >= MIN_LOOKS:
            return base
        return replace(base, base_s=min(base.base_s, 1 / self.rules.max_slowdown))

    def _observed_by_looks(self, state: Planned, seen: Observation) -> Planned:
        """Let the looks learn; where these show that limits bite slowly, measurements wait for longer, too."""
        self.ledger.observe(
            seen, state.refinement, state.settings, settle_s=self._look_settle_s, least_s=self._least_look_s
        )
        if not self.ledger.looks.bites_slowly:
            return state
        settle_s = max(state.settings.settle_s, SLOW_SETTLE_S)
        return replace(state, settings=replace(state.settings, settle_s=settle_s, sees_settling=False))

    def _highest_while_waiting(self, why: str) -> Target | None:
        """Return the highest limit, for a pause in mid-measurement: no validation must run at what was tried out."""
        match self.state:
            case Profiling(settings=settings):
                what = "profile"
            case Planned(settings=settings) if self._plan is not None and self._plan.is_probing:
                what = "trial"
            case _:
                return None
        self._is_paused = True
        return self._highest(settings, "profiling_paused", f"{why}: the {what} waits at the highest limit")

    def _current(self, now_s: float, n_iterations: float) -> Target | None:
        """Return the target that still holds at a time [Unix s], or None where one is to be chosen."""
        if self._is_paused:
            self._is_paused, self._unsettled_s = False, self._profiler.settle_s
        if self.budget_start is not None and n_iterations < SAME_COUNT_RATIO * self.budget_start.n_iterations:
            self.budget_start = None  # the iteration count restarts: another process has taken a rank's place
        if self._restarts_budget or self._plan is None or not isinstance(self.state, Planned):
            return None
        may_look, is_exploring = self._may_look and self.rules.objective != "budget", self.is_exploring
        if may_look and not (is_exploring or self._plan.is_pausing):
            self._update_look(self.state)
        return self._plan.current(now_s, self._probe(self.state, is_exploring=is_exploring))

    def drop_pause(self) -> None:
        """Plan anew, if the run is to wait: it may not, or has not."""
        if self._plan is not None:
            self._plan.drop_pause()

    def _choose(self, inputs: PlanInputs) -> Target | None:
        """Return the limit that the run should have now, with its reason; None before there is one."""
        progress = inputs.progress
        if self._restarts_budget:
            self._restart_budget(progress, inputs.now_s)
        self._length_s = _length_s(progress)
        if self.rules.objective == "slowdown":
            inputs = replace(inputs, progress=self._with_base(_since(self.budget_start, progress)))
        match self.state:
            case Profiling() as state:
                return self._to_measure(state)
            case NotProfiled(settings=settings, reason=reason):
                return self._highest(settings, "not_profiled", refusal_of(reason))
            case Planned() as state if self._plan is not None:
                return self._planned(state, self._plan, inputs)
        return None

    def _restart_budget(self, progress: Progress, now_s: float) -> None:
        """Begin another ledger; a job that has left its curve keeps what it has used, and has left, of its time.

        Not of the time of another goal: each goal has its own.
        """
        start, before = self._starting_now(progress, now_s), self.budget_start
        is_of_goal = (before and before.goal_set_at_s) == start.goal_set_at_s
        self.budget_start = start.on_new_curve(before, self._left) if self._left and is_of_goal else start
        self._restarts_budget, self._left = False, None
        self.ledger = self.ledger.on_new_curve()
        if self._plan is not None:
            self._plan.reset()

    def _starting_now(self, progress: Progress, now_s: float) -> TimeBudgetStart:
        return TimeBudgetStart(
            n_iterations=progress.n_iterations,
            active_s=progress.active_s,
            goal_set_at_s=None if self.goal is None else self.goal.set_at_s,
            since_s=now_s,
        )

    def _update_profile(self) -> None:
        measured = measured_in(self.state)
        self.profile = with_stalls(measured) if measured else None

    def _to_measure(self, state: Profiling) -> Target:
        wanted_w = profiling.target_power_limit_w(state.sweep)
        if wanted_w is None:
            return self._highest(state.settings, "not_profiled", refusal_of("not_steady"))
        if self._is_held:
            detail = "at the highest limit until it is known what an iteration of the run is"
            return self._highest(state.settings, "profiling", detail)
        detail = f"measuring limit {len(state.sweep.points) + 1}"
        return Target(power_limit_w=wanted_w, reason="profiling", detail=detail, job=self._job)

    @property
    def _is_held(self) -> bool:
        """Return whether a lower limit is to be measured, and it is not known yet what an iteration is."""
        if self._rhythm.standing != "unknown" or not isinstance(self.state, Profiling):
            return False
        wanted_w = profiling.target_power_limit_w(self.state.sweep)
        return wanted_w is not None and wanted_w < self.state.settings.prior_power_limit_w - LIMIT_TOLERANCE_W

    def _highest(self, settings: ProfilerSettings, reason: str, detail: str) -> Target:
        return Target(power_limit_w=settings.prior_power_limit_w, reason=reason, detail=detail, job=self._job)

    @property
    def is_exploring(self) -> bool:
        """Return whether the plan tries out what may be best.

        In doubt nothing is learnt, so that a trial would last for as long as the doubt. At the highest limit it may, if
        the doubt has an end: that costs no time, and a power brake that has gone shows nowhere else.
        """
        if not isinstance(self.state, Planned) or not self.state.is_exploring:
            return False
        return not self.state.drift.is_suspected or self._checks_drift_at_highest(self.state)

    def _checks_drift_at_highest(self, state: Planned) -> bool:
        """Return whether the highest limit is tried out until it is clear whether the job is another one there."""
        return state.resolves_suspected_drift and self._plan is not None and self._plan.is_probing_the_highest

    def _update_look(self, state: Planned) -> None:
        """Begin or end a look; in doubt none begins, and one that has begun may show what the doubt is about."""
        if state.drift.is_suspected and (not self.ledger.is_looking or self._checks_drift_at_highest(state)):
            return
        self.ledger.update_look(
            state.refinement,
            state.settings,
            settle_s=self._look_settle_s,
            length_s=self._length_s,
            least_s=self._least_look_s,
        )

    @property
    def _least_look_s(self) -> float:
        """Return how long a look takes at least [s].

        Other nodes compare, too, and do not know this one's noise. And a short look ends with its first window, before
        there may be a suspicion: where that deviates from the curve, as when a power brake has gone, more are seen.
        Where limits bite slowly, a short look would see the biting alone.
        """
        has_shown = self.ledger.is_looking and isinstance(self.state, Planned) and self.state.drift.has_shown
        return TOP_S if self._is_multi_node or has_shown or self.ledger.looks.bites_slowly else 0.0

    @property
    def _look_settle_s(self) -> float:
        return self._profiler.settle_s + (FOLLOW_S if self._is_multi_node else 0.0)

    def _with_base(self, progress: Progress) -> Progress:
        """Return the progress with the time that the work so far would have taken at the highest limit."""
        if not isinstance(self.state, Planned):
            return progress
        base = self.ledger.base(self.state.refinement.profile, active_s=progress.active_s)
        former_error_s = self.budget_start.former_error_s if self.budget_start else 0.0
        error_s, whole_s = (
            math.hypot(base.error_ratio * base.base_s, former_error_s),
            base.base_s + progress.former_base_s,
        )
        return replace(progress, base_s=base.base_s, base_error_ratio=error_s / whole_s if whole_s > 0 else 0.0)

    def _probe(self, state: Planned, *, is_exploring: bool) -> Probe | None:
        """Return what is to be learnt at a limit other than the plan's; None: the plan holds."""
        if is_exploring:
            return Explore(state.refinement.n_blocks + 1)
        return Look(self.ledger.looks.n_pairs) if self.ledger.is_looking else None

    def _planned(self, state: Planned, plan: PlannedTarget, inputs: PlanInputs) -> Target:
        """Return the target of a run whose curve is known: the plan's, or that of a probe."""
        measured, settings = state.refinement.profile, state.settings
        match self._probe(state, is_exploring=self.is_exploring):
            case None:
                return plan.choose(measured, inputs)
            case Look() as look:
                detail = "comparing the speed at the highest limit with that at the planned one"
                highest = replace(self._highest(settings, "refining", detail), speed_ratio=1.0)
                return plan.begin_probe(look, highest, now_s=inputs.now_s)
            case Explore(n_block) as block:
                which = f"measurement {n_block} of {settings.n_blocks} that refine the curve"
                sample = posterior_sample(measured, job=self._job, run=self._run, n_block=n_block)
                return plan.explore(sample, inputs, block, measured=measured, block_s=settings.block_s, which=which)


def clamped_w(power_limit_w: float, bounds_w: tuple[float, float]) -> float:
    """Return the limit that is set where one is asked for [W]: never above the upper bound, whatever the lower is.

    One that nearly is the upper bound is that: once it is in force a restore could not tell the two apart.

    >>> clamped_w(50.0, (100.0, 280.0)), clamped_w(400.0, (100.0, 280.0)), clamped_w(279.9, (100.0, 280.0))
    (100.0, 280.0, 280.0)
    """
    floor_w, ceiling_w = bounds_w
    if power_limit_w >= ceiling_w - LIMIT_TOLERANCE_W:
        return ceiling_w
    return min(max(power_limit_w, floor_w), ceiling_w)


def refusal_of(reason: NotProfiledReason) -> str:
    """Return why a run is not profiled, and what follows: a sentence."""
    return f"the run is not profiled, and keeps the highest limit: {REFUSALS[reason]}"


def _length_s(progress: Progress) -> float | None:
    """Return how long a run will have been active in all, by its rate so far [s]; None where nothing is known of it."""
    guessed = progress.guessed
    total_iterations = guessed.total_iterations if guessed is not None else progress.total_iterations
    if total_iterations is None or not progress.n_iterations > 0:
        return None
    return progress.active_s * total_iterations / progress.n_iterations


def _since(start: TimeBudgetStart | None, progress: Progress) -> Progress:
    """Return the progress since the time budget began."""
    if start is None:
        return progress
    before, total_iterations, guessed = start.n_iterations, progress.total_iterations, progress.guessed
    return replace(
        progress,
        n_iterations=max(progress.n_iterations - before, 0.0),
        active_s=max(progress.active_s - start.active_s, 0.0),
        former_active_s=start.former_active_s,
        former_base_s=start.former_base_s,
        total_iterations=None if total_iterations is None else total_iterations - before,
        guessed=guessed and replace(guessed, total_iterations=guessed.total_iterations - before),
    )
