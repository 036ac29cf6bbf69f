"""The other nodes of a run: the newest power curve and energy that each of them has published."""

from typing import Final

import msgspec

from policies.vocabulary.units import energy_kwh
from publishers.messages.reports import NodeProfile, RunEnergy

MAX_NODES: Final = 4_096
"""A run is planned and summed over so many other nodes; what more of them use counts as unknown."""


class OtherNodes:
    """What the other nodes of a run have published.

    Attributes:
        profiles: how each node follows, and its curve in ascending order of the limit, by node.
        energies: its part of the run's energy, by node.
    """

    def __init__(self) -> None:
        self.profiles: dict[str, NodeProfile] = {}
        self.energies: dict[str, RunEnergy] = {}

    def on_profile(self, node: str, profile: NodeProfile) -> None:
        """Record the curve of a node."""
        if node in self.profiles or len(self.profiles) < MAX_NODES:
            points = sorted(profile.points, key=lambda entry: entry.power_limit_w)
            self.profiles[node] = msgspec.structs.replace(profile, points=points)

    def on_energy(self, node: str, energy: RunEnergy) -> None:
        """Record the energy of a node.

        A final message of a node that has published nothing before is of an earlier run of this name: the broker
        retains it.
        """
        if node in self.energies or (not energy.final and len(self.energies) < MAX_NODES):
            self.energies[node] = energy

    def spent(self, *, kind: str, host_power_w: float, pue: float) -> float:
        """Return what a budget has paid on the other nodes: grams or money, or kWh for plain energy.

        The rest of their machines is assumed to draw as much as here, at the same signal.

        Args:
            kind: the kind of the signal: `carbon`, `price` or `energy`.
            host_power_w: what the rest of a machine draws all the time [W].
            pue: what the building draws per watt of the machine.
        """
        return sum(
            pue * (1 + host_power_w * part.duration_s / part.energy_j) * _budgeted(part, kind)
            for part in self.energies.values()
            if part.energy_j > 0
        )


def _budgeted(part: RunEnergy, kind: str) -> float:
    """Return what a node's GPUs have used, in the unit that a budget has with this kind of signal."""
    match kind:
        case "carbon":
            return part.carbon_g or 0.0
        case "price":
            return part.cost or 0.0
        case _:
            return energy_kwh(part.energy_j)
