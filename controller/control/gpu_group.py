"""The GPUs of one run on this node: all of them get the same limit, or some of them less, and lose it together."""

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from controller.ports import EnergyMeter, Hold, LimitState, PowerLimiter, Target

SAME_W = 1.0
"""Limits closer than this are the same: boards round them."""


class Blocked(NamedTuple):
    """Why a run may hold no limit: a stable code, and a sentence."""

    reason: str
    detail: str


class GpuGroup:
    """The GPUs of a run, with the limit that was asked of them."""

    def __init__(self) -> None:
        self.asked: Target | None = None
        self._asked_of: dict[str, Target] = {}
        self._gpus: dict[str, tuple[PowerLimiter, EnergyMeter]] = {}

    def add(self, limiter: PowerLimiter, meter: EnergyMeter) -> None:
        """Add a GPU."""
        self._gpus[limiter.gpu.uuid] = (limiter, meter)

    @property
    def uuids(self) -> set[str]:
        """Return the GPUs."""
        return set(self._gpus)

    @property
    def model(self) -> str:
        """Return the model of the first GPU; a run on several models is known by it."""
        return next((limiter.gpu.model for limiter, _ in self._gpus.values()), "")

    @property
    def meters(self) -> dict[str, EnergyMeter]:
        """Return the meter of each GPU, by UUID."""
        return {uuid: meter for uuid, (_, meter) in self._gpus.items()}

    @property
    def states(self) -> list[LimitState]:
        """Return how each limit stands, as far as the GPUs have answered."""
        return [limiter.state for limiter, _ in self._gpus.values() if limiter.state is not None]

    @property
    def are_ours(self) -> bool:
        """Return whether every limit that is known is ours to set."""
        return all(state.hold in {Hold.FREE, Hold.HELD} for state in self.states)

    @property
    def are_ready(self) -> bool:
        """Return whether there are GPUs, and all of them have answered and are ours to set."""
        return bool(self._gpus) and len(self.states) == len(self._gpus) and self.are_ours

    @property
    def prior_power_limit_w(self) -> float | None:
        """Return the sum of what the GPUs are given back [W]; None before all of them have answered."""
        states = self.states
        if not states or len(states) < len(self._gpus):
            return None
        return sum(state.prior_power_limit_w for state in states)

    @property
    def least_prior_power_limit_w(self) -> float:
        """Return the least of what the GPUs are given back [W]; some GPU must have answered."""
        return min(state.prior_power_limit_w for state in self.states)

    def bounds_w(self) -> tuple[float, float]:
        """Return between which limits every GPU takes what it is asked (floor, ceiling) [W]."""
        states = self.states
        return max(state.floor_power_limit_w for state in states), min(state.ceiling_power_limit_w for state in states)

    def ask(self, target: Target, lowered: Mapping[str, float] | None = None) -> None:
        """Ask for a limit; the same one again is not asked for twice.

        Args:
            target: what the run is to have.
            lowered: GPUs that are to have less, by UUID, and by what share of it; all others get the run's limit.
        """
        asked_of = {uuid: _lowered(target, (lowered or {}).get(uuid, 0.0)) for uuid in self._gpus}
        for uuid, (limiter, _) in self._gpus.items():
            if asked_of[uuid] != self._asked_of.get(uuid):
                limiter.request(asked_of[uuid])
        self.asked, self._asked_of = target, asked_of

    def give_back(self, reason: str, detail: str, *, only: Hold | None = None) -> None:
        """End the hold, or that on GPUs in one state only, where something was asked of them; it may begin again.

        With `only`, a write that was in mid-air, or a GPU that recovers later, is released when it comes to that state.
        """
        if self.asked is not None or only is not None:
            for limiter, _ in self._gpus.values():
                if only is None or (limiter.state is not None and limiter.state.hold is only):
                    limiter.release(reason=reason, detail=detail)
        self.asked, self._asked_of = None, {}

    def end(self, reason: str, detail: str) -> None:
        """End every hold for good, whatever it looks like now: a write may still be in mid-air."""
        for limiter, _ in self._gpus.values():
            limiter.release(reason=reason, detail=detail)
        self.asked, self._asked_of = None, {}

    def is_in_force(self, since_ns: int) -> bool:
        """Return whether every GPU has had what it was asked for ever since a moment [ns]."""
        if self.asked is None:
            return False
        for uuid, (limiter, _) in self._gpus.items():
            state, asked = limiter.state, self._asked_of.get(uuid)
            if state is None or asked is None or state.hold is not Hold.HELD or state.since_ns > since_ns:
                return False
            if abs(_clamped_w(asked.power_limit_w, state) - state.requested_power_limit_w) > SAME_W:
                return False
        return True

    def enforced_w(self, since_ns: int) -> float | None:
        """Return the limit that the run got ever since a moment [W], or None where it is not the one asked for.

        Where some GPUs were asked for less, what is measured is not the run at its limit.
        """
        if any(asked != self.asked for asked in self._asked_of.values()) or not self.is_in_force(since_ns):
            return None
        return min((state.enforced_power_limit_w for state in self.states), default=None)


def _lowered(target: Target, ratio: float) -> Target:
    """Return what a GPU is asked for that is to have less than the run, by a share of it."""
    if not ratio:
        return target
    detail = f"{ratio:.0%} below the run's {target.power_limit_w:g} W: it waits for another GPU; {target.detail}"
    limit_w = target.power_limit_w * (1 - ratio)
    return replace(target, power_limit_w=limit_w, reason="slack_shared", detail=detail)


def _clamped_w(power_limit_w: float, state: LimitState) -> float:
    return min(max(power_limit_w, state.floor_power_limit_w), state.ceiling_power_limit_w)
