"""One run of a job on this node: its ranks and GPUs, from their iterations to the limit it asks for and its account.

It does not know that NVML exists. What it hears comes by method calls from the router, and iterations are acted upon at
once; what no message brings about (leases, plans that are due, reports) happens in `run`, once a tick. It ends when its
ranks have ended, or when it has been silent for the lease.

Where a run has ranks on several nodes, the controller of the node of rank 0 leads and the others follow.
"""

import math
from collections.abc import Callable

from controller.accounting.energy_account import EnergyAccount
from controller.accounting.ranks import End, Ranks, RunIdentity
from controller.accounting.reports import RunReporter
from controller.clock import NS_PER_S, Clock, is_due, next_tick_s
from controller.config import Config
from controller.control.gpu_group import Blocked, GpuGroup
from controller.control.profile_store import ProfileStore
from controller.control.run_follower import RunFollower
from controller.control.run_leader import RunLeader
from controller.control.straggler_slack import StragglerSlack
from controller.ports import EnergyMeter, Hold, PowerLimiter, SignalSource, Target
from controller.runs.checkpoint import RunCheckpoints
from publishers.messages.codec import Message
from publishers.messages.reports import NodeProfile, RunEnergy, RunPlan
from publishers.messages.training import Iterations, RankStatus

KEEP_PERIODS = 2
"""The books are kept with every second report: what a controller that is killed has not kept counts as a pause."""
MAX_STEPS_PER_TICK = 10
"""However fast messages come, decisions are made at most this often."""

_RELEASES: dict[str, str] = {"finished": "run_finished", "lost": "run_lost", "silent": "lease_ended"}


