"""Clears the retained topics of runs that have ended from the broker, so that they do not accumulate there.

Of the runs on its own host the leader (the node of rank 0) clears them after an hour, the others after a day. What is
left of hosts that are gone any controller clears, in a sweep once a day.
"""

import zlib
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass, field

from controller.ports import Bus
from publishers.messages.codec import DecodeError, decode
from publishers.messages.topics import RunKey, Topics
from publishers.messages.training import RankStatus

LEADER_LEAVES = ("profile", "schedule", "energy")
"""What the leader retains of a run; the schedule, where it was killed before it could clear it."""
LEADER_AFTER_S = 3_600.0
ANYBODY_AFTER_S = 86_400.0
SWEEP_EVERY_S = 86_400.0
MAX_CLEARED = 1_000
"""In one sweep: a quarter of what waits for the broker at most."""
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
            topics += [self._topics.run(key, leaf) for leaf in LEADER_LEAVES]
        topics += [self._topics.run_on_node(key, self._node, leaf) for leaf in ("profile", "energy")]
        for topic in topics:
            self._bus.publish(topic, b"", qos=1, retain=True)


class HostSweep:
    """Once a day, for a minute: clears what is left of processes on hosts that never came back.

    A host that boots has another boot id, and one that is taken away has no controller: nobody else would clear the
    status of the processes that were on it. The nodes of a site have their minute at different times of the day.
    """

    def __init__(self, topics: Topics, bus: Bus, *, node: str, boot_id: str, now_s: float) -> None:
        self._topics = topics
        self._bus = bus
        self._boot_id = boot_id
        self._filter = topics.rank_filter("status")
        self._now_s = now_s
        self._due_s = now_s + SWEEP_EVERY_S * zlib.crc32(node.encode()) / 2**32
        self._is_sweeping = False
        self._n_cleared = 0

    def advance(self, now_s: float) -> None:
        """Begin where it is due, and end what the last call began."""
        self._now_s = now_s
        if self._is_sweeping:
            self._is_sweeping = False
            self._bus.unsubscribe(self._filter, self._on_status)
        elif now_s >= self._due_s:
            self._is_sweeping, self._n_cleared, self._due_s = True, 0, now_s + SWEEP_EVERY_S
            self._bus.subscribe(self._filter, self._on_status, qos=0)

    def _on_status(self, topic: str, payload: bytes) -> None:
        parsed = self._topics.parse(topic)
        if not self._is_sweeping or not payload or parsed is None or parsed.run is None or parsed.rank is None:
            return
        if parsed.leaf != "status" or parsed.boot_id == self._boot_id or self._n_cleared >= MAX_CLEARED:
            return
        with suppress(DecodeError):
            status = decode(payload, RankStatus)
            if status.time_s is None or self._now_s - status.time_s < ANYBODY_AFTER_S:
                return
            self._n_cleared += 1
            self._bus.publish(topic, b"", qos=1, retain=True)
            if parsed.rank == 0:
                for leaf in LEADER_LEAVES:
                    self._bus.publish(self._topics.run(parsed.run, leaf), b"", qos=1, retain=True)
