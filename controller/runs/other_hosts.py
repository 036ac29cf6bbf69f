"""What the runs of this node that have ranks on other hosts are subscribed to there, and whose plans they believe.

The leader of a run (the node of rank 0) listens to the parts of its other nodes; these listen to its plan. A controller
subscribes to neither for a run that is all its own, so that what it costs does not grow with the site.

A plan is believed from one node alone: the one whose status carries the boot id of the host that rank 0 runs on. The
broker's rules bind a node's topics to its password, and the status of rank 0 to the run's user; so neither another
node nor another user can set the limits of a run.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from controller.ports import Bus
from controller.runs.run import TrainingRun
from controller.runtime.clock import Clock
from publishers.messages.codec import DecodeError, decode
from publishers.messages.reports import NodeProfile, NodeStatus, RunEnergy, RunPlan
from publishers.messages.topics import ParsedTopic, RunKey, Topics
from publishers.messages.training import RankStatus
from publishers.shared.log_once import LogLimiter

MAX_NODES: Final = 16_384
MAX_HOSTS: Final = 64
"""Hosts that a run's rank 0 has been on; the one heard longest ago is forgotten."""

Role = Literal["leader", "follower"]
Handler = Callable[[str, bytes], None]
Parse = Callable[[Callable[[ParsedTopic, bytes], None]], Handler]

_LOGGER = logging.getLogger(__name__)


class _Filter(NamedTuple):
    topic_filter: str
    handler: Handler
    qos: int


@dataclass(slots=True, kw_only=True)
class _Membership:
    """A run that is subscribed to; `rank_0` is the status of rank 0 by the boot id of its host."""

    role: Role
    rank_0: "OrderedDict[str, RankStatus]" = field(default_factory=OrderedDict)

    @property
    def boot_id(self) -> str | None:
        """Return where rank 0 runs: its newest process, where it has moved."""
        running = [status for status in self.rank_0.values() if status.state == "running"]
        return max(running, key=lambda status: status.started_at_s).boot_id if running else None


