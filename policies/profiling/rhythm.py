"""What an iteration of a run is, and what is none: bursts, pauses and steadiness, found out from its marks.

A mark ends an interval. Where marks are the ends of steps, and the requests for the next batch are known, a pause can
only lie between the two; from there to the next mark is work or waiting for data, however long. From the marks of a
loader alone an interval may be a step, one of several batches drawn for a step, or a step and a validation:

1. *Bursts.* Sorted by length, the intervals fall into short and long ones, with a factor of three between, and there
   are always as many short ones before a long one. Where the short ones are up to a twentieth of the time, batches are
   drawn, and each burst is one step. Up to half of the time it is not to be told from steps and a pause.
2. *Period.* Steps of two or more phases (a generator and a discriminator, the batches of one step) repeat.
3. *Pauses.* An interval is a pause if it is at least three times, and eight robust standard deviations, as long as is
   usual around it. What is usual stays; the rest is left out. Where the iterations after it are faster by as much, it
   was none: what had been dispatched, or prefetched, was waited for.
4. *Steadiness.* The mean is known to 2 %, both halves agree, and hardly any time lies where pauses begin.

What the rules cannot tell is refused, with a reason.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, Literal

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from policies.vocabulary.units import Values

SKIPPED: Final = 8
"""The first intervals of a run are left out: what is compiled, cached and tuned in them does not come back."""
LEAST_N: Final = 24
"""Fewer intervals say nothing."""
LEAST_S: Final = 1e-6
"""A shorter interval counts as this long."""

JUMP_RATIO: Final = 3.0
"""Short intervals and long ones differ by this, with nothing between."""
LEAST_SHORT_SHARE: Final = 0.45
MOST_SHORT_SHARE: Final = 0.9875
"""A burst has 2 to 80 batches."""
DRAWN_SHARE: Final = 0.05
"""Drawing the batches of a step takes at most this share of its time …"""
AMBIGUOUS_SHARE: Final = 0.5
"""… and up to this share they may be drawn, or worked on before a pause."""
SAME_SHARE: Final = 0.9
"""So many of the bursts are of one length."""
LEAST_BURSTS: Final = 5

MAX_PERIOD: Final = 16
PERIOD_EXPLAINS: Final = 0.65
"""A period explains this share of the scatter of the logarithms …"""
PHASE_RATIO: Final = 5.0
"""… and no phase is longer than this many times the median."""
LEAST_PERIODS: Final = 6

USUAL_N: Final = 31
"""What is usual is the median of so many intervals."""
PAUSE_RATIO: Final = 3.0
PAUSE_DEVIATIONS: Final = 8.0
UNCLEAR_RATIOS: Final = (1 / 1.6, 1.2)
"""Between these multiples of the limit it may be chance, or the power limit, what counts as a pause."""
UNCLEAR_SHARE: Final = 0.015
"""With more of the time there, nothing is claimed."""
DOUBTED_SHARE: Final = 0.1
"""With less of the time in what may be pauses or not, the run is profiled all the same: a stall now and then, whatever
it is taken for, changes its rates by less, and at all limits alike."""
FREQUENT_SHARE: Final = 0.1
"""Where more iterations than this have a pause, they are none."""
LEAST_PAUSES: Final = 3
"""Fewer are no pattern."""
LEAST_SPACING: Final = 32
"""Pauses that come sooner than after so many iterations may be waits: for the workers of a loader, or for the GPU."""
MADE_GOOD_N: Final = 16
MADE_GOOD_SHARE: Final = 0.5
"""A pause is none where the iterations after it are faster by this share of it; that is not clear from …"""
DOUBTFUL_SHARE: Final = 0.2
"""… this share on."""

TOLERANCE_RATIO: Final = 0.02
"""What is claimed about the mean, with so many standard errors."""
CERTAIN_ERRORS: Final = 2.6
HALVES_RATIO: Final = 0.03
N_BLOCKS: Final = 8
MAD_PER_DEVIATION: Final = 0.6745

NotProfiledReason = Literal["too_short", "bursts_ambiguous", "pauses_frequent", "pauses_unclear", "not_steady"]
UNUSABLE: Final[frozenset[NotProfiledReason | None]] = frozenset(
    {"bursts_ambiguous", "pauses_frequent", "pauses_unclear"}
)
"""With these it is not known what an iteration is; with the others only how long it takes on the mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rhythm:
    """What the intervals of a run say about its iterations.

    Attributes:
        iteration_time_s: how long an iteration takes, pauses left out [s].
        n_iterations: how many were looked at.
        n_pauses: how many of them had a pause.
        draws: how many marks an iteration has.
        burst_limit_s: a shorter interval belongs to the same iteration as the next one [s]; 0: there are no bursts.
        period: after how many iterations their lengths repeat.
        pause_ratio: an interval is a pause where it is longer than this many times the usual one; infinite: there are
            none.
        not_profiled_reason: why nothing is claimed; None: the mean is known to 2 %.
    """

    iteration_time_s: float
    n_iterations: int
    n_pauses: int = 0
    draws: int = 1
    burst_limit_s: float = 0.0
    period: int = 1
    pause_ratio: float = PAUSE_RATIO
    not_profiled_reason: NotProfiledReason | None = None

    @property
    def is_usable(self) -> bool:
        """Return whether it is known what an iteration is."""
        return self.not_profiled_reason not in UNUSABLE


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervals:
    """Intervals between the marks of a run.

    Attributes:
        times_s: how long each took, shape (n,) [s].
        loose_s: the part of each in which a pause may lie, shape (n,) [s]: all of it where that is not known.
        counts_steps: whether a mark is the end of a step.
        tells_loose: whether it is known where in an interval a pause may lie.
    """

    times_s: Values
    loose_s: Values
    counts_steps: bool
    tells_loose: bool = False

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.times_s)

    def is_like(self, other: "Intervals") -> bool:
        """Return whether the marks are of one kind."""
        return (self.counts_steps, self.tells_loose) == (other.counts_steps, other.tells_loose)

    def without_first(self, n: int) -> "Intervals":
        """Return those after the first `n`."""
        return replace(self, times_s=self.times_s[n:], loose_s=self.loose_s[n:])


