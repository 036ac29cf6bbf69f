"""The outbox of the bus: what waits for the broker, what is on its way to it, and the latest state that it has.

A retained message is state: while the broker is away only the latest of each topic is kept. The others are events: a
full outbox drops its oldest event, and only where there is none its oldest state.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Collection, Mapping

from publishers.messages.codec import Outgoing


class Outbox:
    """A FIFO of at most `size` messages, numbered, so that what was not delivered goes back to its place.

    Attributes:
        dropped: messages that a full outbox has lost so far.
        settled: set while nothing waits and nothing is on its way.
    """

    def __init__(self, size: int) -> None:
        self.dropped = 0
        self.settled = asyncio.Event()
        self.settled.set()
        self._size = size
        self._n_put = 0
        self._events: OrderedDict[int, Outgoing] = OrderedDict()
        self._states: OrderedDict[int, Outgoing] = OrderedDict()
        self._newest: dict[str, int] = {}  # of the states that wait
        self._on_the_way: dict[int, Outgoing] = {}
        self._delivered: OrderedDict[str, tuple[int, Outgoing]] = OrderedDict()  # state by topic
        self._filled = asyncio.Event()

    def __len__(self) -> int:
        """Return how many messages wait or are on their way."""
        return self._n_waiting() + len(self._on_the_way)

    def put(self, message: Outgoing, *, latest_only: bool) -> None:
        """Add a message; never waits. With `latest_only` it replaces an earlier state of its topic."""
        self._n_put += 1
        self._insert(self._n_put, message, latest_only=latest_only)
        self._update()

    async def get(self) -> tuple[int, Outgoing]:
        """Wait for the oldest message and send it on its way, with its number."""
        await self._filled.wait()
        number = min(next(iter(queue)) for queue in (self._events, self._states) if queue)
        message = self._on_the_way[number] = self._take(number)
        self._update()
        return number, message

    def confirm(self, number: int) -> None:
        """Note that a message has arrived; an empty state clears its topic."""
        message = self._on_the_way.pop(number)
        if message.retain:
            self._delivered.pop(message.topic, None)
            if message.payload:
                self._delivered[message.topic] = (number, message)
            if len(self._delivered) > self._size:
                self._delivered.popitem(last=False)
        self._update()

    def recover(self) -> None:
        """Put what was on its way back to its place, because the connection ended."""
        on_the_way = dict(self._on_the_way)
        self._on_the_way.clear()
        self._put_back(on_the_way)

    def repeat_state(self, *, but: Collection[str]) -> None:
        """Queue the latest state of each topic again, in case the broker has forgotten it; `but` these topics."""
        delivered = dict(pair for topic, pair in self._delivered.items() if topic not in but)
        self._delivered.clear()
        self._put_back(delivered)

    def _put_back(self, messages: Mapping[int, Outgoing]) -> None:
        waiting = sorted({**messages, **self._events, **self._states}.items())
        self._events.clear()
        self._states.clear()
        self._newest.clear()
        for number, message in waiting:
            self._insert(number, message, latest_only=True)
        self._update()

    def _insert(self, number: int, message: Outgoing, *, latest_only: bool) -> None:
        if message.retain:
            if latest_only and (earlier := self._newest.get(message.topic)) is not None:
                self._take(earlier)
            self._states[number] = message
            self._newest[message.topic] = number
        else:
            self._events[number] = message
        if self._n_waiting() > self._size:
            self._take(next(iter(self._events or self._states)))
            self.dropped += 1

    def _take(self, number: int) -> Outgoing:
        if number in self._events:
            return self._events.pop(number)
        message = self._states.pop(number)
        if self._newest.get(message.topic) == number:
            del self._newest[message.topic]
        return message

    def _n_waiting(self) -> int:
        return len(self._events) + len(self._states)

    def _update(self) -> None:
        for event, holds in ((self._filled, self._n_waiting() > 0), (self.settled, len(self) == 0)):
            if holds:
                event.set()
            else:
                event.clear()
