"""Chooses the power limit of a run on the node that leads it: the node of rank 0.

Steering one run: which limit it should have now, by what is known of its curve. No clock, no GPU, no bus.

While the curve is measured it is the limit that is to be measured next; afterwards it is the limit of the plan: for the
first blocks of time of a curious one, which tries out what may be best, then of the real one.

Leading a run: the limit that follows from its curve on this node, and from what the other nodes tell of theirs.

A run on one node is led there; one on several, by the node of rank 0. The curve is measured here, and kept on disk.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from controller.accounting.energy_account import EnergyAccount, MeterInterval
from controller.accounting.ranks import Ranks, RunIdentity
from controller.accounting.reports import RunReporter
from controller.config import Config, EnergyConfig, PlanConfig, ProfilerConfig
from controller.control.curve_learning import (
    CurveLearning,
    Planned,
    Profiling,
    State,
    Waiting,
    measured_in,
    posterior_sample,
)
from controller.control.gpu_group import Blocked, GpuGroup
from controller.control.multi_node import NodeShare, PlanBroadcast
from controller.control.plan import PlanInputs, PlannedTarget, alone
from controller.control.profile_store import ProfileKey, ProfileStore, StoredProfile
from controller.ports import Provenance, SignalSource, Target
from policies import profiling
from policies.planning import Progress
from policies.profiling import ProfilerSettings
from policies.vocabulary.profile import PowerProfile
from policies.vocabulary.signal import Signal

__all__ = ["LimitControl", "Planned", "Profiling", "State", "TimeBudgetStart", "Waiting"]

REFERENCE_BLOCKS = 4
"""Every fourth block measures the highest limit, until it is known well. The time that a run gains there it spends at
lower limits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeBudgetStart:
    """Where a run was when it left its curve: a new curve has a new ledger of time.

    Attributes:
        n_iterations: how many iterations had passed.
        active_s: the time in which they ran [s].
    """

    n_iterations: float
    active_s: float


