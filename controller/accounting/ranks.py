"""The training processes of one run on this node: which process owns a rank, which have ended, which are silent."""

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from operator import attrgetter
from typing import Literal

import msgspec

from controller.accounting.asked_pauses import AskedPauses
from controller.accounting.iteration_log import (
    MEAN_ITERATIONS,
    Activity,
    IterationLog,
    IterationTotals,
    RankLog,
    stop_unless_followed,
)
from controller.runtime.clock import NS_PER_S
from policies.profiling.rhythm_track import RunRhythm, rhythm_of_run
from publishers.messages.topics import RunKey
from publishers.messages.training import RankStatus
from publishers.training.reporting.amounts import UNNAMED

GATHER_S = 5.0
"""Ranks of one run start within seconds of each other: a rank that has not come by then runs on another node."""
LOST_GRACE_S = 15.0
"""A last will also goes out when the network fails: a process that is back within this time continues as before."""
SAME_PROGRESS_RATIO = 1.05
"""Ranks that wait for each other have done about as many iterations, but for what is not published yet."""

End = Literal["finished", "lost", "silent"]

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunIdentity:
    """Which run this is, and on which node this part of it runs."""

    user: str
    job: str
    run: str
    node: str

    @property
    def key(self) -> RunKey:
        """Return which run this is, on whichever node."""
        return RunKey(self.user, self.job, self.run)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCheckpoint:
    """How far a training process was when a former controller stopped, and what identifies it within this boot."""

    pid: int
    started_at_s: float
    totals: IterationTotals


@dataclass(slots=True, kw_only=True)
class Rank:
    """A training process of the run.

    Attributes:
        status: its newest status.
        last_status_s: when that came [s].
        last_message_s: when its newest message of any kind came [s].
        log: its iterations.
        ended: how it has ended, or None.
        ended_s: when it ended [s].
    """

    status: RankStatus
    last_status_s: float
    last_message_s: float
    log: IterationLog = field(default_factory=IterationLog)
    ended: End | None = None
    ended_s: float = 0.0


