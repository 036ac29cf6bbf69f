"""A clock that stands still until it is stepped: simulated time for whoever computes it himself."""

import asyncio
import heapq
from itertools import count
from typing import Final

from controller.runtime.clock import NS_PER_S

ORIGIN_NS: Final = 3_600 * NS_PER_S
"""What the monotonic clock reads at the start [ns]: a machine that was switched on an hour ago."""


class SteppedClock:
    """Time that its owner advances; obeys `controller.runtime.clock.Clock`.

    Args:
        start_s: the time of day at the start [Unix s].
    """

    def __init__(self, start_s: float) -> None:
        self._start_s = start_s
        self._now_ns = ORIGIN_NS
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._numbers = count()

    def now_s(self) -> float:
        """Return the simulated time of day [Unix s]."""
        return self._start_s + (self._now_ns - ORIGIN_NS) / NS_PER_S

    def monotonic_ns(self) -> int:
        """Return the simulated monotonic clock [ns]."""
        return self._now_ns

    def time_s(self, time_ns: int) -> float:
        """Convert monotonic time [ns] to the time of day [Unix s]."""
        return self._start_s + (time_ns - ORIGIN_NS) / NS_PER_S

    async def sleep_until(self, time_s: float) -> None:
        """Return once the clock was stepped to a time of day [Unix s], or past it."""
        if time_s <= self.now_s():
            await asyncio.sleep(0)
            return
        woken = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (time_s, next(self._numbers), woken))
        await woken

    async def step_to(self, time_ns: int) -> None:
        """Advance to a monotonic time [ns], and let everyone whose time has come work until he sleeps again."""
        self._now_ns = max(self._now_ns, time_ns)
        now_s = self.now_s()
        while self._sleepers and self._sleepers[0][0] <= now_s:
            _, _, woken = heapq.heappop(self._sleepers)
            if not woken.done():  # a task that was cancelled waits no more
                woken.set_result(None)
        await asyncio.sleep(0)
