"""The power limiter of a simulated GPU that nobody else writes: what is asked for is in force at once."""

from controller.gpu.simulation.backend import SimulatedGpu
from controller.gpu.simulation.event_log import LimitSet
from controller.ports import Hold, LimitState, Target
from controller.runtime.clock import Clock
from policies.vocabulary.profile import LIMIT_TOLERANCE_W


class SimulatedLimiter:
    """Sets the limit of a simulated GPU without a driver, a journal or another writer; obeys `PowerLimiter`.

    Its prior limit is the highest one.
    """

    def __init__(self, gpu: SimulatedGpu, *, clock: Clock) -> None:
        self.gpu = gpu
        self._clock = clock
        curve = gpu.timeline.curve
        self._bounds_w = curve.min_power_limit_w, curve.max_power_limit_w
        self.state: LimitState = self._state(Hold.FREE, curve.max_power_limit_w, since_ns=gpu.timeline.start_ns)

    def request(self, target: Target) -> None:
        """Set a limit, as far as the GPU takes it."""
        floor_w, ceiling_w = self._bounds_w
        self._set(Hold.HELD, min(max(target.power_limit_w, floor_w), ceiling_w), target.reason, target.detail)

    def release(self, *, reason: str, detail: str) -> None:
        """End the hold: back to the prior limit."""
        self._set(Hold.FREE, self.state.prior_power_limit_w, reason, detail)

    def _set(self, hold: Hold, power_limit_w: float, reason: str, detail: str) -> None:
        before, now_ns = self.state, self._clock.monotonic_ns()
        is_same = abs(power_limit_w - before.enforced_power_limit_w) <= LIMIT_TOLERANCE_W
        if not is_same:
            self.gpu.timeline.record(LimitSet(now_ns, power_limit_w))
        since_ns = before.since_ns if is_same else now_ns
        self.state = self._state(hold, power_limit_w, since_ns=since_ns, reason=reason, detail=detail)

    def _state(
        self, hold: Hold, power_limit_w: float, *, since_ns: int, reason: str = "", detail: str = ""
    ) -> LimitState:
        floor_w, ceiling_w = self._bounds_w
        return LimitState(
            hold=hold,
            prior_power_limit_w=ceiling_w,
            floor_power_limit_w=floor_w,
            ceiling_power_limit_w=ceiling_w,
            requested_power_limit_w=power_limit_w,
            enforced_power_limit_w=power_limit_w,
            since_ns=since_ns,
            reason=reason,
            detail=detail,
        )