def joined(parts: Collection[Intervals], *, at_most: int) -> Intervals:
    """Return the last of all intervals, which are of one kind."""
    times_s = np.concatenate([part.times_s for part in parts])[-at_most:]
    first = next(iter(parts))
    if not first.tells_loose:
        return replace(first, times_s=times_s, loose_s=times_s)
    return replace(first, times_s=times_s, loose_s=np.concatenate([part.loose_s for part in parts])[-at_most:])


def judge_rhythm(found: Intervals) -> Rhythm:
    """Return what the intervals of a run, without its first `SKIPPED`, say about its iterations."""
    if len(found) < LEAST_N:
        return _refused(found, "too_short")
    found = replace(found, times_s=np.maximum(found.times_s, LEAST_S), loose_s=np.maximum(found.loose_s, LEAST_S))
    jump_s = None if found.counts_steps else _jump_s(found.loose_s)
    if jump_s is None:
        return _judged(found)
    is_short = found.loose_s < jump_s
    short_share = float(found.loose_s[is_short].sum() / found.times_s.sum())
    if short_share > AMBIGUOUS_SHARE:  # the long ones are pauses, or what was waited for
        return _judged(found)
    draws = _burst_length(~is_short)
    if short_share > DRAWN_SHARE or not draws:
        return _refused(found, "bursts_ambiguous")
    return replace(_judged(_steps(found, ~is_short)), draws=draws, burst_limit_s=jump_s)


def _refused(found: Intervals, reason: NotProfiledReason) -> Rhythm:
    mean_s = float(found.times_s.mean()) if len(found) else 0.0
    return Rhythm(iteration_time_s=mean_s, n_iterations=len(found), not_profiled_reason=reason)


