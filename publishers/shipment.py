"""The iterations on their way: taken from the recorder, published, and published again where the broker went away."""

import operator
from array import array
from collections import deque
from collections.abc import Callable
from typing import Final

from publishers.connection import Connection, Receipt
from publishers.recorder import Recorder, Segment
from publishers.wire import Iterations, pack_ends

_MAX_SEGMENTS: Final = 64
"""Messages of one flush, and messages that may wait in the network before the next one."""


class Shipment:
    """The iterations of one rank of one run, in their order; what is lost is counted. Only the sender's thread uses it.

    `say` publishes a message and returns its receipt, or None where it cannot be encoded.
    """

    def __init__(
        self, recorder: Recorder, *, run: str, say: Callable[[Connection, Iterations], Receipt | None]
    ) -> None:
        self._recorder = recorder
        self._run = run
        self._say = say
        self._waiting: deque[tuple[Segment, int]] = deque()  # with the number of iterations dropped before it
        self._flying: deque[tuple[Receipt, Segment, int]] = deque()
        self._seq = self._next = self._dropped = 0

    @property
    def n_taken(self) -> int:
        """Return how many iterations have ended, as far as it has looked."""
        return self._next

    @property
    def is_flying(self) -> bool:
        """Return whether something has been sent of which it is not known whether it has left."""
        return bool(self._flying)

    def flush(self, connection: Connection) -> bool:
        """Publish what waits, as far as the network takes it; return whether there was anything."""
        if not self._waiting:
            self._take()
        n_before = len(self._waiting)
        while self._waiting and len(self._flying) < _MAX_SEGMENTS and connection.is_connected():
            self._send(connection, *self._waiting.popleft())
        return len(self._waiting) < n_before

    def settle(self) -> None:
        """Forget the messages that have left; those that are known not to have, because the broker went, go again."""
        again = []
        while self._flying and self._flying[0][0].done:
            receipt, segment, dropped = self._flying.popleft()
            if receipt.lost:
                again.append((segment, dropped))
        self._waiting.extendleft(reversed(again))

    def _take(self) -> None:
        """Take what was recorded, and count what was not kept."""
        for segment in self._recorder.take(_MAX_SEGMENTS):
            self._dropped += segment.first - self._next
            self._next = segment.first + len(segment.ends_ns)
            self._waiting.append((segment, self._dropped))

    def _send(self, connection: Connection, segment: Segment, dropped: int) -> None:
        try:
            message = Iterations(
                run=self._run,
                seq=self._seq,
                first=segment.first,
                begin_ns=operator.index(segment.begin_ns),  # a clock may count in integers of its own
                end_ns=pack_ends(array("q", segment.ends_ns)),
                epoch=segment.epoch,
                dropped=dropped,
            )
        except (ValueError, TypeError, OverflowError):  # a clock that goes backwards, or counts in something else
            self._dropped += len(segment.ends_ns)
            return
        receipt = self._say(connection, message)
        if receipt is None:
            self._dropped += len(segment.ends_ns)
            return
        self._seq += 1
        self._flying.append((receipt, segment, dropped))
