"""The outbox of the MQTT client: messages that wait, messages in flight, and the retained ones that were delivered.

A retained message is state: while the broker is away only the latest of each topic is kept. The others are events: a
full outbox drops its oldest event, and its oldest retained message only where it holds no event.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Collection, Mapping

from publishers.messages.codec import Outgoing


class Outbox:
    """A FIFO of at most `size` messages; each has a number, by which an undelivered one returns to its place.

    Attributes:
        dropped: messages that a full outbox has dropped so far.
        settled: set while nothing waits and nothing is in flight.
    """

    def __init__(self, size: int) -> None:
        self.dropped = 0
        self.settled = asyncio.Event()
        self.settled.set()
        self._size = size
        self._n_put = 0
        self._events: OrderedDict[int, Outgoing] = OrderedDict()
        self._retained: OrderedDict[int, Outgoing] = OrderedDict()
        self._newest: dict[str, int] = {}  # number of the newest waiting retained message, by topic
        self._in_flight: dict[int, Outgoing] = {}
        self._delivered: OrderedDict[str, tuple[int, Outgoing]] = OrderedDict()  # retained ones, by topic
        self._filled = asyncio.Event()

    def __len__(self) -> int:
        """Return how many messages wait or are in flight."""
        return self._n_waiting() + len(self._in_flight)

    def put(self, message: Outgoing, *, latest_only: bool) -> None:
        """Add a message; never waits. With `latest_only` a retained one replaces an earlier one of its topic."""
        self._n_put += 1
        self._insert(self._n_put, message, latest_only=latest_only)
        self._update()

    async def get(self) -> tuple[int, Outgoing]:
        """Wait for the oldest message; return it with its number. From now on it is in flight."""
        await self._filled.wait()
        number = min(next(iter(queue)) for queue in (self._events, self._retained) if queue)
        message = self._in_flight[number] = self._pop(number)
        self._update()
        return number, message

    def acknowledge(self, number: int) -> None:
        """Mark a message as delivered, or refused for now; an empty retained one clears its topic."""
        message = self._in_flight.pop(number)
        if message.retain:
            self._delivered.pop(message.topic, None)
            if message.payload:
                self._delivered[message.topic] = (number, message)
            if len(self._delivered) > self._size:
                self._delivered.popitem(last=False)
        self._update()

    def requeue_unacknowledged(self) -> None:
        """Put the messages in flight back to their places, because the connection ended."""
        in_flight = dict(self._in_flight)
        self._in_flight.clear()
        self._requeue(in_flight)

    def requeue_retained(self, *, except_topics: Collection[str]) -> None:
        """Queue the latest retained message of each topic again, in case the broker has forgotten it."""
        delivered = dict(pair for topic, pair in self._delivered.items() if topic not in except_topics)
        self._delivered.clear()
        self._requeue(delivered)

    def _requeue(self, messages: Mapping[int, Outgoing]) -> None:
        waiting = sorted({**messages, **self._events, **self._retained}.items())
        self._events.clear()
        self._retained.clear()
        self._newest.clear()
        for number, message in waiting:
            self._insert(number, message, latest_only=True)
        self._update()

    def _insert(self, number: int, message: Outgoing, *, latest_only: bool) -> None:
        if message.retain:
            if latest_only and (earlier := self._newest.get(message.topic)) is not None:
                self._pop(earlier)
            self._retained[number] = message
            self._newest[message.topic] = number
        else:
            self._events[number] = message
        if self._n_waiting() > self._size:
            self._pop(next(iter(self._events or self._retained)))
            self.dropped += 1

    def _pop(self, number: int) -> Outgoing:
        if number in self._events:
            return self._events.pop(number)
        message = self._retained.pop(number)
        if self._newest.get(message.topic) == number:
            del self._newest[message.topic]
        return message

    def _n_waiting(self) -> int:
        return len(self._events) + len(self._retained)

    def _update(self) -> None:
        for event, holds in ((self._filled, self._n_waiting() > 0), (self.settled, len(self) == 0)):
            if holds:
                event.set()
            else:
                event.clear()