class LimitControl:
    """The decisions for one run, in their order; `ledger`: where its ledger of time starts, None at its beginning."""

    def __init__(
        self, *, job: str, run: str = "", profiler: ProfilerConfig, plan: PlanConfig, energy: EnergyConfig
    ) -> None:
        self._job = job
        self._run = run
        self._profiler = profiler
        self._rules = plan.rules_of(job)
        self._energy = energy
        self._learning = CurveLearning()
        self._plan: PlannedTarget | None = None
        self._trial: tuple[int, float, Target] | None = None
        """The block in which a limit is tried out, since when [Unix s], and its target."""
        self.ledger: TimeBudgetStart | None = None
        self._n_left = 0
        self._opens_ledger = False
        self._is_paused = False
        self._unsettled_s = 0.0

    @property
    def state(self) -> State:
        """Return what is known of the curve."""
        return self._learning.state

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
        return self._learning.profile

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
            prior: the curve of something like it: it is checked, and adopted or forgotten.
            n_gpus: how many GPUs the power of a slice is the sum of.
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
        self._learning.begin(settings, known, prior)

    def reset(self) -> None:
        """Forget the curve: the run's GPUs or ranks are others now."""
        self._learning.reset()
        self._trial = None

    def open_ledger(self) -> None:
        """Let the ledger of time begin anew with the next decision."""
        self._opens_ledger = True

    def observe(self, piece: MeterInterval, *, enforced_power_limit_w: float) -> bool:
        """Take an active slice at a limit that was in force all the time; return whether the curve is to be kept."""
        if self._is_paused:  # it came back at the highest limit, which is not the one that is measured
            return False
        if self._unsettled_s > 0:
            self._unsettled_s -= piece.duration_s
            return False
        return self._learning.observe(piece, enforced_power_limit_w=enforced_power_limit_w)

    def take_left(self) -> PowerProfile | None:
        """Return the curve that the job has just left, once."""
        return self._learning.take_left()

    def wait_at_the_top(self, why: str = "no iterations") -> Target | None:
        """Return the highest limit, for a pause in mid-measurement: no validation must run at what was tried out."""
        match self.state:
            case Profiling(settings=settings):
                what = "profile"
            case Planned(settings=settings) if self._trial is not None:
                what = "trial"
            case _:
                return None
        self._is_paused = True
        return self._highest(settings, "profiling_paused", f"{why}: the {what} waits at the highest limit")

    def choose(
        self,
        *,
        now_s: float,
        history: Signal | None,
        forecast: Signal | None,
        progress: Progress,
        provenance: Provenance,
        joint: Callable[[PowerProfile], PowerProfile] = alone,
    ) -> Target | None:
        """Return the limit that the run should have now, with its reason; None while it has none to ask for."""
        if self._is_paused:
            self._is_paused, self._unsettled_s = False, self._profiler.settle_s
        if self._opens_ledger or self._n_left != self._learning.n_left:
            self._leave_curve(progress)
        if self.ledger is not None and progress.n_iterations < self.ledger.n_iterations:
            self.ledger = None  # the iterations are counted anew: another process has taken a rank's place
        outlook = PlanInputs(
            now_s=now_s,
            history=history,
            forecast=forecast,
            progress=_since(self.ledger, progress) if self._rules.objective == "slowdown" else progress,
            provenance=provenance,
            joint=joint,
        )
        match self.state:
            case Profiling() as state:
                return self._to_measure(state)
            case Planned() as state if self._plan is not None:
                return self._planned(state, self._plan, outlook)
        return None

    def _leave_curve(self, progress: Progress) -> None:
        """Drop what was planned on the former curve, and open a new ledger."""
        self._n_left, self._trial = self._learning.n_left, None
        self.ledger = TimeBudgetStart(n_iterations=progress.n_iterations, active_s=progress.active_s)
        self._opens_ledger = False
        if self._plan is not None:
            self._plan.reset()

    def _to_measure(self, state: Profiling) -> Target:
        wanted_w = profiling.target_power_limit_w(state.sweep)
        if wanted_w is None:
            detail = "no limit stood still long enough to be measured: the highest one is kept"
            return self._highest(state.settings, "not_profiled", detail)
        detail = f"measures limit {len(state.sweep.points) + 1}"
        return Target(power_limit_w=wanted_w, reason="profiling", detail=detail, job=self._job)

    def _highest(self, settings: ProfilerSettings, reason: str, detail: str) -> Target:
        return Target(power_limit_w=settings.prior_power_limit_w, reason=reason, detail=detail, job=self._job)

    def _planned(self, state: Planned, plan: PlannedTarget, outlook: PlanInputs) -> Target:
        """Return the target of the plan, or of the block in which something is tried out."""
        measured, n_block = state.refinement.profile, state.refinement.n_blocks + 1
        checks_reference = (
            self._rules.objective == "slowdown" and n_block % REFERENCE_BLOCKS == 0 and not state.knows_its_reference
        )
        # In doubt nothing is learnt, so that a trial would last for as long as the doubt. At the highest limit it may:
        # that costs no time, and a brake that has gone shows nowhere else.
        if not checks_reference and (state.drift.is_suspected or not state.is_exploring):
            self._trial = None
            return plan.choose(measured, outlook)
        if self._trial is not None:
            n_tried, since_s, target = self._trial
            if n_tried == n_block and since_s <= outlook.now_s < since_s + self._rules.period_s:
                return target
        which = f"measurement {n_block} of {state.settings.n_blocks} that refine the curve"
        if checks_reference:
            target = self._highest(state.settings, "refining", f"the promise is relative to the highest limit: {which}")
        else:
            supposed = posterior_sample(measured, job=self._job, run=self._run, n_block=n_block)
            target = plan.try_out(supposed, outlook, block_s=state.settings.block_s, which=which)
        self._trial = n_block, outlook.now_s, target
        return target


def _since(start: TimeBudgetStart | None, progress: Progress) -> Progress:
    """Return the progress since the ledger was opened."""
    if start is None:
        return progress
    total_iterations = progress.total_iterations
    return replace(
        progress,
        n_iterations=progress.n_iterations - start.n_iterations,
        active_s=max(progress.active_s - start.active_s, 0.0),
        total_iterations=None if total_iterations is None else total_iterations - start.n_iterations,
    )


_LOGGER = logging.getLogger(__name__)


