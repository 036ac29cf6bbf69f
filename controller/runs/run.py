"""One run of a job on this node: its ranks and GPUs, from iterations to power limit and energy account.

It does not depend on NVML. The router calls it with each message, and it acts on iterations at once; periodic work
(leases, plans that are due, reports) happens in `run`, once a tick. It ends when its ranks have ended, or when no
message has arrived for the lease. While it does not iterate, though it lives, it holds no limit (`idleness.py`).

Where a run has ranks on several nodes, the controller of the node of rank 0 leads and the others follow.
"""

import asyncio
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from controller.accounting.checkpoint import RunCheckpoint, RunCheckpoints
from controller.accounting.energy_account import EnergyAccount
from controller.accounting.meter_intervals import MeterInterval
from controller.accounting.other_nodes import OtherNodes
from controller.accounting.ranks import End, Rank, Ranks, RunIdentity
from controller.accounting.reports import RunReporter
from controller.accounting.run_saving import RunSaving
from controller.config import Config
from controller.control.gpu_group import GpuGroup, Readiness
from controller.control.observe_mode import ObserveMode
from controller.control.profile_store import ProfileStore
from controller.control.run_control import RunControl
from controller.control.run_follower import RunFollower
from controller.control.run_leader import HELD_OUT, RunLeader
from controller.control.run_record import RunRecord
from controller.control.straggler_slack import StragglerSlack
from controller.history.run_history import RunHistory
from controller.ports import Blocked, Bus, EnergyMeter, Hold, PowerLimiter, SignalSource, Target
from controller.ports.orders import Goal, GoalPreview, Pin, PinPreview
from controller.runs.gpu_claims import blocked_by_claims
from controller.runs.idleness import Idleness
from controller.runtime.clock import NS_PER_S, Clock, Now, is_due, next_tick_s
from policies.profiling.relation import ignores_limits
from policies.savings.interval import is_energy_known
from publishers.messages.reports import RunPlan
from publishers.messages.topics import Topics
from publishers.messages.training import Iterations, RankStatus

CHECKPOINT_PERIODS = 2
"""A checkpoint is written with every second report: what a killed controller has not saved counts as a pause."""
MAX_STEPS_PER_TICK = 10
"""However fast messages come, decisions are made at most this often."""
CLOSE_S: Final = 5.0
"""Meters are read closely while something is measured, and for so long after that, or after a change of limit: the
first seconds at it are compared with the last ones before."""
LAST_READINGS: Final = 2
"""For so many pairs of ticks the meters of a run that has ended are waited for: one that is lost never reads again, and
the training waits for its last record."""
MEASURED: Final = frozenset({"profiling", "refining"})
"""The reasons of limits that are measured."""

MAX_POOL = 256
"""So many processes that were runs of their own at first are one run, those included that have ended."""

_END_REASONS: dict[str, str] = {"finished": "run_finished", "lost": "run_lost", "silent": "lease_ended"}


