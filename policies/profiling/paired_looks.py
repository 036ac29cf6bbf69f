"""Looks at the top limit: how fast a job is at a limit relative to the top one, whatever it does as a whole.

A look is a mean over 2 to 30 s at the top limit, against twice as long before and after it at the limit in force: what
wanders (data, temperature, neighbours) is the same on both sides, and cancels. How long follows from the noise of the
job: where neighbouring windows agree, as of a training that its GPU holds up, 2 s say enough; before that is known it
is 10 s; where single iterations scatter much, looks take up to 30 s, and come twice as often: longer ones would gain
less, since jobs wander meanwhile. Energies need more than rates do: how warm boards become by their power shows in the
time at the top alone. So looks take longer while too little is known of the energy, the first ones of a run more than
later ones: all together stay a small part of it. A limit that the plan changes anyway is a look for nothing: the last
seconds at the one limit are paired with the first at the other, a little less precisely, since what wanders cancels to
first order only.

    20 s at the limit ──► settle, 10 s at the top ──► settle, 20 s at the limit: one pair of rates, and of energies

Pairs of the same two limits are pooled by their precision; `policies.profiling.curve_model` makes ratios of them.

Time is active time, as the observations have it; there is no clock here.

>>> looks, lengths = Looks(), look_lengths(PRIOR_SCATTER, iteration_time_s=0.02)
>>> for power_limit_w, rate_per_s in [(200.0, 45.0), (300.0, 50.0), (200.0, 45.0)]:
...     for _ in range(24 if power_limit_w > 250 else 44):
...         seen = Observation(power_limit_w=power_limit_w, active_s=0.5, n_iterations=rate_per_s / 2, energy_j=90.0)
...         looks = advance_looks(looks, seen, lengths=lengths, scatter=PRIOR_SCATTER, settle_s=1.0)
>>> round(math.exp(looks.pairs[0].rate.mean_log), 6)
0.9
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from policies.profiling.measurement import (
    EMPTY_WINDOW,
    NOT_SETTLED,
    PRIOR_SCATTER,
    ROUNDING_RATIO,
    Estimates,
    Observation,
    Scatter,
    Settle,
    Window,
    estimate_window,
)
from policies.vocabulary.profile import LIMIT_TOLERANCE_W
from policies.vocabulary.units import DAY_S

__all__ = ["PRIOR_SCATTER", "LookLengths", "Looks", "Pair", "advance_looks", "look_lengths", "look_period_s"]

SHORTEST_TOP_S: Final = 2.0
TOP_S: Final = 10.0
LONGEST_TOP_S: Final = 30.0
"""The shortest look at the top, the usual and the longest one, but for iterations that take longer; on each side is
twice as much."""
LOOK_ERROR_RATIO: Final = 0.004
"""The scatter of iterations alone may make a ratio uncertain by so much in a usual look; else it takes longer."""
SHORT_RATE_RATIO: Final = 0.0015
SHORT_POWER_RATIO: Final = 0.0075
"""The noise of windows may make the ratio of rates, and that of powers, uncertain by so much in a shorter look: some
fifty a day then know them to 0.02 and 0.1 %."""
SPARE_S: Final = 0.48
"""Looks may take so many times the root of a run's time [s^(1/2)] for what energies need: .4 % of it after 6 h, and
.2 % after a day, short ones included."""
SPARE_SETTLE_S: Final = 0.5
"""So much of it [s] is no part of a look: limits settle."""
SIDES: Final = 1.25
"""Both sides of a look, of four times its length together, add a quarter to the variance."""
LEAST_ITERATIONS: Final = 4.0
"""However long they take; …"""
SHORT_ITERATIONS: Final = 12.0
"""… a shorter look has so many, so that there is a window in which a drift would show."""
N_CHUNKS: Final = 10
"""A look at the top is divided into so many parts: single stalls are clipped, and ticks of the meter averaged."""
MIN_SHARE: Final = 0.5
"""A window counts from this share of its length on: a plan may change the limit in the middle of it."""
MAX_PAUSE_S: Final = 60.0
"""After a longer pause the two sides of a pair are no neighbours any more."""
WANDER_RATIO: Final = 0.001
ONE_SIDED_WANDER_RATIO: Final = 0.003
"""What is left of a job's wandering in a pair with two sides, and with one (standard deviations), in looks of `TOP_S`;
in shorter ones it is less by the root of their length. It holds before pairs of the same limits have shown by their own
scatter what it is."""
TREND_S: Final = 1.0
NEXT_S: Final = 1.0
LARGE_RATIO: Final = 0.1
SAME_RATE_RATIO: Final = 0.002
SAME_POWER_RATIO: Final = 0.01
TREND_DEVIATIONS: Final = 4.0
MIN_TRENDS: Final = 6
"""Where the first second after settling is behind the next one by more than this, as the mean of all changes of limit
by a tenth or more has it by so many standard deviations, limits bite slowly; boards warm by less in that time."""
SLOW_SETTLE_S: Final = 2.0
"""There so much is waited for [s], and looks are no shorter than the usual ones: their error would be one of all looks
alike, which no scatter shows."""
MOST_DEVIATIONS: Final = 4.0
"""A pair that is off by more from the mean of several is clipped."""
STEEPEST: Final = 3.0
"""A rate falls with this power of the limit at most: about 2.5 where two fifths of the power do no work. …"""
CHANGED_LOG: Final = 0.05
"""… If the two rates of a pair differ by so much more, the job has changed between them."""
MIN_CLIPPED: Final = 4

DENSE_LOOKS: Final = 8
DENSE_PERIOD_S: Final = 120.0
SHORT_RUN_S: Final = DAY_S / 2
SHORT_RUN_PERIOD_S: Final = 900.0
FIRST_DAY_PERIOD_S: Final = 1_800.0
LATER_PERIOD_S: Final = 3_600.0
"""The first looks come every two minutes, the next ones twice an hour (four times in a run that is known to be over
within half a day), and beyond a day once an hour: evenly in time, since ratios may vary with the time of day."""
OFTEN_TOP_S: Final = 15.0
"""Longer looks come more often, up to twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LookLengths:
    """How long a look lasts at the top [s]; twice as much of the limit in force counts on each side of it."""

    top_s: float = TOP_S

    @property
    def side_s(self) -> float:
        """Return the time on each side [s]."""
        return 2 * self.top_s


