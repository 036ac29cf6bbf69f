"""The ledger of one run: for how long each limit was in force, and what the limits are relative to the top one.

`policies.profiling.paired_looks` and `policies.planning.time_ledger` compute; this holds their state, and knows when a
look is due and under way. Time is active time: no clock, no GPU, no bus.
"""

import math
from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from controller.accounting.meter_intervals import MeterInterval
from policies.planning.time_ledger import BaseTime, base_time
from policies.profiling import Observation, ProfilerSettings, Refinement
from policies.profiling.curve_model import RatioEstimate, estimate_ratios
from policies.profiling.paired_looks import (
    DENSE_LOOKS,
    LookLengths,
    Looks,
    Pair,
    advance_looks,
    look_lengths,
    look_period_s,
    spare_look_s,
)
from policies.savings.books import Purpose
from policies.vocabulary.profile import LIMIT_TOLERANCE_W, PowerProfile

MAX_LIMITS: Final = 128
"""Time at more limits than that is added to the nearest one."""
MAX_PAIRS: Final = 512
LATE_RATIO: Final = 2.0
LATE_S: Final = 10.0
"""A look at the top that takes so many times as long as it should, and so much more, is given up until the next one."""
MAX_CHANGES: Final = 64
CurveSums = tuple[float, float, float, float]
"""A limit [W], and sums of time [s], iterations and energy [J] at it: what a node that follows has measured."""
ROUNDING_SLACK: Final = 1.0
"""A sum may be so much below 0, by rounding."""
MAX_AMOUNT: Final = 1e15
MAX_LOG_RATIO: Final = 10.0
"""No run comes to more watts, seconds or joules, nor to a larger ratio."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeAtLimit:
    """For how long a limit was in force while the run was active [s], and what its GPUs used meanwhile [J]."""

    power_limit_w: float
    active_s: float
    energy_j: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeBudgetStart:
    """Where a run was when its curve was dropped, or a person had set it another goal.

    A goal has a new time budget. A job that has left its curve keeps its own: what its work took until then, and would
    have taken at the highest limit, by the ratios that held then.

    Attributes:
        n_iterations: how many iterations had passed.
        active_s: the time in which they ran [s].
        goal_set_at_s: when the goal was set that the budget is of [Unix s]; None: it is the configured one.
        since_s: when that was [Unix s]; None: not known, of a former release.
        former_active_s: for how long the run was on former curves of the same budget [s].
        former_base_s: how long that work would have taken at the highest limit [s].
        former_error_s: the standard deviation of that [s].
    """

    n_iterations: float
    active_s: float
    goal_set_at_s: float | None = None
    since_s: float | None = None
    former_active_s: float = 0.0
    former_base_s: float = 0.0
    former_error_s: float = 0.0

    @property
    def amounts(self) -> tuple[float, ...]:
        """Return what cannot be below 0: no limit is faster than the highest."""
        spent_s = self.former_active_s - self.former_base_s + ROUNDING_SLACK
        return self.n_iterations, self.active_s, self.former_base_s, self.former_error_s, spent_s

    def on_new_curve(self, before: "TimeBudgetStart | None", left: BaseTime) -> "TimeBudgetStart":
        """Return it with what a budget that began `before` has come to; `left` is of each second on the former curve.

        >>> start = TimeBudgetStart(n_iterations=10.0, active_s=100.0)
        >>> start.on_new_curve(None, BaseTime(base_s=0.97, error_ratio=0.0)).former_base_s
        97.0
        """
        before = before or TimeBudgetStart(n_iterations=0.0, active_s=0.0)
        active_s = max(self.active_s - before.active_s, 0.0)
        base_s = left.base_s * active_s
        return replace(
            self,
            since_s=before.since_s,
            former_active_s=before.former_active_s + active_s,
            former_base_s=before.former_base_s + base_s,
            former_error_s=math.hypot(before.former_error_s, left.error_ratio * base_s),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerSnapshot:
    """A ledger as it stands.

    Attributes:
        times: the time at each limit.
        pairs: what was seen in pairs.
        active_s: the time that was looked at [s].
        looked_s: when in that time the last look ended [s].
    """

    times: list[TimeAtLimit] = field(default_factory=list)
    pairs: list[Pair] = field(default_factory=list)
    active_s: float = 0.0
    looked_s: float = 0.0

    def check(self) -> None:
        """Check what was read from a file.

        Raises:
            ValueError: a number is impossible: ratios would be made of it.
        """
        amounts = [x for each in self.times for x in (each.power_limit_w, each.active_s, each.energy_j)]
        pools = [pool for pair in self.pairs for pool in (pair.rate, pair.energy)]
        if not all(-ROUNDING_SLACK < amount < MAX_AMOUNT for amount in (*amounts, self.active_s, self.looked_s)):
            raise ValueError("an amount of the ledger is impossible")
        if not all(
            0 < pool.n < MAX_AMOUNT and 0 < pool.precision < MAX_AMOUNT and -ROUNDING_SLACK < pool.square < MAX_AMOUNT
            for pool in pools
        ):
            raise ValueError("what was seen in pairs is impossible")
        if not all(abs(x) < MAX_AMOUNT for pair in self.pairs for x in (pair.power_w2, *pair.warmed_w2)):
            raise ValueError("what pairs have seen of the warming is impossible")
        if not all(abs(pool.mean_log) < MAX_LOG_RATIO for pool in pools):
            raise ValueError("a ratio of two limits is impossible")
        if not all(0 < pair.lower_w < pair.upper_w < MAX_AMOUNT for pair in self.pairs):
            raise ValueError("limits of pairs must ascend")
        if not all(0 <= pair.n_again <= pair.rate.n for pair in self.pairs):
            raise ValueError("a look is in more pairs than there are")


def looks_of(pairs: Iterable[Pair]) -> Looks:
    """Return looks that have seen pairs, and are at the beginning of the next one."""
    pairs = tuple(pairs)
    return Looks(pairs=pairs, n_pairs=sum(pair.rate.n for pair in pairs))


class LimitHistory:
    """Which of the latest limits was in force when, and what for.

    Intervals come late: what was before the last change ran at the limit before it.
    """

    def __init__(self) -> None:
        self._entries: deque[tuple[int, float, Purpose]] = deque(maxlen=MAX_CHANGES)
        self._noted: tuple[float, int, Purpose] | None = None

    def note(self, in_force: tuple[float, int] | None, purpose: Purpose = Purpose.PLAN, *, at_ns: int = 0) -> None:
        """Note the limit now [W], since when [ns], and what for; None where it is not known.

        Args:
            in_force: the limit and its time.
            purpose: what it is for.
            at_ns: when the next interval begins: a limit that serves another purpose does so from here on [ns].
        """
        if in_force is None or (*in_force, purpose) == self._noted:
            return
        limit_w, since_ns = in_force
        is_same = self._noted is not None and self._noted[:2] == in_force
        self._entries.append((max(since_ns, at_ns) if is_same else since_ns, limit_w, purpose))
        self._noted = limit_w, since_ns, purpose

    def at(self, time_ns: int) -> tuple[float, Purpose] | None:
        """Return the limit that was in force at a time [ns], and what for; None where it is not known."""
        return next(
            ((limit_w, what) for since_ns, limit_w, what in reversed(self._entries) if since_ns <= time_ns), None
        )


def limit_key(power_limit_w: float, known: Collection[int]) -> int:
    """Return the key of a limit among known ones: limits within a tolerance are one, and of many the nearest counts."""
    key = round(power_limit_w / LIMIT_TOLERANCE_W)
    return key if key in known or len(known) < MAX_LIMITS else min(known, key=lambda each: abs(each - key))


class RunLedger:
    """The ledger of a run on the node that leads it.

    Attributes:
        looks: what was seen in pairs so far.
        is_looking: whether a look at the top is under way.
        knows_energy: whether the energy saved is known so well that looks need not take longer for it.
    """

    def __init__(self, before: LedgerSnapshot | None = None) -> None:
        before = before or LedgerSnapshot()
        self.looks = replace(looks_of(before.pairs), active_s=before.active_s)
        self.is_looking = self.knows_energy = False
        self._times = {round(each.power_limit_w / LIMIT_TOLERANCE_W): each for each in before.times}
        self._looked_s = before.looked_s
        self._look_from_w = self._look_from_s = 0.0
        self._length_s: float | None = None
        """How long the run will take in all, where that is known [s]."""
        self._has_missed = False
        """Whether the last look saw nothing of the top: a power brake is on, or somebody else has fixed the limit."""
        self._in_force = LimitHistory()

    def snapshot(self) -> LedgerSnapshot:
        """Return the ledger as it stands."""
        return LedgerSnapshot(
            times=list(self._times.values()),
            pairs=list(self.looks.pairs),
            active_s=self.looks.active_s,
            looked_s=self._looked_s,
        )

    @property
    def times(self) -> list[TimeAtLimit]:
        """Return the time at each limit, the lowest first."""
        return sorted(self._times.values(), key=lambda each: each.power_limit_w)

    def on_new_curve(self) -> "RunLedger":
        """Return an empty ledger of the same boards: how fast limits bite is theirs."""
        ledger = RunLedger()
        ledger.looks = replace(ledger.looks, bites_slowly=self.looks.bites_slowly)
        return ledger

    def restart_times(self) -> None:
        """Begin a new time budget on the same curve: what was seen in pairs holds."""
        self._times.clear()

    def add(self, interval: MeterInterval, in_force: tuple[float, int] | None) -> None:
        """Add an interval: a pause, or active time at the limit that was in force when it began.

        Args:
            interval: what the run did.
            in_force: the limit now [W], and since when [ns]; None where it is not known.
        """
        self._in_force.note(in_force)
        if not interval.active:
            self.looks = self.looks.after_pause(interval.duration_s)
            return
        limit = self._in_force.at(interval.begin_ns)
        if limit is not None:
            self._add_time(limit[0], interval.duration_s - interval.gaps_s, interval.energy_j - interval.gaps_energy_j)

    def observe(
        self,
        observation: Observation,
        refinement: Refinement,
        settings: ProfilerSettings,
        *,
        settle_s: float,
        least_s: float = 0.0,
    ) -> None:
        """Let the looks learn from active time at a limit that was in force all through it.

        Args:
            observation: what was seen in it.
            refinement: the curve.
            settings: those of the profiler.
            settle_s: the time after a change of limit that is not counted [s].
            least_s: how long a look takes at least [s].
        """
        profile = refinement.profile
        top_w, before = profile.fastest.power_limit_w, self.looks
        self.looks = advance_looks(
            before,
            observation,
            lengths=self._lengths(refinement, settings, least_s),
            scatter=refinement.scatter,
            settle_s=settle_s,
            sees_settling=settings.sees_settling,
        )
        if self.looks.n_pairs > before.n_pairs and self.looks.n_looks(top_w) > before.n_looks(top_w):
            self._looked_s = self.looks.active_s

    def update_look(
        self,
        refinement: Refinement,
        settings: ProfilerSettings,
        *,
        settle_s: float,
        length_s: float | None,
        least_s: float = 0.0,
    ) -> None:
        """Begin a look where one is due and may be had now, or end the one under way.

        Args:
            refinement: the curve.
            settings: those of the profiler.
            settle_s: the time after a change of limit that is not counted [s].
            length_s: how long the run will take in all, where that is known [s].
            least_s: how long a look takes at least [s].
        """
        self._length_s = length_s
        lengths, looks = self._lengths(refinement, settings, least_s), self.looks
        top_w = refinement.profile.fastest.power_limit_w
        if self.is_looking:
            is_done = not looks.is_at(self._look_from_w) and looks.measured_s >= lengths.top_s
            is_late = looks.active_s - self._look_from_s > LATE_RATIO * (settle_s + lengths.top_s) + LATE_S
            if is_done or is_late:
                self.is_looking, self._looked_s = False, looks.active_s
                self._has_missed = not looks.is_at(top_w)
            return
        is_busy = looks.paused_s > 0 or looks.measured_s < lengths.side_s
        if is_busy or not looks.stretches or len(looks.pairs) >= MAX_PAIRS:
            return
        period_s = self.look_period_s(refinement, lengths)
        present_w = looks.stretches[-1].power_limit_w
        if present_w < top_w - LIMIT_TOLERANCE_W and looks.active_s - self._looked_s >= period_s:
            self.is_looking, self._look_from_w, self._look_from_s = True, present_w, looks.active_s

    def look_period_s(self, refinement: Refinement, lengths: LookLengths) -> float:
        """Return how long after the last look the next one is due [s]."""
        n_looks = self.looks.n_looks(refinement.profile.fastest.power_limit_w)
        n_looks = max(n_looks, DENSE_LOOKS if self._has_missed else 0)
        return look_period_s(n_looks, lengths, age_s=self.looks.active_s, length_s=self._length_s)

    def look_lengths(self, refinement: Refinement) -> LookLengths:
        """Return how long the next look is, by the noise of the job, and by what is not known yet of its energy."""
        iteration_time_s = 1 / refinement.profile.fastest.iterations_per_s
        lengths = look_lengths(refinement.scatter, iteration_time_s=iteration_time_s)
        if self.knows_energy:
            return lengths
        spare_s = spare_look_s(self._looked_s, self.look_period_s(refinement, lengths))
        return look_lengths(refinement.scatter, iteration_time_s=iteration_time_s, spare_s=spare_s)

    def _lengths(self, refinement: Refinement, settings: ProfilerSettings, least_s: float) -> LookLengths:
        """Return how long looks are: as the profiler measures at least, since a brake that has gone shows there."""
        lengths = self.look_lengths(refinement)
        return LookLengths(top_s=max(lengths.top_s, settings.window_s, settings.block_s, least_s))

    def ratios(self, profile: PowerProfile) -> RatioEstimate:
        """Return what each limit that was in force is relative to the top of a curve, the lowest first."""
        limits_w = [each.power_limit_w for each in self.times] or [profile.fastest.power_limit_w]
        return estimate_ratios(profile, self.looks, limits_w)

    def base(self, profile: PowerProfile, *, active_s: float) -> BaseTime:
        """Return how long the work of so much active time would have taken at the top of a curve."""
        times = self.times
        if not times:
            return BaseTime(base_s=active_s, error_ratio=0.0)
        estimate = self.ratios(profile)
        return base_time(
            [each.active_s for each in times], estimate.ratios, estimate.rate_covariance, active_s=active_s
        )

    def _add_time(self, power_limit_w: float, active_s: float, energy_j: float) -> None:
        key = limit_key(power_limit_w, self._times.keys())
        known = self._times.get(key) or TimeAtLimit(power_limit_w=power_limit_w, active_s=0.0, energy_j=0.0)
        self._times[key] = TimeAtLimit(
            power_limit_w=known.power_limit_w,
            active_s=known.active_s + active_s,
            energy_j=known.energy_j + energy_j,
        )