class TrainingRun:
    """A run on this node.

    Args:
        identity: which run, on which node.
        config: the configuration.
        clock: the time.
        signal: the grid signal.
        store: the profiles of former runs.
        history: how former runs have ended.
        checkpoints: the accounts of runs that a former controller has left.
        bus: where to publish.
        topics: the topics below the configured root.
        on_release: called once, when the run has ended and its GPUs are free.
        notify: sends the training a notice: its code, and a sentence.
        has_predecessor: whether a run of this name has ended before.
        pause_wanted: set when the plan begins to want the run to wait.
        pin_of: returns the limit at which a person holds the run now; None: its plan decides.
        goal_of: returns what a person wants of its plan now; None: the configured objective holds.

    Attributes:
        ranks: its training processes on this node.
        other_nodes: what its other nodes have published.
        gpus: its GPUs on this node; they are still read when they are released.
        rejections: why ranks did not get their GPUs, by rank: a code. While one did not, no limit is set.
        unproven: the ranks that the driver does not list on their GPUs yet. While there is one, no limit is set.
        is_flooding: whether messages of it were dropped, because they were too many.
        ended: how the run has ended; None while it is running.
        planned_pause: why the plan wants the run to wait, and until when, in a sentence; "": it is to iterate.
    """

    def __init__(
        self,
        identity: RunIdentity,
        *,
        config: Config,
        clock: Clock,
        signal: SignalSource,
        store: ProfileStore,
        history: RunHistory,
        checkpoints: RunCheckpoints,
        bus: Bus,
        topics: Topics,
        on_release: Callable[["TrainingRun"], None],
        notify: Callable[[str, str], None],
        has_predecessor: bool = False,
        pause_wanted: asyncio.Event | None = None,
        pin_of: Callable[[], Pin | None] = lambda: None,
        goal_of: Callable[[], Goal | None] = lambda: None,
    ) -> None:
        self.identity, self._pause_wanted = identity, pause_wanted or asyncio.Event()
        self._checkpoints, former, self._has_left = checkpoints, checkpoints.load(identity), False
        name, ranks = str(identity.key), former.ranks if former else None
        was_pool = former is not None and former.is_pool
        self.ranks = Ranks(name=name, lease_s=config.job.lease_s, checkpoints=ranks, is_pool=was_pool)
        self.rejections: dict[int, str] = {}
        self.unproven: set[int] = set()
        self.is_flooding, self.planned_pause = False, ""
        self.ended: End | None = None
        self._clock, self._on_release, self._report_period_s = clock, on_release, config.energy.period_s
        self.gpus, self.other_nodes = GpuGroup(), OtherNodes()
        self._account = EnergyAccount(clock=clock, signal=signal)
        self._reporter = RunReporter(
            identity, bus=bus, topics=topics, ranks=self.ranks, other_nodes=self.other_nodes, clock=clock
        )
        self._saving = RunSaving(signal=signal, name=name, is_incomplete=checkpoints.is_unreadable(identity))
        books = self._saving.books
        self._leader = RunLeader(
            identity,
            config=config,
            signal=signal,
            store=store,
            history=history,
            ranks=self.ranks,
            gpus=self.gpus,
            account=self._account,
            reporter=self._reporter,
            other_nodes=self.other_nodes,
            books=books,
            notify=notify,
            pin_of=pin_of,
            goal_of=goal_of,
        )
        self._follower = RunFollower(identity, config=config, gpus=self.gpus, reporter=self._reporter, books=books)
        self._control = self._role()
        shares_slack = config.plan.rules_of(identity.job).share_slack
        self._slack = StragglerSlack(self.gpus, settle_s=config.profiler.settle_s) if shares_slack else None
        self._observe_mode = ObserveMode(name=name, gpus=self.gpus, signal=signal) if config.plan.observe else None
        self._idleness = Idleness(idle_s=config.job.idle_s)
        self._tick_s, self._stepped_s = math.inf, 0.0
        self._record = self._record_of(config, former, signal=signal, history=history, has_predecessor=has_predecessor)

    def add_gpu(self, limiter: PowerLimiter, meter: EnergyMeter) -> None:
        """Give the run a GPU; a curve measured with fewer of them is void, and its books are closed."""
        former = self._record.resumed
        self._checkpoints.mark_gpu_reassigned(limiter.gpu.uuid, self.identity)
        if self.gpus.uuids and not self._account.is_waiting_for_gpu(limiter.gpu.uuid):
            self._close_curve()
        self.gpus.add(limiter, meter)
        self._leader.limits.reset()
        has_all_gpus = former is not None and former.account.counters_j.keys() == self.gpus.uuids
        self._follower.reset(*((former.node_curve, former.node_pairs) if former and has_all_gpus else ()))

    def withdraw_gpu(self, uuid: str, detail: str) -> None:
        """Give a GPU back that the run has no more: its limit at once; what it draws from now on is another's."""
        self._close_curve()
        self._account.forget(self.gpus.withdraw(uuid, reason="claim_unproven", detail=detail), uuid)
        self._leader.limits.reset()
        self._follower.reset(())

    def _close_curve(self) -> None:
        """Close the books of what ran so far: from here on the run has other GPUs, and another curve."""
        self._update_account(Now.of(self._clock))
        self._change_curve(has_other_gpus=True)

    def _change_curve(self, *, has_other_gpus: bool = False) -> None:
        """Close the books, and begin a new time budget: another curve holds from here on."""
        self._saving.close(self._control.looks, has_other_gpus=has_other_gpus)
        self._leader.limits.restart_time_budget()

    @property
    def ignores_limits(self) -> bool:
        """Return whether its rate was the same at every limit that was measured."""
        profile = self._leader.profile
        return profile is not None and self._leader.has_planned and ignores_limits(profile)

    def bar_pauses(self, until_s: float) -> None:
        """Plan no pause until a time [Unix s]: the last one was ended, or has never begun."""
        self._leader.bar_pauses(until_s)
        self.planned_pause = ""

    @property
    def pause_fault(self) -> tuple[str, str] | None:
        """Return why the training cannot be paused from here, a stable code and a sentence; None where it can."""
        fault = self._request_fault
        if self.ranks.is_pool and (fault is None or fault[0] != "ended"):
            return "not_pausable", "its processes do not wait for each other: each would have to be asked"
        if fault is None and not self.ranks.status.pausable:
            detail = "the training has not said that it can pause: it needs pausable=True, and ranks that can agree"
            return "not_pausable", detail
        return fault

    @property
    def started_at_s(self) -> float:
        """Return when its first process here started [Unix s]; 0 while none is known."""
        return self.ranks.status.started_at_s if self.ranks.members else 0.0

    @property
    def is_led_here(self) -> bool:
        """Return whether this node decides on its limits: it has rank 0."""
        return self._control is self._leader

    @property
    def order_fault(self) -> tuple[str, str] | None:
        """Return why its limit cannot be decided from here, a stable code and a sentence; None where it can."""
        if self._observe_mode is not None:
            return "observe_mode", "plan.observe: limits are planned, but never written"
        if self._leader.is_held_out:
            return HELD_OUT
        return self._request_fault or self.gpus.why_not_ours()

    @property
    def _request_fault(self) -> tuple[str, str] | None:
        """Return why nothing can be asked of it here; None where something can."""
        rank = self.ranks.members.get(0)
        if self.ended is not None or (rank is not None and rank.ended and not self.ranks.is_pool):
            return "ended", "the run has ended"
        if rank is None and not self.ranks.is_pool:
            return "not_leader", "rank 0 of this run is on another node: ask the controller of that node"
        if self._is_claim_rejected() or 0 in self.unproven or not self.gpus.uuids:
            return (
                "claim_unproven",
                f"this run holds no GPU of this node: {blocked_by_claims(set(self.rejections.values())).detail}",
            )
        return None

    @property
    def limit_reason(self) -> Blocked | None:
        """Return why its GPUs have their limits, or why they are left alone; None before anything was decided."""
        return self._record.limit_reason

    def preview_pin(self, power_limit_w: float, duration_s: float) -> PinPreview:
        """Return what a pin at a limit [W] for some time [s] would do."""
        return self._leader.preview_pin(power_limit_w, duration_s, Now.of(self._clock))

    @property
    def goal(self) -> Goal | None:
        """Return the goal by which its limit was last decided; None: the configured one."""
        return self._leader.limits.goal

    @property
    def has_planned(self) -> bool:
        """Return whether its curve is known, so that there is a plan."""
        return self._leader.has_planned

    def preview_goal(self, goal: Goal) -> GoalPreview:
        """Return what its plan would do with another goal."""
        requested, reason = self.gpus.requested, self.limit_reason
        return replace(
            self._leader.preview_goal(goal, Now.of(self._clock)),
            power_limit_w=None if requested is None else requested.power_limit_w,
            reason=None if reason is None else reason.reason,
        )

    def on_status(self, number: int, status: RankStatus) -> bool:
        """Accept a rank's status; return whether it is of the process that owns this rank, and runs.

        A run that has ended accepts none: its account still reads the logs of its ranks.
        """
        if self.ended is not None:
            return False
        now = Now.of(self._clock)
        is_owner = self.ranks.on_status(number, status, now_s=now.monotonic_s)
        former, self._control = self._control, self._role()
        if former is self._leader and self._control is self._follower:
            self._reporter.leave_lead()
        self._record.resume()
        if self.ranks.ending and math.isfinite(self._tick_s):  # limits are not held until the next tick
            self._step(now)
        if self.ranks.ending == "finished":  # for good: the next run may begin at once
            self._end("finished")
        return is_owner

    def can_take_in(self, other: "TrainingRun") -> bool:
        """Return whether another run is a part of this one, if both compute on one GPU.

        Each is one process below the same `gridchase run`, or this one is a pool of such; no launcher made them. One
        that goes on with the record of a former controller is none: what it has used would be in no record.
        """
        launches = {run.ranks.status.launch for run in (self, other)}
        is_own = self.identity.key[:2] == other.identity.key[:2] and len(launches) == 1 and None not in launches
        are_alone = other.ranks.is_alone and not other.ranks.is_resumed and (self.ranks.is_alone or self.ranks.is_pool)
        is_running = not any(run.ended or run.ranks.ending or run.ranks.rivals_s for run in (self, other))
        return is_own and are_alone and is_running and len(self.ranks.members) < MAX_POOL

    def take_in(self, other: "TrainingRun") -> int:
        """Make the process of a run that joins a rank of this one; return its number."""
        return self.ranks.adopt(other.leave(), now_s=Now.of(self._clock).monotonic_s)

    def leave(self) -> Rank:
        """End without a record, and return the only rank: it is another run's."""
        self.ended, self._has_left = "finished", True
        self.rejections.clear()
        self.unproven.clear()
        return self.ranks.members.popitem()[1]

    def is_succeeded_by(self, number: int, status: RankStatus) -> bool:
        """Return whether a status is of the next run of this name: this one has ended, or does now."""
        if self.ended is None and self.ranks.is_succeeded_by(number, status):
            self._end("finished")  # what another process does has an account of its own
        return self.ended is not None

    def end_if_orphaned(self) -> bool:
        """End at once where every process is gone: another run needs the GPUs; return whether it has ended."""
        if ending := self.ranks.ending:
            self._end(ending)
        return self.ended is not None

    def on_iterations(self, number: int, message: Iterations) -> bool:
        """Accept a rank's iterations; return False where they are implausible, or the rank is unknown."""
        rank = self.ranks.members.get(number)
        if rank is None or self.ended is not None:
            return False
        now = Now.of(self._clock)
        rank.last_message_s = now.monotonic_s
        if self.ranks.rivals_s:  # they may be of either process
            return True
        is_good = rank.log.append(message, now_ns=now.monotonic_ns)
        if is_good and now.wall_s - self._stepped_s >= self._tick_s / MAX_STEPS_PER_TICK:
            self._step(now)
        return is_good

    def on_plan(self, plan: RunPlan) -> None:
        """Accept the plan of the node that leads; a new limit is requested at once."""
        now, is_following = Now.of(self._clock), self._control is self._follower and plan.node != self.identity.node
        if is_following and self._follower.on_plan(plan, now_ns=now.monotonic_ns) and self.ended is None:
            self._update_limit(now)

    async def run(self, *, tick_s: float) -> None:
        """Control the run until it ends, then release its GPUs and close its account."""
        self._tick_s = tick_s
        try:
            async with asyncio.TaskGroup() as tasks:
                saving = tasks.create_task(
                    self._saving.keep_known(self._clock, lambda: self._control.looks), name="saving"
                )
                await self._control_until_end()
                saving.cancel()
        finally:
            if self._control is self._leader:
                self._reporter.publish_schedule(None)
            if self._has_left:
                self._checkpoints.delete(self.identity)
            elif self.ended is None:  # the controller stops: what is known so far is not lost
                self._report_energy()
                self._record.save()
                self._publish(Blocked(reason="controller_stopped", detail="the controller is stopping"))
        if self._has_left:
            return
        self._read_closely(Now.of(self._clock))
        await self._await_meters(tick_s)
        # Silent it may have been since before this controller.
        is_unchanged = self.ended == "silent" and self._record.skip_downtime()
        self._update_account(Now.of(self._clock), to_the_end=True)
        try:
            await self._saving.update(self._control.looks, now_s=self._clock.now_s())
        finally:  # also where the controller stops meanwhile
            self._report_energy(final=True)
        if self._observe_mode is not None:
            self._observe_mode.log()
        if self.ended == "finished":
            self._checkpoints.delete(self.identity)
        elif not is_unchanged:  # its processes may come back, as from a network that was away
            self._record.save()
        self._saving.log()

    async def _await_meters(self, tick_s: float) -> None:
        """Wait until the meters have read once past the last iteration, some ticks longer where that takes long."""
        known_ns, meters = self.ranks.known_ns(), self.gpus.meters.values()
        for _ in range(LAST_READINGS):
            await self._clock.sleep_until(self._clock.now_s() + 2 * tick_s)
            if known_ns is None or all(meter.latest and meter.latest.time_ns >= known_ns[1] for meter in meters):
                return

    async def _control_until_end(self) -> None:
        next_s = report_s = checkpoint_s = self._clock.now_s()
        report_period_s, checkpoint_period_s = self._report_period_s, CHECKPOINT_PERIODS * self._report_period_s
        ending: End | None = None
        while self.ended is None:
            now = Now.of(self._clock)
            now_s = now.wall_s
            if self.ranks.ending != ending:  # a lost one may come back; what it has used is said at once
                ending, report_s = self.ranks.ending, now_s
            if ended := self.ranks.expire(now.monotonic_s):
                self._end(ended)
            self._step(now)
            if is_due(report_s, period_s=report_period_s, now_s=now_s):
                self._report_energy()
                report_s = next_tick_s(report_s, period_s=report_period_s, now_s=now_s)
            if is_due(checkpoint_s, period_s=checkpoint_period_s, now_s=now_s):
                self._record.save()
                checkpoint_s = next_tick_s(checkpoint_s, period_s=checkpoint_period_s, now_s=now_s)
            next_s = next_tick_s(next_s, period_s=self._tick_s, now_s=now_s)
            await self._clock.sleep_until(next_s)

    def _end(self, ended: End) -> None:
        """End the run, once: its limits are released, even those in flight, and its GPUs are free for another."""
        if self.ended is None:
            self.ended = ended
            blocked = self._blocked_by_end(ended)
            self.gpus.release_all(*blocked)
            self._on_release(self)
            self._publish(blocked)

    def _record_of(
        self,
        config: Config,
        former: RunCheckpoint | None,
        *,
        signal: SignalSource,
        history: RunHistory,
        has_predecessor: bool,
    ) -> RunRecord:
        return RunRecord(
            self.identity,
            clock=self._clock,
            signal=signal,
            ranks=self.ranks,
            gpus=self.gpus,
            account=self._account,
            saving=self._saving,
            leader=self._leader,
            follower=self._follower,
            observe_mode=self._observe_mode,
            energy=config.energy,
            reporter=self._reporter,
            history=history,
            holdout_ratio=config.plan.job_holdout_ratio(self.identity.job),
            checkpoints=self._checkpoints,
            former=former,
            has_predecessor=has_predecessor,
        )

    def _role(self) -> RunControl:
        """Return the leader, or the follower where another node has rank 0."""
        return self._follower if self.ranks.is_multi_node and not self.ranks.is_leader else self._leader

    def _step(self, now: Now) -> None:
        """Account for what is new, and request the limit that follows from it."""
        self._stepped_s = now.wall_s
        if self.ranks.is_resized:
            self._close_curve()
            self.ranks.resize()
            self._leader.limits.reset()
        self._update_account(now)
        if self.ended is None:
            self._update_limit(now)

    def _update_account(self, now: Now, *, to_the_end: bool = False) -> None:
        """Add what has become known since the last time to the account, and let the curve learn from it."""
        known_ns = self.ranks.known_ns()
        if known_ns is None:
            return
        if not self.gpus.uuids:  # there is nothing to account for
            self.ranks.forget_before(known_ns[1])
            return
        self._suspend_while_idle(now)
        intervals = self._account.advance(
            known_ns,
            logs=self.ranks.logs,
            meters=self.gpus.meters,
            tick_s=self._tick_s,
            to_the_end=to_the_end,
            was_asked_to_pause=self.ranks.asked_pauses.covers,
        )
        is_new, end_ns = False, None
        for interval in intervals:
            end_ns = interval.end_ns
            self._add_time(interval, now)
            if interval.active:
                # Once a point is closed, the rest still ran at its limit, and does not count for the next one.
                is_new = is_new or self._learn(interval)
                if self._observe_mode is not None:
                    self._observe_mode.add(interval, self._control.profile, now)
                if self._slack is not None:
                    self._slack.observe(interval)
        if end_ns is not None:
            self.ranks.forget_before(end_ns)

    def _add_time(self, interval: MeterInterval, now: Now) -> None:
        """Add an interval to the ledger and to the books."""
        if self._account.take_other_gpus():
            self._change_curve(has_other_gpus=True)
        gpus = self.gpus.now()
        self._control.add_time(interval, gpus)
        self._saving.add(interval, gpus, begins_s=now.wall_at_s(interval.begin_ns))

    def _suspend_while_idle(self, now: Now) -> None:
        """Account for nothing while the run is idle: a notebook may live for days after its training."""
        if self._idleness.update(self.ranks, now_ns=now.monotonic_ns):
            self._account.suspend(self.gpus.meters)
        else:
            self._account.resume_after_suspend()

    def _learn(self, interval: MeterInterval) -> bool:
        """Let the curve learn from an active interval; return whether it is a new one."""
        update = self._control.observe(interval)
        if update is None:
            return False
        if update.dropped:
            self._change_curve()
        return update.is_new

    def _update_limit(self, now: Now) -> None:
        """Request the limit that the run should have now, if there is any to request."""
        readiness, is_rejected = self.gpus.readiness(), self._is_claim_rejected()
        if self._observe_mode is not None:
            if not (is_rejected or self.ranks.ending or self._is_waiting(readiness, now)):
                self._observe_mode.update(self._control, now)
            barred = blocked_by_claims(set(self.rejections.values())) if is_rejected else None
            self._record.note_limit(barred, is_claim_rejected=is_rejected)
            if self.ranks.members and self._control is self._leader:  # one that did set limits may have left a schedule
                self._reporter.publish_schedule(None)
            return
        self._leader.limits.ledger.knows_energy = is_energy_known(self._saving.latest)
        target = self._blocked(readiness, now, is_rejected=is_rejected) or self._control.target(now)
        self._plan_pause(target)
        if isinstance(target, Blocked):
            if self._slack is not None:
                self._slack.pause()
            self.gpus.release(*target, only=Hold.HELD if readiness == "not_ours" else None)
        elif target is not None:
            self._read_closely(now, target)
            reductions = self._slack.reductions(target, is_steady=self._control.is_steady) if self._slack else None
            self.gpus.request(target, reductions)
        self._record.note_limit(target, is_claim_rejected=is_rejected)
        if self.ranks.members:
            self._control.publish(target, is_barred=is_rejected or readiness == "not_ours", now=now)

    def _read_closely(self, now: Now, target: Target | None = None) -> None:
        """Let the energy counters be read closely for a while, where a limit is measured or changes; None: it ends."""
        if target and target.reason not in MEASURED and not self.gpus.changes_limit(target):
            return
        for meter in self.gpus.meters.values():
            meter.read_closely(now.monotonic_ns + round(CLOSE_S * NS_PER_S))

    def _plan_pause(self, target: Target | Blocked | None) -> None:
        """Keep what the plan says of a pause; None leaves it as it is."""
        if target is None:
            return
        self.planned_pause = target.pause_why if isinstance(target, Target) else ""
        if self.planned_pause:
            self._pause_wanted.set()

    def _publish(self, target: Blocked) -> None:
        """Publish why no limit is set any more."""
        if self.ranks.members:
            is_barred = self._is_claim_rejected() or self.gpus.readiness() == "not_ours"
            self._control.publish(target, is_barred=is_barred, now=Now.of(self._clock))

    def _blocked(self, readiness: Readiness, now: Now, *, is_rejected: bool) -> Blocked | None:
        """Return why the run may have no limit now; None where it may."""
        if is_rejected:
            return blocked_by_claims(set(self.rejections.values()))
        if self.ranks.ending:  # a lost one may come back: its limits do not wait for it
            return self._blocked_by_end(self.ranks.ending)
        if readiness == "not_ours":
            return Blocked(
                reason="other_gpu_not_ours", detail="another GPU of the run cannot be set by this controller"
            )
        if any(number in self.ranks.members and not self.ranks.members[number].ended for number in self.unproven):
            return Blocked(reason="waiting_for_ranks", detail="waiting until the driver lists every rank on its GPU")
        if self._is_waiting(readiness, now):
            return Blocked(
                reason="waiting_for_ranks", detail="waiting until every rank iterates and every GPU has answered"
            )
        return self._idleness.blocked

    def _is_waiting(self, readiness: Readiness, now: Now) -> bool:
        """Return whether the run has not begun here: a GPU has not answered, or a rank does not iterate yet."""
        return readiness == "waiting" or not (self._control.has_begun or self.ranks.have_gathered(now.monotonic_s))

    def _blocked_by_end(self, ended: End) -> Blocked:
        detail = f"run {self.identity.run} of {self.identity.job} has ended"
        return Blocked(reason=_END_REASONS[ended], detail=detail)

    def _is_claim_rejected(self) -> bool:
        """Return whether two processes claim one rank, or a running rank did not get its GPUs."""
        return bool(self.ranks.rivals_s) or any(not self.ranks.members[number].ended for number in self.rejections)

    def _report_energy(self, *, final: bool = False) -> None:
        self._record.publish(self.ended or self.ranks.ending or "running", final=final)
