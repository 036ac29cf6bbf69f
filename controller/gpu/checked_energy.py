"""The energy of one GPU, from readings that physics allows.

Power and energy counter are each bounded by what the board can draw, and within seconds they check each other. A
reading that is not believed is replaced by that of the other meter. Where neither is believed, the time counts at the
last believed power once one is believed again, and is told as unmeasured.
"""

from collections import deque
from dataclasses import dataclass, replace
from itertools import pairwise
from math import isfinite
from typing import Final

from controller.clock import NS_PER_S
from controller.ports import Sample

PEAK_RATIO: Final = 1.5
"""A board draws at most so much of its maximum power limit for a moment."""
MEAN_RATIO: Final = 1.1
"""And so much on average over `MEAN_S` or more."""
MEAN_S: Final = 1.0
COUNTER_LAG_S: Final = 0.25
"""Counters move in steps (on an H100 every 100 ms, sometimes later), so a reading may hold energy from before."""
UNKNOWN_MAX_POWER_LIMIT_W: Final = 2_000.0
"""More than any board's, for one that does not tell its own."""
CHECK_S: Final = 3.0
"""Over so long the meters check each other."""
TRIAL_S: Final = 1.0
"""A counter that was not believed is believed again after agreeing with the power for so long."""
AGREEMENT_RATIO: Final = 2.0
"""Meters agree whose means differ by this factor at most: the power is often a mean of the last second."""
IDLE_RATIO: Final = 0.01
"""No board that runs draws less than this share of its maximum power limit: idle ones draw some 10 %."""


@dataclass(frozen=True, slots=True)
class _Mark:
    """Where the counter and the totals stood at a moment."""

    time_ns: int
    counter_j: float
    energy_j: float
    power_j: float