class PooledLog:
    """The iterations of ranks that do not wait for each other, in one log: their rates add up.

    A time in which one of them begins, pauses or ends is no time of one rate: nothing is continuous there.

    Args:
        ranks: the ranks, also those that have ended.
        before: how far those were that only a former controller has seen: they have ended, or are yet to come.
    """

    def __init__(self, ranks: Sequence[Rank], before: Iterable[IterationTotals] = ()) -> None:
        self._ranks = ranks
        self._logs = [rank.log for rank in ranks] + [IterationLog(totals, by_another=True) for totals in before]

    @property
    def _live(self) -> list[IterationLog]:
        return [rank.log for rank in self._ranks if rank.log.is_live]

    @property
    def _running(self) -> list[IterationLog]:
        return [rank.log for rank in self._ranks if rank.log.is_live and not rank.ended]

    @property
    def begin_ns(self) -> int | None:
        """Return when the oldest remembered iteration of any began [ns]."""
        return min((log.begin_ns for log in self._live if log.begin_ns is not None), default=None)

    @property
    def first_begin_ns(self) -> int | None:
        """Return when the first iteration of all began [ns]."""
        return min((log.first_begin_ns for log in self._live if log.first_begin_ns is not None), default=None)

    @property
    def end_ns(self) -> int | None:
        """Return until when the iterations of those that run are known; once all have ended, when the last did [ns]."""
        running = [log.end_ns for log in self._running if log.end_ns is not None]
        return min(running, default=None) or max((log.end_ns for log in self._live if log.end_ns), default=None)

    @property
    def settled_ns(self) -> int | None:
        """Return the same: one of several is not waited for [ns]."""
        return self.end_ns

    @property
    def is_live(self) -> bool:
        """Return whether any has iterated."""
        return bool(self._live)

    @property
    def n_iterations(self) -> float:
        """Return how many iterations there were in all."""
        return sum(log.n_iterations for log in self._logs)

    @property
    def n_mean(self) -> float:
        """Return how many iterations of mean work there were in all, by the mean of each."""
        return sum(log.n_mean for log in self._logs)

    @property
    def work_per_iteration(self) -> float | None:
        """Return the work of a mean iteration of any of them; None: one does not tell it."""
        work = [log.work_per_iteration or 0.0 for log in self._running or self._live]
        return sum(work) / len(work) if work and all(work) else None

    @property
    def n_unobserved(self) -> float:
        """Return how many iterations were done before they were observed."""
        return sum(rank.log.n_unobserved for rank in self._ranks)

    @property
    def _furthest(self) -> IterationLog:
        return max(self._logs, key=lambda log: (log.n_epochs, log.epochs))

    @property
    def n_epochs(self) -> int:
        """Return the epochs that the furthest has begun."""
        return self._furthest.n_epochs

    @property
    def epochs(self) -> int:
        """Return the epochs of the furthest that were observed."""
        return self._furthest.epochs

    @property
    def running_s(self) -> float:
        """Return in what time that many iterations are done by those that run now [s]."""
        counted = [log for log in self._running or self._live if log.n_iterations and log.running_s]
        rate = sum(log.n_iterations / log.running_s for log in counted)
        return self.n_iterations / rate if rate else 0.0

    def total_iterations(self, announced: int | None) -> float | None:  # noqa: ARG002 — each announces its own
        """Return how many iterations there will be in all, as far as each has announced it."""
        totals = [
            rank.log.n_iterations if rank.ended else rank.log.total_iterations(rank.status.total_iterations)
            for rank in self._ranks
        ]
        known = [total for total in totals if total is not None]
        n_before = sum(log.n_iterations for log in self._logs[len(self._ranks) :])
        return n_before + sum(known) if len(known) == len(totals) else None

    def is_paused(self, now_ns: int, *, after_s: float) -> bool:
        """Return whether none of them iterates."""
        running = self._running
        return bool(running) and all(log.is_paused(now_ns, after_s=after_s) for log in running)

    def forget_before(self, time_ns: int) -> None:
        """Forget the iterations that ended by a moment [ns]: they are counted."""
        for log in self._live:
            log.forget_before(time_ns)

    def activity(self, begin_ns: int, end_ns: int) -> Activity:
        """Return what all of them did between two moments, the gaps as a mean."""
        there = [
            log.activity(begin_ns, end_ns)
            for log in self._live
            if (log.begin_ns or 0) < end_ns and (log in self._running or (log.end_ns or 0) > begin_ns)
        ]
        if not there:
            return Activity(n_iterations=0.0, n_mean=0.0, is_continuous=False, gaps_s=(end_ns - begin_ns) / NS_PER_S)
        return Activity(
            n_iterations=sum(each.n_iterations for each in there),
            n_mean=sum(each.n_mean for each in there),
            is_continuous=all(each.is_continuous for each in there),
            gaps_s=sum(each.gaps_s for each in there) / len(there),
        )

    def iteration_times_s(self, begin_ns: int, end_ns: int, *, at_most: int) -> tuple[float, ...]:  # noqa: ARG002
        """Return none: how long an iteration of one takes is not what the rate of all follows from."""
        return ()