@dataclass(frozen=True, slots=True, kw_only=True)
class PooledLog:
    """The pooled mean of logarithms, each weighted by its precision.

    Attributes:
        n: how many there are.
        precision: the sum of theirs: of one over the squared standard deviation.
        mean_log: their mean.
        square: the weighted sum of squared deviations from it: about n - 1 if the errors are what they are said to be.
    """

    n: int = 0
    precision: float = 0.0
    mean_log: float = 0.0
    square: float = 0.0

    def plus(self, value_log: float, *, error_ratio: float) -> "PooledLog":
        """Return the pool with one more value, which is clipped where it is far off (West's update)."""
        if self.n >= MIN_CLIPPED:
            spread = max(self.square / (self.n - 1), 1.0)
            reach = MOST_DEVIATIONS * math.sqrt(spread) * error_ratio
            value_log = min(max(value_log, self.mean_log - reach), self.mean_log + reach)
        added = 1 / error_ratio**2
        precision, off = self.precision + added, value_log - self.mean_log
        mean_log = self.mean_log + off * added / precision
        square = self.square + added * off * (value_log - mean_log)
        return PooledLog(n=self.n + 1, precision=precision, mean_log=mean_log, square=square)

    @property
    def least_log(self) -> float:
        """Return what the mean is at least, by `TREND_DEVIATIONS` and by the scatter that was seen."""
        if self.n < MIN_TRENDS:
            return -math.inf
        spread = max(self.square / (self.n - 1), 1.0)
        return self.mean_log - TREND_DEVIATIONS * math.sqrt(spread / self.precision)


