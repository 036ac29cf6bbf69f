"""Clears the retained topics of runs that have ended from the broker.

The leader of a run (the node of rank 0) clears them after an hour, any controller after a day, so that retained
messages do not accumulate on the broker.
"""

from collections import OrderedDict
from dataclasses import dataclass, field

from controller.ports import Bus
from publishers.messages.topics import ParsedTopic, Topics
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
    ours: bool = False
    led: bool = False
    is_running: dict[int, bool] = field(default_factory=dict)


class RetainedTopics:
    """Which retained topics there are, and when they are to be cleared."""

    def __init__(self, topics: Topics, bus: Bus, *, node: str) -> None:
        self._topics = topics
        self._bus = bus
        self._node = node
        self._runs: OrderedDict[tuple[str, str], _RetainedRun] = OrderedDict()
        self._n_ranks = 0

    def record(self, topic: ParsedTopic, status: RankStatus, *, now_s: float, ours: bool) -> None:
        """Record a rank's status."""
        rank = topic.rank or 0
        run = self._runs.setdefault((topic.job or "", topic.run or ""), _RetainedRun(last_status_s=now_s))
        run.last_status_s = now_s
        run.ours = run.ours or ours
        run.led = run.led or (ours and rank == 0)
        self._n_ranks += rank not in run.is_running
        run.is_running[rank] = status.state == "running"
        while len(self._runs) > MAX_RUNS or (self._n_ranks > MAX_RANKS and len(self._runs) > 1):
            _, oldest = self._runs.popitem(last=False)
            self._n_ranks -= len(oldest.is_running)

    def clear_due(self, now_s: float) -> None:
        """Clear the topics of runs that ended long enough ago."""
        for key, run in list(self._runs.items()):
            has_ended = not any(run.is_running.values())
            after_s = LEADER_AFTER_S if run.led and has_ended else ANYBODY_AFTER_S
            if now_s - run.last_status_s >= after_s:
                del self._runs[key]
                self._n_ranks -= len(run.is_running)
                self._clear(*key, run)

    def _clear(self, job: str, run_name: str, run: _RetainedRun) -> None:
        topics = [self._topics.rank(job, run_name, rank, "status") for rank in run.is_running]
        topics += [self._topics.run(job, run_name, leaf) for leaf in ("profile", "plan", "energy")]
        if run.ours:
            topics += [self._topics.run_on_node(job, run_name, self._node, leaf) for leaf in ("profile", "energy")]
        for topic in topics:
            self._bus.publish(topic, b"", qos=1, retain=True)