class CheckedEnergy:
    """The energy of one GPU since its first reading.

    Args:
        max_gap_s: without a reading for longer than this, power is not interpolated: the time is unmeasured [s].

    Attributes:
        energy_j: the energy used [J].
        unmeasured_s: for how much of the time no reading was believed: it counts at the power before [s].
        power_w: the believed power [W]: of the reading, or of the counter's last second; None where there is neither.
        power_fault, counter_fault: why that meter is not believed now, in a sentence; "" where it is.
    """

    def __init__(self, *, max_gap_s: float) -> None:
        self.energy_j = 0.0
        self.unmeasured_s = 0.0
        self.power_w: float | None = None
        self.power_fault = self.counter_fault = ""
        self._max_gap_s = max_gap_s
        self._known_ns: int | None = None
        """Up to when the energy is known; None before the first reading [ns]."""
        self._known_power_w: float | None = None
        """The last believed power [W]."""
        self._has_missed = False
        self._powers: deque[tuple[int, float]] = deque()
        """The readings of the last second that a board can draw at all: time [ns], power [W]."""
        self._energies: deque[tuple[int, float]] = deque()
        """What the counter has shown in the last second: time [ns], total [J]."""
        self._power_j = 0.0
        """The integral of the possible power readings [J]."""
        self._counter: _Mark | None = None
        """The last believed reading of the counter."""
        self._trial: _Mark | None = None
        """Where a counter that is not believed began to be tried."""
        self._is_trial_new = False
        self._has_power_in_trial = False
        self._check: _Mark | None = None
        """Where the present comparison of the two meters began."""
        self._n_disputes = 0
        self._is_power_refuted = False

    @property
    def is_current(self) -> bool:
        """Return whether the last reading was believed, in part at least."""
        return not self._has_missed and self._known_ns is not None

    def miss(self) -> None:
        """Note that the GPU could not be read."""
        self._powers.clear()
        self._believe_nothing()

    def _believe_nothing(self) -> None:
        self._has_missed, self.power_w = True, None

    def add(self, raw: Sample, max_power_limit_w: float | None) -> int:
        """Add a reading, newer than the last one, of a board with this maximum limit [W].

        Returns:
            From when on the energy was used that it adds to the total [ns]: a counter that stands still is found late.
        """
        max_w = max_power_limit_w or UNKNOWN_MAX_POWER_LIMIT_W
        begin_ns = raw.time_ns if self._known_ns is None else self._known_ns
        span_s = (raw.time_ns - begin_ns) / NS_PER_S
        is_gapless = not self._has_missed and span_s <= self._max_gap_s
        power_w = self._possible_power_w(raw, max_w)
        has_power = power_w is not None and is_gapless
        by_counter_j = self._by_counter_j(raw, max_w, has_power=has_power)
        backdated_ns = None
        if has_power and by_counter_j is not None:
            backdated_ns = self._compare(raw.time_ns, by_counter_j, max_w)
        else:
            self._check = None
        believed_w = None if self._is_power_refuted and by_counter_j is not None else power_w
        if backdated_ns is not None:
            begin_ns = backdated_ns
        elif by_counter_j is not None:
            self.energy_j = max(self.energy_j, by_counter_j)
        elif believed_w is None:
            self._believe_nothing()
            return begin_ns
        else:
            self._add_power(believed_w, span_s, max_w, is_gapless=is_gapless)
        if self._is_trial_new and self._trial is not None:
            self._trial = replace(self._trial, energy_j=self.energy_j)
        if believed_w is None:
            believed_w = self._counter_power_w()
        self.power_w = believed_w
        self._known_power_w = self._known_power_w if believed_w is None else believed_w
        self._known_ns, self._has_missed = raw.time_ns, False
        return begin_ns

    def counter_at_j(self, energy_j: float) -> float | None:
        """Return the value of the GPU's own counter when the total was `energy_j`; None where it is not believed."""
        if self._counter is None or self._trial is not None:
            return None
        return self._counter.counter_j - (self.energy_j - energy_j)

    def _add_power(self, power_w: float, span_s: float, max_w: float, *, is_gapless: bool) -> None:
        before_w = power_w if self._known_power_w is None else self._known_power_w
        if is_gapless:
            self.energy_j += (before_w + power_w) / 2 * span_s
        else:
            self._add_unmeasured(before_w, span_s, max_w)

    def _add_unmeasured(self, power_w: float, span_s: float, max_w: float) -> None:
        self.energy_j += min(power_w, MEAN_RATIO * max_w) * span_s
        self.unmeasured_s += span_s

    def _possible_power_w(self, raw: Sample, max_w: float) -> float | None:
        """Return the power reading where a board can draw it [W], and integrate it."""
        if self._powers and raw.time_ns - self._powers[-1][0] > self._max_gap_s * NS_PER_S:
            self._powers.clear()
        if raw.power_w is None:
            self.power_fault = "its power cannot be read"
            self._powers.clear()
            return None
        if not (isfinite(raw.power_w) and 0 <= raw.power_w <= PEAK_RATIO * max_w):
            self.power_fault = f"its power reads {raw.power_w:g} W, which a board of {max_w:g} W cannot draw"
            self._powers.clear()
            return None
        if self._powers:
            before_ns, before_w = self._powers[-1]
            self._power_j += (before_w + raw.power_w) / 2 * (raw.time_ns - before_ns) / NS_PER_S
        self._powers.append((raw.time_ns, raw.power_w))
        _keep(self._powers, MEAN_S)
        mean_w = _mean_w(self._powers)
        if mean_w is not None and mean_w > MEAN_RATIO * max_w:
            self.power_fault = f"its power reads {mean_w:g} W for a second, which a board of {max_w:g} W cannot draw"
            return None
        if not self._is_power_refuted:
            self.power_fault = ""
        return raw.power_w

    def _by_counter_j(self, raw: Sample, max_w: float, *, has_power: bool) -> float | None:
        """Return the total by the counter [J], or None where it is not believed."""
        self._is_trial_new = False
        time_ns, counter_j, counter = raw.time_ns, raw.energy_j, self._counter
        if counter_j is None or not isfinite(counter_j):
            if counter is not None or self._trial is not None:
                self.counter_fault = "its energy counter cannot be read"
            return None
        if self._known_ns is None and counter is None and self._trial is None:
            return self._believe_counter_j(time_ns, counter_j, self.energy_j)
        if counter is not None:
            used_j, span_s = counter_j - counter.counter_j, (time_ns - counter.time_ns) / NS_PER_S
            if 0 <= used_j <= most_j(span_s, max_w):
                return self._believe_counter_j(time_ns, counter_j, counter.energy_j + used_j)
            if self._trial is None:
                what = f"{used_j:g} J in {span_s:.3g} s"
                self.counter_fault = f"its energy counter shows {what}, which a board of {max_w:g} W cannot use"
        return self._try_counter_j(time_ns, counter_j, max_w, has_power=has_power)

    def _believe_counter_j(self, time_ns: int, counter_j: float, energy_j: float) -> float:
        """Believe a reading of the counter, with this total [J], and return the total."""
        self._counter = _Mark(time_ns, counter_j, energy_j, self._power_j)
        self._trial, self.counter_fault = None, ""
        self._energies.append((time_ns, counter_j))
        _keep(self._energies, MEAN_S)
        return energy_j

    def _try_counter_j(self, time_ns: int, counter_j: float, max_w: float, *, has_power: bool) -> float | None:
        """Return the total by a counter that was not believed, once it agrees with the power, or there is none."""
        self._energies.clear()
        trial = self._trial
        if trial is None or counter_j < trial.counter_j:
            self._begin_trial(time_ns, counter_j)
            return None
        self._has_power_in_trial &= has_power
        span_s, used_j = (time_ns - trial.time_ns) / NS_PER_S, counter_j - trial.counter_j
        if span_s < TRIAL_S:
            return None
        if self._has_power_in_trial:
            is_sane = _agree(used_j, self._power_j - trial.power_j, span_s, max_w)
        else:
            is_sane = used_j >= IDLE_RATIO * max_w * span_s
        if not is_sane or used_j > most_j(span_s, max_w):
            self._begin_trial(time_ns, counter_j)
            return None
        if self._known_ns is None or self._known_ns >= trial.time_ns:
            return self._believe_counter_j(time_ns, counter_j, trial.energy_j + used_j)
        self._add_unmeasured(self._known_power_w or 0.0, (trial.time_ns - self._known_ns) / NS_PER_S, max_w)
        return self._believe_counter_j(time_ns, counter_j, self.energy_j + used_j)

    def _begin_trial(self, time_ns: int, counter_j: float) -> None:
        self._trial = _Mark(time_ns, counter_j, self.energy_j, self._power_j)
        self._is_trial_new = self._has_power_in_trial = True

    def _compare(self, time_ns: int, by_counter_j: float, max_w: float) -> int | None:
        """Compare the meters; return from when on the power has replaced a counter that stands still [ns]."""
        counter, check = self._counter, self._check
        if counter is None or check is None:
            self._check = counter
            return None
        span_s = (time_ns - check.time_ns) / NS_PER_S
        if span_s < CHECK_S:
            return None
        self._check = counter
        counter_j, power_j = by_counter_j - check.energy_j, self._power_j - check.power_j
        if _agree(counter_j, power_j, span_s, max_w):
            self._n_disputes, self._is_power_refuted, self.power_fault = 0, False, ""
            return None
        least_j = IDLE_RATIO * max_w * span_s
        means = f"{counter_j / span_s:.3g} W by its energy counter, {power_j / span_s:.3g} W by its power"
        if counter_j < least_j:
            self.counter_fault = f"its energy counter stands still, or nearly so: {means}"
            self.energy_j = max(self.energy_j, check.energy_j + power_j)
            self._counter = self._check = None
            self._begin_trial(time_ns, counter.counter_j)
            self._energies.clear()
            return check.time_ns
        self._n_disputes += 1
        if power_j < least_j or self._n_disputes > 1:  # the integral is believed, but not for one odd moment
            self.power_fault = f"its power does not fit its energy: {means}"
            self._is_power_refuted = True
        return None

    def _counter_power_w(self) -> float | None:
        """Return the mean power of the last second, by the counter [W]."""
        if len(self._energies) < 2:  # noqa: PLR2004 — one is no interval
            return None
        (begin_ns, begin_j), (end_ns, end_j) = self._energies[0], self._energies[-1]
        return (end_j - begin_j) * NS_PER_S / (end_ns - begin_ns)