EMPTY_POOL: Final = PooledLog()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """What pairs of windows have shown of two limits.

    Attributes:
        lower_w, upper_w: the two limits [W].
        rate: the logarithm of the rate at the lower over that at the upper.
        energy: the same of the energy per iteration.
        n_again: how many of them are of a look that is in another pair already.
        power_w2: of the pairs in which it is known how warm the boards were, the sum of squared differences in power.
        warmed_w2: the sum of its products with the differences in each of the filtered powers.
    """

    lower_w: float
    upper_w: float
    rate: PooledLog = EMPTY_POOL
    energy: PooledLog = EMPTY_POOL
    n_again: int = 0
    power_w2: float = 0.0
    warmed_w2: tuple[float, ...] = ()

    def is_of(self, one_w: float, other_w: float) -> bool:
        """Return whether the pair is of two limits, in whatever order [W]."""
        lower_w, upper_w = sorted((one_w, other_w))
        return _is_same(self.lower_w, lower_w) and _is_same(self.upper_w, upper_w)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """A time without a change of limit; its first and its last seconds are kept, in chunks.

    Attributes:
        power_limit_w: the limit [W].
        settle: how far the job has settled at it.
        measured_s: for how long it was in force since then [s].
        head: the first chunks, up to one side of a look.
        tail: the last ones, as much.
        pending: what is no whole chunk yet.
        side_s: how long its first and last seconds are at most [s]. They never become less: a look that is shortened in
            its middle would else be paired as a stretch of its own, and once more on the way back.
        is_paired: whether its head was compared with the stretch before, if there was enough of both.
        is_counted: whether that was a pair.
    """

    power_limit_w: float
    settle: Settle = NOT_SETTLED
    measured_s: float = 0.0
    head: tuple[Observation, ...] = ()
    tail: tuple[Observation, ...] = ()
    pending: Observation | None = None
    side_s: float = 0.0
    is_paired: bool = False
    is_counted: bool = False

    @property
    def rest(self) -> tuple[Observation, ...]:
        """Return the last chunks, without those of the head where that is in a pair."""
        rest, left_s = self.tail, self.measured_s - _duration_s(self.head)
        while self.is_counted and rest and _duration_s(rest) > left_s + ROUNDING_RATIO:
            rest = rest[1:]
        return rest


@dataclass(frozen=True, slots=True, kw_only=True)
class Looks:
    """What was seen in pairs so far, and the stretches that the next pair may be made of.

    Attributes:
        pairs: the pooled pairs, each of two limits.
        n_pairs: how many pairs were pooled: looks, and changes of limit that came for nothing.
        stretches: the latest, three at most; the last one is under way.
        paused_s: how long the run has paused since the last observation [s].
        active_s: the time observed, pauses left out [s].
        rate_trend: by how much the first second after settling was behind the next one: the logarithm of the rates'
            ratio, above 0 where it was still more like that at the limit before.
        power_trend: the same of the power.
        bites_slowly: whether these have shown that limits take longer to bite than is waited for. It lasts.
    """

    pairs: tuple[Pair, ...] = ()
    n_pairs: int = 0
    stretches: tuple[Stretch, ...] = ()
    paused_s: float = 0.0
    active_s: float = 0.0
    rate_trend: PooledLog = EMPTY_POOL
    power_trend: PooledLog = EMPTY_POOL
    bites_slowly: bool = False

    @property
    def measured_s(self) -> float:
        """Return for how long the present limit was measured [s]."""
        return self.stretches[-1].measured_s if self.stretches else 0.0

    def is_at(self, power_limit_w: float) -> bool:
        """Return whether a limit is the present one [W]."""
        return bool(self.stretches) and _is_same(self.stretches[-1].power_limit_w, power_limit_w)

    def n_between(self, one_w: float, other_w: float) -> int:
        """Return how many pairs of two limits there are [W]."""
        return sum(pair.rate.n for pair in self.pairs if pair.is_of(one_w, other_w))

    def n_looks(self, top_w: float) -> int:
        """Return how many looks at the top limit there were [W]."""
        return sum(pair.rate.n for pair in self.pairs if _is_same(pair.upper_w, top_w)) - self.n_again(top_w)

    def n_again(self, top_w: float) -> int:
        """Return how many of the pairs with the top limit are of a look that is in another one already [W]."""
        return sum(pair.n_again for pair in self.pairs if _is_same(pair.upper_w, top_w))

    def interrupted(self) -> "Looks":
        """Return the looks after something that makes neighbours strangers: pairs stay, stretches do not."""
        return replace(self, stretches=(), paused_s=0.0)

    def after_pause(self, pause_s: float) -> "Looks":
        """Return the looks after a time without iterations [s]."""
        paused_s = self.paused_s + pause_s
        return self.interrupted() if paused_s > MAX_PAUSE_S else replace(self, paused_s=paused_s)


