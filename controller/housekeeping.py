"""Housekeeping of the broker: the retained topics of runs that have ended are cleared.

The leader of a run (the node of rank 0) clears them after an hour, any controller after a day, so that the broker of a
busy site does not remember every run there ever was.
"""

from collections import OrderedDict
from dataclasses import dataclass, field

from controller.ports import Bus
from publishers.topics import Address, Topics
from publishers.wire import RankStatus

LEADER_AFTER_S = 3_600.0
ANYBODY_AFTER_S = 86_400.0
MAX_RUNS = 4_096


@dataclass(slots=True, kw_only=True)
class _Run:
    """A run as its retained topics show it."""

    heard_s: float
    running: bool = True
    led: bool = False
    ranks: set[int] = field(default_factory=set)


class Housekeeping:
    """What retained topics there are, and when they are to go."""

    def __init__(self, topics: Topics, bus: Bus) -> None:
        self._topics = topics
        self._bus = bus
        self._runs: OrderedDict[tuple[str, str], _Run] = OrderedDict()

    def note(self, address: Address, status: RankStatus, *, now_s: float, ours: bool) -> None:
        """Take note of a rank's status."""
        key = (address.job or "", address.run or "")
        run = self._runs.setdefault(key, _Run(heard_s=now_s))
        run.heard_s = now_s
        run.running = status.state == "running"
        run.led = run.led or (ours and address.rank == 0)
        run.ranks.add(address.rank or 0)
        while len(self._runs) > MAX_RUNS:
            self._runs.popitem(last=False)

    def sweep(self, now_s: float) -> None:
        """Clear what is due."""
        for key, run in list(self._runs.items()):
            after_s = LEADER_AFTER_S if run.led and not run.running else ANYBODY_AFTER_S
            if now_s - run.heard_s >= after_s:
                del self._runs[key]
                self._clear(*key, run.ranks)

    def _clear(self, job: str, run: str, ranks: set[int]) -> None:
        for rank in ranks:
            self._bus.publish(self._topics.rank(job, run, rank, "status"), b"", qos=1, retain=True)
        for leaf in ("profile", "energy"):
            self._bus.publish(self._topics.run(job, run, leaf), b"", qos=1, retain=True)
