"""Leading a run: the limit that follows from its curve on this node, and from what the other nodes tell of theirs.

A run on one node is led there; one on several, by the node of rank 0. The curve is measured here, and kept on disk.
"""

import logging

from controller.bookkeeping import Bookkeeping
from controller.config import Config
from controller.fleet import Fleet, Share
from controller.holding import Holding, Obstacle
from controller.learning import measured_in
from controller.ports import SignalSource, Target
from controller.profile_store import Known, ProfileKey, ProfileStore
from controller.ranks import Place, Ranks
from controller.run_account import Slice
from controller.run_news import RunNews
from controller.steering import LedgerStart, Planned, Profiling, Steering, Waiting
from policies.planning import Progress
from policies.profile import PowerProfile

_LOGGER = logging.getLogger(__name__)


class Leading:
    """The decisions for a run, and what they rest on."""

    def __init__(
        self,
        place: Place,
        *,
        config: Config,
        signal: SignalSource,
        store: ProfileStore,
        ranks: Ranks,
        holding: Holding,
        books: Bookkeeping,
        news: RunNews,
    ) -> None:
        self._place = place
        self._config = config
        self._signal = signal
        self._store = store
        self._ranks = ranks
        self._holding = holding
        self._books = books
        self._news = news
        self.fleet = Fleet(place, publish=news.publish)
        self._steering = Steering(
            job=place.job, run=place.run, profiler=config.profiler, plan=config.plan, energy=config.energy
        )

    @property
    def is_waiting(self) -> bool:
        """Return whether nothing was decided yet."""
        return isinstance(self._steering.state, Waiting)

    @property
    def is_steady(self) -> bool:
        """Return whether the limit comes from the plan, and is not just being measured."""
        state = self._steering.state
        return isinstance(state, Planned) and not state.is_curious

    @property
    def profile(self) -> PowerProfile | None:
        """Return this node's curve, as far as it is measured."""
        return self._steering.profile

    @property
    def ledger(self) -> LedgerStart | None:
        """Return where the ledger of time starts that holds now; None: at the beginning of the run."""
        return self._steering.ledger

    def go_on_from(self, ledger: LedgerStart | None) -> None:
        """Take up the ledger of a former controller, before anything is decided."""
        self._steering.ledger = ledger

    def reset(self) -> None:
        """Forget the curve: the run's GPUs are others now."""
        self._steering.reset()

    def settle(self, profile: PowerProfile | None) -> None:
        """Settle what ran on a curve that holds no more: the baseline of it, and what time it has gained or lost."""
        if self._books.account.n_iterations:
            self._books.account.close_curve(profile)
            self._steering.open_ledger()

    def observe(self, piece: Slice) -> bool:
        """Take an active slice, if it ran at the limit asked for; return whether the curve has grown."""
        enforced_w = self._holding.enforced_w(piece.begin_ns)
        if enforced_w is None:
            return False
        has_grown = self._steering.observe(piece, enforced_power_limit_w=enforced_w)
        if left := self._steering.take_left():
            self._books.account.close_curve(left)
        return has_grown

    def keep(self) -> None:
        """Keep the curve on disk."""
        measured = measured_in(self._steering.state)
        if measured is not None:
            self._store.save(self._key(), measured)
            if not isinstance(self._steering.state, Profiling):
                curve = ", ".join(
                    f"{p.power_limit_w:g} W: {p.power_w:.0f} W {p.iterations_per_s:.4g}/s" for p in measured.points
                )
                _LOGGER.info("%s: profiled: %s", self._ranks.name, curve)

    def wish(self, *, now_s: float, now_ns: int) -> Target | None:
        """Return the limit that the run should have now, at a Unix time [s] and a monotonic one [ns]."""
        if self.is_waiting:
            floor_w, ceiling_w = self._holding.bounds_w()
            known = self._recalled()
            self._steering.begin(
                floor_power_limit_w=floor_w,
                ceiling_power_limit_w=ceiling_w,
                known=known.exact if known else None,
                prior=known.prior if known else None,
                n_gpus=len(self._holding.uuids),
            )
        is_paused = self._ranks.is_paused(now_ns, window_s=self._config.profiler.patience_s)
        why = "a GPU cannot be read" if self._books.is_blind else "no iterations" if is_paused else ""
        return (self._steering.wait_at_the_top(why) if why else None) or self._choose(now_s)

    def tell_curve(self, *, is_barred: bool) -> None:
        """Publish the curve and how far it is; `is_barred`: no limit may be set."""
        self._news.tell_curve(self._steering.profile, state="observing" if is_barred else self._steering.name)

    def tell(self, wish: Target | Obstacle, *, now_s: float, now_ns: int) -> None:
        """Tell the other nodes what the run is to have, or why nothing; where there are none, nobody is told."""
        if self._ranks.are_elsewhere and self._holding.states:
            is_steady = isinstance(wish, Target) and self.is_steady
            self.fleet.say(
                wish,
                gpu_model=self._holding.model,
                max_power_limit_w=self._holding.bounds_w()[1],
                is_steady=is_steady,
                wall_s=now_s,
                now_ns=now_ns,
            )

    def _choose(self, now_s: float) -> Target | None:
        slowest, status = self._ranks.slowest, self._ranks.status
        return self._steering.choose(
            now_s=now_s,
            history=self._signal.history(),
            forecast=self._signal.forecast(),
            progress=Progress(
                n_iterations=slowest.n_iterations,
                active_s=slowest.running_s,
                started_at_s=status.started_at_s,
                total_iterations=slowest.total_iterations(status.total_iterations),
                spent=self._spent(),
            ),
            provenance=self._signal.provenance(),
            joint=self._joint,
        )

    def _spent(self) -> float | None:
        """Return what a budget has paid for the run on all nodes; None while that is not known."""
        kind, energy = self._signal.kind, self._config.energy
        here = self._books.account.spent(kind=kind, host_power_w=energy.host_power_w, pue=energy.pue)
        if here is None:
            return None
        return here + self._news.spent_elsewhere(kind=kind, host_power_w=energy.host_power_w, pue=energy.pue)

    def _joint(self, own: PowerProfile) -> PowerProfile:
        """Return the curve of all nodes at the limits of this node's own."""
        if not self._ranks.are_elsewhere:
            return own
        share = Share(
            n_gpus=len(self._holding.uuids),
            n_ranks=len(self._ranks.members),
            world_size=self._ranks.status.world_size,
            host_power_w=self._config.energy.host_power_w,
        )
        return self.fleet.joint(own, share)

    def _recalled(self) -> Known | None:
        """Return what is remembered of the curve, or of one like it."""
        known = self._store.load(self._key())
        if known is not None:
            _LOGGER.info("%s: a curve is known (%s): %s", self._ranks.name, known.kind, known.origin)
        return known

    def _key(self) -> ProfileKey:
        status = self._ranks.status
        return ProfileKey(
            job=self._place.job,
            gpu_model=self._holding.model,
            n_gpus=len(self._holding.uuids),
            world_size=status.world_size,
            batch_size=status.batch_size,
            gpu_uuids=tuple(sorted(self._holding.uuids)),
            driver=self._store.driver,
        )
