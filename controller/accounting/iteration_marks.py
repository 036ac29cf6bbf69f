"""The marks of one message of iterations: where pauses may lie, and what is left when they are cut out."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from controller.runtime.clock import NS_PER_S
from policies.profiling.rhythm import Intervals
from policies.profiling.rhythm_track import Pauses
from policies.vocabulary.units import Values
from publishers.messages.training import MAX_WORK, Iterations

TimesNs = NDArray[np.int64]

LEAST_AHEAD: Final = 8
"""Fewer requests at the very moment of the end before are chance."""


class Part(NamedTuple):
    """Iterations without a gap: the number of the first, its start [ns], and the end of each, shape (n,) [ns].

    `n_mean` is how many iterations of mean work each counts as, shape (n,); None: as one.
    """

    first: int
    begin_ns: int
    ends_ns: TimesNs
    n_mean: Values | None = None


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
        n_mean: how many iterations of mean work each counts as, shape (n,); None: as one.
        is_by_work: whether the intervals are times of an iteration of mean work.
    """

    first: int
    begin_ns: int
    ends_ns: TimesNs
    counts_steps: bool
    told_ns: TimesNs | None
    n_mean: Values | None = None
    is_by_work: bool = False

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

    def counted_as(self, n_mean: Values | None, *, is_by_work: bool) -> Self:
        """Return the marks of iterations that count as so many of mean work."""
        return replace(self, n_mean=n_mean, is_by_work=is_by_work and n_mean is not None)

    def part(self, start: int, begin_ns: int, ends_ns: TimesNs) -> Part:
        """Return iterations from one of them on, with these times."""
        n_mean = None if self.n_mean is None else self.n_mean[start : start + len(ends_ns)]
        return Part(self.first + start, begin_ns, ends_ns, n_mean)

    def after_first(self) -> Self:
        """Return the marks of all iterations but the first."""
        told_ns = None if self.told_ns is None else self.told_ns[1:]
        n_mean = None if self.n_mean is None else self.n_mean[1:]
        begin_ns, ends_ns = int(self.ends_ns[0]), self.ends_ns[1:]
        return replace(self, first=self.first + 1, begin_ns=begin_ns, ends_ns=ends_ns, told_ns=told_ns, n_mean=n_mean)

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
        return since_ns / (NS_PER_S * self.n_mean if self.n_mean is not None and self.is_by_work else NS_PER_S)

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
            n_mean = 1.0 if self.n_mean is None or not self.is_by_work else float(self.n_mean[at])
            length_ns = round(length_s * n_mean * NS_PER_S)
            if self.counts_steps:
                if at > start:
                    yield self.part(start, begin_ns, self.ends_ns[start:at])
                    begin_ns = int(self.ends_ns[at - 1])
                start, begin_ns = at, begin_ns + length_ns
            else:
                ends_ns = self.ends_ns[start : at + 1].copy()
                ends_ns[-1] -= length_ns
                yield self.part(start, begin_ns, ends_ns)
                start, begin_ns = at + 1, int(self.ends_ns[at])
        if start < len(self.ends_ns):
            yield self.part(start, begin_ns, self.ends_ns[start:])


def _times_ns(packed: bytes) -> TimesNs:
    return np.frombuffer(packed, dtype="<i8").astype(np.int64)


def work_of(message: Iterations) -> Values | None:
    """Return how much work each iteration was, shape (n,), NaN where it is not known; None: of none."""
    if not message.work:
        return None
    work = np.frombuffer(message.work, dtype="<f8")
    return np.where((work > 0) & (work <= MAX_WORK), work, np.nan)