def _jump_s(loose_s: Values) -> float | None:
    """Return the length that divides short intervals from long ones [s], or None where there is no such gap."""
    ordered = np.sort(loose_s)
    n = len(ordered)
    first, last = math.floor(LEAST_SHORT_SHARE * n), min(math.ceil(MOST_SHORT_SHARE * n), n - 1)
    ratios = ordered[first + 1 : last + 1] / ordered[first:last]
    at = first + int(np.argmax(ratios))
    return math.sqrt(ordered[at] * ordered[at + 1]) if ordered[at + 1] >= JUMP_RATIO * ordered[at] else None


def _burst_length(is_long: NDArray[np.bool_]) -> int:
    """Return how many intervals nearly every burst has, or 0 where they differ, or are too few to tell."""
    lengths = np.diff(np.flatnonzero(is_long))
    if len(lengths) < LEAST_BURSTS:
        return 0
    usual = int(np.median(lengths))
    return usual if float(np.mean(lengths == usual)) >= SAME_SHARE else 0


def _steps(found: Intervals, is_long: NDArray[np.bool_]) -> Intervals:
    """Return bursts as steps: each ends with a long interval."""
    ends = np.flatnonzero(is_long)
    times_s = np.diff(np.cumsum(found.times_s)[ends])
    return Intervals(times_s=times_s, loose_s=found.loose_s[ends[1:]], counts_steps=True, tells_loose=True)


def _judged(found: Intervals) -> Rhythm:
    if len(found) < LEAST_N:
        return _refused(found, "too_short")
    usual_s = _running_median(found.times_s)
    period, longest_ratio = _period(found.times_s, usual_s)
    deviation_log = _deviation_log(found.times_s / usual_s)
    ratio = longest_ratio * max(PAUSE_RATIO, math.exp(min(PAUSE_DEVIATIONS * deviation_log, 50.0)))
    excess_s = _excess_s(found, usual_s, ratio)
    made_good_ratio = _made_good_ratio(found.times_s, excess_s)
    if made_good_ratio > MADE_GOOD_SHARE and float(excess_s.sum()) > DOUBTED_SHARE * float(found.times_s.sum()):
        ratio, excess_s, made_good_ratio = math.inf, np.zeros(len(found)), 0.0
    kept_s = found.times_s - excess_s
    reason = _pause_reason(found, excess_s, _near_s(found, usual_s, ratio), made_good_ratio=made_good_ratio)
    return Rhythm(
        iteration_time_s=float(kept_s.mean()),
        n_iterations=len(found),
        n_pauses=int(np.count_nonzero(excess_s)),
        period=period,
        pause_ratio=ratio,
        not_profiled_reason=reason or _steadiness_reason(kept_s, period),
    )


def _excess_s(found: Intervals, usual_s: Values, ratio: float) -> Values:
    """Return how long the pause in each interval is, 0 where there is none: what is usual stays, shape (n,) [s]."""
    usual_loose_s = _running_median(found.loose_s) if found.tells_loose else usual_s
    return np.where(found.loose_s > ratio * usual_s, found.loose_s - usual_loose_s, 0.0)


def _near_s(found: Intervals, usual_s: Values, ratio: float) -> Values:
    """Return the time that lies where pauses begin, of each interval: of a single one nothing, shape (n,) [s]."""
    low_s, high_s = (unclear_ratio * ratio * usual_s for unclear_ratio in UNCLEAR_RATIOS)
    is_near = (found.loose_s > low_s) & (found.loose_s < high_s)
    return np.where(is_near, found.loose_s, 0.0) * (np.count_nonzero(is_near) > 1)


def median_of(values: Values) -> Values:
    """Return the (upper) median along the last axis: several times as fast as `np.median`."""
    middle = values.shape[-1] // 2
    return np.asarray(np.partition(values, middle, axis=-1)[..., middle], dtype=np.float64)


