"""Whether a run iterates no more though its processes live: at a prompt, in a last evaluation, or hanging.

Its limits are then given back. That costs nothing but what would be saved, and the curve is kept: when it goes on, as
after a validation that nobody has told us of, the limit of its plan comes back with the first iteration. A function of
the iterations, the statuses and the time.
"""

from typing import Final

from controller.accounting.ranks import Rank, Ranks
from controller.ports import Blocked
from controller.runtime.clock import NS_PER_S

IDLE_ITERATIONS: Final = 20
"""A run is not idle before this many of its usual iteration times have passed."""
END_GRACE_S: Final = 5.0
"""A run that has done all the iterations it has announced may go on all the same: an estimate is corrected by then."""
MAX_KNOWN_PAUSE_S: Final = 3_600.0
"""So long a pause of its own may last that the training has told of: a validation, a checkpoint."""
LEARNED_RATIO: Final = 2.0
"""After a gap that the run went on after, it is idle when the next one is so many times as long."""
BEATS: Final = 3
"""Heartbeats of which one must have come."""
MAX_LEARNED_S: Final = 3_600.0


class Idleness:
    """Notices that a run has stopped iterating, and that it goes on.

    Args:
        idle_s: the shortest time without an iteration that counts [s].

    Attributes:
        blocked: why the run has no limit now; None while it iterates, or is believed to.
    """

    def __init__(self, *, idle_s: float) -> None:
        self.blocked: Blocked | None = None
        self._idle_s = idle_s
        self._learned_s = 0.0
        self._ends_early = False
        """Whether it went on after the end that it had announced."""
        self._stopped_ns = 0
        """When the last iteration ended before the present idleness [ns]."""
        self._excused_ns = 0
        """Until when there was a pause that the training has told of [ns]."""

    def update(self, ranks: Ranks, *, now_ns: int) -> Blocked | None:
        """Return why a run has no limit at a monotonic time [ns], or None."""
        members = list(ranks.members.values())
        if ranks.is_pool:  # a late one may begin when it likes
            members = [rank for rank in members if rank.log.is_live]
        running = [rank for rank in members if not rank.ended]
        logs = [rank.log for rank in running or members]
        ends_ns = [log.end_ns for log in logs if log.is_live and log.end_ns is not None]
        if not ends_ns or len(ends_ns) < len(logs):  # not every one of them has begun
            return self.blocked
        last_ns = max(ends_ns)
        if self.blocked is not None and last_ns > self._stopped_ns:
            self._go_on((last_ns - self._stopped_ns) / NS_PER_S)
        if self.blocked is None and running and all(_is_heard(rank, now_ns / NS_PER_S) for rank in running):
            self._stopped_ns = last_ns
            is_known = any(each.status.in_pause for each in running) and now_ns < last_ns + MAX_KNOWN_PAUSE_S * NS_PER_S
            if is_known or any(_is_asked_to_wait(each, now_ns) for each in running):
                self._excused_ns = now_ns
            self.blocked = self._blocked(running, (now_ns - max(last_ns, self._excused_ns)) / NS_PER_S)
        return self.blocked

    def _go_on(self, gap_s: float) -> None:
        if self.blocked is not None and self.blocked.reason == "run_at_its_end":
            self._ends_early = True
        else:
            self._learned_s = max(self._learned_s, min(LEARNED_RATIO * gap_s, MAX_LEARNED_S))
        self.blocked = None

    def _blocked(self, ranks: list[Rank], silent_s: float) -> Blocked | None:
        if silent_s >= END_GRACE_S and not self._ends_early and all(map(_is_at_its_end, ranks)):
            detail = (
                f"the run has done the {ranks[0].status.total_iterations} iterations it announced, but has not ended"
            )
            return Blocked(reason="run_at_its_end", detail=detail)
        usual_s = max(_iteration_time_s(rank) for rank in ranks)
        patience_s = max(self._idle_s, IDLE_ITERATIONS * usual_s, self._learned_s)
        if silent_s < patience_s:
            return None
        detail = f"the run has not iterated for {patience_s:.0f} s, but has not ended"
        return Blocked(reason="idle", detail=detail)


def _is_at_its_end(rank: Rank) -> bool:
    total = rank.log.total_iterations(rank.status.total_iterations)
    return total is not None and total <= rank.log.n_iterations


def _iteration_time_s(rank: Rank) -> float:
    """Return how long an iteration usually takes [s]; of the first ones with all pauses, since one may be called so."""
    log = rank.log
    if log.n_iterations < IDLE_ITERATIONS and log.first_begin_ns is not None and log.end_ns is not None:
        return (log.end_ns - log.first_begin_ns) / NS_PER_S / log.n_iterations
    return log.running_s / log.n_iterations


def _is_asked_to_wait(rank: Rank, now_ns: int) -> bool:
    """Return whether the training waits because it was asked to, and for no longer than it allows."""
    since_ns, most_s = rank.status.paused_since_ns, rank.status.max_pause_s or 0.0
    return since_ns is not None and since_ns <= now_ns < since_ns + most_s * NS_PER_S


def _is_heard(rank: Rank, now_s: float) -> bool:
    """Return whether its heart beats; what becomes of one that is silent is the lease's business."""
    return now_s - rank.last_status_s <= BEATS * rank.status.heartbeat_s