def spare_look_s(looked_s: float, period_s: float) -> float:
    """Return how long the next look may take for what energies need [s]: less, the older a run is.

    Args:
        looked_s: after how much time of the run the last one ended [s].
        period_s: how long after that the next one is due [s].

    >>> [round(spare_look_s(at_s, 1_800.0), 1) for at_s in (1_000.0, 6 * 3_600.0, 86_400.0)]
    [9.7, 2.4, 1.0]
    """
    return SPARE_S * (math.sqrt(looked_s + period_s) - math.sqrt(looked_s)) - SPARE_SETTLE_S


def look_lengths(scatter: Scatter, *, iteration_time_s: float, spare_s: float = 0.0) -> LookLengths:
    """Return how long looks should be.

    Args:
        scatter: the noise of the job.
        iteration_time_s: how long an iteration takes [s].
        spare_s: how long a look may take, up to `TOP_S`, though the noise asks for less [s].

    >>> look_lengths(PRIOR_SCATTER, iteration_time_s=0.02).top_s
    10.0
    """
    noise = scatter.windows
    enough_s = SIDES * max(noise.rate_s / SHORT_RATE_RATIO**2, noise.power_s / SHORT_POWER_RATIO**2)
    if noise.is_known and enough_s < TOP_S:
        top_s = max(enough_s, SHORTEST_TOP_S, min(max(SHORT_ITERATIONS * iteration_time_s, spare_s), TOP_S))
    else:
        error_ratio = scatter.cv_ratio * math.sqrt(SIDES * iteration_time_s / TOP_S)
        top_s = min(max(TOP_S * (error_ratio / LOOK_ERROR_RATIO) ** 2, TOP_S), LONGEST_TOP_S)
    return LookLengths(top_s=max(top_s, LEAST_ITERATIONS * iteration_time_s))


def look_period_s(n_looks: int, lengths: LookLengths, *, age_s: float, length_s: float | None = None) -> float:
    """Return how long after the last look the next one is due [s].

    Args:
        n_looks: how many there were.
        lengths: how long they are.
        age_s: how long ago the run, or its curve, began [s].
        length_s: how long the run will take in all, where that is known [s].

    >>> short = LookLengths()
    >>> [look_period_s(n, short, age_s=age_s) for n, age_s in [(7, 1e3), (8, 1e3), (55, 1e5)]]
    [120.0, 1800.0, 3600.0]
    """
    if n_looks < DENSE_LOOKS:
        return DENSE_PERIOD_S
    period_s = FIRST_DAY_PERIOD_S if age_s < DAY_S else LATER_PERIOD_S
    if length_s is not None and length_s <= SHORT_RUN_S:
        period_s = SHORT_RUN_PERIOD_S
    return period_s * min(max(OFTEN_TOP_S / lengths.top_s, 0.5), 1.0)


