"""When a training waited because it was asked to: time that the same work would not have taken otherwise."""

from collections import deque
from typing import Final

_MAX_SPANS: Final = 64
"""Far more pauses than can lie in the time that an account has still to look at."""


class AskedPauses:
    """The pauses of one run that its status has told of, on the monotonic clock of the node."""

    def __init__(self) -> None:
        self._ended: deque[tuple[int, int]] = deque(maxlen=_MAX_SPANS)
        self._since_ns: int | None = None

    @property
    def is_paused(self) -> bool:
        """Return whether the training waits now."""
        return self._since_ns is not None

    def update(self, since_ns: int | None, *, now_ns: int) -> None:
        """Take what a status says: since when the training waits, None if it does not [ns]."""
        if since_ns == self._since_ns:
            return
        if self._since_ns is not None:
            end_ns = now_ns if since_ns is None else min(since_ns, now_ns)
            self._ended.append((self._since_ns, end_ns))
        self._since_ns = since_ns

    def covers(self, time_ns: int) -> bool:
        """Return whether the training waited at a time [ns]."""
        if self._since_ns is not None and time_ns >= self._since_ns:
            return True
        return any(begin_ns <= time_ns < end_ns for begin_ns, end_ns in self._ended)
