"""Chooses the power limit of a run on the node that leads it: the node of rank 0.

A run on a single node has its leader there. The curve is measured on this node and stored; other nodes report theirs.
"""

import logging
from dataclasses import dataclass, replace

from controller.accounting.energy_account import EnergyAccount
from controller.accounting.iteration_log import IterationLog
from controller.accounting.meter_intervals import MeterInterval
from controller.accounting.other_nodes import OtherNodes
from controller.accounting.ranks import Ranks, RunIdentity
from controller.accounting.reports import RunReporter
from controller.config import Config, EnergyConfig, PlanRules, ProfilerConfig
from controller.control.curve_learning import (
    CurveState,
    CurveUpdate,
    Planned,
    Profiling,
    Waiting,
    advance_curve,
    begin_curve,
    measured_in,
    posterior_sample,
    with_stalls,
)
from controller.control.gpu_group import GpuGroup
from controller.control.multi_node import NodeShare, PlanBroadcast, joint_profile
from controller.control.plan import PlanInputs, PlannedTarget
from controller.control.profile_store import ProfileKey, ProfileStore
from controller.ports import Blocked, SignalSource, Target
from policies import profiling
from policies.planning import Progress
from policies.profiling import ProfilerSettings
from policies.vocabulary.profile import PowerProfile

REFERENCE_BLOCKS = 4
"""Every fourth block measures the highest limit, until it is known well. The time that a run gains there it spends at
lower limits."""

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeBudgetStart:
    """Where a run was when its curve was dropped: a new curve has a new time budget.

    Attributes:
        n_iterations: how many iterations had passed.
        active_s: the time in which they ran [s].
    """

    n_iterations: float
    active_s: float


