"""The GPUs of one run on this node: they get one limit, some of them less, and lose it together."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from controller.accounting.run_books import GpusNow
from controller.ports import Blocked, EnergyMeter, Hold, LimitState, PowerLimiter, Target
from policies.vocabulary.profile import LIMIT_TOLERANCE_W

_OURS = frozenset({Hold.FREE, Hold.HELD})

Readiness = Literal["ready", "waiting", "not_ours"]


class GpuGroup:
    """The GPUs of a run, with the limit that was requested of them.

    Attributes:
        requested: the limit that the run was to have last; None once it is released.
        uuids: the GPUs.
        model: the model of the first GPU; a run on several models is known by it.
        meters: the meter of each GPU, by UUID.
    """

    def __init__(self) -> None:
        self.requested: Target | None = None
        self.uuids: set[str] = set()
        self.model = ""
        self.meters: dict[str, EnergyMeter] = {}
        self._limiters: dict[str, PowerLimiter] = {}
        self._reductions: Mapping[str, float] = {}
        self._requested_of: dict[str, Target] = {}

    def add(self, limiter: PowerLimiter, meter: EnergyMeter) -> None:
        """Add a GPU."""
        gpu = limiter.gpu
        self.model = self.model or gpu.model
        self.uuids.add(gpu.uuid)
        self.meters[gpu.uuid] = meter
        self._limiters[gpu.uuid] = limiter

    def controls(self, uuid: str) -> bool:
        """Return whether the limit of a GPU is the run's to ask for."""
        return uuid in self._limiters

    def withdraw(self, uuid: str, *, reason: str, detail: str) -> EnergyMeter:
        """Give a GPU back, and return the meter that is not the run's any more."""
        self._limiters.pop(uuid).release(reason=reason, detail=detail)
        self._requested_of.pop(uuid, None)
        self.uuids.remove(uuid)
        return self.meters.pop(uuid)

    def readiness(self) -> Readiness:
        """Return whether there are GPUs, and all of them have answered (`ready`) and are ours to set."""
        states = [limiter.state for limiter in self._limiters.values()]
        if any(state is not None and state.hold not in _OURS for state in states):
            return "not_ours"
        return "waiting" if not states or None in states else "ready"

    def states(self) -> list[LimitState]:
        """Return how each limit stands, as far as the GPUs have answered."""
        states = (limiter.state for limiter in self._limiters.values())
        return [state for state in states if state is not None]

    @property
    def prior_power_limit_w(self) -> float | None:
        """Return the sum of the GPUs' prior limits [W]; None before all of them have answered."""
        states = self.states()
        if not states or len(states) < len(self._limiters):
            return None
        return sum(state.prior_power_limit_w for state in states)

    @property
    def mean_power_limit_w(self) -> float | None:
        """Return the mean of the GPUs' present limits [W]; None before all of them have answered."""
        states = self.states()
        if not states or len(states) < len(self._limiters):
            return None
        return sum(state.enforced_power_limit_w for state in states) / len(states)

    @property
    def enforces_request(self) -> bool:
        """Return whether every GPU has the limit that was requested of it; False where none was."""
        states = {uuid: limiter.state for uuid, limiter in self._limiters.items()}
        wanted = ((state, self._requested_of.get(uuid)) for uuid, state in states.items())
        return self.requested is not None and all(
            state and target and state.enforces(target) for state, target in wanted
        )

    def why_not_ours(self) -> Blocked | None:
        """Return why a GPU is not ours to set; None where all are."""
        states = (state for state in self.states() if state.hold not in _OURS)
        return next((Blocked(state.reason, state.detail) for state in states if state.reason), None)

    @property
    def least_prior_power_limit_w(self) -> float:
        """Return the least of the GPUs' prior limits [W]; some GPU must have answered."""
        return min(state.prior_power_limit_w for state in self.states())

    def bounds_w(self) -> tuple[float, float]:
        """Return between which limits every GPU takes what is requested of it (floor, ceiling) [W]."""
        states = self.states()
        return max(state.floor_power_limit_w for state in states), min(state.ceiling_power_limit_w for state in states)

    def only_limit_w(self) -> float | None:
        """Return the only limit that the GPUs may have [W]; None where there are several."""
        floor_w, ceiling_w = self.bounds_w()
        return ceiling_w if floor_w >= ceiling_w - LIMIT_TOLERANCE_W else None

    def changes_limit(self, target: Target) -> bool:
        """Return whether a target is another limit than the one requested."""
        return self.requested is None or target.power_limit_w != self.requested.power_limit_w

    def request(self, target: Target, reductions: Mapping[str, float] | None = None) -> None:
        """Request a limit; the same one is not requested twice.

        Args:
            target: the limit of the run.
            reductions: GPUs that are to have less, by UUID, and by what share of it; all others get the run's limit.
        """
        reductions = reductions or {}
        is_complete = len(self._requested_of) == len(self._limiters)
        if target is self.requested and reductions == self._reductions and is_complete:
            return
        for uuid, limiter in self._limiters.items():
            wanted = _reduced(target, reductions[uuid]) if reductions.get(uuid) else target
            if wanted != self._requested_of.get(uuid):
                limiter.request(wanted)
            self._requested_of[uuid] = wanted
        self.requested, self._reductions = target, reductions

    def release(self, reason: str, detail: str, *, only: Hold | None = None) -> None:
        """End the hold, or that on GPUs in one state only, where something was requested; it may begin again.

        With `only`, a GPU whose write was in flight, or that recovers later, is released when it comes to that state.
        """
        if self.requested is not None or only is not None:
            for limiter in self._limiters.values():
                if only is None or (limiter.state is not None and limiter.state.hold is only):
                    limiter.release(reason=reason, detail=detail)
        self.requested, self._requested_of = None, {}

    def release_all(self, reason: str, detail: str) -> None:
        """End every hold for good, whatever it looks like now: a write may still be in flight."""
        for limiter in self._limiters.values():
            limiter.release(reason=reason, detail=detail)
        self.requested, self._requested_of = None, {}

    def in_force(self) -> tuple[float, int] | None:
        """Return the limit that the run has now [W], and since when [ns]; None while a GPU has not answered.

        That is the least that is enforced on a GPU; those that are to have less than the run, as they wait for another
        one, do not count.
        """
        states = {uuid: limiter.state for uuid, limiter in self._limiters.items()}
        known = [state for uuid, state in states.items() if state is not None and not self._reductions.get(uuid)]
        if not known or None in states.values():
            return None
        return min(state.enforced_power_limit_w for state in known), max(state.since_ns for state in known)

    def now(self) -> GpusNow:
        """Return how the GPUs stand now, for the books."""
        in_force, states = self.in_force(), self.states()
        return GpusNow(
            in_force=in_force,
            highest_w=0.0 if in_force is None else self.bounds_w()[1],
            are_at_prior=all(
                state.enforced_power_limit_w >= state.prior_power_limit_w - LIMIT_TOLERANCE_W for state in states
            ),
            are_reduced=any(self._reductions.values()),
        )

    def is_in_force(self, since_ns: int) -> bool:
        """Return whether every GPU has had the limit requested of it ever since a moment [ns]."""
        return self._enforced_w(since_ns) is not None

    def enforced_w(self, since_ns: int) -> float | None:
        """Return the limit that the run got ever since a moment [W], or None where it is not the requested one.

        Where some GPUs have less, the run is not measured at its limit.
        """
        return None if any(self._reductions.values()) else self._enforced_w(since_ns)

    def _enforced_w(self, since_ns: int) -> float | None:
        """Return the least limit enforced on a GPU ever since a moment [W]; None where one is not the requested one."""
        if self.requested is None:
            return None
        least_w = math.inf
        for uuid, limiter in self._limiters.items():
            state, wanted = limiter.state, self._requested_of.get(uuid)
            if state is None or wanted is None or state.hold is not Hold.HELD or state.since_ns > since_ns:
                return None
            clamped_w = min(max(wanted.power_limit_w, state.floor_power_limit_w), state.ceiling_power_limit_w)
            if abs(clamped_w - state.asked_for_w) > LIMIT_TOLERANCE_W:
                return None
            least_w = min(least_w, state.enforced_power_limit_w)
        return least_w


def _reduced(target: Target, ratio: float) -> Target:
    """Return the limit of a GPU that is to have less than the run, by a share of it."""
    detail = f"{ratio:.0%} below the run's {target.power_limit_w:g} W: it waits for another GPU; {target.detail}"
    limit_w = target.power_limit_w * (1 - ratio)
    return replace(target, power_limit_w=limit_w, reason="slack_shared", detail=detail)
