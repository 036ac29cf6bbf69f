"""Server-sent events: the newest values of a page, encoded once for all who watch, and never a backlog for anybody."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Final

import msgspec
from aiohttp import web

from controller.runtime.clock import Clock, next_tick_s
from publishers.shared.http.problems import unavailable
from publishers.shared.http.server import Stream

MAX_STREAMS: Final = 1_000
PERIOD_S: Final = 1.0
"""Between two events [s]."""
HEARTBEAT_S: Final = 15.0
"""Between a stream's last bytes and a heartbeat that shows that it is alive [s]."""
RETRY_MS: Final = 3_000
"""After which a browser asks again for a stream that was cut."""
STALL_TIMEOUT_S: Final = 30.0
"""A viewer that takes nothing for so long is dropped [s]."""
_HEARTBEAT: Final = b'event: alive\ndata: {"time_s":%.3f}\n\n'
"""No comment: browsers keep those from scripts, which say when something was heard last, by the clock of the server."""


class LiveValues(msgspec.Struct, frozen=True, kw_only=True):
    """What pages show now.

    Attributes:
        time_s: when [Unix s].
        texts: by id of the element.
        bars: how far a bar is filled, and where its mark is, in shares of its width, by id of the element.
        shape: is another one where more has changed than these: then a page is read again.
    """

    time_s: float
    texts: dict[str, str]
    bars: dict[str, tuple[float, float | None]]
    shape: str = ""


@dataclass(frozen=True, slots=True)
class _Event:
    id: str
    version: int
    made_s: float
    values: LiveValues
    body: bytes


class EventStream:
    """Sends values to all viewers: whoever is slow skips to the newest.

    Args:
        values: returns what pages show now.
        version: returns a number that grows when that may have changed.
        time_s: returns the time of what is shown [Unix s].
        clock: the time of the viewers, which may be another one.
        max_streams: how many there may be at once.
    """

    def __init__(
        self,
        values: Callable[[], LiveValues],
        version: Callable[[], int],
        *,
        time_s: Callable[[], float],
        clock: Clock,
        max_streams: int = MAX_STREAMS,
    ) -> None:
        self._values = values
        self._version = version
        self._time_s = time_s
        self._clock = clock
        self._max_streams = max_streams
        self._n_streams = 0
        self._n_events = 0
        self._started_s = clock.now_s()
        self._newest: _Event | None = None
        self._wake = asyncio.Event()  # replaced with each piece of news, so that nobody clears another's

    def __len__(self) -> int:
        """Return how many streams there are."""
        return self._n_streams

    async def handle(self, request: web.Request, _client: str) -> Stream:
        """Return a stream of events.

        Raises:
            ProblemError: there are as many as there may be.
        """
        if self._n_streams >= self._max_streams:
            raise unavailable("too_many_streams", f"{self._n_streams} streams are open: ask again", retry_after_s=30)
        return Stream(
            self.pieces(request.headers.get("Last-Event-ID", "")),
            content_type="text/event-stream",
            is_endless=True,
            stall_timeout_s=STALL_TIMEOUT_S,
        )

    async def run(self) -> None:
        """Make an event each second in which anything changed, and a heartbeat where nothing did for long."""
        tick_s = said_s = self._clock.now_s()
        while True:
            await self._clock.sleep_until(tick_s)
            now_s = self._clock.now_s()
            # With time alone values change, too: what fell silent is not known any more.
            is_quiet = not 0 <= now_s - said_s < HEARTBEAT_S
            n_events = self._n_events
            if self._n_streams and (is_quiet or self._is_outdated()):
                self._make(now_s)
            if is_quiet or self._n_events > n_events:
                said_s = now_s
                self._wake.set()
                self._wake = asyncio.Event()
            tick_s = next_tick_s(tick_s, period_s=PERIOD_S, now_s=self._clock.now_s())

    def _is_outdated(self) -> bool:
        return self._newest is None or self._newest.version != self._version()

    def _make(self, now_s: float) -> _Event:
        """Return the newest event: a new one where anything looks otherwise than before."""
        version, values, newest = self._version(), self._values(), self._newest
        if newest is None or msgspec.structs.replace(values, time_s=newest.values.time_s) != newest.values:
            self._n_events += 1
        id_ = f"{self._started_s:.0f}-{self._n_events}"  # another after a restart
        body = b"id: %s\nevent: values\ndata: %s\n\n" % (id_.encode(), msgspec.json.encode(values))
        self._newest = _Event(id_, version, now_s, values, body)
        return self._newest

    async def pieces(self, last_id: str) -> AsyncGenerator[bytes, None]:
        """Yield what is sent to one viewer, whose last event was `last_id`; "" where it is new."""
        self._n_streams += 1
        try:
            yield b"retry: %d\n\n" % RETRY_MS
            newest, now_s = self._newest, self._clock.now_s()
            if newest is None or not 0 <= now_s - newest.made_s < PERIOD_S:  # nobody else may have watched
                newest = self._make(now_s)
            while True:
                wake = self._wake
                if newest is not None and newest.id != last_id:
                    last_id = newest.id
                    yield newest.body
                else:
                    yield _HEARTBEAT % self._time_s()
                if wake is self._wake:
                    await wake.wait()
                newest = self._newest
        finally:
            self._n_streams -= 1
