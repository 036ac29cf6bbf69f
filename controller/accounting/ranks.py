"""The training processes of one run on this node: who speaks for which rank, who has ended, who is silent."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from controller.accounting.iteration_log import IterationLog, IterationTotals
from controller.clock import NS_PER_S
from publishers.messages.training import RankStatus

GATHER_S = 5.0
"""Ranks of one run start within seconds of each other: whoever has not come by then runs on another node."""

PAUSE_WINDOWS, PAUSE_ITERATIONS = 3, 10
LOST_GRACE_S = 15.0
"""A last will also goes out when the network blinks: a process that is back within this time goes on where it was."""

End = Literal["finished", "lost", "silent"]

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunIdentity:
    """Where a run runs, as the router sees it: its identity and this node's name."""

    job: str
    run: str
    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCheckpoint:
    """How far a training process was when a former controller left it, and which one it is, of those of this boot."""

    pid: int
    started_at_s: float
    tally: IterationTotals


@dataclass(slots=True, kw_only=True)
class Rank:
    """A training process of the run."""

    status: RankStatus
    status_s: float
    heard_s: float
    log: IterationLog = field(default_factory=IterationLog)
    ended: End | None = None
    ended_s: float = 0.0


class Ranks:
    """The ranks of one run on this node, by number; `bookmarks`: those of a former controller."""

    def __init__(self, *, name: str, lease_s: float, bookmarks: Mapping[int, RankCheckpoint] | None = None) -> None:
        self.members: dict[int, Rank] = {}
        self.name = name
        self.go_on = False
        """Whether a process that a former controller knew is still at it."""
        self._bookmarks = dict(bookmarks or {})
        self._rivals_s: dict[int, float] = {}
        """When a second process that claims a rank was last heard of, by rank."""
        self._lease_s = lease_s
        self._joined_s = 0.0

    @property
    def in_conflict(self) -> bool:
        """Return whether two processes claim one rank: what arrives cannot be told apart, and decides nothing."""
        return bool(self._rivals_s)

    @property
    def are_gone(self) -> bool:
        """Return whether every rank has ended, be it that one may still come back."""
        return self.ending is not None

    @property
    def ending(self) -> End | None:
        """Return how the ranks have ended, the worst way first; None while one goes on."""
        ends = {rank.ended for rank in self.members.values()}
        if not ends or None in ends:
            return None
        return "silent" if "silent" in ends else "lost" if "lost" in ends else "finished"

    @property
    def are_elsewhere(self) -> bool:
        """Return whether the run has ranks on other nodes, too, or some that say nothing."""
        return bool(self.members) and self.status.world_size > len(self.members)

    @property
    def logs(self) -> list[IterationLog]:
        """Return the log of each rank that goes on; of each where none does."""
        return [rank.log for rank in self.members.values() if self.are_gone or not rank.ended]

    @property
    def slowest(self) -> IterationLog:
        """Return the log of the rank with the fewest iterations."""
        return min(self.logs, key=lambda log: log.n_iterations)

    @property
    def status(self) -> RankStatus:
        """Return the status of the lowest rank, which speaks for what all ranks share."""
        return self.members[min(self.members)].status

    def hear_status(self, number: int, status: RankStatus, *, now_s: float) -> bool:
        """Take a rank's status; return whether it comes from the process that speaks for this rank, and runs."""
        is_running = status.state == "running"
        rank = self.members.get(number)
        if rank is not None and process_of(status) == process_of(rank.status):
            rank.status, rank.status_s, rank.heard_s = status, now_s, now_s
            rank.ended, rank.ended_s = (None if status.state == "running" else status.state), now_s
            return is_running
        if rank is None or rank.ended or now_s - rank.status_s > self._patience_s(rank):
            if is_running:
                self.members[number] = Rank(
                    status=status, status_s=now_s, heard_s=now_s, log=self._log_of(number, status, now_s)
                )
                self._joined_s = now_s
                self._rivals_s.pop(number, None)
            return is_running
        self._hear_rival(number, now_s if is_running else None)
        return False

    def are_succeeded_by(self, number: int, status: RankStatus, *, now_s: float) -> bool:
        """Return whether a status is of another process, which takes a rank's place while no other rank goes on."""
        rank = self.members.get(number)
        if rank is None or status.state != "running" or process_of(status) == process_of(rank.status):
            return False
        others = {n: other for n, other in self.members.items() if n != number and n not in self._rivals_s}
        return all(each.ended or now_s - each.status_s > self._patience_s(each) for each in (rank, *others.values()))

    def bookmarks(self) -> dict[int, RankCheckpoint]:
        """Return how far each process is that has shown an iteration."""
        tallies = {number: (rank.status, rank.log.tally()) for number, rank in self.members.items()}
        known = {
            number: RankCheckpoint(pid=status.pid, started_at_s=status.started_at_s, tally=tally)
            for number, (status, tally) in tallies.items()
            if tally is not None
        }
        return self._bookmarks | known if self.go_on else known  # a rank that is yet to come goes on as well

    def _log_of(self, number: int, status: RankStatus, now_s: float) -> IterationLog:
        """Return the log of a process, begun where it was left."""
        known = self._bookmarks.get(number)
        if known is None or (known.pid, known.started_at_s) != (status.pid, status.started_at_s):
            return IterationLog()
        del self._bookmarks[number]  # once: a process that came back after another would be counted twice
        self.go_on = True
        return IterationLog(known.tally, taken_up_ns=round(now_s * NS_PER_S), lease_s=self._lease_s)

    def _patience_s(self, rank: Rank) -> float:
        """Return how long the status of a living process may stay away [s]: it comes with the heartbeat."""
        return max(self._lease_s, 3 * rank.status.heartbeat_s)

    def _hear_rival(self, number: int, heard_s: float | None) -> None:
        """Note that a second process claims a rank, or (None) that it has ended."""
        if heard_s is None:
            self._rivals_s.pop(number, None)
            return
        if number not in self._rivals_s:
            _LOGGER.warning("%s: two processes claim rank %d: no limit is set", self.name, number)
        self._rivals_s[number] = heard_s

    def expire(self, now_s: float) -> End | None:
        """End the ranks and rivals that are silent; return how the run has ended once all ranks have."""
        self._rivals_s = {n: heard_s for n, heard_s in self._rivals_s.items() if now_s - heard_s <= self._lease_s}
        for number, rank in self.members.items():
            if not rank.ended and now_s - rank.heard_s > self._lease_s:
                rank.ended, rank.ended_s = "silent", now_s
                _LOGGER.warning("%s: rank %d is silent for %.3g s", self.name, number, now_s - rank.heard_s)
        blinks = (r for r in self.members.values() if r.ended == "lost" and now_s - r.ended_s < LOST_GRACE_S)
        return None if any(blinks) else self.ending

    def have_gathered(self, now_s: float) -> bool:
        """Return whether every rank that is to come has come, and iterates."""
        if not self.members or self.are_gone or not all(log.is_live for log in self.logs):
            return False
        return len(self.members) >= self.status.world_size or now_s - self._joined_s >= GATHER_S

    def forget_before(self, time_ns: int) -> None:
        """Forget the iterations that ended by a moment [ns]: they are counted."""
        for log in self.logs:
            log.forget_before(time_ns)

    def is_paused(self, now_ns: int, *, window_s: float) -> bool:
        """Return whether no iteration has come for several windows [s], and for several of the usual iterations."""
        slowest = self.slowest
        if slowest.end_ns is None or not slowest.n_iterations:
            return False
        silent_s = (now_ns - slowest.end_ns) / NS_PER_S
        return silent_s >= max(PAUSE_WINDOWS * window_s, PAUSE_ITERATIONS * slowest.active_s / slowest.n_iterations)

    def known_ns(self) -> tuple[int, int] | None:
        """Return from when to when the iterations of every rank are known [ns], or None while one has shown none."""
        begins_ns = [log.begin_ns for log in self.logs]
        ends_ns = [log.end_ns for log in self.logs]
        known_begins = [begin for begin in begins_ns if begin is not None]
        known_ends = [end for end in ends_ns if end is not None]
        if not known_begins or len(known_ends) < len(ends_ns):
            return None
        return max(known_begins), min(known_ends)


def process_of(status: RankStatus) -> tuple[str, int, float]:
    """Return what tells one training process from another."""
    return status.boot_id, status.pid, status.started_at_s
