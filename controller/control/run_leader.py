"""Chooses the power limit of a run on the node that leads it: the node of rank 0.

A run on a single node has its leader there. The curve is measured on this node and stored; other nodes report theirs.
"""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from controller.accounting.energy_account import EnergyAccount
from controller.accounting.iteration_log import RankLog
from controller.accounting.meter_intervals import MeterInterval
from controller.accounting.other_nodes import OtherNodes
from controller.accounting.ranks import Ranks, RunIdentity
from controller.accounting.reports import ProfileState, RunReporter
from controller.accounting.run_books import GpusNow, RunBooks
from controller.accounting.run_ledger import LedgerSnapshot, RunLedger, TimeBudgetStart
from controller.config import Config
from controller.control.curve_learning import (
    CurveState,
    CurveUpdate,
    Planned,
    Waiting,
    measured_in,
)
from controller.control.gpu_group import GpuGroup
from controller.control.limit_control import (
    UNBOUNDED_W,
    CurveStart,
    DecisionInputs,
    LimitControl,
    clamped_w,
    refusal_of,
)
from controller.control.multi_node import NodeShare, PlanBroadcast, joint_ratios
from controller.control.plan import MadePlan, PlanInputs
from controller.control.profile_store import ProfileKey, ProfileStore
from controller.history.length_guess import guessed_length
from controller.history.run_history import BegunRun, JobKey, RunHistory
from controller.ports import Blocked, Provenance, SignalSource, Target
from controller.ports.orders import Goal, GoalPreview, Pin, PinPreview
from controller.runtime.clock import NS_PER_S, Now
from policies.forecasting.past_errors import rms_errors
from policies.planning import Progress, SlackOptions
from policies.planning.hours_ahead import Evidence
from policies.planning.run_length import GuessedLength
from policies.planning.slack.plan import known_ahead_s
from policies.profiling.paired_looks import Looks
from policies.profiling.rhythm import NotProfiledReason
from policies.savings.books import Purpose
from policies.vocabulary.limit_ratios import LimitRatios
from policies.vocabulary.profile import PowerProfile
from policies.vocabulary.units import HOUR_S, Values

HELD_OUT: Final = Blocked(
    reason="held_out",
    detail="held out at the prior limit, as the job's other runs are compared with it (plan.holdout_ratio)",
)
USUAL_IDLE_RATIO: Final = 0.2
"""What GPUs draw that wait in mid-training, as a share of what they draw at the highest limit, until it is measured."""
MAX_BAR_S: Final = 3_600.0
"""For so long at most no pause is planned after one that was ended; a bar beyond is of a clock that was set back."""
SCHEDULE_PERIOD_S: Final = 60.0
"""Between two schedules that are published of a run, however often it is planned anew."""

_LOGGER = logging.getLogger(__name__)


