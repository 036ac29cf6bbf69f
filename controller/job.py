"""One run of a job on this node: its ranks and GPUs, from their iterations to the limit it asks for and its account.

It does not know that NVML exists. What it hears comes by method calls from the router, and iterations are acted upon at
once; what no message brings about (leases, plans that are due, reports) happens in `run`, once a tick. It ends when its
ranks have ended, or when it has been silent for the lease.
"""

import logging
import math
from collections.abc import Callable

from controller.bookkeeping import Bookkeeping
from controller.clock import NS_PER_S, Clock, next_tick_s
from controller.config import Config
from controller.holding import Holding, Obstacle
from controller.ports import EnergyMeter, Hold, PowerLimiter, SignalSource, Target
from controller.profile_store import ProfileKey, ProfileStore
from controller.ranks import End, Place, Ranks
from controller.run_account import Slice
from controller.run_report import energy_report, joined, profile_report
from controller.steering import Profiling, Steering, Waiting
from policies.planning import Progress
from publishers.reports import ProfileReport, RunEnergy
from publishers.wire import Iterations, Message, RankStatus

MAX_NODES = 4_096
MAX_STEPS_PER_TICK = 50
"""However fast messages come, decisions are made at most this often."""

_RELEASES: dict[str, str] = {"finished": "run_finished", "lost": "run_lost", "silent": "lease_ended"}

_LOGGER = logging.getLogger(__name__)


