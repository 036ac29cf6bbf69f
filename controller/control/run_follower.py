"""Following: what a node without rank 0 asks of its GPUs, and what it measures, while another node leads the run.

The node of rank 0 says which limit the run is to have, again and again. A word that was heard before is no sign of
life: the broker keeps the last one of a leader that is long gone. Time is what passes here between two words; the
clocks of other nodes do not count.

A limit is followed in watts, as far as this node's own bounds allow. On GPUs of another model watts mean something
else: there the same share of the highest limit is followed.
"""

import logging
from collections.abc import Iterable
from typing import Literal

from controller.accounting.energy_account import MeterInterval
from controller.accounting.ranks import RunIdentity
from controller.accounting.reports import RunReporter
from controller.clock import NS_PER_S
from controller.config import Config
from controller.control.gpu_group import Blocked, GpuGroup
from controller.ports import Target
from policies.vocabulary.profile import PowerProfile, ProfilePoint
from publishers.messages.reports import NodeProfileEntry, RunPlan

BEATS_MISSED = 3
"""A leader is silent after so many heartbeats without a word, where they take longer than the lease."""
SAME_W = 1.0
MIN_ITERATIONS = 3.0
MIN_ACTIVE_S = 1.0
"""Less says nothing about a limit."""
MAX_LIMITS = 64
MAX_ACTIVE_S = 600.0
"""What was measured before this much time at a limit weighs half, and half again: jobs change."""

Sums = tuple[float, float, float, float]
"""A limit [W], and sums of time [s], iterations and energy [J] at it."""

_LOGGER = logging.getLogger(__name__)


class NodeCurve:
    """What this node drew, and how fast it was, by the limit that the plan asked for; memory is bounded."""

    def __init__(self, sums: Iterable[Sums] = ()) -> None:
        self._sums = {round(each[0] / SAME_W): each for each in sums}
        """By watts; `sums`: those that a former controller has left."""

    @property
    def sums(self) -> list[Sums]:
        """Return what was measured, the limit that was in force longest ago first."""
        return list(self._sums.values())

    def observe(self, piece: MeterInterval, *, power_limit_w: float) -> None:
        """Add an active slice, throughout which the plan asked for a limit that was in force here."""
        key = round(power_limit_w / SAME_W)
        _, active_s, n_iterations, energy_j = self._sums.pop(key, (0.0, 0.0, 0.0, 0.0))
        weight = 0.5 if active_s > MAX_ACTIVE_S else 1.0
        self._sums[key] = (
            power_limit_w,
            weight * active_s + piece.duration_s,
            weight * n_iterations + piece.n_iterations,
            weight * energy_j + piece.energy_j,
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
        if not entries or abs(entries[-1].power_limit_w - max_power_limit_w) > SAME_W:
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
    """A run that another node leads: its plan, and this node's part of it."""

    def __init__(self, place: RunIdentity, *, config: Config, holding: GpuGroup, news: RunReporter) -> None:
        self._job = place.job
        self._lease_s = config.job.lease_s
        self._settle_s = config.profiler.settle_s
        self._holding = holding
        self._news = news
        self._curve = NodeCurve()
        self._plan: RunPlan | None = None
        self._alive_s: float | None = None
        self._changed_s = 0.0
        self._told = ""
        self._is_known = False

    @property
    def profile(self) -> PowerProfile | None:
        """Return this node's curve, where it reaches up to the highest limit that the leader may ask for."""
        return self._curve.profile(self._plan.max_power_limit_w) if self._plan else None

    @property
    def is_steady(self) -> bool:
        """Return whether the leader's limit comes from its plan, and is not just being measured."""
        return self._plan is not None and self._plan.is_steady

    @property
    def sums(self) -> list[Sums]:
        """Return what this node has measured."""
        return self._curve.sums

    def reset(self, sums: Iterable[Sums] = ()) -> None:
        """Forget the curve: the run's GPUs are others now; `sums`: what was measured with these before."""
        self._curve = NodeCurve(sums)

    def hear(self, plan: RunPlan, *, now_ns: int) -> bool:
        """Take the leader's word, at a monotonic time [ns]; return whether it says anything new."""
        former, self._plan = self._plan, plan
        if former is None or (former.node, former.seq) == (plan.node, plan.seq):
            return False
        is_new = self._alive_s is None or (former.node, former.power_limit_w) != (plan.node, plan.power_limit_w)
        self._alive_s = now_ns / NS_PER_S
        if is_new:
            self._changed_s = self._alive_s
        return is_new

    def observe(self, piece: MeterInterval) -> bool:
        """Take an active slice; it counts where the plan's limit had settled here before it began.

        Returns:
            False: it makes no curve that would be kept.
        """
        begin_s = piece.begin_ns / NS_PER_S - self._settle_s
        plan = self._plan
        if plan is None or plan.power_limit_w is None or self._alive_s is None or self._changed_s > begin_s:
            return False
        if self._holding.enforced_w(int(begin_s * NS_PER_S)) is not None:
            self._curve.observe(piece, power_limit_w=plan.power_limit_w)
        return False

    def wish(self, *, now_ns: int) -> Target | Blocked:
        """Return what to ask of the GPUs at a monotonic time [ns], or why nothing; never above a prior limit."""
        plan, alive_s, now_s = self._plan, self._alive_s, now_ns / NS_PER_S
        if plan is None or alive_s is None:
            return Blocked(reason="no_leader", detail="no controller on the node of rank 0 is heard")
        if now_s - alive_s > max(self._lease_s, BEATS_MISSED * plan.heartbeat_s):
            detail = f"nothing was heard of {plan.node}, which leads the run, for {now_s - alive_s:.3g} s"
            return Blocked(reason="leader_silent", detail=detail)
        if plan.power_limit_w is None:
            return Blocked(reason=plan.reason, detail=_said_by(plan))
        return Target(
            power_limit_w=self._own_limit_w(plan, plan.power_limit_w),
            reason=plan.reason,
            detail=_said_by(plan),
            job=self._job,
            signal=plan.signal,
        )

    def tell(self, wish: Target | Blocked, *, is_barred: bool) -> None:
        """Tell how this node follows, and what it has measured; `is_barred`: no limit may be set."""
        if wish.reason == "not_gathered" and not self._is_known:
            return  # rank 0 may yet come to this node
        self._is_known = True
        state: Literal["following", "waiting", "observing"]
        state = "observing" if is_barred else "following" if isinstance(wish, Target) else "waiting"
        if state == "waiting" and wish.reason != self._told:
            _LOGGER.info("%s: no limit is set: %s", self._job, wish.detail)
        self._told = wish.reason if state == "waiting" else ""
        self._news.tell_part(wish, self._curve.entries, state=state)

    def _own_limit_w(self, plan: RunPlan, power_limit_w: float) -> float:
        """Return what a limit of the plan means here [W]."""
        floor_w, ceiling_w = self._holding.bounds_w()
        ceiling_w = min(ceiling_w, self._holding.least_prior_power_limit_w)
        if self._holding.model != plan.gpu_model:
            power_limit_w *= ceiling_w / plan.max_power_limit_w
        return min(max(power_limit_w, floor_w), ceiling_w)


def _said_by(plan: RunPlan) -> str:
    return f"the plan of {plan.node}: {plan.detail}"