def advance_looks(
    looks: Looks,
    observation: Observation,
    *,
    lengths: LookLengths,
    scatter: Scatter,
    settle_s: float,
    sees_settling: bool = True,
) -> Looks:
    """Return the looks after one more observation, at whatever limit was in force all through it.

    Args:
        looks: those before.
        observation: an interval in which iterations ran.
        lengths: how long windows should be.
        scatter: that of single iterations.
        settle_s: the time after a change of limit that is not counted, at most [s].
        sees_settling: whether it may be less, where iterations are steady before.
    """
    if not observation.is_possible:
        return looks
    looks = replace(looks, paused_s=0.0, active_s=looks.active_s + observation.active_s)
    if not looks.is_at(observation.power_limit_w):
        looks = _with_change(looks, observation.power_limit_w, lengths, scatter)
    stretch = looks.stretches[-1]
    settle_s = max(settle_s, SLOW_SETTLE_S) if looks.bites_slowly else settle_s
    if not stretch.settle.is_over(settle_s, is_seen=sees_settling and not looks.bites_slowly):
        grown = replace(stretch, settle=stretch.settle.with_observation(observation))
        return replace(looks, stretches=(*looks.stretches[:-1], grown))
    stretch = _grown(replace(stretch, side_s=max(stretch.side_s, lengths.side_s)), observation, lengths)
    looks = replace(looks, stretches=(*looks.stretches[:-1], stretch))
    is_whole = _duration_s(stretch.head) >= stretch.side_s
    return _paired(looks, lengths, scatter) if is_whole and not stretch.is_paired else looks


def _with_change(looks: Looks, power_limit_w: float, lengths: LookLengths, scatter: Scatter) -> Looks:
    """Return the looks as another limit comes in force: a stretch that was too short to wait for any more is paired."""
    if looks.stretches and not looks.stretches[-1].is_paired:
        is_excursion = len(looks.stretches) > 1 and _is_same(looks.stretches[-2].power_limit_w, power_limit_w)
        if not is_excursion or not _is_enough(looks.stretches[-1].head, lengths):  # else the way back shows more
            looks = _paired(looks, lengths, scatter)
    return replace(looks, stretches=(*looks.stretches[-2:], Stretch(power_limit_w=power_limit_w)))


def _grown(stretch: Stretch, observation: Observation, lengths: LookLengths) -> Stretch:
    """Return the stretch with one more observation: in its head while that has room, in its tail in any case."""
    pending = observation if stretch.pending is None else _joined(stretch.pending, observation)
    measured_s = stretch.measured_s + observation.active_s
    if pending.active_s < lengths.top_s / N_CHUNKS:
        return replace(stretch, pending=pending, measured_s=measured_s)
    has_room = _duration_s(stretch.head) < stretch.side_s
    tail = (*stretch.tail, pending)
    while _duration_s(tail[1:]) >= stretch.side_s:
        tail = tail[1:]
    head = (*stretch.head, pending) if has_room else stretch.head
    return replace(stretch, pending=None, measured_s=measured_s, head=head, tail=tail)


def _joined(one: Observation, other: Observation) -> Observation:
    return Observation(
        power_limit_w=one.power_limit_w,
        active_s=one.active_s + other.active_s,
        n_iterations=one.n_iterations + other.n_iterations,
        energy_j=one.energy_j + other.energy_j,
        warmth_w=_mean_warmth_w((one, other)),
        interpolated_energy_j=None
        if one.interpolated_energy_j is None or other.interpolated_energy_j is None
        else one.interpolated_energy_j + other.interpolated_energy_j,
        n_instants=one.n_instants + other.n_instants,
        instants_w=one.instants_w + other.instants_w,
        instants_w2=one.instants_w2 + other.instants_w2,
    )


def _mean_warmth_w(chunks: Sequence[Observation]) -> tuple[float, ...]:
    """Return how warm the boards were in the mean [W]; empty where that is not always known."""
    if not all(chunk.warmth_w for chunk in chunks):
        return ()
    lasts_s = _duration_s(chunks)
    columns = zip(*(chunk.warmth_w for chunk in chunks), strict=True)
    return tuple(
        sum(warmth_w * chunk.active_s for warmth_w, chunk in zip(column, chunks, strict=True)) / lasts_s
        for column in columns
    )


