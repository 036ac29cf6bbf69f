"""What is published about a run: its power curve, this node's part, and its energy.

What is published of a run: its curve, and its energy on this node and over all nodes.

The news of a run: its curve, this node's part of it and its energy, published when there is something to tell.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Literal

import msgspec

from controller.accounting.iteration_log import IterationLog
from controller.accounting.ranks import End, Ranks, RunIdentity
from controller.control.gpu_group import Blocked, GpuGroup
from controller.ports import SignalSource, Target
from policies.vocabulary.profile import PowerProfile
from policies.vocabulary.units import energy_kwh
from publishers.messages.codec import Message
from publishers.messages.reports import NodeProfile, NodeProfileEntry, ProfileEntry, ProfileReport, RunEnergy
from publishers.messages.training import RankStatus

SUMMED = (
    "n_gpus",
    "max_power_w",
    "energy_j",
    "carbon_g",
    "cost",
    "baseline_energy_j",
    "baseline_carbon_g",
)
"""What adds up over nodes; everything else the leader knows for all."""


def profile_report(
    profile: PowerProfile | None,
    *,
    state: Literal["waiting", "profiling", "planned", "observing"],
    gpu_model: str,
    n_gpus: int,
    batch_size: int | None,
) -> ProfileReport:
    """Return the curve as far as it is measured."""
    return ProfileReport(
        state=state,
        gpu_model=gpu_model,
        n_gpus=n_gpus,
        batch_size=batch_size,
        points=[
            ProfileEntry(
                power_limit_w=point.power_limit_w,
                power_w=point.power_w,
                iterations_per_s=point.iterations_per_s,
                power_ci_w=point.power_ci_w,
                iterations_per_s_ci=point.iterations_per_s_ci,
                n=point.n,
            )
            for point in (profile.points if profile else ())
        ],
    )


def energy_report(
    status: RankStatus,
    logs: Sequence[IterationLog],
    totals: Mapping[str, float | None],
    *,
    state: Literal["running", "finished", "lost", "silent"],
    gpu_model: str,
    n_gpus: int,
    currency: str | None,
    final: bool,
    max_power_w: float | None = None,
) -> RunEnergy:
    """Return this node's part of a run's energy; the slowest rank counts the iterations."""
    furthest = max(logs, key=lambda log: (log.n_epochs, log.epochs))
    report = RunEnergy(
        run=status.run,
        state=state,
        reached=status.reached,
        batch_size=status.batch_size,
        gpu_model=gpu_model,
        n_gpus=n_gpus,
        epochs=furthest.epochs,
        epochs_missed=furthest.n_epochs - furthest.epochs,
        iterations=int(min(log.n_iterations for log in logs)),
        currency=currency,
        duration_s=0.0,
        energy_j=0.0,
        max_power_w=max_power_w,
        final=final,
    )
    return msgspec.structs.replace(report, **totals)


def joined(own: RunEnergy, others: Iterable[RunEnergy]) -> RunEnergy:
    """Return the energy of the whole run: the leader's part and those of the other nodes."""
    return reduce(_plus, others, own)


def _plus(whole: RunEnergy, part: RunEnergy) -> RunEnergy:
    sums: dict[str, float | None] = {}
    for name in SUMMED:
        a, b = getattr(whole, name), getattr(part, name)
        sums[name] = None if a is None or b is None else a + b
    total = msgspec.structs.replace(whole, **sums)
    return msgspec.structs.replace(total, saved_ratio=_saved_ratio(total, whole, part))


def _saved_ratio(total: RunEnergy, *parts: RunEnergy) -> float | None:
    """Return what is saved of carbon, else of cost, else of energy; a baseline of cost stands only in the ratios."""
    if total.baseline_carbon_g and total.carbon_g is not None:
        return 1 - total.carbon_g / total.baseline_carbon_g
    if total.cost is not None:
        ratios = [part.saved_ratio for part in parts]
        baseline_cost = sum(
            (part.cost or 0.0) / (1 - ratio)
            for part, ratio in zip(parts, ratios, strict=True)
            if ratio not in {None, 1.0}
        )
        return 1 - total.cost / baseline_cost if None not in ratios and baseline_cost > 0 else None
    return 1 - total.energy_j / total.baseline_energy_j if total.baseline_energy_j else None


MAX_NODES = 4_096
MAX_DETAIL = 1_024
CHANGED_RATIO = 0.01
"""What was measured has to change by so much before it is told again."""


class RunReporter:
    """Tells of a run what has changed; the same twice is told once."""

    def __init__(
        self, place: RunIdentity, *, ranks: Ranks, holding: GpuGroup, publish: Callable[[str, Message], None]
    ) -> None:
        self.publish = publish
        self._place = place
        self._ranks = ranks
        self._holding = holding
        self._curve: ProfileReport | None = None
        self._part: NodeProfile | None = None
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
        wish: Target | Blocked,
        points: list[NodeProfileEntry],
        *,
        state: Literal["following", "waiting", "observing"],
    ) -> None:
        """Publish how this node follows another, and what it has measured."""
        part = NodeProfile(
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


def _what(part: NodeProfile) -> tuple[object, ...]:
    """Return what must be the same for two words of a node to say the same, but for small changes of its curve."""
    return part.state, part.reason, part.n_gpus, part.n_ranks, tuple(entry.power_limit_w for entry in part.points)


def _has_moved(points: list[NodeProfileEntry], told: list[NodeProfileEntry]) -> bool:
    return any(
        abs(now.power_w / then.power_w - 1) > CHANGED_RATIO
        or abs(now.iterations_per_s / then.iterations_per_s - 1) > CHANGED_RATIO
        for now, then in zip(points, told, strict=True)
    )
