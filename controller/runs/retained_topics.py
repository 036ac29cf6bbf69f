"""Clears the retained topics of runs that have ended on this host from the broker.

The leader of a run (the node of rank 0) clears them after an hour, the others after a day, so that retained messages do
not accumulate on the broker.
"""

from collections import OrderedDict
from dataclasses import dataclass, field

from controller.ports import Bus
from publishers.messages.topics import RunKey, Topics
from publishers.messages.training import RankStatus

LEADER_AFTER_S = 3_600.0
ANYBODY_AFTER_S = 86_400.0
MAX_RUNS = 4_096
MAX_RANKS = 131_072
"""Of all runs together; beyond it the oldest run is forgotten."""


@dataclass(slots=True, kw_only=True)
class _RetainedRun:
    """A run as its retained topics show it; `is_running` by rank."""

    last_status_s: float
    is_running: dict[int, bool] = field(default_factory=dict)


class RetainedTopics:
    """Which retained topics there are of this host, and when they are to be cleared."""

    def __init__(self, topics: Topics, bus: Bus, *, node: str, boot_id: str) -> None:
        self._topics = topics
        self._bus = bus
        self._node = node
        self._boot_id = boot_id
        self._runs: OrderedDict[RunKey, _RetainedRun] = OrderedDict()
        self._n_ranks = 0

    def record(self, key: RunKey, rank: int, status: RankStatus, *, now_s: float) -> None:
        """Record a rank's status."""
        run = self._runs.setdefault(key, _RetainedRun(last_status_s=now_s))
        run.last_status_s = now_s
        self._n_ranks += rank not in run.is_running
        run.is_running[rank] = status.state == "running"
        while len(self._runs) > MAX_RUNS or (self._n_ranks > MAX_RANKS and len(self._runs) > 1):
            _, oldest = self._runs.popitem(last=False)
            self._n_ranks -= len(oldest.is_running)

    def clear_due(self, now_s: float) -> None:
        """Clear the topics of runs that ended long enough ago."""
        for key, run in list(self._runs.items()):
            has_ended = not any(run.is_running.values())
            after_s = LEADER_AFTER_S if 0 in run.is_running and has_ended else ANYBODY_AFTER_S
            if now_s - run.last_status_s >= after_s:
                del self._runs[key]
                self._n_ranks -= len(run.is_running)
                self._clear(key, run)

    def _clear(self, key: RunKey, run: _RetainedRun) -> None:
        topics = [self._topics.rank(self._boot_id, key, rank, "status") for rank in run.is_running]
        if 0 in run.is_running:
            topics += [self._topics.run(key, leaf) for leaf in ("profile", "energy")]
        topics += [self._topics.run_on_node(key, self._node, leaf) for leaf in ("profile", "energy")]
        for topic in topics:
            self._bus.publish(topic, b"", qos=1, retain=True)
