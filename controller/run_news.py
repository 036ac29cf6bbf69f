"""The news of a run: its curve, this node's part of it and its energy, published when there is something to tell."""

from collections.abc import Callable, Iterator, Mapping
from typing import Literal

from controller.holding import Holding, Obstacle
from controller.ports import SignalSource, Target
from controller.ranks import End, Place, Ranks
from controller.run_report import energy_report, joined, profile_report
from policies.profile import PowerProfile
from policies.units import energy_kwh
from publishers.reports import PartEntry, PartProfile, ProfileReport, RunEnergy
from publishers.wire import Message

MAX_NODES = 4_096
MAX_DETAIL = 1_024
CHANGED_RATIO = 0.01
"""What was measured has to change by so much before it is told again."""


class RunNews:
    """Tells of a run what has changed; the same twice is told once."""

    def __init__(
        self, place: Place, *, ranks: Ranks, holding: Holding, publish: Callable[[str, Message], None]
    ) -> None:
        self.publish = publish
        self._place = place
        self._ranks = ranks
        self._holding = holding
        self._curve: ProfileReport | None = None
        self._part: PartProfile | None = None
        self._energies: dict[str, RunEnergy] = {}

    def hear_energy(self, node: str, part: RunEnergy) -> None:
        """Take another node's part of the run's energy.

        The last word of a node that has said nothing before is that of an earlier run of this name: the broker keeps
        it.
        """
        if node in self._energies or (not part.final and len(self._energies) < MAX_NODES):
            self._energies[node] = part

    def tell_curve(
        self, profile: PowerProfile | None, *, state: Literal["waiting", "profiling", "planned", "observing"]
    ) -> None:
        """Publish the curve of a run that this node leads."""
        report = profile_report(
            profile,
            state=state,
            gpu_model=self._holding.model,
            n_gpus=len(self._holding.uuids),
            batch_size=self._ranks.status.batch_size,
        )
        if report != self._curve:
            self._curve = report
            self.publish("profile", report)

    def tell_part(
        self,
        wish: Target | Obstacle,
        points: list[PartEntry],
        *,
        state: Literal["following", "waiting", "observing"],
    ) -> None:
        """Publish how this node follows another, and what it has measured."""
        part = PartProfile(
            run=self._place.run,
            state=state,
            reason=wish.reason,
            detail=wish.detail[:MAX_DETAIL],
            gpu_model=self._holding.model,
            n_gpus=len(self._holding.uuids),
            n_ranks=len(self._ranks.members),
            points=points,
            batch_size=self._ranks.status.batch_size,
        )
        if self._part is None or _what(part) != _what(self._part) or _has_moved(points, self._part.points):
            self._part = part
            self.publish("node/profile", part)

    def tell_energy(
        self, totals: Mapping[str, float | None], signal: SignalSource, *, ended: End | None, final: bool
    ) -> None:
        """Publish this node's part and, where it has rank 0, the sum; `final`: it is the last word."""
        history = signal.history()
        part = energy_report(
            self._ranks.status,
            self._ranks.logs,
            totals,
            state=ended or "running",
            gpu_model=self._holding.model,
            n_gpus=len(self._holding.uuids),
            currency=history.unit.partition("/")[0] if history and signal.kind == "price" else None,
            final=final,
            max_power_w=self._holding.prior_power_limit_w,
        )
        self.publish("node/energy", part)
        if 0 in self._ranks.members:
            self.publish("energy", joined(part, self._others()))

    def spent_elsewhere(self, *, kind: str, host_power_w: float, pue: float) -> float:
        """Return what the other nodes have told that a budget has paid: grams or money, or kWh for plain energy.

        What the rest of their machines draws is assumed to be as here, and to have been drawn at the same signal.

        Args:
            kind: the kind of the signal: `carbon`, `price` or `energy`.
            host_power_w: what the rest of a machine draws all the time [W].
            pue: what the building draws per watt of the machine.
        """
        return sum(
            pue * (1 + host_power_w * part.duration_s / part.energy_j) * _budgeted(part, kind)
            for part in self._others()
            if part.energy_j > 0
        )

    def _others(self) -> Iterator[RunEnergy]:
        """Return the parts of other nodes; there are none where every rank is here."""
        parts = self._energies if self._ranks.are_elsewhere else {}
        return (part for node, part in parts.items() if node != self._place.node)


def _budgeted(part: RunEnergy, kind: str) -> float:
    """Return what a node's GPUs have used, in the unit that a budget has with this kind of signal."""
    match kind:
        case "carbon":
            return part.carbon_g or 0.0
        case "price":
            return part.cost or 0.0
        case _:
            return energy_kwh(part.energy_j)


def _what(part: PartProfile) -> tuple[object, ...]:
    """Return what must be the same for two words of a node to say the same, but for small changes of its curve."""
    return part.state, part.reason, part.n_gpus, part.n_ranks, tuple(entry.power_limit_w for entry in part.points)


def _has_moved(points: list[PartEntry], told: list[PartEntry]) -> bool:
    return any(
        abs(now.power_w / then.power_w - 1) > CHANGED_RATIO
        or abs(now.iterations_per_s / then.iterations_per_s - 1) > CHANGED_RATIO
        for now, then in zip(points, told, strict=True)
    )
