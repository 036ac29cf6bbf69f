"""Follows the power limit that another node plans for a run, and measures this node's part of it.

The node of rank 0 publishes the limit of the run periodically. A repeated plan does not prove that its leader is alive,
because the broker retains the last one; a new sequence number does. The time between two plans is measured by this
node's own clock.

The limit is set in watts, within this node's own bounds. GPUs of another model than the leader's get the same share of
their highest limit instead.
"""

import logging
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from controller.accounting.meter_intervals import MeterInterval
from controller.accounting.ranks import RunIdentity
from controller.accounting.reports import NodeState, RunReporter
from controller.accounting.run_books import GpusNow, RunBooks
from controller.accounting.run_ledger import CurveSums, looks_of
from controller.config import Config
from controller.control.curve_learning import observation_of
from controller.control.gpu_group import GpuGroup
from controller.ports import Blocked, Target
from controller.runtime.clock import NS_PER_S, Now
from policies.profiling.paired_looks import (
    LEAST_ITERATIONS,
    PRIOR_SCATTER,
    TOP_S,
    LookLengths,
    Looks,
    Pair,
    advance_looks,
)
from policies.savings.books import Purpose
from policies.savings.interval import MIN_LOOKS, NORMAL_QUANTILE
from policies.vocabulary.profile import LIMIT_TOLERANCE_W, PowerProfile, ProfilePoint
from publishers.messages.reports import NodeProfileEntry, RunPlan

BEATS_MISSED = 3
"""A leader is silent after so many heartbeats without a plan, where they take longer than the lease."""
MIN_ITERATIONS = 3.0
MIN_ACTIVE_S = 1.0
"""A limit with fewer iterations, or less time, is not measured."""
MAX_LIMITS = 64
MAX_ACTIVE_S = 600.0
"""What was measured before this much time at a limit weighs half, and half again: jobs change."""

_FIRST_PASS: Final = frozenset({"profiling", "profiling_paused"})
"""Reasons of a limit before there is a plan."""

_LOGGER = logging.getLogger(__name__)


class NodeCurve:
    """What this node drew, and how fast it was, at each limit of the plan; memory is bounded."""

    def __init__(self, sums: Iterable[CurveSums] = ()) -> None:
        self._sums = {round(each[0] / LIMIT_TOLERANCE_W): each for each in sums}
        """By watts; `sums`: those of a former controller."""

    @property
    def sums(self) -> list[CurveSums]:
        """Return what was measured, the limit that was in force longest ago first."""
        return list(self._sums.values())

    def observe(self, interval: MeterInterval, *, power_limit_w: float) -> None:
        """Add an active interval, throughout which a limit of the plan was in force here."""
        key = round(power_limit_w / LIMIT_TOLERANCE_W)
        _, active_s, n_iterations, energy_j = self._sums.pop(key, (0.0, 0.0, 0.0, 0.0))
        weight = 0.5 if active_s > MAX_ACTIVE_S else 1.0
        self._sums[key] = (
            power_limit_w,
            weight * active_s + interval.duration_s,
            weight * n_iterations + interval.n_iterations,
            weight * energy_j + interval.energy_j,
        )
        while len(self._sums) > MAX_LIMITS:  # the one that was in force longest ago
            del self._sums[next(iter(self._sums))]

    @property
    def entries(self) -> list[NodeProfileEntry]:
        """Return what was measured well enough, in ascending order of the limit."""
        return sorted(
            (
                NodeProfileEntry(
                    power_limit_w=limit_w,
                    power_w=energy_j / active_s,
                    iterations_per_s=n_iterations / active_s,
                    active_s=active_s,
                )
                for limit_w, active_s, n_iterations, energy_j in self._sums.values()
                if active_s >= MIN_ACTIVE_S and n_iterations >= MIN_ITERATIONS and energy_j > 0
            ),
            key=lambda entry: entry.power_limit_w,
        )

    def profile(self, max_power_limit_w: float) -> PowerProfile | None:
        """Return the curve, where it reaches up to the highest limit of the plan: what is saved is measured from there.

        Args:
            max_power_limit_w: that limit [W].
        """
        entries = self.entries
        if not entries or abs(entries[-1].power_limit_w - max_power_limit_w) > LIMIT_TOLERANCE_W:
            return None
        return PowerProfile(
            tuple(
                ProfilePoint(
                    power_limit_w=entry.power_limit_w,
                    power_w=entry.power_w,
                    iterations_per_s=entry.iterations_per_s,
                    active_s=entry.active_s,
                )
                for entry in entries
            )
        )


