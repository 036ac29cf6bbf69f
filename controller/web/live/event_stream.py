"""Server-sent events: what has changed, once a second at most, encoded once for all who look.

https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Final

from controller.runtime.clock import Clock, next_tick_s

PERIOD_S: Final = 1.0
HEARTBEAT_S: Final = 15.0
"""A page that hears nothing for longer knows that the connection is gone [s]."""
RETRY_MS: Final = 3_000
"""After which a browser connects again [ms]."""
_HEARTBEAT: Final = b"event: heartbeat\ndata: {}\n\n"


class EventStream:
    """Sends the newest values to whoever listens; one who takes them slowly misses some, and costs the others nothing.

    Args:
        newest: returns what is sent, in JSON without line breaks.
        version: returns a number that is another one when `newest` may be.
        clock: the time.

    Attributes:
        n_listeners: how many there are.
    """

    def __init__(self, newest: Callable[[], bytes], *, version: Callable[[], int], clock: Clock) -> None:
        self.n_listeners = 0
        self._newest = newest
        self._version = version
        self._clock = clock
        self._seen_version = -1
        self._values = b""  # as they are sent
        self._made_s = -HEARTBEAT_S
        self._n_values = 0
        self._n_beats = 0
        self._next = asyncio.Event()
        self._has_ended = False

    async def run(self) -> None:
        """Send what changes, until it is cancelled; then all streams end."""
        tick_s = self._clock.now_s()
        try:
            while True:
                tick_s = next_tick_s(tick_s, period_s=PERIOD_S, now_s=self._clock.now_s())
                await self._clock.sleep_until(tick_s)
                self._tick(self._clock.now_s())
        finally:
            self._has_ended = True
            self._next.set()

    def _tick(self, now_s: float) -> None:
        if not self.n_listeners:
            return
        is_heartbeat_due = not 0 <= now_s - self._made_s < HEARTBEAT_S  # what falls silent changes no version
        if self._version() == self._seen_version and not is_heartbeat_due:
            return
        n_before = self._n_values
        self._make(now_s)
        if self._n_values != n_before or is_heartbeat_due:
            self._n_beats += 1
            self._next.set()
            self._next = asyncio.Event()

    def _make(self, now_s: float) -> None:
        self._seen_version, self._made_s = self._version(), now_s
        values = b"event: values\ndata: " + self._newest() + b"\n\n"
        self._n_values += values != self._values
        self._values = values

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield what is sent to one who listens, from what holds now on."""
        self.n_listeners += 1
        try:
            if self.n_listeners == 1 or not self._values:
                self._make(self._clock.now_s())
            seen = self._n_values, self._n_beats
            yield f"retry: {RETRY_MS}\n\n".encode() + self._values
            while not self._has_ended:
                if self._n_beats == seen[1]:
                    await self._next.wait()
                elif self._n_values == seen[0]:
                    seen = self._n_values, self._n_beats
                    yield _HEARTBEAT
                else:
                    seen = self._n_values, self._n_beats
                    yield self._values
        finally:
            self.n_listeners -= 1
