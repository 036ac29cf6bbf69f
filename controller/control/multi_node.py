"""The other nodes of a run, as the leader sees them: their power curves, and the plan broadcast to them.

The leader is the controller of the node of rank 0. It measures its own curve; the others publish what they drew under
the limits of the plan. A run's nodes wait for each other in every iteration, so the rate that the leader measures is
the rate of all of them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from controller.accounting.ranks import RunIdentity
from controller.accounting.reports import MAX_DETAIL, RunReporter
from controller.ports import Blocked, Target
from controller.runtime.clock import NS_PER_S, Now
from policies.savings.interval import NORMAL_QUANTILE
from policies.vocabulary.limit_ratios import LimitRatios
from policies.vocabulary.profile import SAME_POINT_W, PowerProfile
from publishers.messages.reports import NodeProfile, NodeProfileEntry, RunPlan

HEARTBEAT_S = 5.0
SLOWER_RATIO = 0.95
"""A rate this much below the leader's is slower, not noise: this node does not wait for the others."""
MAX_ENERGY_RATIO = 100.0
"""No limit has an iteration need so many times less, or more, than the highest one: what a node says beyond that is
an error of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeShare:
    """The part of a run on the leader's own node.

    Attributes:
        n_gpus: how many GPUs.
        n_ranks: how many training processes.
        world_size: how many training processes there are on all nodes.
        host_power_w: what the rest of the machine draws, assumed to be the same on every node [W].
    """

    n_gpus: int
    n_ranks: int
    world_size: int
    host_power_w: float = 0.0


def joint_profile(own: PowerProfile, share: NodeShare, parts: Iterable[NodeProfile]) -> PowerProfile:
    """Return the curve of all nodes at the limits of the leader's own: its power, and the rate of the slowest.

    A node's power is the leader's, times a ratio: what the two drew at the limits that both have measured, in between
    interpolated, and the ratio of their GPUs where there is no such limit. A node that does not follow, and training
    processes that no controller reports, draw all the time what they draw at the highest limit.

    Args:
        own: the leader's curve.
        share: its part of the run.
        parts: what the other nodes have published.
    """
    power_w, slowest_ratio = own.power_w, np.ones(len(own.points))
    n_missing, n_nodes = share.world_size - share.n_ranks, 0
    for part in parts:
        n_missing, n_nodes = n_missing - part.n_ranks, n_nodes + 1
        if part.state == "following":
            power_w = power_w + own.power_w * _ratios(own, part, part.n_gpus / share.n_gpus)
            slowest_ratio = np.minimum(slowest_ratio, _rate_ratios(own, part))
        else:
            power_w = power_w + own.fastest.power_w * part.n_gpus / share.n_gpus
    power_w = power_w + own.fastest.power_w * max(n_missing, 0) / share.n_ranks + share.host_power_w * n_nodes
    ratios = zip(own.points, (power_w / own.power_w).tolist(), slowest_ratio.tolist(), strict=True)
    return PowerProfile(tuple(point.scaled(power_ratio=power, rate_ratio=rate) for point, power, rate in ratios))


def _ratios(own: PowerProfile, part: NodeProfile, unmeasured_ratio: float) -> NDArray[np.float64]:
    """Return a node's power over the leader's at each of the leader's limits, shape (n_points,)."""
    if not part.points:
        return np.full(len(own.points), unmeasured_ratio)
    limits_w = [entry.power_limit_w for entry in part.points]
    ratios = [entry.power_w / own.at(entry.power_limit_w)[0] for entry in part.points]
    return np.interp(own.power_limits_w, limits_w, ratios)


def _rate_ratios(own: PowerProfile, part: NodeProfile) -> NDArray[np.float64]:
    """Return a node's rate over the leader's at each of the leader's limits, 1 where it is no slower, (n_points,)."""
    limits_w = [entry.power_limit_w for entry in part.points if entry.iterations_per_s > 0]
    if not limits_w:
        return np.ones(len(own.points))
    rates = [entry.iterations_per_s / own.at(entry.power_limit_w)[1] for entry in part.points if entry.iterations_per_s]
    ratios = np.interp(own.power_limits_w, limits_w, rates)
    return np.where(ratios < SLOWER_RATIO, ratios, 1.0)


