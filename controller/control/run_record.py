"""The record of a run: what is published of its energy while it goes on, and what is remembered once it has ended.

Meanwhile it is saved on disk, for a controller that comes after this one.
"""

import logging
import math
from typing import Literal

import msgspec

from controller.accounting.checkpoint import RunCheckpoint, RunCheckpoints
from controller.accounting.energy_account import EnergyAccount
from controller.accounting.ranks import Ranks, RunIdentity
from controller.accounting.reports import RunReporter, energy_report, how_counted
from controller.accounting.run_saving import RunSaving
from controller.config import EnergyConfig
from controller.control.gpu_group import GpuGroup
from controller.control.observe_mode import ObserveMode
from controller.control.run_follower import RunFollower
from controller.control.run_leader import MAX_BAR_S, RunLeader
from controller.history.holdouts import compare_with, with_comparison
from controller.history.run_history import JobKey, Outcome, RunHistory
from controller.ports import Blocked, SignalSource, Target
from controller.runtime.clock import Clock
from publishers.messages.reports import RunEnergy
from publishers.training.reporting.run_summary import summarize

UNOBSERVED_RATIO = 0.01
"""A run of which no more of its iterations were missed, at its beginning, is complete."""

_LOGGER = logging.getLogger(__name__)


class RunRecord:
    """The record of a run on this node.

    Attributes:
        resumed: the checkpoint that the run goes on with; None: it has none, or has not shown to be that run yet.
        limit_reason: why its GPUs have their limits, or why they are left alone, as long as it runs.
    """

    def __init__(
        self,
        run: RunIdentity,
        *,
        clock: Clock,
        signal: SignalSource,
        ranks: Ranks,
        gpus: GpuGroup,
        account: EnergyAccount,
        saving: RunSaving,
        leader: RunLeader,
        follower: RunFollower,
        observe_mode: ObserveMode | None,
        energy: EnergyConfig,
        reporter: RunReporter,
        history: RunHistory,
        holdout_ratio: float,
        checkpoints: RunCheckpoints,
        former: RunCheckpoint | None,
        has_predecessor: bool,
    ) -> None:
        self._run = run
        self._clock = clock
        self._signal = signal
        self._ranks = ranks
        self._gpus = gpus
        self._account = account
        self._saving = saving
        self._leader = leader
        self._follower = follower
        self._observe_mode = observe_mode
        self._energy = energy
        self._reporter = reporter
        self._history = history
        self._holdout_ratio = holdout_ratio
        self.limit_reason: Blocked | None = None
        self._mean_power_limit_w: float | None = None
        self._planned_speed_ratio: float | None = None
        self._speed_ratio: float | None = None
        self._checkpoints = checkpoints
        self.resumed: RunCheckpoint | None = None
        self._former = former
        """Of this run before it was silent or the controller restarted, or of one that had its name."""
        self._has_predecessor = has_predecessor
        self._is_downtime_skipped = False
        self._is_orphan = former is None and history.has_begun(JobKey(run.user, run.job), run.run)
        """Whether a former controller had this run, perhaps at lower limits, and has left no account of it."""

    def note_limit(self, target: Target | Blocked | None, *, is_claim_rejected: bool) -> None:
        """Note the limit and its reason; once the run ends, the record says what it was while the run ran."""
        if self._ranks.ending:
            return
        self._mean_power_limit_w = self._gpus.mean_power_limit_w
        wanted = Blocked(target.reason, target.detail) if target is not None else self.limit_reason
        if isinstance(target, Target) and (only_w := self._gpus.only_limit_w()) is not None:
            detail = f"no limit below {only_w:g} W may be set: there is nothing to lower"
            wanted = Blocked(reason="only_limit", detail=detail)
        not_ours = self._gpus.why_not_ours()
        self.limit_reason = wanted if is_claim_rejected else not_ours or wanted
        if target is not None or not_ours:
            self._planned_speed_ratio = target.speed_ratio if isinstance(target, Target) and not not_ours else None
        self._speed_ratio = self._planned_speed_ratio if self._gpus.enforces_request else None

    def resume(self) -> None:
        """Go on with the checkpoint of a former controller, once its processes have shown to be those of the run."""
        former = self._former
        if former is None or self.resumed is not None or not self._ranks.is_resumed:
            return
        bar_s = former.no_pause_until_s
        self._account.resume(former.account, skips_downtime=self._ranks.is_restarted)
        self._leader.resume(
            ledger=former.ledger,
            time_budget_start=former.time_budget_start,
            no_pause_until_s=math.inf if bar_s is None else min(bar_s, self._clock.now_s() + MAX_BAR_S),
        )
        self._saving.resume(former.books, duration_s=former.account.totals.duration_s)
        self.resumed = former

    def save(self) -> None:
        """Save the account on disk, for a controller that comes after this one."""
        snapshot = self._account.snapshot(self._gpus.meters)
        if snapshot is None:
            return
        ledger, time_budget_start = self._leader.snapshot()
        self._checkpoints.save(
            self._run,
            snapshot,
            self._ranks.checkpoints(),
            node_curve=self._follower.curve.sums,
            time_budget_start=time_budget_start,
            ledger=ledger,
            node_pairs=self._follower.looks.pairs,
            books=self._saving.books.stored(),
            is_pool=self._ranks.is_pool,
            no_pause_until_s=self._leader.no_pause_until_s,
        )

    def skip_downtime(self) -> bool:
        """Leave out the time since the checkpoint, if nothing has come since; return whether that is so."""
        self._is_downtime_skipped = self._account.skip_downtime()
        return self._is_downtime_skipped

    def _incomplete(self) -> list[str]:
        """Return what of the run is missing: stable codes."""
        is_orphan = self._is_orphan and self._ranks.slowest.n_unobserved >= 1
        if is_orphan:
            self._saving.books.gap = self._saving.books.gap or "incomplete"
        what = {
            "unmeasured": self._account.totals.is_unmeasured,
            "two_processes": self._ranks.had_rivals,
            "earlier_process": self.resumed is None and (self._has_predecessor or self._former is not None),
            "controller_down": self._is_downtime_skipped,
            "earlier_controller": is_orphan,
        }
        return [code for code, applies in what.items() if applies]

    def publish(self, state: Literal["running", "finished", "lost", "silent"], *, final: bool = False) -> None:
        """Publish this node's part and, as the leader, the sum; not while it would be older than what was published.

        Args:
            state: how the run is.
            final: whether it has ended; the node that leads it remembers it.
        """
        if not self._ranks.members or self._account.is_resuming:
            return
        kind, totals, now_s = self._signal.kind, self._account.totals, self._clock.now_s()
        part = energy_report(
            self._ranks.status,
            self._ranks.logs,
            totals.report(kind=kind),
            state=state,
            gpu_model=self._gpus.model,
            n_gpus=len(self._gpus.uuids),
            final=final,
            max_power_w=self._gpus.prior_power_limit_w,
            incomplete=self._incomplete(),
            would_save=self._observe_mode.would_save if self._observe_mode else None,
            power_limit_w=self._mean_power_limit_w,
            speed_ratio=self._speed_ratio,
            reason=self.limit_reason,
            saving=self._saving.latest,
            pin=self._leader.limits.pin if self._gpus.requested is not None else None,
            pinned_s=self._saving.books.pinned_s,
            counting=how_counted(
                self._signal.history(),
                since_s=now_s - totals.duration_s,
                now_s=now_s,
                host_power_w=self._energy.host_power_w,
                pue=self._energy.pue,
            )
            | self._ranks.told_work(),
        )
        whole = self._reporter.whole(part)
        if final and whole is not None:
            whole = msgspec.structs.replace(whole, last_rank=self._ranks.last)
        if final and whole is not None and state != "running":
            try:
                whole = self._remember(whole, state)
                self._log(whole)
            except Exception:  # what is remembered or said must not end what acts
                _LOGGER.exception("%s: how it has ended is not remembered", self._run.key)
        self._reporter.publish_energy(part, whole)

    def _log(self, whole: RunEnergy) -> None:
        """Log what the run has used and saved on all its nodes, as the training says it."""
        if whole.n_gpus and whole.iterations:
            _LOGGER.info(
                "%s", summarize(f"{self._run.user}/{self._run.job}", self._run.run, whole, unmeasured=("", ""))
            )

    def _remember(self, whole: RunEnergy, end: Literal["finished", "lost", "silent"]) -> RunEnergy:
        """Remember how the run has ended, and return its record with what runs held out say, if there are any."""
        key, holdout_ratio = JobKey(self._run.user, self._run.job), self._holdout_ratio
        ended = self._history.end(key, self._outcome(whole, end))
        if ended is None or not holdout_ratio:
            return whole
        found = compare_with(ended, self._history.ended(key), holdout_ratio=holdout_ratio)
        return with_comparison(whole, found)

    def _outcome(self, whole: RunEnergy, end: Literal["finished", "lost", "silent"]) -> Outcome:
        status, slowest = self._ranks.status, self._ranks.slowest
        is_observed = slowest.n_unobserved <= UNOBSERVED_RATIO * slowest.n_iterations
        return Outcome(
            run=self._run.run,
            started_at_s=status.started_at_s,
            ended_at_s=self._clock.now_s(),
            end=end,
            reached=whole.reached,
            is_complete=is_observed and not whole.incomplete,
            n_iterations=slowest.n_iterations,
            active_s=self._ranks.running_s,
            energy_j=whole.energy_j,
            time_limit_s=status.time_limit_s,
            batch_size=status.batch_size,
            world_size=status.world_size,
            gpu_model=whole.gpu_model,
            n_gpus=whole.n_gpus,
        )