def _running_median(values: Values) -> Values:
    """Return the median of the values around each, shape (n,)."""
    if len(values) <= USUAL_N:
        return np.full(len(values), median_of(values))
    around = median_of(sliding_window_view(values, USUAL_N))
    half = USUAL_N // 2
    return np.concatenate((np.full(half, around[0]), around, np.full(half, around[-1])))


def _period(times_s: Values, usual_s: Values) -> tuple[int, float]:
    """Return after how many iterations their lengths repeat, and how long the longest phase is, over the median."""
    logs = np.log(times_s / usual_s)
    spread = float(np.abs(logs - median_of(logs)).mean())
    for period in range(2, min(MAX_PERIOD, len(times_s) // LEAST_PERIODS) + 1):
        whole = logs[: len(logs) // period * period].reshape(-1, period)
        phases = median_of(whole.T)
        left = float(np.abs(whole - phases).mean())
        longest_ratio = math.exp(min(float(phases.max()), 50.0))
        if left < (1 - PERIOD_EXPLAINS) * spread and longest_ratio <= PHASE_RATIO:
            return period, max(longest_ratio, 1.0)
    return 1, 1.0


def _deviation_log(ratios: Values) -> float:
    """Return the robust standard deviation of the logarithms."""
    logs = np.log(ratios)
    return float(median_of(np.abs(logs - median_of(logs)))) / MAD_PER_DEVIATION


def _made_good_ratio(times_s: Values, excess_s: Values) -> float:
    """Return by what share of pauses the iterations after them are faster: then they were waits for these."""
    at = np.flatnonzero(excess_s)
    if len(at) < LEAST_PAUSES:
        return 0.0
    made_good_s = paused_s = 0.0
    for here, following in pairwise([*at, len(times_s)]):
        after_s = times_s[here + 1 : following]
        n = min(MADE_GOOD_N, len(after_s) // 2)
        if n:
            made_good_s += n * float(np.median(after_s[n:])) - float(after_s[:n].sum())
            paused_s += float(excess_s[here])
    return made_good_s / paused_s if paused_s > 0 else 0.0


def _pause_reason(
    found: Intervals, excess_s: Values, near_s: Values, *, made_good_ratio: float
) -> NotProfiledReason | None:
    """Return why pauses are not told from iterations, if so."""
    at, total_s = np.flatnonzero(excess_s), float(found.times_s.sum())
    is_frequent = len(at) > FREQUENT_SHARE * len(found)
    comes_often = len(at) >= LEAST_PAUSES and float(np.median(np.diff(at))) < LEAST_SPACING
    is_near = float(near_s.sum()) > UNCLEAR_SHARE * (total_s - float(excess_s.sum()))
    if not (is_frequent or comes_often or is_near or made_good_ratio > DOUBTFUL_SHARE):
        return None
    if float(np.maximum(excess_s, near_s).sum()) <= DOUBTED_SHARE * total_s:
        return "not_steady"
    return "pauses_frequent" if is_frequent else "pauses_unclear"


def _steadiness_reason(kept_s: Values, period: int) -> NotProfiledReason | None:
    """Return why the mean says little about iterations to come, if so."""
    times_s = kept_s[: len(kept_s) // period * period].reshape(-1, period).mean(axis=1)
    n, mean_s = len(times_s), float(times_s.mean())
    if n < N_BLOCKS:
        return "too_short"
    halves_s = [float(part.mean()) for part in np.array_split(times_s, 2)]
    if abs(halves_s[0] - halves_s[1]) > HALVES_RATIO * mean_s:
        return "not_steady"
    blocks_s = np.array([part.mean() for part in np.array_split(times_s, N_BLOCKS)])
    errors_s = (float(times_s.std(ddof=1)) / math.sqrt(n), float(blocks_s.std(ddof=1)) / math.sqrt(N_BLOCKS))
    return "too_short" if CERTAIN_ERRORS * max(errors_s) > TOLERANCE_RATIO * mean_s else None