def joint_ratios(
    own: tuple[Sequence[LimitRatios], NDArray[np.float64]],
    curve: PowerProfile,
    share: NodeShare,
    parts: Sequence[NodeProfile],
) -> tuple[Sequence[LimitRatios], NDArray[np.float64]] | None:
    """Return what limits are relative to the highest one for the GPUs of all nodes; None: one node does not know.

    Each node counts by what it draws at the highest limit. Errors may have the same cause on each node, and add up.

    Args:
        own: the leader's ratios at some limits, and how their errors correlate.
        curve: the leader's curve.
        share: its part of the run.
        parts: what the other nodes have published.
    """
    nodes = []
    for part in parts:
        known = [entry for entry in part.points if _is_known(entry)]
        if part.state != "following" or not known:
            return None
        limits_w = np.array([entry.power_limit_w for entry in known])
        if any(not limits_w[0] - SAME_POINT_W <= at.power_limit_w <= limits_w[-1] + SAME_POINT_W for at in own[0]):
            return None
        used = np.array([1 / (entry.energy_ratio or 1.0) for entry in known])
        errors = used**2 * [(entry.energy_ci90_ratio or 0.0) / NORMAL_QUANTILE for entry in known]
        nodes.append((float(_ratios(curve, part, part.n_gpus / share.n_gpus)[-1]), limits_w, used, errors))
    if share.world_size > share.n_ranks + sum(part.n_ranks for part in parts):
        return None
    whole = 1 + sum(weight for weight, *_ in nodes)

    def joint(at: LimitRatios) -> LimitRatios:
        used, error = 1 / at.energy_ratio, at.energy_error_ratio / at.energy_ratio**2
        for weight, limits_w, node_used, node_errors in nodes:
            used += weight * float(np.interp(at.power_limit_w, limits_w, node_used))
            error += weight * float(np.interp(at.power_limit_w, limits_w, node_errors))
        energy_ratio = whole / used
        return replace(
            at,
            energy_ratio=energy_ratio,
            energy_error_ratio=error / whole * energy_ratio**2,
            shared_error_ratio=at.shared_error_ratio / at.energy_ratio**2 / whole * energy_ratio**2,
        )

    return [joint(at) for at in own[0]], own[1]


def _is_known(entry: NodeProfileEntry) -> bool:
    """Return whether a node tells what an iteration needs at a limit, and whether that can be."""
    ratio = entry.energy_ratio or 0.0
    return entry.energy_ci90_ratio is not None and 1 / MAX_ENERGY_RATIO <= ratio <= MAX_ENERGY_RATIO


class PlanBroadcast:
    """The plan that the leader publishes: at once where something has changed, and again every heartbeat."""

    def __init__(self, run: RunIdentity, *, reporter: RunReporter) -> None:
        self._run = run
        self._reporter = reporter
        self._last: RunPlan | None = None
        self._last_ns = 0
        self._n_published = 0

    def publish(
        self,
        target: Target | Blocked,
        *,
        gpu_model: str,
        max_power_limit_w: float,
        is_steady: bool,
        now: Now,
    ) -> None:
        """Publish the limit of the run, or why there is none.

        Args:
            target: the limit of the leader's own GPUs.
            gpu_model: their model.
            max_power_limit_w: the highest limit that each of them may have [W].
            is_steady: whether the limit comes from the plan, and is not just being measured.
            now: when.
        """
        chosen = target if isinstance(target, Target) else None
        plan = RunPlan(
            user=self._run.user,
            job=self._run.job,
            run=self._run.run,
            node=self._run.node,
            seq=self._n_published,
            time_s=now.wall_s,
            heartbeat_s=HEARTBEAT_S,
            reason=target.reason,
            detail=target.detail[:MAX_DETAIL],
            gpu_model=gpu_model,
            max_power_limit_w=max_power_limit_w,
            power_limit_w=chosen.power_limit_w if chosen else None,
            is_steady=is_steady,
            signal=chosen.signal if chosen else None,
            speed_ratio=chosen.speed_ratio if chosen else None,
        )
        is_due = now.monotonic_ns - self._last_ns >= HEARTBEAT_S * NS_PER_S
        if self._last is None or is_due or _essence(plan) != _essence(self._last):
            self._last, self._last_ns, self._n_published = plan, now.monotonic_ns, self._n_published + 1
            self._reporter.publish_plan(plan)


def _essence(plan: RunPlan) -> tuple[object, ...]:
    return plan.power_limit_w, plan.reason, plan.is_steady, plan.max_power_limit_w