def _paired(looks: Looks, lengths: LookLengths, scatter: Scatter) -> Looks:
    """Return the looks with the last stretch paired: with those around an excursion, or with the one before."""
    *earlier, last = looks.stretches
    looks = replace(looks, stretches=(*earlier, replace(last, is_paired=True)))
    if not earlier:
        return looks
    was_known = looks.bites_slowly
    for before, stretch in pairwise((*earlier, last)):
        if not stretch.is_paired:
            looks = _with_trend(looks, before.power_limit_w, stretch, scatter)
    if looks.bites_slowly and not was_known:  # all pairs so far have seen the biting
        return replace(looks, pairs=(), n_pairs=0)
    middle, sides = earlier[-1], [last.head]
    if len(earlier) > 1 and not middle.is_paired and _is_same(earlier[0].power_limit_w, last.power_limit_w):
        sides.append(earlier[0].tail)
    sides = [side for side in sides if _is_enough(side, lengths)]
    if not sides or not _is_enough(middle.tail, lengths):
        return looks
    wander_ratio = WANDER_RATIO if len(sides) > 1 else ONE_SIDED_WANDER_RATIO
    wander_ratio *= math.sqrt(min(lengths.top_s / TOP_S, 1.0))
    inner, outer = _estimates(middle.tail, scatter), [_estimates(side, scatter) for side in sides]
    paired = _with_pair(looks, (last.power_limit_w, middle.power_limit_w), outer, inner, wander_ratio)
    if paired is looks:
        return looks
    # A look between two limits is a pair with either, by the same seconds, and yet one look.
    is_look = len(earlier) > 1 and middle.power_limit_w > max(earlier[0].power_limit_w, last.power_limit_w)
    is_again = is_look and middle.is_counted and not _is_enough(middle.rest, lengths)
    pair = _with_warming(paired.pairs[-1], sides, middle.tail)
    return replace(
        paired,
        pairs=(*paired.pairs[:-1], replace(pair, n_again=pair.n_again + is_again)),
        stretches=(*earlier, replace(last, is_paired=True, is_counted=last.head in sides)),
    )


def _with_trend(looks: Looks, before_w: float, stretch: Stretch, scatter: Scatter) -> Looks:
    """Return the looks with how far the first second of a stretch was behind the next one, after a large change."""
    if looks.bites_slowly or abs(math.log(stretch.power_limit_w / before_w)) < LARGE_RATIO:
        return looks
    first, rest = _split(stretch.head, TREND_S)
    rest, _ = _split(rest, NEXT_S)
    parts = first, rest
    if not all(window.n_counted > 1 and window.energy_j > 0 for window in map(_window, parts)):
        return looks
    earlier, later = (_estimates(part, scatter) for part in parts)
    sign = 1.0 if stretch.power_limit_w > before_w else -1.0
    rate_log = sign * math.log(later.iterations_per_s / earlier.iterations_per_s)
    power_log = sign * math.log(later.power_w / earlier.power_w)
    rate_error = math.hypot(earlier.rate_error_ratio, later.rate_error_ratio, WANDER_RATIO)
    power_error = math.hypot(earlier.power_error_ratio, later.power_error_ratio, WANDER_RATIO)
    rate_trend = looks.rate_trend.plus(rate_log, error_ratio=rate_error)
    power_trend = looks.power_trend.plus(power_log, error_ratio=power_error)
    return replace(
        looks,
        rate_trend=rate_trend,
        power_trend=power_trend,
        bites_slowly=rate_trend.least_log > SAME_RATE_RATIO or power_trend.least_log > SAME_POWER_RATIO,
    )


def _split(chunks: tuple[Observation, ...], first_s: float) -> tuple[tuple[Observation, ...], tuple[Observation, ...]]:
    """Return the first chunks that last so long together, and the rest; none where they are not that long."""
    for n in range(1, len(chunks) + 1):
        if _duration_s(chunks[:n]) >= first_s * (1 - ROUNDING_RATIO):
            return chunks[:n], chunks[n:]
    return (), ()


