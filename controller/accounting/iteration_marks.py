"""The marks of one message of iterations: where pauses may lie, and what is left when they are cut out."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from controller.runtime.clock import NS_PER_S
from policies.profiling.rhythm import Intervals
from policies.profiling.rhythm_track import Pauses
from policies.vocabulary.units import Values
from publishers.messages.training import Iterations

TimesNs = NDArray[np.int64]

LEAST_AHEAD: Final = 8
"""Fewer requests at the very moment of the end before are chance."""


class Part(NamedTuple):
    """Iterations without a gap: the number of the first, its start [ns], and the end of each, shape (n,) [ns]."""

    first: int
    begin_ns: int
    ends_ns: TimesNs


@dataclass(frozen=True, slots=True)
class IterationMarks:
    """The marks of a message.

    Attributes:
        first: the number of the first iteration.
        begin_ns: its start [ns].
        ends_ns: the end of each, shape (n,) [ns].
        counts_steps: whether an end is that of an optimizer step; else it is the request for the next batch.
        told_ns: of steps, when the first batch of each was requested; of a loader, when the batch was received, shape
            (n,) [ns]; None where that is not known.
    """

    first: int
    begin_ns: int
    ends_ns: TimesNs
    counts_steps: bool
    told_ns: TimesNs | None

    @classmethod
    def of(cls, message: Iterations) -> "IterationMarks":
        """Return the marks of a message."""
        counts_steps = message.counted_by != "loader"
        told = message.request_ns if counts_steps else message.received_ns
        return cls(
            first=message.first,
            begin_ns=message.begin_ns,
            ends_ns=_times_ns(message.end_ns),
            counts_steps=counts_steps,
            told_ns=_times_ns(told) if told else None,
        )

    def after_first(self) -> "IterationMarks":
        """Return the marks of all iterations but the first."""
        told_ns = None if self.told_ns is None else self.told_ns[1:]
        return IterationMarks(self.first + 1, int(self.ends_ns[0]), self.ends_ns[1:], self.counts_steps, told_ns)

    def intervals(self, *, trusts_requests: bool = True) -> Intervals:
        """Return the intervals between the marks; requests are left aside where they are not trusted."""
        times_s = self._seconds_since_last(self.ends_ns)
        if self.told_ns is None or not trusts_requests:
            return Intervals(times_s=times_s, loose_s=times_s, counts_steps=self.counts_steps)
        told_s = self._seconds_since_last(self.told_ns)
        loose_s = told_s if self.counts_steps else times_s - told_s
        return Intervals(times_s=times_s, loose_s=loose_s, counts_steps=self.counts_steps, tells_loose=True)

    def _seconds_since_last(self, times_ns: TimesNs) -> Values:
        """Return how long after the end of the iteration before each moment was, shape (n,) [s]."""
        since_ns = np.empty(len(times_ns), dtype=np.int64)  # a third of the time of the obvious way
        since_ns[0] = times_ns[0] - self.begin_ns
        np.subtract(times_ns[1:], self.ends_ns[:-1], since_ns[1:])
        return since_ns / NS_PER_S

    @property
    def fetches_ahead(self) -> bool:
        """Return whether the loader is asked for batches before the step is over: then it does not show pauses."""
        if not self.counts_steps or self.told_ns is None or len(self.ends_ns) < LEAST_AHEAD:
            return False
        return 2 * int(np.count_nonzero(self.told_ns[1:] == self.ends_ns[:-1])) > len(self.ends_ns)

    def without(self, pauses: Pauses) -> Iterator[Part]:
        """Yield the iterations between pauses.

        A step ends before the pause, which is in the interval after it; a loader's mark ends with the pause.
        """
        start, begin_ns = 0, self.begin_ns
        for at, length_s in zip(pauses.at.tolist(), pauses.lengths_s.tolist(), strict=True):
            length_ns = round(length_s * NS_PER_S)
            if self.counts_steps:
                if at > start:
                    yield Part(self.first + start, begin_ns, self.ends_ns[start:at])
                    begin_ns = int(self.ends_ns[at - 1])
                start, begin_ns = at, begin_ns + length_ns
            else:
                ends_ns = self.ends_ns[start : at + 1].copy()
                ends_ns[-1] -= length_ns
                yield Part(self.first + start, begin_ns, ends_ns)
                start, begin_ns = at + 1, int(self.ends_ns[at])
        if start < len(self.ends_ns):
            yield Part(self.first + start, begin_ns, self.ends_ns[start:])


def _times_ns(packed: bytes) -> TimesNs:
    return np.frombuffer(packed, dtype="<i8").astype(np.int64)