class TrainingRun:
    """A run on this node."""

    def __init__(
        self,
        place: RunIdentity,
        *,
        config: Config,
        clock: Clock,
        signal: SignalSource,
        store: ProfileStore,
        run_books: RunCheckpoints,
        publish: Callable[[str, Message], None],
        give_up: Callable[[set[str]], None],
    ) -> None:
        self.place = place
        self._run_books = run_books
        self._kept = run_books.load(place)
        """What was kept of this run before it was silent or the controller restarted, or of one that had its name."""
        self._is_taken_up = False
        bookmarks = self._kept.bookmarks if self._kept else None
        self.ranks = Ranks(name=f"{place.job}/{place.run}", lease_s=config.job.lease_s, bookmarks=bookmarks)
        self.refusals: dict[int, str] = {}
        """Why ranks did not get their GPUs, by rank: a code. While one did not, no limit is set."""
        self.ended: End | None = None
        self._config, self._clock, self._signal, self._give_up = config, clock, signal, give_up
        self._holding = GpuGroup()
        self._books = EnergyAccount(clock=clock, signal=signal)
        self._news = RunReporter(place, ranks=self.ranks, holding=self._holding, publish=publish)
        self._leading = RunLeader(
            place,
            config=config,
            signal=signal,
            store=store,
            ranks=self.ranks,
            holding=self._holding,
            books=self._books,
            news=self._news,
        )
        self._following = RunFollower(place, config=config, holding=self._holding, news=self._news)
        self._slack = StragglerSlack(self._holding, settle_s=config.profiler.settle_s)
        self._shares_slack = config.plan.rules_of(place.job).share_slack
        self._tick_s, self._stepped_s = math.inf, 0.0

    @property
    def is_leader(self) -> bool:
        """Return whether this node speaks for the whole run: it has rank 0."""
        return 0 in self.ranks.members

    @property
    def is_follower(self) -> bool:
        """Return whether another node does: it has rank 0."""
        return self.ranks.are_elsewhere and not self.is_leader

    @property
    def gpu_uuids(self) -> set[str]:
        """Return the GPUs that the run holds: none once it has ended, though it still reads their meters."""
        return set() if self.ended else self._holding.uuids

    def add_gpu(self, limiter: PowerLimiter, meter: EnergyMeter) -> None:
        """Give the run a GPU; a curve measured with fewer of them is void, and what ran on it is settled."""
        kept = self._kept if self._is_taken_up else None
        self._run_books.pass_on(limiter.gpu.uuid, self.place)
        if self._holding.uuids and not self._books.awaits(limiter.gpu.uuid):
            self._account_for()
            self._leading.settle(self._following.profile if self.is_follower else self._leading.profile)
        self._holding.add(limiter, meter)
        self._leading.reset()
        is_whole = kept is not None and kept.balance.counters_j.keys() == self._holding.uuids
        self._following.reset(kept.sums if kept and is_whole else ())

    def hear_status(self, number: int, status: RankStatus) -> bool:
        """Take a rank's status; return whether it comes from the process that speaks for this rank, and runs.

        A run that has ended takes none: its account still reads the logs of its ranks.
        """
        if self.ended is not None:
            return False
        speaks = self.ranks.hear_status(number, status, now_s=self._alive_s())
        if self._kept is not None and self.ranks.go_on and not self._is_taken_up:
            self._books.go_on_from(self._kept.balance)
            self._leading.go_on_from(self._kept.ledger)
            self._is_taken_up = True
        if self.ranks.are_gone and math.isfinite(self._tick_s):  # limits are not kept until the next tick
            self._step(self._clock.now_s())
        if self.ranks.ending == "finished":  # for good: the next run may begin at once
            self._end("finished")
        return speaks

    def gives_way_to(self, number: int, status: RankStatus) -> bool:
        """Return whether a status is of the next run of this name: this one has ended, or does now."""
        if self.ended is None and self.ranks.are_succeeded_by(number, status, now_s=self._alive_s()):
            self._end(self.ranks.ending or "silent")  # what another process does has an account of its own
        return self.ended is not None

    def make_way(self) -> None:
        """End at once where every process is gone: another run needs the GPUs, and they are not waited for."""
        if ended := self.ranks.ending:
            self._end(ended)

    def hear_iterations(self, number: int, message: Iterations) -> bool:
        """Take a rank's iterations; return False where they are nonsense, or nobody said that the rank exists."""
        rank = self.ranks.members.get(number)
        if rank is None or self.ended is not None:
            return False
        rank.heard_s, now_s = self._alive_s(), self._clock.now_s()
        if self.ranks.in_conflict:  # nobody knows whose they are
            return True
        is_good = rank.log.append(message, now_ns=self._clock.monotonic_ns())
        if is_good and now_s - self._stepped_s >= self._tick_s / MAX_STEPS_PER_TICK:
            self._step(now_s)
        return is_good

    def hear_part(self, node: str, part: RunEnergy | NodeProfile) -> None:
        """Take another node's part of the run: its energy, or how it follows."""
        if isinstance(part, RunEnergy):
            self._news.hear_energy(node, part)
        else:
            self._leading.fleet.hear(node, part)

    def hear_plan(self, plan: RunPlan) -> None:
        """Take the word of the node that leads; a new limit is asked for at once."""
        is_new = self._following.hear(plan, now_ns=self._clock.monotonic_ns())
        if is_new and self.ended is None:
            self._steer(self._clock.now_s())

    async def run(self, *, tick_s: float) -> None:
        """Steer the run until it ends, then give its GPUs back and close its account."""
        self._tick_s = tick_s
        try:
            await self._steer_to_the_end()
        finally:
            if self.ended is None:  # the controller stops: what is known so far is not lost
                self._report_energy()
                self._keep_books()
                self._tell(Blocked(reason="controller_stopped", detail="the controller stops"))
        await self._clock.sleep_until(self._clock.now_s() + 2 * tick_s)  # the meters read once past the last iteration
        # Silent it may have been since before this controller.
        is_as_before = self.ended == "silent" and self._books.leave_the_gap()
        self._account_for(to_the_end=True)
        self._report_energy(final=True)
        if self.ended == "finished":
            self._run_books.drop(self.place)
        elif not is_as_before:  # its processes may come back, as from a network that was away
            self._keep_books()

    async def _steer_to_the_end(self) -> None:
        next_s = report_s = keep_s = self._clock.now_s()
        report_period_s = self._config.energy.period_s
        keep_period_s = KEEP_PERIODS * report_period_s
        while self.ended is None:
            now_s = self._clock.now_s()
            if ended := self.ranks.expire(self._alive_s()):
                self._end(ended)
            self._step(now_s)
            if is_due(report_s, period_s=report_period_s, now_s=now_s):
                self._report_energy()
                report_s = next_tick_s(report_s, period_s=report_period_s, now_s=now_s)
            if is_due(keep_s, period_s=keep_period_s, now_s=now_s):
                self._keep_books()
                keep_s = next_tick_s(keep_s, period_s=keep_period_s, now_s=now_s)
            next_s = next_tick_s(next_s, period_s=self._tick_s, now_s=now_s)
            await self._clock.sleep_until(next_s)

    def _end(self, ended: End) -> None:
        """End the run, once: its limits are given back, whatever is in mid-air, and its GPUs are free for another."""
        if self.ended is None:
            self.ended = ended
            end = Blocked(reason=_RELEASES[ended], detail=f"run {self.place.run} of {self.place.job} has ended")
            self._holding.end(*end)
            self._tell(end)
            self._give_up(self._holding.uuids)

    def _step(self, now_s: float) -> None:
        """Account for what is new, and ask for the limit that follows from it."""
        self._stepped_s = now_s
        self._account_for()
        if self.ended is None:
            self._steer(now_s)

    def _account_for(self, *, to_the_end: bool = False) -> None:
        """Enter what has become known since the last time into the books, and show it to the decisions."""
        known_ns = self.ranks.known_ns()
        if known_ns is None:
            return
        if not self._holding.uuids:  # there is nothing to account for
            self.ranks.forget_before(known_ns[1])
            return
        role = self._following if self.is_follower else self._leading
        logs, meters = self.ranks.logs, self._holding.meters
        has_grown = False
        for piece in self._books.cut(known_ns, logs=logs, meters=meters, tick_s=self._tick_s, to_the_end=to_the_end):
            # Once a point is closed, the rest still ran at its limit: it says nothing of the next one.
            has_grown = has_grown or (piece.active and role.observe(piece))
            if piece.active:
                self._slack.observe(piece)
            self.ranks.forget_before(piece.end_ns)
        if has_grown:
            self._leading.keep()

    def _steer(self, now_s: float) -> None:
        """Ask for the limit that the run should have now, if there is anything to ask for."""
        if self.ranks.members and not self.is_follower:
            self._leading.tell_curve(is_barred=self._is_barred())
        wish = self._obstacle() or self._wish(now_s)
        if isinstance(wish, Blocked):
            self._slack.pause()
            self._holding.give_back(*wish, only=None if self._holding.are_ours else Hold.HELD)
        elif wish is not None:
            role = self._following if self.is_follower else self._leading
            shares = self._shares_slack and role.is_steady
            self._holding.ask(wish, self._slack.lowered(wish, is_steady=shares))
        if wish is not None:
            self._tell(wish)

    def _wish(self, now_s: float) -> Target | Blocked | None:
        now_ns = self._clock.monotonic_ns()
        return (
            self._following.wish(now_ns=now_ns) if self.is_follower else self._leading.wish(now_s=now_s, now_ns=now_ns)
        )

    def _tell(self, wish: Target | Blocked) -> None:
        """Tell the other nodes of the run what it is to have, or how this one follows."""
        if self.is_leader:
            self._leading.tell(wish, now_s=self._clock.now_s(), now_ns=self._clock.monotonic_ns())
        elif self.is_follower:
            self._following.tell(wish, is_barred=self._is_barred())

    def _obstacle(self) -> Blocked | None:
        """Return why the run may hold no limit now; None where it may."""
        if self._is_refused():
            return Blocked(reason="refused", detail="the run's claims contradict another's")
        if end := self.ranks.ending:  # a lost one may come back: its limits do not wait for it
            return Blocked(reason=_RELEASES[end], detail=f"run {self.place.run} of {self.place.job} has ended")
        if not self._holding.are_ours:
            return Blocked(reason="partner_not_ours", detail="another GPU of the run is not ours to set")
        has_begun = not (self.is_follower or self._leading.is_waiting)
        if not self._holding.are_ready or not (has_begun or self.ranks.have_gathered(self._alive_s())):
            return Blocked(reason="not_gathered", detail="not every rank iterates, or not every GPU has answered")
        return None

    def _alive_s(self) -> float:
        """Return the time that leases are measured in [s]: the wall clock may be stepped, this one may not."""
        return self._clock.monotonic_ns() / NS_PER_S

    def _is_refused(self) -> bool:
        return self.ranks.in_conflict or any(not self.ranks.members[number].ended for number in self.refusals)

    def _is_barred(self) -> bool:
        """Return whether no limit may be set, whatever is wanted."""
        return self._is_refused() or not self._holding.are_ours

    def _keep_books(self) -> None:
        """Keep the books on disk, for a controller that comes after this one."""
        balance = self._books.balance(self._holding.meters)
        if balance is not None:
            bookmarks, ledger = self.ranks.bookmarks(), self._leading.ledger
            self._run_books.keep(self.place, balance, bookmarks, sums=self._following.sums, ledger=ledger)

    def _report_energy(self, *, final: bool = False) -> None:
        """Publish this node's part and, as the leader, the sum."""
        if self.ranks.members:
            profile = self._following.profile if self.is_follower else self._leading.profile
            totals = self._books.account.report(kind=self._signal.kind, profile=profile)
            self._news.tell_energy(totals, self._signal, ended=self.ended, final=final)