class Ranks:
    """The ranks of one run on this node, by number.

    Args:
        name: the run, for the log.
        lease_s: how long a process may be silent [s].
        checkpoints: how far its processes were when a former controller stopped.
        is_pool: whether they were a pool then.

    Attributes:
        members: the ranks by number.
        status: the status of the lowest rank, for what all ranks share; set with the first rank.
        ending: how the ranks have ended, the worst way first; None while one is running.
        is_multi_node: whether the run has more ranks than those that are known here.
        logs: the log of each running rank; of every rank if none is running; one of all where they are a pool.
        is_pool: whether the ranks were runs of their own at first: they do not wait for each other, and may come late.
        n_running: how many of them run.
        pool_size: how many of a pool ran when its curve was begun: `world_size` of its status, until all have ended.
        is_resumed: whether a process that a former controller knew is still running, or another one goes on with what
            it did.
        is_restarted: whether another process goes on.
        rivals_s: when a second process that claims a rank last published, by rank [s]. While there is one, iterations
            are ignored: they may be of either.
        had_rivals: whether there ever was one.
        asked_pauses: when the training waited because it was asked to.
    """

    status: RankStatus

    def __init__(
        self,
        *,
        name: str,
        lease_s: float,
        checkpoints: Mapping[int, RankCheckpoint] | None = None,
        is_pool: bool = False,
    ) -> None:
        self.name = name
        self.members: dict[int, Rank] = {}
        self.ending: End | None = None
        self.is_multi_node = False
        self.logs: list[RankLog] = []
        self.is_pool = is_pool
        self.n_running, self.pool_size = 0, 1
        self.is_resumed = self.is_restarted = False
        self._checkpoints = dict(checkpoints or {})
        self.rivals_s: dict[int, float] = {}
        self.had_rivals = False
        self.asked_pauses = AskedPauses()
        self._lease_s = lease_s
        self._joined_s = 0.0
        self._has_told_work = self._has_told_no_work = False

    @property
    def slowest(self) -> RankLog:
        """Return the log of the rank with the fewest iterations, or of all where they are a pool."""
        return min(self.logs, key=attrgetter("n_iterations"))

    @property
    def running_s(self) -> float:
        """Return for how long iterations of the slowest rank ran, without what it waited while another one paused [s].

        A rank that waits for another's validation does so within a step: only the other one knows that it is a pause.
        """
        most = SAME_PROGRESS_RATIO * self.slowest.n_iterations
        times_s = [log.running_s / log.n_iterations for log in self.logs if 0 < log.n_iterations <= most]
        return self.slowest.n_iterations * min(times_s, default=0.0)

    @property
    def work_per_iteration(self) -> float | None:
        """Return the work of a mean iteration of all ranks here together; None: iterations are counted."""
        work = [log.work_per_iteration or 0.0 for log in self.logs]
        return sum(work) if work and all(work) else None

    def told_work(self) -> dict[str, str | float | None]:
        """Return the work of all iterations here, by field of `RunEnergy`; nothing where a rank does not tell it."""
        done = [(rank.log.work_per_iteration or 0.0) * rank.log.n_mean for rank in self.members.values()]
        totals = [rank.status.total_work for rank in self.members.values()]
        if not all(done):
            return {}
        total = None if None in totals else math.fsum(filter(None, totals))
        return {"work": math.fsum(done), "total_work": total, "work_unit": self.status.work_unit}

    @property
    def awaits_work(self) -> bool:
        """Return whether the work of a mean iteration will soon be known."""
        return any(rank.log.work.is_awaited for rank in self.members.values() if not rank.ended)

    @property
    def n_done(self) -> float:
        """Return how many iterations were done: those of the slowest, of mean work where that is known."""
        return self.slowest.n_iterations * self._mean_ratio

    def n_in_all(self) -> float | None:
        """Return how many there will be in all, counted as `n_done` is; None: it is not known."""
        slowest, status = self.slowest, self.status
        if self.work_per_iteration is None or isinstance(slowest, PooledLog):
            announced = status.total_iterations
            if announced is None and isinstance(slowest, IterationLog):
                announced = slowest.work.iterations_of(status.total_work)
            total = slowest.total_iterations(announced)
            return None if total is None else total * self._mean_ratio
        logs = [(rank.log, rank.status) for rank in self.members.values() if rank.log in self.logs]
        totals = [(log.work_per_iteration or 0.0, log.n_in_all(status)) for log, status in logs]
        known = [(work, total) for work, total in totals if total is not None]  # the others are in step with them
        return sum(work * total for work, total in known) / sum(work for work, _ in known) if known else None

    @property
    def _mean_ratio(self) -> float:
        """Return how many iterations of mean work one was so far, over all ranks."""
        if self.work_per_iteration is None:
            return 1.0
        done = [(log.work_per_iteration or 0.0, log) for log in self.logs]
        n_iterations = sum(work * log.n_iterations for work, log in done)
        return sum(work * log.n_mean for work, log in done) / n_iterations if n_iterations else 1.0

    @property
    def rhythm(self) -> RunRhythm:
        """Return what is known of the rhythm of the ranks on this node."""
        running = [rank for rank in self.members.values() if self.ending or not rank.ended]
        return rhythm_of_run(rank.log.rhythm for rank in running)

    @property
    def last(self) -> int | None:
        """Return the rank of a pool that has ended last; None while one is running, and where it is no pool."""
        if not self.is_pool or not self.ending:
            return None
        return max(self.members, key=lambda number: (self.members[number].ended_s, number))

    def on_status(self, number: int, status: RankStatus, *, now_s: float) -> bool:
        """Accept a rank's status; return whether it is of the process that owns this rank, and runs."""
        is_running = status.state == "running"
        rank = self.members.get(number)
        if rank is not None and process_of(status) == process_of(rank.status):
            rank.status, rank.last_status_s, rank.last_message_s = status, now_s, now_s
            if not status.has_iterations:
                rank.log.pass_time(round(now_s * NS_PER_S))
            rank.ended, rank.ended_s = (None if status.state == "running" else status.state), now_s
        elif rank is None or rank.ended or now_s - rank.last_status_s > self._patience_s(rank):
            if not is_running:
                return False
            log = self._log_for(number, status, now_s) if rank is None else self._log_after(rank)
            self.members[number] = Rank(status=status, last_status_s=now_s, last_message_s=now_s, log=log)
            self._joined_s = now_s
            self.rivals_s.pop(number, None)
        else:
            self._on_rival(number, now_s if is_running else None)
            return False
        self._update()
        self.asked_pauses.update(self.status.paused_since_ns, now_ns=round(now_s * NS_PER_S))
        return is_running

    def adopt(self, rank: Rank, *, now_s: float) -> int:
        """Take in the only rank of another run, whose iterations add to those of this one; return its number here."""
        number = next(n for n in count(1) if n not in self.members and n not in self._checkpoints)
        self.members[number] = rank
        self.is_pool = True
        self._joined_s = now_s
        self._update()
        return number

    @property
    def is_leader(self) -> bool:
        """Return whether this node leads the run: it has rank 0, or had it, since a pool is on one node."""
        return self.is_pool or 0 in self.members

    @property
    def is_alone(self) -> bool:
        """Return whether it is one process that no launcher has made one of several."""
        return not self.is_pool and self.members.keys() == {0} and self.status.world_size == 1

    @property
    def is_resized(self) -> bool:
        """Return whether other ranks of a pool run than those whose curve is known."""
        return self.is_pool and not self.ending and self.n_running != self.pool_size

    def resize(self) -> None:
        """Let the ranks of a pool that run now be those whose curve is to be measured: the former one is closed."""
        self.pool_size = self.n_running
        self._update()

    def is_succeeded_by(self, number: int, status: RankStatus) -> bool:
        """Return whether a status is of the next run of this name: of another process, and all of this one's finished.

        One that was lost or fell silent has not finished: another process with its name goes on with it, as where a
        launcher starts the ranks again.
        """
        rank = self.members.get(number)
        if rank is None or status.state != "running" or process_of(status) == process_of(rank.status):
            return False
        return all(each.ended == "finished" for each in self.members.values())

    def checkpoints(self) -> dict[int, RankCheckpoint]:
        """Return how far each process is that has reported an iteration."""
        totals = {number: (rank.status, rank.log.totals()) for number, rank in self.members.items()}
        known = {
            number: RankCheckpoint(pid=status.pid, started_at_s=status.started_at_s, totals=its_totals)
            for number, (status, its_totals) in totals.items()
            if its_totals is not None
        }
        return self._checkpoints | known if self.is_resumed else known  # a rank that is yet to come resumes as well

    def expire(self, now_s: float) -> End | None:
        """End the ranks and rivals that are silent; return how the run has ended once all ranks have."""
        self._tell_work()
        if self.rivals_s:
            self.rivals_s = {n: at_s for n, at_s in self.rivals_s.items() if now_s - at_s <= self._lease_s}
        for number, rank in self.members.items():
            if not (rank.ended or rank.status.has_iterations):
                rank.log.pass_time(round(now_s * NS_PER_S))
            if not rank.ended and now_s - rank.last_message_s > self._lease_s:
                rank.ended, rank.ended_s = "silent", now_s
                self._update()
                _LOGGER.warning("%s: rank %d silent for %.3g s", self.name, number, now_s - rank.last_message_s)
        if self.ending is None:
            return None
        may_reconnect = (r for r in self.members.values() if r.ended == "lost" and now_s - r.ended_s < LOST_GRACE_S)
        return None if any(may_reconnect) else self.ending

    def _tell_work(self) -> None:
        """See whether work is to count, and log, once each, that it does from now on, and that it does not any more."""
        if self.work_per_iteration is not None and not (self._has_told_work or self.is_pool):
            stop_unless_followed([rank.log.work for rank in self.members.values() if rank.log in self.logs])
        told = self.work_per_iteration
        logs = {number: rank.log for number, rank in self.members.items() if not rank.ended}
        if told is not None and not self._has_told_work:
            self._has_told_work = True
            unit = self.status.work_unit or UNNAMED
            _LOGGER.info("%s: counting by work: %.4g %s in a mean iteration", self.name, told, unit)
        silent = [n for n, log in logs.items() if not log.work_per_iteration and log.n_iterations > 2 * MEAN_ITERATIONS]
        is_expected = self._has_told_work or any(
            log.work_per_iteration or log.work.has_stopped for log in logs.values()
        )
        if silent and is_expected and not self._has_told_no_work:
            self._has_told_no_work = True
            is_told = not logs[silent[0]].work.follows_times
            why = "takes as long whatever the work is that it tells" if is_told else "does not tell the work"
            _LOGGER.warning("%s: rank %d %s of its iterations: counting these", self.name, silent[0], why)

    def have_gathered(self, now_s: float) -> bool:
        """Return whether every rank that is to come has come, and iterates."""
        if not self.members or self.ending or not all(log.is_live for log in self.logs):
            return False
        return len(self.members) >= self.status.world_size or now_s - self._joined_s >= GATHER_S

    def forget_before(self, time_ns: int) -> None:
        """Forget the iterations that ended by a moment [ns]: they are counted."""
        for log in self.logs:
            log.forget_before(time_ns)

    def known_ns(self) -> tuple[int, int] | None:
        """Return from when to when the iterations of every rank are known [ns], or None while a rank has shown none."""
        begins_ns = [log.begin_ns for log in self.logs if log.begin_ns is not None]
        logs_end_ns = [log.end_ns if self.ending else log.settled_ns for log in self.logs]
        ends_ns = [end_ns for end_ns in logs_end_ns if end_ns is not None]
        if not begins_ns or len(ends_ns) < len(self.logs):
            return None
        return max(begins_ns), min(ends_ns)

    def _update(self) -> None:
        """Derive what follows from the members."""
        self.status = self.members[min(self.members)].status
        self.is_multi_node = not self.is_pool and self.status.world_size > len(self.members)
        ends = {rank.ended for rank in self.members.values()}
        self.ending = (
            None if None in ends else "silent" if "silent" in ends else "lost" if "lost" in ends else "finished"
        )
        running = [rank for rank in self.members.values() if self.ending or not rank.ended]
        self.n_running = len(running)
        self.logs = [rank.log for rank in running]
        if self.is_pool:
            before = [each.totals for each in self._checkpoints.values()] if self.is_resumed else []
            self.logs = [PooledLog(list(self.members.values()), before)]
            world_size = len(self.members) if self.ending else self.pool_size
            self.status = msgspec.structs.replace(self.status, world_size=world_size)

    def _log_for(self, number: int, status: RankStatus, now_s: float) -> IterationLog:
        """Return the log of a process, resumed where a former controller knew it, or another one with its rank."""
        is_alone = status.world_size == 1
        known = self._checkpoints.pop(number, None)  # once: what came back after another would be counted twice
        if known is None:
            return IterationLog(is_alone=is_alone)
        self.is_resumed = True
        if (known.pid, known.started_at_s) == (status.pid, status.started_at_s):
            resumed_ns = round(now_s * NS_PER_S)
            return IterationLog(known.totals, resumed_ns=resumed_ns, lease_s=self._lease_s, is_alone=is_alone)
        self.is_restarted = True
        return IterationLog(known.totals, by_another=True, is_alone=is_alone)

    @staticmethod
    def _log_after(former: Rank) -> IterationLog:
        """Return the log of a process that takes a rank's place: it goes on with what was broken off."""
        before = None if former.ended == "finished" else former.log.totals()
        return IterationLog(before, by_another=True, is_alone=former.status.world_size == 1)

    def _patience_s(self, rank: Rank) -> float:
        """Return how long the status of a living process may stay away [s]: it comes with the heartbeat."""
        return max(self._lease_s, 3 * rank.status.heartbeat_s)

    def _on_rival(self, number: int, at_s: float | None) -> None:
        """Record that a second process claims a rank, or (None) that it has ended."""
        if at_s is None:
            self.rivals_s.pop(number, None)
            return
        if number not in self.rivals_s:
            _LOGGER.warning("%s: two processes claim rank %d; no limit is set", self.name, number)
        self.rivals_s[number] = at_s
        self.had_rivals = True


def process_of(status: RankStatus) -> tuple[str, int, float]:
    """Return what distinguishes one training process from another."""
    return status.boot_id, status.pid, status.started_at_s