class RunFollower:
    """A run that another node leads: its plan, and this node's part of it.

    Attributes:
        curve: what this node has measured, by the limits of the plan.
        looks: what was seen of the limits in force here, relative to the highest one.
    """

    has_begun = False

    def __init__(
        self, run: RunIdentity, *, config: Config, gpus: GpuGroup, reporter: RunReporter, books: RunBooks
    ) -> None:
        self._job = run.job
        self._books = books
        self._shortest_look_s = max(TOP_S, config.profiler.window_s, config.profiler.block_s)
        self._lease_s = config.job.lease_s
        self._settle_s = config.profiler.settle_s
        self._gpus = gpus
        self._reporter = reporter
        self.curve = NodeCurve()
        self.looks = Looks()
        self._own_curve = NodeCurve()
        """By the limits that are in force here."""
        self._plan: RunPlan | None = None
        self._received_s: float | None = None
        self._changed_s = 0.0
        self._logged = ""
        self._compared: tuple[object, Sequence[tuple[float, float]]] = None, ()
        """The ratios of energy at which limits after how many looks: only a new look changes them."""
        self._has_published = self._has_planned = False

    @property
    def profile(self) -> PowerProfile | None:
        """Return this node's curve, where it reaches up to the highest limit that the leader may set."""
        return self.curve.profile(self._plan.max_power_limit_w) if self._plan else None

    @property
    def is_steady(self) -> bool:
        """Return whether the leader's limit comes from its plan, and is not just being measured."""
        return self._plan is not None and self._plan.is_steady

    def reset(self, sums: Iterable[CurveSums] = (), pairs: Iterable[Pair] = ()) -> None:
        """Drop the curve: the run's GPUs are others now; `sums`, `pairs`: what was measured with these before."""
        self.curve, self._own_curve = NodeCurve(sums), NodeCurve()
        self.looks = looks_of(pairs)

    def on_plan(self, plan: RunPlan, *, now_ns: int) -> bool:
        """Accept the leader's plan at a monotonic time [ns]; return whether it is a new one."""
        former, self._plan = self._plan, plan
        if plan.reason not in {*_FIRST_PASS, "pinned"} and plan.power_limit_w is not None:
            self._has_planned = True
        elif plan.reason == "profiling" and self._has_planned:  # the leader has dropped the curve
            self._books.close(self.looks)
            self._has_planned, self._own_curve, self.looks = False, NodeCurve(), Looks()
        if former is None or (former.node, former.seq) == (plan.node, plan.seq):
            return False
        is_new = self._received_s is None or (former.node, former.power_limit_w) != (plan.node, plan.power_limit_w)
        self._received_s = now_ns / NS_PER_S
        if is_new:
            self._changed_s = self._received_s
        return is_new

    def add_time(self, interval: MeterInterval, gpus: GpusNow) -> None:
        """Take note of a pause, and of the curve and the purpose by which an interval is entered in the books."""
        if not interval.active:
            self.looks = self.looks.after_pause(interval.duration_s)
        is_first_pass = self._plan is None or self._plan.reason in _FIRST_PASS
        is_pinned = self._plan is not None and self._plan.reason == "pinned" and self._gpus.requested is not None
        self._books.purpose = Purpose.FIRST_PASS if is_first_pass else Purpose.PINNED if is_pinned else Purpose.PLAN
        self._books.curve = self._own_curve.profile(gpus.highest_w) or self._books.curve

    def observe(self, interval: MeterInterval) -> None:
        """Learn from an active interval, where the plan's limit had settled here before it began."""
        self._look(interval)
        begin_s = interval.begin_ns / NS_PER_S - self._settle_s
        plan = self._plan
        if plan is None or plan.power_limit_w is None or self._received_s is None or self._changed_s > begin_s:
            return
        enforced_w = self._gpus.enforced_w(int(begin_s * NS_PER_S))
        if enforced_w is not None:
            self.curve.observe(interval, power_limit_w=plan.power_limit_w)
            self._own_curve.observe(interval, power_limit_w=enforced_w)

    def _look(self, interval: MeterInterval) -> None:
        """Compare what ran at one limit with what ran at the next; the leader looks for all nodes."""
        enforced_w = self._gpus.enforced_w(interval.begin_ns)
        if enforced_w is None or not interval.n_iterations:
            return
        iteration_time_s = interval.duration_s / interval.n_iterations
        self.looks = advance_looks(
            self.looks,
            observation_of(interval, enforced_power_limit_w=enforced_w, warmth_w=self._books.thermal.warmth_w),
            lengths=LookLengths(top_s=max(self._shortest_look_s, LEAST_ITERATIONS * iteration_time_s)),
            scatter=PRIOR_SCATTER,
            settle_s=self._settle_s,
            sees_settling=False,
        )

    def target(self, now: Now) -> Target | Blocked:
        """Return the limit to set now, or why none; never above a prior limit."""
        plan, received_s = self._plan, self._received_s
        if plan is None or received_s is None:
            return Blocked(reason="no_leader", detail="no plan is received from the node of rank 0")
        silent_s = now.monotonic_s - received_s
        if silent_s > max(self._lease_s, BEATS_MISSED * plan.heartbeat_s):
            detail = f"no plan from {plan.node}, which leads the run, for {silent_s:.3g} s"
            return Blocked(reason="leader_silent", detail=detail)
        if plan.power_limit_w is None:
            return Blocked(reason=plan.reason, detail=_with_source(plan))
        return Target(
            power_limit_w=self._own_limit_w(plan, plan.power_limit_w),
            reason=plan.reason,
            detail=_with_source(plan),
            job=self._job,
            signal=plan.signal,
            speed_ratio=plan.speed_ratio,
        )

    def publish(self, target: Target | Blocked | None, *, is_barred: bool, now: Now) -> None:
        """Publish how this node follows, and what it has measured; `is_barred`: no limit may be set."""
        del now
        if target is None or (target.reason == "waiting_for_ranks" and not self._has_published):
            return  # rank 0 may yet come to this node
        self._has_published = True
        state: NodeState = "observing" if is_barred else "following" if isinstance(target, Target) else "waiting"
        if state == "waiting" and target.reason != self._logged:
            _LOGGER.info("%s: no limit is set: %s", self._job, target.detail)
        self._logged = target.reason if state == "waiting" else ""
        self._reporter.publish_node_profile(
            target, self._entries(), state=state, gpu_model=self._gpus.model, n_gpus=len(self._gpus.uuids)
        )

    def _entries(self) -> list[NodeProfileEntry]:
        """Return what was measured and, from enough looks on, what an iteration needs at each limit."""
        plan, entries, n_looks = self._plan, self.curve.entries, self.looks.n_looks(self._books.top_power_limit_w)
        if plan is None or n_looks < MIN_LOOKS:
            return entries
        limits_w = [self._own_limit_w(plan, entry.power_limit_w) for entry in entries]
        if self._compared[0] != (n_looks, limits_w):
            found = self._books.limit_ratios(self.looks, limits_w)[0] if limits_w else ()
            halves = [NORMAL_QUANTILE * (at.energy_error_ratio + abs(at.shared_error_ratio)) for at in found]
            ratios = [at.energy_ratio for at in found]
            self._compared = (n_looks, limits_w), list(zip(ratios, halves, strict=True))
        if not self._compared[1]:
            return entries
        return [
            msgspec.structs.replace(entry, energy_ratio=ratio, energy_ci90_ratio=half)
            for entry, (ratio, half) in zip(entries, self._compared[1], strict=True)
        ]

    def _own_limit_w(self, plan: RunPlan, power_limit_w: float) -> float:
        """Return what a limit of the plan means here [W]."""
        floor_w, ceiling_w = self._gpus.bounds_w()
        ceiling_w = min(ceiling_w, self._gpus.least_prior_power_limit_w)
        if self._gpus.model != plan.gpu_model:
            power_limit_w *= ceiling_w / plan.max_power_limit_w
        return min(max(power_limit_w, floor_w), ceiling_w)


def _with_source(plan: RunPlan) -> str:
    return f"plan of {plan.node}: {plan.detail}"
