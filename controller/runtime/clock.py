"""Clocks: the system's, and an accelerated one for the demo.

Domain time (the hours of the grid, settling, leases) comes from a `Clock`. Deadlines of I/O stay in real seconds.
"""

import asyncio
import time
from collections.abc import Callable
from typing import NamedTuple, Protocol, Self

MAX_SLEEP_S = 60.0
"""The wall clock may be stepped while we sleep, so a long sleep is cut into short ones that read it again."""

SHORTEST_SLEEP_S = 1e-6
"""An event loop may not wake up later for less."""

NS_PER_S = 1_000_000_000


class Clock(Protocol):
    """Wall time, monotonic time, and sleep."""

    def now_s(self) -> float:
        """Return the time of day: Unix seconds, UTC [s]."""

    def monotonic_ns(self) -> int:
        """Return the node's monotonic clock, comparable with the publishers' `…_ns` [ns]."""

    async def sleep_until(self, time_s: float) -> None:
        """Return once `now_s()` has reached `time_s`; yields to other tasks even where it already has."""


class Now(NamedTuple):
    """A moment on both clocks: Unix time [s] and monotonic time [ns]."""

    wall_s: float
    monotonic_ns: int

    @classmethod
    def of(cls, clock: Clock) -> Self:
        """Return what a clock shows now."""
        return cls(clock.now_s(), clock.monotonic_ns())

    @property
    def monotonic_s(self) -> float:
        """Return the time that leases are measured in [s]: the wall clock may be stepped, this one may not."""
        return self.monotonic_ns / NS_PER_S

    def wall_at_s(self, time_ns: int) -> float:
        """Return the time of day of another moment on the monotonic clock [Unix s]."""
        return self.wall_s - (self.monotonic_ns - time_ns) / NS_PER_S


class SystemClock:
    """The time of the system."""

    def now_s(self) -> float:
        """Return Unix seconds, UTC [s]."""
        return time.time()

    def monotonic_ns(self) -> int:
        """Return CLOCK_MONOTONIC [ns]."""
        return time.monotonic_ns()

    async def sleep_until(self, time_s: float) -> None:
        """Sleep a minute at most at a time, because the wall clock may step.

        A step forward ends the sleep early; a step back does not lengthen it, or a wrong clock would stop all work.
        """
        deadline_s = time.monotonic() + time_s - self.now_s()
        while (left_s := min(time_s - self.now_s(), deadline_s - time.monotonic())) > 0:  # noqa: ASYNC110 — see below
            await asyncio.sleep(min(left_s, MAX_SLEEP_S))  # a time is waited for, not an event
        await asyncio.sleep(0)


class ScaledClock:
    """A clock that started at `start_s` when the monotonic clock read `origin_ns`, and runs `rate` times as fast.

    Two processes that are given the same three numbers agree on the time.

    Args:
        start_s: the time of day at the start [Unix s].
        rate: how many simulated seconds pass in one.
        origin_ns: what the monotonic clock read at the start [ns].
        read_ns: reads the monotonic clock [ns].
    """

    def __init__(
        self, *, start_s: float, rate: float, origin_ns: int, read_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self.start_s = start_s
        self.rate = rate
        self.origin_ns = origin_ns
        self._read_ns = read_ns

    def now_s(self) -> float:
        """Return the simulated time of day: Unix seconds, UTC [s]."""
        return self.start_s + (self._read_ns() - self.origin_ns) / NS_PER_S * self.rate

    def monotonic_ns(self) -> int:
        """Return the simulated monotonic clock: `origin_ns` at the start, then `rate` times as fast [ns]."""
        return self.origin_ns + int((self._read_ns() - self.origin_ns) * self.rate)

    async def sleep_until(self, time_s: float) -> None:
        """Sleep the scaled-down rest of the time."""
        while (left_s := time_s - self.now_s()) > 0:  # noqa: ASYNC110 — a time is waited for, not an event
            await asyncio.sleep(max(left_s / self.rate, SHORTEST_SLEEP_S))
        await asyncio.sleep(0)


def next_tick_s(tick_s: float, *, period_s: float, now_s: float) -> float:
    """Return when periodic work that was due at `tick_s` is due next [s].

    It does not drift, and ticks that were missed are skipped, not caught up with. After a clock that was stepped back
    the next one is a period away.
    """
    return min(max(tick_s + period_s, now_s), now_s + period_s)


def is_due(due_s: float, *, period_s: float, now_s: float) -> bool:
    """Return whether periodic work is to be done now that is due at a time [s].

    What is due more than a period from now was put off before the clock was stepped back: it is due, too.
    """
    return not now_s < due_s <= now_s + period_s