class RunLeader:
    """Leads a run: decides on its limit, stores its curve, and broadcasts the plan to its other nodes.

    Attributes:
        limits: the decisions.
    """

    def __init__(
        self,
        run: RunIdentity,
        *,
        config: Config,
        signal: SignalSource,
        store: ProfileStore,
        history: RunHistory,
        ranks: Ranks,
        gpus: GpuGroup,
        account: EnergyAccount,
        reporter: RunReporter,
        other_nodes: OtherNodes,
        books: RunBooks,
        notify: Callable[[str, str], None],
        pin_of: Callable[[], Pin | None] = lambda: None,
        goal_of: Callable[[], Goal | None] = lambda: None,
    ) -> None:
        self._notify = notify
        self._pin_of = (lambda: None) if config.plan.observe else pin_of
        self._goal_of = (lambda: None) if config.plan.observe else goal_of
        self._has_told = False
        self._run = run
        self._key = JobKey(run.user, run.job)
        self._history = history
        self._holdout_ratio = config.plan.job_holdout_ratio(run.job)
        self._may_hold_out = config.plan.may_hold_out(run.job)
        self._begun: BegunRun | None = None
        rules = config.plan.rules_of(run.job)
        self._may_pause = rules.may_pause and not config.plan.observe
        self.no_pause_until_s = -math.inf
        self._energy = config.energy
        self._pause_s = config.profiler.pause_s
        self._signal = signal
        self._store = store
        self._ranks = ranks
        self._gpus = gpus
        self._account = account
        self._reporter = reporter
        self._other_nodes = other_nodes
        self._published: tuple[object, ...] = ()
        self._scheduled: MadePlan | None = None
        self._scheduled_s = -math.inf
        self._scheduled_goal: Goal | None = None
        self._asking: Target | None = None
        self._broadcast = PlanBroadcast(run, reporter=reporter)
        self.limits = LimitControl(
            job=run.job,
            run=run.run,
            profiler=config.profiler,
            rules=rules,
            energy=config.energy,
            may_look=not config.plan.observe,
        )
        self._books = books

    @property
    def profile(self) -> PowerProfile | None:
        """Return this node's curve, as far as it is measured."""
        return self.limits.profile

    @property
    def is_steady(self) -> bool:
        """Return whether the limit comes from the plan, and is not just being measured."""
        state = self.limits.state
        is_tried = self.limits.pin is not None or self.limits.ledger.is_looking
        return isinstance(state, Planned) and not (state.is_exploring or is_tried)

    @property
    def has_planned(self) -> bool:
        """Return whether the first sweep of the curve is done."""
        return isinstance(self.limits.state, Planned)

    @property
    def has_begun(self) -> bool:
        """Return whether anything was decided yet."""
        return self.is_held_out or not isinstance(self.limits.state, Waiting)

    @property
    def is_held_out(self) -> bool:
        """Return whether the run is held out at the prior limit."""
        return self._begun is not None and self._begun.is_held_out and self._may_hold_out

    @property
    def looks(self) -> Looks:
        """Return what was seen of the limits, relative to the highest one."""
        return self.limits.ledger.looks

    def snapshot(self) -> tuple[LedgerSnapshot, TimeBudgetStart | None]:
        """Return the time at each limit, and where the time budget starts: what another controller resumes with."""
        return self.limits.ledger.snapshot(), self.limits.budget_start

    def resume(
        self, *, ledger: LedgerSnapshot | None, time_budget_start: TimeBudgetStart | None, no_pause_until_s: float
    ) -> None:
        """Go on with the time budget of a former controller, or begin a new one, saying which; plan no pause before."""
        limits, name = self.limits, self._ranks.name
        self.no_pause_until_s = max(self.no_pause_until_s, no_pause_until_s)
        limits.budget_start = time_budget_start
        if ledger is None:
            limits.restart_time_budget()
            _LOGGER.info("%s: the time budget restarts: the run so far has no ledger", name)
            return
        limits.ledger = RunLedger(ledger)
        n_looks, n_hours = limits.ledger.looks.n_pairs, sum(each.active_s for each in limits.ledger.times) / HOUR_S
        _LOGGER.info("%s: the time budget resumes: %.3g h, %d looks", name, n_hours, n_looks)

    def bar_pauses(self, until_s: float) -> None:
        """Plan no pause until a time [Unix s]: the last one was ended, or never began."""
        self.no_pause_until_s = until_s
        self.limits.drop_pause()

    def add_time(self, interval: MeterInterval, gpus: GpusNow) -> None:
        """Add an interval, active or not, to the time at its limit; say of which curve the books are."""
        self.limits.ledger.add(interval, gpus.in_force)
        if isinstance(self.limits.state, Planned):
            self._books.curve = self.limits.state.refinement.profile
        if self._books.purpose is Purpose.PINNED and self._gpus.requested is None and not self._ranks.ending:
            self._books.purpose = Purpose.PLAN  # what another program sets, or what was before, is nobody's pin

    def observe(self, interval: MeterInterval) -> CurveUpdate | None:
        """Learn from an active interval, if it ran at the requested limit; store a curve that is new."""
        enforced_w = self._gpus.enforced_w(interval.begin_ns)
        if enforced_w is None:
            return None
        warmth_w = self._books.thermal.warmth_w
        update = self.limits.observe(interval, enforced_power_limit_w=enforced_w, warmth_w=warmth_w)
        if update is not None and update.is_new:
            self._store_curve(update.state)
        return update

    def target(self, now: Now) -> Target | Blocked | None:
        """Return the limit that the run should have now.

        One that is held out has none of ours for all of its life: it is what the others are compared with.
        """
        self._begun = self._begun or self._history.begin(self._key, self._run.run, holdout_ratio=self._holdout_ratio)
        if self.is_held_out:
            return HELD_OUT
        ranks, slowest, pin = self._ranks, self._ranks.slowest, self._pin_of()
        waits_because = "no iterations" if slowest.is_paused(now.monotonic_ns, after_s=self._pause_s) else ""
        decision = self.limits.decide(
            DecisionInputs(
                now_s=now.wall_s,
                n_iterations=ranks.n_done,
                rhythm=ranks.rhythm,
                waits_because="a GPU cannot be read" if self._account.has_unreadable_gpu else waits_because,
                is_multi_node=ranks.is_multi_node,
                pin=pin,
                goal=self._goal_of(),
                bounds_w=self._pin_bounds_w() if pin is not None else UNBOUNDED_W,
                curve_start=self._curve_start,
                plan=partial(self._plan_inputs, now, slowest),
            )
        )
        if decision.voids_measurements:
            self._books.curve = None
            self._books.close(Looks())
        if decision.purpose is not None:
            self._books.purpose = decision.purpose
        if decision.not_profiled_reason is not None and not self._has_told:
            self._tell(decision.not_profiled_reason)
        target = decision.target
        if target is not None and target.pause_why and self._paused_for_s(now) is None:
            return self._asking_for(target)
        return target

    def _pin_bounds_w(self) -> tuple[float, float]:
        """Return between which limits a pin may be: never above a prior limit, whatever the operator's ceiling is."""
        floor_w, ceiling_w = self._gpus.bounds_w()
        return floor_w, min(ceiling_w, self._gpus.least_prior_power_limit_w)

    def preview_pin(self, power_limit_w: float, duration_s: float, now: Now) -> PinPreview:
        """Return what a pin at a limit [W] for some time [s] would do, as far as that is known."""
        n_gpus = len(self._gpus.uuids)
        if not (self._gpus.states() and self._ranks.members):
            return PinPreview(power_limit_w=power_limit_w, n_gpus=n_gpus)
        limit_w = clamped_w(power_limit_w, self._pin_bounds_w())
        inputs = self._plan_inputs(now, self._ranks.slowest)
        return replace(self.limits.preview(limit_w, duration_s, inputs), n_gpus=n_gpus)

    def preview_goal(self, goal: Goal, now: Now) -> GoalPreview:
        """Return what the plan would do with another goal, as far as that is known."""
        if not (self._gpus.states() and self._ranks.members):
            return GoalPreview()
        return self.limits.preview_goal(goal, self._plan_inputs(now, self._ranks.slowest, goal))

    def _tell(self, not_profiled_reason: NotProfiledReason) -> None:
        """Tell the owner of the run, once, that it is not profiled, and why."""
        self._has_told = True
        detail = refusal_of(not_profiled_reason)
        _LOGGER.warning("%s: %s (%s)", self._ranks.name, detail, not_profiled_reason)
        self._notify("not_profiled", detail)

    def _asking_for(self, target: Target) -> Target:
        """Return the target of a pause that has not begun: one object, so that it is requested once."""
        asking = replace(target, reason="pause_asked", detail=f"asked to pause {target.detail.removeprefix('paused ')}")
        if asking != self._asking:
            self._asking = asking
        return self._asking

    def publish(self, target: Target | Blocked | None, *, is_barred: bool, now: Now) -> None:
        """Publish the curve where it has changed; broadcast the target to the other nodes, if there are any."""
        gpus, limits = self._gpus, self.limits
        state: ProfileState = "observing" if is_barred or self.is_held_out else limits.state.name
        reason = limits.not_profiled_reason if state == limits.state.name else None
        work = self._ranks.work_per_iteration
        current = state, reason, limits.profile, len(gpus.uuids), self._ranks.status.batch_size, work
        if current != self._published:
            self._published = current
            self._reporter.publish_profile(
                limits.profile, state=state, reason=reason, gpu_model=gpus.model, n_gpus=len(gpus.uuids)
            )
        self._publish_schedule(None if is_barred or isinstance(target, Blocked) else limits.made_plan, now_s=now.wall_s)
        if target is not None and self._ranks.is_multi_node and gpus.states():
            self._broadcast.publish(
                target,
                gpu_model=gpus.model,
                max_power_limit_w=gpus.bounds_w()[1],
                is_steady=isinstance(target, Target) and self.is_steady,
                now=now,
            )

    def _publish_schedule(self, made: MadePlan | None, *, now_s: float) -> None:
        """Publish what a new plan expects, once a minute at most, but the first one, or of another goal, at once.

        Clear that of the last one where there is none.
        """
        before = self._scheduled
        if made is None:
            self._scheduled = None
            self._reporter.publish_schedule(None)
        elif made is not before and (
            before is None
            or self.limits.goal != self._scheduled_goal
            or abs(now_s - self._scheduled_s) >= SCHEDULE_PERIOD_S
        ):
            self._scheduled, self._scheduled_s, self._scheduled_goal = made, now_s, self.limits.goal
            try:
                schedule = self.limits.schedule(made, self._evidence(made))
            except Exception:  # what is told must not end what acts
                _LOGGER.exception("%s: what its plan expects is not published", self._ranks.name)
                schedule = None
            self._reporter.publish_schedule(schedule)

    def _evidence(self, made: MadePlan) -> Evidence | None:
        """Return what the expected saving of a plan rests on; None: the books have no curve."""
        if self._books.curve is None:
            return None
        known_s = known_ahead_s(made.inputs.history, made.inputs.now_s)
        is_what_it_should_be = not made.inputs.provenance.reason
        return Evidence(
            ratios=partial(self._limit_ratios, made.inputs),
            forecast_errors=self._signal.forecast_errors() if is_what_it_should_be else None,
            known_s=known_s if is_what_it_should_be else 0.0,
            look_ratio=self._books.look_ratio,
        )

    def _limit_ratios(
        self, inputs: PlanInputs, limits_w: Sequence[float]
    ) -> tuple[Sequence[LimitRatios], Values] | None:
        """Return what limits are relative to the highest one for all GPUs of the run; None: a node does not know."""
        own, curve = self._books.limit_ratios(self.looks, limits_w), self._books.curve
        if inputs.share is None or curve is None:
            return own
        return joint_ratios(own, curve, inputs.share, inputs.node_profiles)

    def _curve_start(self) -> CurveStart | None:
        """Return from what the curve is learnt; None: a stored one waits until it is known what an iteration is."""
        floor_w, ceiling_w = self._gpus.bounds_w()
        stored = self._store.load(self._profile_key())
        is_unknown = self._ranks.rhythm.standing == "unknown" or self._ranks.awaits_work
        if stored is not None and stored.kind == "exact" and is_unknown:
            return None
        if stored is not None:
            _LOGGER.info("%s: using a stored profile (%s): %s", self._ranks.name, stored.kind, stored.origin)
            stored = stored.counted_by(self._ranks.work_per_iteration)
        return CurveStart(
            floor_power_limit_w=floor_w,
            ceiling_power_limit_w=ceiling_w,
            known=stored.profile if stored and stored.kind == "exact" else None,
            prior=stored.profile if stored and stored.kind == "prior" else None,
            n_gpus=len(self._gpus.uuids),
        )

    def _paused_for_s(self, now: Now) -> float | None:
        """Return for how long the training has waited, by its own word [s]; None: it does not."""
        since_ns = self._ranks.status.paused_since_ns
        return None if since_ns is None else max(now.monotonic_ns - since_ns, 0) / NS_PER_S

    def _slack(self, provenance: Provenance, now: Now) -> SlackOptions | None:
        """Return how the run may use time to spare before a deadline; None where the signal is not fresh."""
        if provenance.reason:
            return None
        status, profile = self._ranks.status, self.limits.profile
        is_asked = status.pausable and not self._ranks.is_pool  # the processes of a pool cannot wait for each other
        may_pause = self._may_pause and is_asked and now.wall_s >= self.no_pause_until_s
        idle_power_w, errors = None, self._signal.forecast_errors()
        if may_pause and profile is not None:
            idle_power_w = self._books.asked_pause_power_w or USUAL_IDLE_RATIO * profile.fastest.power_w
        return SlackOptions(
            idle_power_w=idle_power_w,
            max_pause_s=status.max_pause_s or 0.0,
            paused_for_s=self._paused_for_s(now),
            rms_errors=None if errors is None else rms_errors(errors),
        )

    def _plan_inputs(self, now: Now, slowest: RankLog, goal: Goal | None = None) -> PlanInputs:
        """Return what a plan rests on, with the goal of the run, or another one."""
        status, provenance, total = self._ranks.status, self._signal.provenance(), self._ranks.n_in_all()
        has_deadline = self.limits.rules.objective == "deadline" if goal is None else goal.deadline_s is not None
        return PlanInputs(
            now_s=now.wall_s,
            history=self._signal.history(),
            forecast=self._signal.forecast(),
            progress=Progress(
                n_iterations=self._ranks.n_done,
                active_s=self._ranks.running_s,
                started_at_s=status.started_at_s,
                total_iterations=total,
                spent=self._spent(),
                asked_pause_s=(status.paused_s or 0.0) + (self._paused_for_s(now) or 0.0),
                guessed=None if total is not None else self._guessed_length(now, slowest),
            ),
            provenance=provenance,
            share=self._share(),
            node_profiles=tuple(self._other_nodes.profiles.values()),
            slack=self._slack(provenance, now) if has_deadline else None,
            time_limit_s=status.time_limit_s,
        )

    def _guessed_length(self, now: Now, slowest: RankLog) -> GuessedLength | None:
        """Return where the run is taken to end by former runs, counted as what is done of this one."""
        guessed = guessed_length(
            self._history.ended(self._key),
            self._ranks.status,
            gpu_model=self._gpus.model,
            n_iterations=slowest.n_iterations,
            n_unobserved=slowest.n_unobserved,
            now_s=now.wall_s,
        )
        if guessed is None or not slowest.n_iterations:
            return guessed
        mean_ratio = self._ranks.n_done / slowest.n_iterations
        return replace(guessed, total_iterations=guessed.total_iterations * mean_ratio)

    def _spent(self) -> float | None:
        """Return what a budget has paid for the run on all nodes; None while that is not known."""
        kind, energy = self._signal.kind, self._energy
        here = self._account.totals.spent(kind=kind, host_power_w=energy.host_power_w, pue=energy.pue)
        if here is None or not self._ranks.is_multi_node:
            return here
        return here + self._other_nodes.spent(kind=kind, host_power_w=energy.host_power_w, pue=energy.pue)

    def _share(self) -> NodeShare | None:
        """Return this node's part of a run on several nodes; None where it is on this one alone."""
        n_gpus, n_ranks = len(self._gpus.uuids), len(self._ranks.members)
        if not (self._ranks.is_multi_node and n_gpus and n_ranks):
            return None
        return NodeShare(
            n_gpus=n_gpus,
            n_ranks=n_ranks,
            world_size=self._ranks.status.world_size,
            host_power_w=self._energy.host_power_w,
        )

    def _store_curve(self, state: CurveState) -> None:
        measured = measured_in(state)
        if measured is None:
            return
        self._store.save(self._profile_key(), measured, work_per_iteration=self._ranks.work_per_iteration)
        if isinstance(state, Planned):
            points = measured.points
            limits_w = sorted(point.power_limit_w for point in points)
            _LOGGER.info(
                "%s: power curve measured at %d limits, %g to %g W",
                self._ranks.name, len(limits_w), limits_w[0], limits_w[-1],
            )  # fmt: skip
            curve = (f"{p.power_limit_w:g} W: {p.power_w:.0f} W {p.iterations_per_s:.4g} it/s" for p in points)
            _LOGGER.debug("%s: power curve: %s", self._ranks.name, ", ".join(curve))

    def _profile_key(self) -> ProfileKey:
        status = self._ranks.status
        return ProfileKey(
            user=self._run.user,
            job=self._run.job,
            gpu_model=self._gpus.model,
            n_gpus=len(self._gpus.uuids),
            world_size=status.world_size,
            batch_size=status.batch_size,
            gpu_uuids=tuple(sorted(self._gpus.uuids)),
            driver=self._store.driver,
        )
