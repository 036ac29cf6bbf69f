"""Steering one run: which limit it should have now, by what is known of its curve. No clock, no GPU, no bus.

While the curve is measured it is the limit that is to be measured next; afterwards it is the limit of the plan: for the
first blocks of time of a curious one, which tries out what may be best, then of the real one.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from controller.config import EnergyConfig, ProfilerConfig
from controller.curves import as_it_may_be
from controller.learning import Learning, Planned, Profiling, State, Waiting
from controller.plan_config import PlanConfig
from controller.plan_target import Outlook, PlanTarget, alone
from controller.ports import Provenance, Target
from controller.run_account import Slice
from policies import profiling
from policies.planning import Progress
from policies.profile import PowerProfile
from policies.profiling import ProfilerSettings
from policies.signal import Signal

__all__ = ["LedgerStart", "Planned", "Profiling", "State", "Steering", "Waiting"]

REFERENCE_BLOCKS = 4
"""Every fourth block measures the highest limit, until it is known well. The time that a run gains there it spends at
lower limits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerStart:
    """Where a run was when it left its curve: a new curve has a new ledger of time.

    Attributes:
        n_iterations: how many iterations had passed.
        active_s: the time in which they ran [s].
    """

    n_iterations: float
    active_s: float


class Steering:
    """The decisions for one run, in their order; `ledger`: where its ledger of time starts, None at its beginning."""

    def __init__(
        self, *, job: str, run: str = "", profiler: ProfilerConfig, plan: PlanConfig, energy: EnergyConfig
    ) -> None:
        self._job = job
        self._run = run
        self._profiler = profiler
        self._rules = plan.rules_of(job)
        self._energy = energy
        self._learning = Learning()
        self._plan: PlanTarget | None = None
        self._trial: tuple[int, float, Target] | None = None
        """The block in which a limit is tried out, since when [Unix s], and its target."""
        self.ledger: LedgerStart | None = None
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
        self._plan = PlanTarget(
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

    def observe(self, piece: Slice, *, enforced_power_limit_w: float) -> bool:
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
        outlook = Outlook(
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
        self.ledger = LedgerStart(n_iterations=progress.n_iterations, active_s=progress.active_s)
        self._opens_ledger = False
        if self._plan is not None:
            self._plan.reset()

    def _to_measure(self, state: Profiling) -> Target:
        wanted_w = profiling.wanted_power_limit_w(state.sweep)
        if wanted_w is None:
            detail = "no limit stood still long enough to be measured: the highest one is kept"
            return self._highest(state.settings, "not_profiled", detail)
        detail = f"measures limit {len(state.sweep.points) + 1}"
        return Target(power_limit_w=wanted_w, reason="profiling", detail=detail, job=self._job)

    def _highest(self, settings: ProfilerSettings, reason: str, detail: str) -> Target:
        return Target(power_limit_w=settings.prior_power_limit_w, reason=reason, detail=detail, job=self._job)

    def _planned(self, state: Planned, plan: PlanTarget, outlook: Outlook) -> Target:
        """Return the target of the plan, or of the block in which something is tried out."""
        measured, n_block = state.refinement.profile, state.refinement.n_blocks + 1
        checks_reference = (
            self._rules.objective == "slowdown" and n_block % REFERENCE_BLOCKS == 0 and not state.knows_its_reference
        )
        # In doubt nothing is learnt, so that a trial would last for as long as the doubt. At the highest limit it may:
        # that costs no time, and a brake that has gone shows nowhere else.
        if not checks_reference and (state.drift.is_in_doubt or not state.is_curious):
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
            supposed = as_it_may_be(measured, job=self._job, run=self._run, n_block=n_block)
            target = plan.try_out(supposed, outlook, block_s=state.settings.block_s, which=which)
        self._trial = n_block, outlook.now_s, target
        return target


def _since(start: LedgerStart | None, progress: Progress) -> Progress:
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