class RunLeader:
    """The decisions for a run, and what they rest on."""

    def __init__(
        self,
        place: RunIdentity,
        *,
        config: Config,
        signal: SignalSource,
        store: ProfileStore,
        ranks: Ranks,
        holding: GpuGroup,
        books: EnergyAccount,
        news: RunReporter,
    ) -> None:
        self._place = place
        self._config = config
        self._signal = signal
        self._store = store
        self._ranks = ranks
        self._holding = holding
        self._books = books
        self._news = news
        self.fleet = PlanBroadcast(place, publish=news.publish)
        self._steering = LimitControl(
            job=place.job, run=place.run, profiler=config.profiler, plan=config.plan, energy=config.energy
        )

    @property
    def is_waiting(self) -> bool:
        """Return whether nothing was decided yet."""
        return isinstance(self._steering.state, Waiting)

    @property
    def is_steady(self) -> bool:
        """Return whether the limit comes from the plan, and is not just being measured."""
        state = self._steering.state
        return isinstance(state, Planned) and not state.is_exploring

    @property
    def profile(self) -> PowerProfile | None:
        """Return this node's curve, as far as it is measured."""
        return self._steering.profile

    @property
    def ledger(self) -> TimeBudgetStart | None:
        """Return where the ledger of time starts that holds now; None: at the beginning of the run."""
        return self._steering.ledger

    def go_on_from(self, ledger: TimeBudgetStart | None) -> None:
        """Take up the ledger of a former controller, before anything is decided."""
        self._steering.ledger = ledger

    def reset(self) -> None:
        """Forget the curve: the run's GPUs are others now."""
        self._steering.reset()

    def settle(self, profile: PowerProfile | None) -> None:
        """Settle what ran on a curve that holds no more: the baseline of it, and what time it has gained or lost."""
        if self._books.account.n_iterations:
            self._books.account.close_curve(profile)
            self._steering.open_ledger()

    def observe(self, piece: MeterInterval) -> bool:
        """Take an active slice, if it ran at the limit asked for; return whether the curve has grown."""
        enforced_w = self._holding.enforced_w(piece.begin_ns)
        if enforced_w is None:
            return False
        has_grown = self._steering.observe(piece, enforced_power_limit_w=enforced_w)
        if left := self._steering.take_left():
            self._books.account.close_curve(left)
        return has_grown

    def keep(self) -> None:
        """Keep the curve on disk."""
        measured = measured_in(self._steering.state)
        if measured is not None:
            self._store.save(self._key(), measured)
            if not isinstance(self._steering.state, Profiling):
                curve = ", ".join(
                    f"{p.power_limit_w:g} W: {p.power_w:.0f} W {p.iterations_per_s:.4g}/s" for p in measured.points
                )
                _LOGGER.info("%s: profiled: %s", self._ranks.name, curve)

    def wish(self, *, now_s: float, now_ns: int) -> Target | None:
        """Return the limit that the run should have now, at a Unix time [s] and a monotonic one [ns]."""
        if self.is_waiting:
            floor_w, ceiling_w = self._holding.bounds_w()
            known = self._recalled()
            self._steering.begin(
                floor_power_limit_w=floor_w,
                ceiling_power_limit_w=ceiling_w,
                known=known.exact if known else None,
                prior=known.prior if known else None,
                n_gpus=len(self._holding.uuids),
            )
        is_paused = self._ranks.is_paused(now_ns, window_s=self._config.profiler.patience_s)
        why = "a GPU cannot be read" if self._books.is_blind else "no iterations" if is_paused else ""
        return (self._steering.wait_at_the_top(why) if why else None) or self._choose(now_s)

    def tell_curve(self, *, is_barred: bool) -> None:
        """Publish the curve and how far it is; `is_barred`: no limit may be set."""
        self._news.tell_curve(self._steering.profile, state="observing" if is_barred else self._steering.name)

    def tell(self, wish: Target | Blocked, *, now_s: float, now_ns: int) -> None:
        """Tell the other nodes what the run is to have, or why nothing; where there are none, nobody is told."""
        if self._ranks.are_elsewhere and self._holding.states:
            is_steady = isinstance(wish, Target) and self.is_steady
            self.fleet.say(
                wish,
                gpu_model=self._holding.model,
                max_power_limit_w=self._holding.bounds_w()[1],
                is_steady=is_steady,
                wall_s=now_s,
                now_ns=now_ns,
            )

    def _choose(self, now_s: float) -> Target | None:
        slowest, status = self._ranks.slowest, self._ranks.status
        return self._steering.choose(
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
        kind, energy = self._signal.kind, self._config.energy
        here = self._books.account.spent(kind=kind, host_power_w=energy.host_power_w, pue=energy.pue)
        if here is None:
            return None
        return here + self._news.spent_elsewhere(kind=kind, host_power_w=energy.host_power_w, pue=energy.pue)

    def _joint(self, own: PowerProfile) -> PowerProfile:
        """Return the curve of all nodes at the limits of this node's own."""
        if not self._ranks.are_elsewhere:
            return own
        share = NodeShare(
            n_gpus=len(self._holding.uuids),
            n_ranks=len(self._ranks.members),
            world_size=self._ranks.status.world_size,
            host_power_w=self._config.energy.host_power_w,
        )
        return self.fleet.joint(own, share)

    def _recalled(self) -> StoredProfile | None:
        """Return what is remembered of the curve, or of one like it."""
        known = self._store.load(self._key())
        if known is not None:
            _LOGGER.info("%s: a curve is known (%s): %s", self._ranks.name, known.kind, known.origin)
        return known

    def _key(self) -> ProfileKey:
        status = self._ranks.status
        return ProfileKey(
            job=self._place.job,
            gpu_model=self._holding.model,
            n_gpus=len(self._holding.uuids),
            world_size=status.world_size,
            batch_size=status.batch_size,
            gpu_uuids=tuple(sorted(self._holding.uuids)),
            driver=self._store.driver,
        )