class Job:
    """A run on this node."""

    def __init__(
        self,
        place: Place,
        *,
        config: Config,
        clock: Clock,
        signal: SignalSource,
        store: ProfileStore,
        publish: Callable[[str, Message], None],
        give_up: Callable[[set[str]], None],
    ) -> None:
        self.place = place
        self.ranks = Ranks(name=f"{place.job}/{place.run}", lease_s=config.job.lease_s)
        self.refusals: dict[int, str] = {}
        """Why ranks did not get their GPUs, by rank: a code. While one did not, no limit is set."""
        self.ended: End | None = None
        self._config = config
        self._clock = clock
        self._signal = signal
        self._store = store
        self._publish = publish
        self._give_up = give_up
        self._holding = Holding()
        self._steering = Steering(job=place.job, profiler=config.profiler, plan=config.plan, energy=config.energy)
        self._books = Bookkeeping(clock=clock, signal=signal)
        self._parts: dict[str, RunEnergy] = {}
        self._tick_s = math.inf
        self._stepped_s = 0.0
        self._reported: ProfileReport | None = None

    @property
    def is_leader(self) -> bool:
        """Return whether this node speaks for the whole run: it has rank 0."""
        return 0 in self.ranks.members

    @property
    def gpu_uuids(self) -> set[str]:
        """Return the GPUs that the run holds: none once it has ended, though it still reads their meters."""
        return set() if self.ended else self._holding.uuids

    def add_gpu(self, limiter: PowerLimiter, meter: EnergyMeter) -> None:
        """Give the run a GPU; a curve measured with fewer of them is void."""
        self._holding.add(limiter, meter)
        self._steering.reset()

    def hear_status(self, number: int, status: RankStatus) -> bool:
        """Take a rank's status; return whether it comes from the process that speaks for this rank, and runs."""
        speaks = self.ranks.hear_status(number, status, now_s=self._alive_s())
        if self.ranks.are_gone and math.isfinite(self._tick_s):  # limits are not kept until the next tick
            self._step(self._clock.now_s())
        if self.ranks.ending == "finished":  # for good: the next run may begin at once
            self._end("finished")
        return speaks

    def hear_iterations(self, number: int, message: Iterations) -> bool:
        """Take a rank's iterations; return False where they are nonsense, or nobody said that the rank exists."""
        rank = self.ranks.members.get(number)
        if rank is None:
            return False
        rank.heard_s, now_s = self._alive_s(), self._clock.now_s()
        if self.ranks.in_conflict:  # nobody knows whose they are
            return True
        is_good = rank.log.append(message, now_ns=self._clock.monotonic_ns())
        if is_good and now_s - self._stepped_s >= self._tick_s / MAX_STEPS_PER_TICK:
            self._step(now_s)
        return is_good

    def hear_part(self, node: str, part: RunEnergy) -> None:
        """Take another node's part of the run's energy."""
        if node in self._parts or len(self._parts) < MAX_NODES:
            self._parts[node] = part

    async def run(self, *, tick_s: float) -> None:
        """Steer the run until it ends, then give its GPUs back and close its account."""
        self._tick_s = tick_s
        try:
            await self._steer_to_the_end()
        finally:
            if self.ended is None:  # the controller stops: what is known so far is not lost
                self._report_energy()
        await self._clock.sleep_until(self._clock.now_s() + 2 * tick_s)  # the meters read once past the last iteration
        self._account_for(to_the_end=True)
        self._report_energy(final=True)

    async def _steer_to_the_end(self) -> None:
        next_s = report_s = self._clock.now_s()
        while self.ended is None:
            now_s = self._clock.now_s()
            if ended := self.ranks.expire(self._alive_s()):
                self._end(ended)
            self._step(now_s)
            if now_s >= report_s:
                self._report_energy()
                report_s = next_tick_s(report_s, period_s=self._config.energy.period_s, now_s=now_s)
            next_s = next_tick_s(next_s, period_s=self._tick_s, now_s=now_s)
            await self._clock.sleep_until(next_s)

    def _end(self, ended: End) -> None:
        """End the run, once: its limits are given back, whatever is in mid-air, and its GPUs are free for another."""
        if self.ended is None:
            self.ended = ended
            self._holding.end(_RELEASES[ended], f"run {self.place.run} of {self.place.job} has ended")
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
        logs, meters = self.ranks.logs, self._holding.meters
        has_grown = False
        for piece in self._books.cut(known_ns, logs=logs, meters=meters, tick_s=self._tick_s, to_the_end=to_the_end):
            # Once a point is closed, the rest still ran at its limit: it says nothing of the next one.
            has_grown = has_grown or self._show(piece)
            self.ranks.forget_before(piece.end_ns)
        if has_grown:
            self._keep_profile()

    def _show(self, piece: Slice) -> bool:
        """Show a slice to the decisions, if it ran at the limit asked for; return whether the curve has grown."""
        enforced_w = self._holding.enforced_w(piece.begin_ns)
        if not piece.active or enforced_w is None:
            return False
        has_grown = self._steering.observe(piece, enforced_power_limit_w=enforced_w)
        if left := self._steering.take_left():
            self._books.account.close_curve(left)
        return has_grown

    def _steer(self, now_s: float) -> None:
        """Ask for the limit that the run should have now, if there is anything to ask for."""
        self._report_profile()
        if obstacle := self._obstacle():
            self._holding.give_back(*obstacle, only=None if self._holding.are_ours else Hold.HELD)
            return
        if isinstance(self._steering.state, Waiting):
            floor_w, ceiling_w = self._holding.bounds_w()
            known = self._store.load(self._key())
            self._steering.begin(floor_power_limit_w=floor_w, ceiling_power_limit_w=ceiling_w, known=known)
        is_paused = self.ranks.is_paused(self._clock.monotonic_ns(), window_s=self._config.profiler.window_s)
        target = (self._steering.wait_at_the_top() if is_paused else None) or self._choose(now_s)
        if target is not None:
            self._holding.ask(target)

    def _obstacle(self) -> Obstacle | None:
        """Return why the run may hold no limit now; None where it may."""
        if self._is_refused():
            return Obstacle(reason="refused", detail="the run's claims contradict another's")
        if end := self.ranks.ending:  # a lost one may come back: its limits do not wait for it
            return Obstacle(reason=_RELEASES[end], detail=f"run {self.place.run} of {self.place.job} has ended")
        if not self._holding.are_ours:
            return Obstacle(reason="partner_not_ours", detail="another GPU of the run is not ours to set")
        is_waiting = isinstance(self._steering.state, Waiting)
        if not self._holding.are_ready or (is_waiting and not self.ranks.have_gathered(self._alive_s())):
            return Obstacle(reason="not_gathered", detail="not every rank iterates, or not every GPU has answered")
        return None

    def _choose(self, now_s: float) -> Target | None:
        slowest = self.ranks.slowest
        return self._steering.choose(
            now_s=now_s,
            history=self._signal.history(),
            forecast=self._signal.forecast(),
            progress=Progress(
                n_iterations=slowest.n_iterations,
                active_s=slowest.active_s,
                started_at_s=self.ranks.status.started_at_s,
            ),
            provenance=self._signal.provenance(),
        )

    def _alive_s(self) -> float:
        """Return the time that leases are measured in [s]: the wall clock may be stepped, this one may not."""
        return self._clock.monotonic_ns() / NS_PER_S

    def _is_refused(self) -> bool:
        return self.ranks.in_conflict or any(not self.ranks.members[number].ended for number in self.refusals)

    def _key(self) -> ProfileKey:
        status = self.ranks.status
        return ProfileKey(
            job=self.place.job,
            gpu_model=self._holding.model,
            n_gpus=len(self._holding.uuids),
            world_size=status.world_size,
            batch_size=status.batch_size,
        )

    def _keep_profile(self) -> None:
        profile = self._steering.profile
        if profile is not None:
            self._store.save(self._key(), profile)
            if not isinstance(self._steering.state, Profiling):
                curve = ", ".join(
                    f"{p.power_limit_w:g} W: {p.power_w:.0f} W {p.iterations_per_s:.4g}/s" for p in profile.points
                )
                _LOGGER.info("%s: profiled: %s", self.ranks.name, curve)

    def _report_profile(self) -> None:
        """Publish the curve and the state when they change."""
        if not self.ranks.members:
            return
        report = profile_report(
            self._steering.profile,
            state="observing" if self._is_refused() or not self._holding.are_ours else self._steering.name,
            gpu_model=self._holding.model,
            n_gpus=len(self._holding.uuids),
            batch_size=self.ranks.status.batch_size,
        )
        if report != self._reported:
            self._reported = report
            self._publish("profile", report)

    def _report_energy(self, *, final: bool = False) -> None:
        """Publish this node's part and, as the leader, the sum."""
        if not self.ranks.members:
            return
        history = self._signal.history()
        part = energy_report(
            self.ranks.status,
            self.ranks.logs,
            self._books.account.report(kind=self._signal.kind, profile=self._steering.profile),
            state=self.ended or "running",
            gpu_model=self._holding.model,
            n_gpus=len(self._holding.uuids),
            currency=history.unit.partition("/")[0] if history and self._signal.kind == "price" else None,
            final=final,
            max_power_w=self._holding.prior_power_limit_w,
        )
        self._publish("part", part)
        if self.is_leader:
            self._publish("energy", joined(part, (p for node, p in self._parts.items() if node != self.place.node)))
