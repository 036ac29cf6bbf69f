"""Follows the rhythm of one rank while it trains: which intervals are pauses, and whether it is known what is none.

It reads no clock. Of each rank the last 512 intervals are kept, as they come, and somewhat more. Pauses are found from
the first iterations on, with the usual ratio, so that a run that is plain loses nothing. What its marks may be beside
iterations is judged now and then: often at first, later every 128 intervals and 10 s at most.
"""

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from policies.profiling.rhythm import (
    FREQUENT_SHARE,
    LEAST_N,
    SKIPPED,
    USUAL_N,
    Intervals,
    NotProfiledReason,
    Rhythm,
    joined,
    judge_rhythm,
    median_of,
)
from policies.vocabulary.units import Values

KEPT_N: Final = 512
"""So many intervals are judged together."""
LEAST_USUAL_N: Final = 8
"""With fewer it is not known what is usual."""
WARM_UP_N: Final = 2
SCREEN_RATIO: Final = 3.0
"""Marks of a loader that differ by less, without the first ones, are taken for iterations until they are judged."""
FIRST_JUDGED_N: Final = SKIPPED + LEAST_N
REFUSED_N: Final = 128
"""Nothing is refused before so many intervals …"""
REFUSED_FAULTS: Final = 2
"""… so many judgements in a row, each after as many intervals more, …"""
REFUSED_S: Final = 30.0
"""… and this time of the run: in less no curve is measured, whatever its iterations are like."""
JUDGED_AGAIN_S: Final = 10.0
"""Later judgements come so long after the one before."""

PLAIN: Final = Rhythm(iteration_time_s=0.0, n_iterations=0)
"""What a run is taken for before it is judged."""