class LimitControl:
    """The decisions for one run, in their order. No clock, no GPU, no bus.

    While the curve is measured the limit is the one to measure next; then it is the limit of the plan: for the first
    blocks of time made on a curve drawn from what is possible, which tries out what may be best, then on the probable
    one.

    Attributes:
        state: what is known of the curve.
        profile: the curve as it is published and accounted by, with its stalls; None before anything is known.
        budget_start: where the time budget of the run starts; None: at its beginning.
    """

    def __init__(
        self, *, job: str, run: str = "", profiler: ProfilerConfig, rules: PlanRules, energy: EnergyConfig
    ) -> None:
        self.state: CurveState = Waiting()
        self.profile: PowerProfile | None = None
        self.budget_start: TimeBudgetStart | None = None
        self._job = job
        self._run = run
        self._profiler = profiler
        self._rules = rules
        self._energy = energy
        self._plan: PlannedTarget | None = None
        self._restarts_budget = False
        self._is_paused = False
        self._unsettled_s = 0.0

    def begin(
        self,
        *,
        floor_power_limit_w: float,
        ceiling_power_limit_w: float,
        known: PowerProfile | None,
        prior: PowerProfile | None = None,
        n_gpus: int = 1,
    ) -> None:
        """Start to learn the curve between two limits.

        Args:
            floor_power_limit_w: the lowest limit that every GPU takes [W].
            ceiling_power_limit_w: the highest one, the reference of every promise [W].
            known: what this job has measured already; it is not measured again.
            prior: the curve of a similar job: it is checked, and adopted or dropped.
            n_gpus: how many GPUs the power of an interval is the sum of.
        """
        config = self._profiler
        settings = ProfilerSettings(
            prior_power_limit_w=ceiling_power_limit_w,
            floor_power_limit_w=floor_power_limit_w,
            n_gpus=n_gpus,
            settle_s=config.settle_s,
            window_s=config.window_s,
            step_ratio=config.step_ratio,
            tolerance_ratio=config.tolerance_ratio,
            block_s=config.block_s,
            n_blocks=config.n_blocks,
        )
        self._plan = PlannedTarget(
            job=self._job,
            rules=self._rules,
            energy=self._energy,
            bounds_w=(floor_power_limit_w, ceiling_power_limit_w),
            n_gpus=n_gpus,
        )
        self.state = begin_curve(settings, known, prior, n_drifts=self.state.n_drifts)
        self._update_profile()

    def reset(self) -> None:
        """Drop the curve: the run's GPUs are others now."""
        self.state, self.profile, self._plan = Waiting(n_drifts=self.state.n_drifts), None, None

    def restart_time_budget(self) -> None:
        """Reset the time budget at the next decision."""
        self._restarts_budget = True

    def observe(self, interval: MeterInterval, *, enforced_power_limit_w: float) -> CurveUpdate | None:
        """Learn from an active interval at a limit that was in force all the time; None where it does not count."""
        if self._is_paused:  # it came back at the highest limit, which is not the one that is measured
            return None
        if self._unsettled_s > 0:
            self._unsettled_s -= interval.duration_s
            return None
        update = advance_curve(self.state, interval, enforced_power_limit_w=enforced_power_limit_w)
        self.state = update.state
        if update.is_new or update.dropped:
            self._update_profile()
        if update.dropped:
            self._restarts_budget = True
        return update

    def highest_while_paused(self, why: str = "no iterations") -> Target | None:
        """Return the highest limit, for a pause in mid-measurement: no validation must run at what was tried out."""
        match self.state:
            case Profiling(settings=settings):
                what = "profile"
            case Planned(settings=settings) if self._plan is not None and self._plan.is_trying:
                what = "trial"
            case _:
                return None
        self._is_paused = True
        return self._highest(settings, "profiling_paused", f"{why}: the {what} waits at the highest limit")

    def current(self, now_s: float, n_iterations: float) -> Target | None:
        """Return the target that still holds at a time [Unix s], or None where one is to be chosen."""
        if self._is_paused:
            self._is_paused, self._unsettled_s = False, self._profiler.settle_s
        if self.budget_start is not None and n_iterations < self.budget_start.n_iterations:
            self.budget_start = None  # the iteration count restarts: another process has taken a rank's place
        if self._restarts_budget or self._plan is None or not isinstance(self.state, Planned):
            return None
        return self._plan.current(now_s, self._trial_block(self.state))

    def choose(self, inputs: PlanInputs) -> Target | None:
        """Return the limit that the run should have now, with its reason; None before there is one."""
        progress = inputs.progress
        if self._restarts_budget:
            self.budget_start = TimeBudgetStart(n_iterations=progress.n_iterations, active_s=progress.active_s)
            self._restarts_budget = False
            if self._plan is not None:
                self._plan.reset()
        if self._rules.objective == "slowdown":
            inputs = replace(inputs, progress=_since(self.budget_start, progress))
        match self.state:
            case Profiling() as state:
                return self._to_measure(state)
            case Planned() as state if self._plan is not None:
                n_block = self._trial_block(state)
                if n_block is None:
                    return self._plan.choose(state.refinement.profile, inputs)
                return self._trial(state, self._plan, inputs, n_block)
        return None

    def _update_profile(self) -> None:
        measured = measured_in(self.state)
        self.profile = with_stalls(measured) if measured else None

    def _to_measure(self, state: Profiling) -> Target:
        wanted_w = profiling.target_power_limit_w(state.sweep)
        if wanted_w is None:
            detail = "no limit was stable long enough to be measured: keeping the highest one"
            return self._highest(state.settings, "not_profiled", detail)
        detail = f"measuring limit {len(state.sweep.points) + 1}"
        return Target(power_limit_w=wanted_w, reason="profiling", detail=detail, job=self._job)

    def _highest(self, settings: ProfilerSettings, reason: str, detail: str) -> Target:
        return Target(power_limit_w=settings.prior_power_limit_w, reason=reason, detail=detail, job=self._job)

    def _measures_reference(self, state: Planned) -> bool:
        """Return whether the next block measures the highest limit."""
        is_its_turn = self._rules.objective == "slowdown" and (state.refinement.n_blocks + 1) % REFERENCE_BLOCKS == 0
        return is_its_turn and not state.knows_its_reference

    def _trial_block(self, state: Planned) -> int | None:
        """Return the block in which a limit is tried out now, or None where the plan holds.

        In doubt nothing is learnt, so that a trial would last for as long as the doubt. At the highest limit it may:
        that costs no time, and a brake that has gone shows nowhere else.
        """
        is_exploring = state.is_exploring and not state.drift.is_suspected
        return state.refinement.n_blocks + 1 if is_exploring or self._measures_reference(state) else None

    def _trial(self, state: Planned, plan: PlannedTarget, inputs: PlanInputs, n_block: int) -> Target:
        """Return the target of the block in which something is tried out."""
        which = f"measurement {n_block} of {state.settings.n_blocks} that refine the curve"
        if self._measures_reference(state):
            target = self._highest(state.settings, "refining", f"the promise is relative to the highest limit: {which}")
            return plan.try_target(target, n_block=n_block, now_s=inputs.now_s)
        sample = posterior_sample(state.refinement.profile, job=self._job, run=self._run, n_block=n_block)
        return plan.try_out(sample, inputs, n_block=n_block, block_s=state.settings.block_s, which=which)


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
        ranks: Ranks,
        gpus: GpuGroup,
        account: EnergyAccount,
        reporter: RunReporter,
        other_nodes: OtherNodes,
    ) -> None:
        self._user = run.user
        self._job = run.job
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
        self._broadcast = PlanBroadcast(run, reporter=reporter)
        self.limits = LimitControl(
            job=run.job,
            run=run.run,
            profiler=config.profiler,
            rules=config.plan.rules_of(run.job),
            energy=config.energy,
        )

    @property
    def profile(self) -> PowerProfile | None:
        """Return this node's curve, as far as it is measured."""
        return self.limits.profile

    @property
    def is_steady(self) -> bool:
        """Return whether the limit comes from the plan, and is not just being measured."""
        state = self.limits.state
        return isinstance(state, Planned) and not state.is_exploring

    @property
    def has_planned(self) -> bool:
        """Return whether the first sweep of the curve is done."""
        return isinstance(self.limits.state, Planned)

    @property
    def has_begun(self) -> bool:
        """Return whether anything was decided yet."""
        return not isinstance(self.limits.state, Waiting)

    def observe(self, interval: MeterInterval) -> CurveUpdate | None:
        """Learn from an active interval, if it ran at the requested limit; store a curve that is new."""
        enforced_w = self._gpus.enforced_w(interval.begin_ns)
        if enforced_w is None:
            return None
        update = self.limits.observe(interval, enforced_power_limit_w=enforced_w)
        if update is not None and update.is_new:
            self._store_curve(update.state)
        return update

    def target(self, *, now_s: float, now_ns: int) -> Target | None:
        """Return the limit that the run should have now, at a Unix time [s] and a monotonic one [ns]."""
        limits, slowest = self.limits, self._ranks.slowest
        if isinstance(limits.state, Waiting):
            self._begin()
        is_paused = slowest.is_paused(now_ns, after_s=self._pause_s)
        if self._account.is_blind or is_paused:
            highest = limits.highest_while_paused("a GPU cannot be read" if self._account.is_blind else "no iterations")
            if highest is not None:
                return highest
        return limits.current(now_s, slowest.n_iterations) or limits.choose(self._plan_inputs(now_s, slowest))

    def publish(self, target: Target | Blocked | None, *, is_barred: bool, now_s: float, now_ns: int) -> None:
        """Publish the curve where it has changed; broadcast the target to the other nodes, if there are any."""
        gpus, limits = self._gpus, self.limits
        state = "observing" if is_barred else limits.state.name
        current = state, limits.profile, len(gpus.uuids), self._ranks.status.batch_size
        if current != self._published:
            self._published = current
            self._reporter.publish_profile(limits.profile, state=state, gpu_model=gpus.model, n_gpus=len(gpus.uuids))
        if target is not None and self._ranks.is_multi_node and gpus.states():
            self._broadcast.publish(
                target,
                gpu_model=gpus.model,
                max_power_limit_w=gpus.bounds_w()[1],
                is_steady=isinstance(target, Target) and self.is_steady,
                wall_s=now_s,
                now_ns=now_ns,
            )

    def _begin(self) -> None:
        """Begin to learn the curve, from a stored one where there is one."""
        floor_w, ceiling_w = self._gpus.bounds_w()
        stored = self._store.load(self._key())
        if stored is not None:
            _LOGGER.info("%s: using a stored profile (%s): %s", self._ranks.name, stored.kind, stored.origin)
        self.limits.begin(
            floor_power_limit_w=floor_w,
            ceiling_power_limit_w=ceiling_w,
            known=stored.profile if stored and stored.kind == "exact" else None,
            prior=stored.profile if stored and stored.kind == "prior" else None,
            n_gpus=len(self._gpus.uuids),
        )

    def _plan_inputs(self, now_s: float, slowest: IterationLog) -> PlanInputs:
        status = self._ranks.status
        return PlanInputs(
            now_s=now_s,
            history=self._signal.history(),
            forecast=self._signal.forecast(),
            progress=Progress(
                n_iterations=slowest.n_iterations,
                active_s=slowest.running_s,
                started_at_s=status.started_at_s,
                total_iterations=slowest.total_iterations(status.total_iterations),
                spent=self._spent(),
            ),
            provenance=self._signal.provenance(),
            joint=self._joint,
        )

    def _spent(self) -> float | None:
        """Return what a budget has paid for the run on all nodes; None while that is not known."""
        kind, energy = self._signal.kind, self._energy
        here = self._account.totals.spent(kind=kind, host_power_w=energy.host_power_w, pue=energy.pue)
        if here is None or not self._ranks.is_multi_node:
            return here
        return here + self._other_nodes.spent(kind=kind, host_power_w=energy.host_power_w, pue=energy.pue)

    def _joint(self, own: PowerProfile) -> PowerProfile:
        """Return the curve of all nodes at the limits of this node's own."""
        n_gpus, n_ranks = len(self._gpus.uuids), len(self._ranks.members)
        if not (self._ranks.is_multi_node and n_gpus and n_ranks):
            return own
        share = NodeShare(
            n_gpus=n_gpus,
            n_ranks=n_ranks,
            world_size=self._ranks.status.world_size,
            host_power_w=self._energy.host_power_w,
        )
        return joint_profile(own, share, self._other_nodes.profiles.values())

    def _store_curve(self, state: CurveState) -> None:
        measured = measured_in(state)
        if measured is None:
            return
        self._store.save(self._key(), measured)
        if isinstance(state, Planned):
            curve = ", ".join(
                f"{p.power_limit_w:g} W: {p.power_w:.0f} W {p.iterations_per_s:.4g} it/s" for p in measured.points
            )
            _LOGGER.info("%s: power curve measured: %s", self._ranks.name, curve)

    def _key(self) -> ProfileKey:
        status = self._ranks.status
        return ProfileKey(
            user=self._user,
            job=self._job,
            gpu_model=self._gpus.model,
            n_gpus=len(self._gpus.uuids),
            world_size=status.world_size,
            batch_size=status.batch_size,
            gpu_uuids=tuple(sorted(self._gpus.uuids)),
            driver=self._store.driver,
        )


def _since(start: TimeBudgetStart | None, progress: Progress) -> Progress:
    """Return the progress since the time budget began."""
    if start is None:
        return progress
    total_iterations = progress.total_iterations
    return replace(
        progress,
        n_iterations=progress.n_iterations - start.n_iterations,
        active_s=max(progress.active_s - start.active_s, 0.0),
        total_iterations=None if total_iterations is None else total_iterations - start.n_iterations,
    )