def most_j(duration_s: float, max_power_limit_w: float | None) -> float:
    """Return the most energy that a counter of a board with this maximum limit [W] can show for a time [J]."""
    max_w, span_s = max_power_limit_w or UNKNOWN_MAX_POWER_LIMIT_W, duration_s + COUNTER_LAG_S
    return max_w * max(PEAK_RATIO * min(span_s, MEAN_S), MEAN_RATIO * span_s)


def _agree(counter_j: float, power_j: float, span_s: float, max_w: float) -> bool:
    low_j, high_j = sorted((counter_j, power_j))
    return high_j <= AGREEMENT_RATIO * low_j or high_j - low_j <= IDLE_RATIO * max_w * span_s


def _keep(readings: deque[tuple[int, float]], span_s: float) -> None:
    """Drop what is older than the newest reading that is `span_s` older than the last."""
    while len(readings) > 1 and readings[-1][0] - readings[1][0] >= span_s * NS_PER_S:
        readings.popleft()


def _mean_w(powers: deque[tuple[int, float]]) -> float | None:
    """Return the mean over all the readings [W]; None where they last less than `MEAN_S`."""
    span_ns = powers[-1][0] - powers[0][0]
    if span_ns < MEAN_S * NS_PER_S:
        return None
    return sum((a_w + b_w) / 2 * (b_ns - a_ns) for (a_ns, a_w), (b_ns, b_w) in pairwise(powers)) / span_ns