Standing = Literal["unknown", "known", "refused"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pauses:
    """The pauses among some intervals.

    Attributes:
        at: in which intervals they are, ascending, shape (n,).
        lengths_s: how long they are, without what is usual there, shape (n,) [s].
    """

    at: NDArray[np.intp]
    lengths_s: Values


NO_PAUSES: Final = Pauses(at=np.empty(0, dtype=np.intp), lengths_s=np.empty(0))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRhythm:
    """What is known of the rhythm of a run: as much as of its least known rank; see `RhythmTracker`."""

    standing: Standing = "known"
    not_profiled_reason: NotProfiledReason | None = None
    unit: int = 0
    regime: int = 0


class RhythmTracker:
    """The rhythm of one rank. It keeps its intervals as they come: they are joined when it is judged.

    Attributes:
        standing: whether it is known what an iteration is: `unknown` yet, or `refused`, as it cannot be told.
        rhythm: what was judged last.
        unit: counts how often what had been counted as iterations has turned out to be in doubt, or something else.
        regime: the same, and how often it has changed whether there are pauses at all.
    """

    def __init__(self) -> None:
        self.standing: Standing = "unknown"
        self.rhythm = PLAIN
        self.unit = 0
        self.regime = 0
        self._begin()

    def _begin(self) -> None:
        """Begin anew: with the first intervals of all, or those of another kind."""
        self.standing, self.rhythm = "unknown", PLAIN
        self._recent: deque[Intervals] = deque()
        self._n_recent = self._n_seen = self._n_faults = 0
        self._due_n, self._since_s, self._seen_s = FIRST_JUDGED_N, 0.0, 0.0

    @property
    def not_profiled_reason(self) -> NotProfiledReason | None:
        """Return why it cannot be told what an iteration is; None where it can, or may yet."""
        return self.rhythm.not_profiled_reason if self.standing == "refused" else None

    def find_pauses(self, new: Intervals) -> Pauses:
        """Return the pauses among intervals that follow those so far."""
        ratio, n = self.rhythm.pause_ratio, len(new.times_s)
        if n >= LEAST_USUAL_N and new.loose_s.max() <= ratio * new.times_s.min():
            return NO_PAUSES  # nearly always: nothing more is computed
        around = self._last(new, max(n, USUAL_N))
        if len(around) < LEAST_USUAL_N:
            return NO_PAUSES
        at = np.flatnonzero(new.loose_s > ratio * median_of(around.times_s))
        if not len(at) or len(at) > max(1, FREQUENT_SHARE * n):  # so many are none
            return NO_PAUSES
        return Pauses(at=at, lengths_s=new.loose_s[at] - median_of(around.loose_s))

    def last_times_s(self, new: Intervals) -> Values:
        """Return how long the last intervals took, new ones included, as many as tell what is usual [s]."""
        return self._last(new, max(len(new), USUAL_N)).times_s

    def add(self, new: Intervals, *, duration_s: float) -> None:
        """Add intervals that take so long together [s], and judge the last ones where that is due."""
        if self._recent and not self._recent[-1].is_like(new):
            self._begin()
            self.unit, self.regime = self.unit + 1, self.regime + 1
        n = len(new.times_s)
        self._recent.append(new)
        self._n_recent, self._n_seen = self._n_recent + n, self._n_seen + n
        self._since_s, self._seen_s = self._since_s + duration_s, self._seen_s + duration_s
        while self._n_recent - len(self._recent[0].times_s) >= KEPT_N:
            self._n_recent -= len(self._recent.popleft().times_s)
        if self._n_seen >= self._due_n:
            if self._n_seen <= 2 * REFUSED_N or self._since_s >= JUDGED_AGAIN_S:
                self._judge()
        elif self._due_n == FIRST_JUDGED_N:
            self._screen()

    def forget(self) -> None:
        """Forget the intervals so far, since the next ones are other times of the same iterations."""
        self._recent.clear()
        self._n_recent = 0

    def _last(self, new: Intervals, n: int) -> Intervals:
        """Return so many intervals that end with new ones, of the same kind."""
        parts, n_missing = deque([new]), n - len(new)
        for part in reversed(self._recent):
            if n_missing <= 0 or not part.is_like(new):
                break
            parts.appendleft(part)
            n_missing -= len(part)
        return joined(parts, at_most=n)

    def _screen(self) -> None:
        """Take intervals for iterations before they are judged: those of a loader if they are alike."""
        recent = joined(self._recent, at_most=KEPT_N)
        times_s = recent.loose_s[WARM_UP_N:]
        is_alike = len(times_s) >= LEAST_USUAL_N and times_s.max() < SCREEN_RATIO * times_s.min()
        self.standing = "known" if recent.counts_steps or is_alike else "unknown"

    def _judge(self) -> None:
        n_first, before = max(SKIPPED - self._n_seen + self._n_recent, 0), self.rhythm
        rhythm = judge_rhythm(joined(self._recent, at_most=KEPT_N).without_first(n_first))
        if rhythm.draws > 1:
            rhythm = replace(rhythm, not_profiled_reason="bursts_ambiguous")
        if not rhythm.is_usable:  # what was understood before goes on to count
            rhythm = replace(
                rhythm, draws=before.draws, burst_limit_s=before.burst_limit_s, pause_ratio=before.pause_ratio
            )
        self._n_faults = 0 if rhythm.is_usable else self._n_faults + 1
        standing = self._next_standing()
        is_other_unit = rhythm.draws != before.draws or (standing, self.standing) == ("known", "unknown")
        self.unit += is_other_unit
        self.regime += is_other_unit or math.isfinite(rhythm.pause_ratio) != math.isfinite(before.pause_ratio)
        self.rhythm, self.standing = rhythm, standing
        self._due_n, self._since_s = self._n_seen + min(self._n_seen, REFUSED_N), 0.0

    def _next_standing(self) -> Standing:
        """Return whether it is known what an iteration is, after so many judgements in a row that it is not."""
        if not self._n_faults:
            return "known"
        if self._n_seen < REFUSED_N:
            return "unknown"
        if self._n_faults < REFUSED_FAULTS:
            return self.standing
        return "refused" if self._seen_s >= REFUSED_S else "unknown"


def rhythm_of_run(ranks: Iterable[RhythmTracker]) -> RunRhythm:
    """Return what is known of the rhythm of a run with these ranks."""
    ranks = list(ranks)
    standings: set[Standing] = {rank.standing for rank in ranks}
    return RunRhythm(
        standing="refused" if "refused" in standings else "unknown" if "unknown" in standings else "known",
        not_profiled_reason=next(
            (rank.not_profiled_reason for rank in ranks if rank.not_profiled_reason is not None), None
        ),
        unit=sum(rank.unit for rank in ranks),
        regime=sum(rank.regime for rank in ranks),
    )