def _with_warming(pair: Pair, sides: Sequence[Sequence[Observation]], inner: Sequence[Observation]) -> Pair:
    """Return a pair with how much of the warming by its difference in power windows have seen."""
    windows = [_mean_warmth_w(chunks) for chunks in (inner, *sides)]
    if not all(windows):
        return pair
    powers_w = [sum(chunk.energy_j for chunk in chunks) / _duration_s(chunks) for chunks in (inner, *sides)]
    power_w, *warmth_w = (
        first_w - sum(others_w) / len(sides) for first_w, *others_w in (powers_w, *zip(*windows, strict=True))
    )
    is_first = len(pair.warmed_w2) != len(warmth_w)
    before_w2, sums_w2 = (0.0, (0.0,) * len(warmth_w)) if is_first else (pair.power_w2, pair.warmed_w2)
    return replace(
        pair,
        power_w2=before_w2 + power_w**2,
        warmed_w2=tuple(sum_w2 + power_w * each_w for sum_w2, each_w in zip(sums_w2, warmth_w, strict=True)),
    )


def _with_pair(
    looks: Looks, limits_w: tuple[float, float], outer: list[Estimates], inner: Estimates, wander_ratio: float
) -> Looks:
    """Return the looks with what windows at one limit (outer), and one at another (inner), have shown.

    The same ones, if no two limits explain what they have shown.
    """
    sign = 1.0 if limits_w[0] < limits_w[1] else -1.0
    known = next((pair for pair in looks.pairs if pair.is_of(*limits_w)), None)
    pair = known or Pair(lower_w=min(limits_w), upper_w=max(limits_w))
    rate_log = sum(math.log(each.iterations_per_s) for each in outer) / len(outer) - math.log(inner.iterations_per_s)
    power_log = sum(math.log(each.power_w) for each in outer) / len(outer) - math.log(inner.power_w)
    rate_error = math.hypot(*(each.rate_error_ratio / len(outer) for each in outer), inner.rate_error_ratio)
    room_log = CHANGED_LOG + MOST_DEVIATIONS * rate_error
    if not -room_log <= -sign * rate_log <= STEEPEST * math.log(pair.upper_w / pair.lower_w) + room_log:
        return looks
    power_error = math.hypot(*(each.power_error_ratio / len(outer) for each in outer), inner.power_error_ratio)
    after = replace(
        pair,
        rate=pair.rate.plus(sign * rate_log, error_ratio=math.hypot(rate_error, wander_ratio)),
        energy=pair.energy.plus(
            sign * (power_log - rate_log), error_ratio=math.hypot(rate_error, power_error, wander_ratio)
        ),
    )
    return replace(
        looks, pairs=(*(each for each in looks.pairs if each is not known), after), n_pairs=looks.n_pairs + 1
    )


def _estimates(chunks: tuple[Observation, ...], scatter: Scatter) -> Estimates:
    """Return what a side of a pair shows; its errors are no less than neighbouring windows have shown."""
    window = _window(chunks)
    seen = estimate_window(window, scatter)
    if not scatter.windows.is_known:
        return seen
    rate_error_ratio, power_error_ratio = scatter.windows.errors_ratio(window.active_s)
    return replace(
        seen,
        rate_error_ratio=max(seen.rate_error_ratio, rate_error_ratio),
        power_error_ratio=max(seen.power_error_ratio, power_error_ratio),
    )


def _window(chunks: tuple[Observation, ...]) -> Window:
    window = EMPTY_WINDOW
    for chunk in chunks:
        window = window.with_observation(chunk)
    return window


def _is_enough(chunks: tuple[Observation, ...], lengths: LookLengths) -> bool:
    """Return whether there is enough for a mean: half a look at the top, and an iteration or two."""
    window = _window(chunks)
    return window.active_s >= MIN_SHARE * lengths.top_s and window.n_counted > 1 and window.energy_j > 0


def _duration_s(chunks: Sequence[Observation]) -> float:
    return sum(chunk.active_s for chunk in chunks)


def _is_same(one_w: float, other_w: float) -> bool:
    return abs(one_w - other_w) <= LIMIT_TOLERANCE_W