class OtherHosts:
    """The subscriptions of runs on several nodes.

    Args:
        runs: the runs of this node.
        bus: where to subscribe.
        topics: the topics below the configured root.
        node: the name of this node.
        clock: the time.
        parse: makes a handler that parses the topic, and counts invalid messages.
    """

    def __init__(
        self,
        runs: Mapping[RunKey, TrainingRun],
        *,
        bus: Bus,
        topics: Topics,
        node: str,
        clock: Clock,
        parse: Parse,
    ) -> None:
        self._runs = runs
        self._bus = bus
        self._topics = topics
        self._node = node
        self._memberships: dict[RunKey, _Membership] = {}
        self._nodes = NodeDirectory(clock)
        self._part_handler, self._plan_handler = parse(self._on_part), parse(self._on_plan)
        self._rank_0_handler, self._node_handler = parse(self._on_rank_0), parse(self._on_node_status)

    def update(self, key: RunKey) -> None:
        """Subscribe to what a run needs now, and no longer to what it does not."""
        run = self._runs.get(key)
        role: Role | None = None
        if run is not None and run.ended is None and run.ranks.is_multi_node:
            role = "leader" if run.ranks.is_leader else "follower"
        membership = self._memberships.get(key)
        former = membership.role if membership else None
        if role == former:
            return
        was_following = self._is_following
        if role is None:
            del self._memberships[key]
        else:
            self._memberships[key] = _Membership(role=role)
        self._replace(self._filters(key, former), self._filters(key, role))
        if self._is_following != was_following:
            node_filter = [_Filter(self._topics.node_status(None), self._node_handler, 1)]
            self._nodes.clear()
            self._replace(*((node_filter, []) if was_following else ([], node_filter)))

    @property
    def _is_following(self) -> bool:
        return any(membership.role == "follower" for membership in self._memberships.values())

    def _filters(self, key: RunKey, role: Role | None) -> list[_Filter]:
        topics = self._topics
        if role == "leader":
            return [
                _Filter(topics.part_filter("energy", run=key), self._part_handler, 0),
                _Filter(topics.part_filter("profile", run=key), self._part_handler, 1),
            ]
        if role == "follower":
            return [
                _Filter(topics.rank_filter("status", run=key, rank=0), self._rank_0_handler, 1),
                _Filter(topics.plan_filter(run=key), self._plan_handler, 1),
            ]
        return []

    def _replace(self, former: list[_Filter], new: list[_Filter]) -> None:
        for topic_filter, handler, _ in former:
            self._bus.unsubscribe(topic_filter, handler)
        for topic_filter, handler, qos in new:
            self._bus.subscribe(topic_filter, handler, qos=qos)

    def _on_part(self, topic: ParsedTopic, payload: bytes) -> None:
        """Route another node's part of a run to the run, where this node leads it."""
        run = self._runs.get(topic.run) if topic.run is not None else None
        if not payload or run is None or not run.ranks.is_leader or topic.node in {None, self._node}:
            return
        if topic.leaf == "energy":
            run.other_nodes.on_energy(topic.node or "", decode(payload, RunEnergy))
        else:
            run.other_nodes.on_profile(topic.node or "", decode(payload, NodeProfile))

    def _on_plan(self, topic: ParsedTopic, payload: bytes) -> None:
        run = self._runs.get(topic.run) if topic.run is not None else None
        if not payload or run is None or topic.run is None:
            return
        plan = decode(payload, RunPlan)
        if (plan.node, plan.run) != (topic.node, topic.run.run):
            raise DecodeError(f"the payload is of node {plan.node} for run {plan.run}, not of the topic's")
        membership = self._memberships.get(topic.run)
        boot_id = membership.boot_id if membership else None
        nodes = self._nodes.nodes_of(boot_id) if boot_id is not None else frozenset()
        if nodes == {plan.node}:
            run.on_plan(plan)
        elif nodes and plan.node not in nodes:
            raise DecodeError(f"a plan of {plan.node}, but rank 0 runs on {', '.join(sorted(nodes))}")

    def _on_rank_0(self, topic: ParsedTopic, payload: bytes) -> None:
        membership = self._memberships.get(topic.run) if topic.run is not None else None
        if membership is None or topic.run is None or topic.boot_id is None:
            return
        membership.rank_0.pop(topic.boot_id, None)
        if payload:
            status = decode(payload, RankStatus)
            if (status.boot_id, status.run) != (topic.boot_id, topic.run.run):
                raise DecodeError("the payload is of another boot, or another run, than the topic")
            membership.rank_0[topic.boot_id] = status
            while len(membership.rank_0) > MAX_HOSTS:
                membership.rank_0.popitem(last=False)

    def _on_node_status(self, topic: ParsedTopic, payload: bytes) -> None:
        if topic.node is not None:
            status = decode(payload, NodeStatus) if payload else None
            is_online = status is not None and status.state == "online"
            self._nodes.put(topic.node, status.boot_id if status and is_online else None)


class NodeDirectory:
    """Which node says that it runs on which boot; of two that claim one boot, neither is believed."""

    def __init__(self, clock: Clock) -> None:
        self._boots: dict[str, str] = {}
        self._nodes: dict[str, set[str]] = {}
        self._limiter = LogLimiter(clock.now_s, period_s=3_600.0)

    def clear(self) -> None:
        """Forget all nodes."""
        self._boots.clear()
        self._nodes.clear()

    def put(self, node: str, boot_id: str | None) -> None:
        """Record the boot of a node; None: it is offline, or does not say."""
        former = self._boots.pop(node, None)
        if former is not None:
            self._nodes[former].discard(node)
            if not self._nodes[former]:
                del self._nodes[former]
        if boot_id is None or len(self._boots) >= MAX_NODES:
            return
        self._boots[node] = boot_id
        claimants = self._nodes.setdefault(boot_id, set())
        claimants.add(node)
        if len(claimants) > 1 and self._limiter.allows(boot_id):
            names = " and ".join(sorted(claimants)[:2])
            _LOGGER.warning("nodes %s both claim the boot %.40s: no plan of either is followed", names, boot_id)

    def nodes_of(self, boot_id: str) -> frozenset[str]:
        """Return the nodes that claim a boot."""
        return frozenset(self._nodes.get(boot_id, ()))
