"""The energy of one GPU, from readings that physics allows.

Power and energy counter are each bounded by what the board can draw, and within seconds they check each other. A
reading that is not believed is replaced by that of the other meter. Where neither is believed, the time counts at the
last believed power once one is believed again, and is told as unmeasured.
"""

from collections import deque
from dataclasses import dataclass
from math import isfinite
from statistics import fmean
from typing import Final

import numpy as np

from controller.ports import Sample
from controller.runtime.clock import NS_PER_S

PEAK_RATIO: Final = 1.5
"""A board draws at most so much of its maximum power limit for a moment."""
MEAN_RATIO: Final = 1.1
"""And so much on average over a second or more."""
MEAN_S: Final = 2.0
LEAST_READINGS: Final = 5
"""Fewer readings are no mean."""
COUNTER_LAG_S: Final = 0.25
"""Counters move in steps (on an H100 every 100 ms, sometimes later), so a reading may hold energy from before."""
STILL_S: Final = 0.5
"""A counter that has not moved for so long stands still."""
UNKNOWN_MAX_POWER_LIMIT_W: Final = 2_000.0
"""More than any board's, for one that does not tell its own."""
CHECK_S: Final = 3.0
"""Over so long the meters check each other."""
DENSE_S: Final = 0.25
"""Readings farther apart than this give no mean of the power that could refute anything."""
DENSE_RATIO: Final = 0.25
"""The share of gaps no longer than that, where readings are dense: clocks jitter, and some readings are slow."""
POWER_LAG_S: Final = 1.0
"""On many boards the power is the mean of the last second. A longer gap is a hole."""
BELIEVED_S: Final = CHECK_S + POWER_LAG_S + 0.5
"""So long what was believed is kept for that: somewhat longer, since counters may be read each 2 s."""
REFUTING_TRIAL_S: Final = 1.0
"""So long a trial of a counter that was not believed can refute it, or end it well where no power can be read."""
TRIAL_S: Final = 6.0
"""Such a counter is believed again after agreeing with the power for so long."""
HOLE_TRIAL_S: Final = 30.0
"""And for so long where a hole in dense readings would be too great a part of less."""
CLOSE_RATIO: Final = 1.05
"""Ratios agree closely that differ by this factor at most."""
MAX_TRIAL_S: Final = 60.0
"""A trial that has not ended by then begins anew."""
N_STEADY_TRIALS: Final = 3
"""After so many of them with one ratio of counter to power, the counter is believed: the usual ratio was wrong."""
N_USUAL_RATIO: Final = 32
"""Of so many comparisons the usual ratio of counter to power is the mean: some 100 s."""
REFUTED_S: Final = 60.0
"""Power that was refuted by a counter is believed again when that counter has been gone for so long."""
AGREEMENT_RATIO: Final = 2.0
"""Meters agree whose means differ by this factor at most."""
IDLE_RATIO: Final = 0.01
"""No board that runs draws less than this share of its maximum power limit: idle ones draw some 10 %."""


@dataclass(frozen=True, slots=True)
class _Mark:
    """Where the meters and the total stood at a moment: the power by its integral, and by what was known before."""

    time_ns: int
    counter_j: float
    energy_j: float
    power_j: float
    known_power_w: float
    n_gaps: int
    n_close_gaps: int


class _PowerReadings:
    """The power readings that a board can draw, and their integral.

    Attributes:
        integral_j: the integral [J], over holes of `max_gap_s` at most.
        begun_ns: since when it has no longer hole [ns].
        n_gaps: how many gaps between readings it spans.
        n_close_gaps: how many of them are at most `DENSE_S` long.
        fault: why the last reading is none that a board can draw; "" where it is one.
    """

    def __init__(self, *, max_gap_s: float) -> None:
        self.integral_j = 0.0
        self.begun_ns = 0
        self.n_gaps = self.n_close_gaps = 0
        self.fault = ""
        self._max_gap_ns = max_gap_s * NS_PER_S
        self._hole_ns = 0
        """When the last gap ended that was longer than `POWER_LAG_S` [ns]."""
        self._recent: deque[tuple[int, float]] = deque()
        """Of the last `MEAN_S`: time [ns], power [W]."""

    def is_dense_since(self, mark: _Mark) -> bool:
        """Return whether the readings since a mark give a mean that may refute something."""
        return self.n_close_gaps - mark.n_close_gaps >= DENSE_RATIO * (self.n_gaps - mark.n_gaps)

    def trial_s(self, trial: _Mark) -> float:
        """Return how long a trial must last, by the readings since it began [s]."""
        return HOLE_TRIAL_S if self._hole_ns > trial.time_ns and self.is_dense_since(trial) else TRIAL_S

    def possible_w(self, time_ns: int, power_w: float | None, max_w: float) -> float | None:
        """Return a reading where a board can draw it [W]."""
        if power_w is None:
            self.fault = "its power cannot be read"
            return None
        if power_w == 0:
            self.fault = "its power reads 0 W, which no board draws that answers"
            return None
        if not (isfinite(power_w) and 0 < power_w <= PEAK_RATIO * max_w):
            self.fault = f"its power reads {power_w:.4g} W, which a board of {max_w:g} W cannot draw"
            return None
        self.integrate(time_ns, power_w)
        mean_w = sum(each_w for _, each_w in self._recent) / len(self._recent)
        is_mean = len(self._recent) >= LEAST_READINGS and time_ns - self._recent[0][0] >= MEAN_S * NS_PER_S / 2
        if is_mean and mean_w > MEAN_RATIO * max_w:
            self.fault = f"its power reads {mean_w:.4g} W for seconds, which a board of {max_w:g} W cannot draw"
            return None
        return power_w

    def integrate(self, time_ns: int, power_w: float) -> None:
        """Add a reading that is no fault to the integral [W]."""
        self.fault = ""
        if not self._recent or time_ns - self._recent[-1][0] > self._max_gap_ns:
            self._recent.clear()
            self.begun_ns = time_ns
        else:
            before_ns, before_w = self._recent[-1]
            gap_s = (time_ns - before_ns) / NS_PER_S
            self.integral_j += (before_w + power_w) / 2 * gap_s
            self.n_gaps += 1
            self.n_close_gaps += gap_s <= DENSE_S
            self._hole_ns = time_ns if gap_s > POWER_LAG_S else self._hole_ns
        self._recent.append((time_ns, power_w))
        while time_ns - self._recent[0][0] > MEAN_S * NS_PER_S:
            self._recent.popleft()

    def since_j(self, mark: _Mark, time_ns: int) -> float | None:
        """Return the integral from a mark to now [J]; None where it has a hole, or does not reach so far."""
        is_whole = bool(self._recent) and self._recent[-1][0] == time_ns and self.begun_ns <= mark.time_ns
        return self.integral_j - mark.power_j if is_whole else None


class CheckedEnergy:
    """The energy of one GPU since its first reading.

    Args:
        max_gap_s: without a reading for longer than this, power is not interpolated: the time is unmeasured [s].

    Attributes:
        energy_j: the energy used [J].
        unmeasured_s: for how much of the time no reading was believed: it counts at the power before [s].
        power_w: the believed power [W]: of the reading, or of the counter's last seconds; None where there is neither.
        counter_fault: why the energy counter is not believed now, in a sentence; "" where it is, or there is none.
        has_meter: whether the board has ever shown an energy counter, or another power than 0 W.
        is_disputed: whether the meters did not agree the last time: close readings tell which one is wrong.
    """

    def __init__(self, *, max_gap_s: float) -> None:
        self.energy_j = 0.0
        self.unmeasured_s = 0.0
        self.power_w: float | None = None
        self.counter_fault = ""
        self.has_meter = self.is_disputed = False
        self._max_gap_s = max_gap_s
        self._known_ns: int | None = None
        """Up to when the energy is known; None before the first reading [ns]."""
        self._known_power_w = 0.0
        """The last believed power [W]."""
        self._is_behind = False
        """Whether readings since then have failed, or were not believed."""
        self._power = _PowerReadings(max_gap_s=max_gap_s)
        self._refutation = ""
        self._counter: _Mark | None = None
        """The last believed reading of the counter."""
        self._moved: _Mark | None = None
        """The last one that was more than the one before …"""
        self._sound: _Mark | None = None
        """… and the one before, where that was long ago: a counter may have stopped anywhere between the two."""
        self._rested: _Mark | None = None
        """The last one while the board drew nothing."""
        self._believed: deque[_Mark] = deque()
        """Those of the last seconds, for the comparison."""
        self._trial: _Mark | None = None
        """Where a counter that is not believed began to be tried."""
        self._trial_from_j: float | None = None
        """What the counter shows where a trial is to begin."""
        self._adopted_j: float | None = None
        """What the counter shows where a trial has ended well."""
        self._seen_ns: int | None = None
        """When the counter was last believed [ns]."""
        self._uncounted_ns = 0
        """Up to when the total holds what the counter has not told [ns]."""
        self._checked_ns = 0
        self._usual_ratio, self._n_compared = 1.0, 0
        """Of the counter to the power, and of how many comparisons it is the mean."""
        self._trial_ratios: deque[float] = deque(maxlen=N_STEADY_TRIALS)
        """Of the counter to the power in the last trials that were as long as they may be."""
        self._dispute: _Mark | None = None
        """Where the meters began to contradict each other."""

    @property
    def is_current(self) -> bool:
        """Return whether the last reading was believed, in part at least."""
        return not self._is_behind and self._known_ns is not None

    @property
    def has_counter(self) -> bool:
        """Return whether the energy counter is believed now."""
        return self._counter is not None and self._trial is None and not self.counter_fault

    @property
    def power_fault(self) -> str:
        """Return why the power is not believed now, in a sentence; "" where it is, or there is none."""
        return (self._power.fault or self._refutation) if self.has_meter else ""

    def miss(self) -> None:
        """Note that the GPU could not be read."""
        self._is_behind, self.power_w = True, None

    def add(self, raw: Sample, max_power_limit_w: float | None) -> int:
        """Add a reading, newer than the last one, of a board with this maximum limit [W].

        Returns:
            From when on the energy was used that it adds to the total [ns]: a counter that stands still is found late.
        """
        max_w, time_ns = max_power_limit_w or UNKNOWN_MAX_POWER_LIMIT_W, raw.time_ns
        self.has_meter = self.has_meter or raw.energy_j is not None or raw.power_w != 0
        power_w = self._power.possible_w(time_ns, raw.power_w, max_w)
        total_j = self._total_by_counter_j(time_ns, raw.energy_j, max_w)
        begin_ns = time_ns if self._known_ns is None else self._known_ns
        is_at_rest = total_j is not None and self._is_at_rest(raw)
        wrong = None if total_j is None or is_at_rest else self._contradiction(time_ns, power_w, max_w)
        power_w = 0.0 if is_at_rest else self._unrefuted_w(time_ns, power_w)
        if wrong is not None:
            total_j = None
            begin_ns = min(begin_ns, wrong.time_ns)
            self._replace(wrong, time_ns, has_power=power_w is not None)
        elif total_j is not None:
            self.energy_j = max(self.energy_j, total_j)
        elif power_w is not None:
            self._add_power(power_w, (time_ns - begin_ns) / NS_PER_S, max_w)
            self._uncounted_ns = time_ns
        self._begin_trial_or_adopt(time_ns)
        if total_j is None and power_w is None:
            self.miss()
        else:
            self._settle(time_ns, power_w, max_w)
        return begin_ns

    def add_power(self, raw: Sample, max_power_limit_w: float | None) -> None:
        """Add a reading of the power alone: the next one of the counter is checked against it."""
        self._power.possible_w(raw.time_ns, raw.power_w, max_power_limit_w or UNKNOWN_MAX_POWER_LIMIT_W)

    def counter_at_j(self, energy_j: float) -> float | None:
        """Return the value of the GPU's own counter when the total was `energy_j`; None where it is not believed."""
        counter = self._counter
        return None if counter is None or self._trial is not None else counter.counter_j + energy_j - counter.energy_j

    def _unrefuted_w(self, time_ns: int, power_w: float | None) -> float | None:
        """Return the power unless it is refuted [W]; a counter that has been gone for long refutes nothing."""
        if self._refutation and (self._seen_ns is None or time_ns - self._seen_ns > REFUTED_S * NS_PER_S):
            self._refutation = ""
        return None if self._refutation else power_w

    def _is_at_rest(self, raw: Sample) -> bool:
        """Return whether both meters say that the board draws nothing; one that computes is not believed to."""
        counter, moved = self._counter, self._moved
        if raw.power_w != 0 or raw.utilization_ratio or self._refutation or counter is None or moved is None:
            return False
        if raw.time_ns - moved.time_ns < CHECK_S * NS_PER_S:
            return False
        self._power.integrate(raw.time_ns, 0.0)
        self._rested = self._mark(raw.time_ns, counter.counter_j, counter.energy_j)
        return True

    def _begin_trial_or_adopt(self, time_ns: int) -> None:
        """Let a trial of the counter begin or end where the total is now."""
        if self._trial_from_j is not None:
            self._trial = self._mark(time_ns, self._trial_from_j, self.energy_j)
        elif self._adopted_j is not None:
            self._trial = self._moved = None
            self._believed.clear()
            self._believe_counter_j(time_ns, self._adopted_j, self.energy_j)
        self._trial_from_j = self._adopted_j = None

    def _mark(self, time_ns: int, counter_j: float, energy_j: float) -> _Mark:
        of_power = self._power.integral_j, self._known_power_w, self._power.n_gaps, self._power.n_close_gaps
        return _Mark(time_ns, counter_j, energy_j, *of_power)

    def _settle(self, time_ns: int, power_w: float | None, max_w: float) -> None:
        """Know the energy up to a moment."""
        self.power_w = self._counter_power_w() if power_w is None else power_w
        if self.power_w is not None and self.power_w <= MEAN_RATIO * max_w:
            self._known_power_w = self.power_w
        self._known_ns, self._is_behind = time_ns, False

    def _add_power(self, power_w: float, span_s: float, max_w: float) -> None:
        if self._known_ns is None or self._is_behind or span_s > self._max_gap_s:
            self._add_unmeasured(span_s)
        else:
            before_w = self._known_power_w if self.power_w is None else self.power_w
            self.energy_j += (min(before_w, PEAK_RATIO * max_w) + power_w) / 2 * span_s

    def _add_unmeasured(self, span_s: float) -> None:
        self.energy_j += self._known_power_w * span_s
        self.unmeasured_s += span_s

    def _total_by_counter_j(self, time_ns: int, counter_j: float | None, max_w: float) -> float | None:
        """Return the total by the counter [J], or None where it is not believed."""
        counter = self._counter
        if counter_j is None or not isfinite(counter_j):
            if counter is not None or self._trial is not None:
                self.counter_fault = "its energy counter cannot be read"
            return None
        if self._known_ns is None and counter is None and self._trial is None:
            return self._believe_counter_j(time_ns, counter_j, self.energy_j)
        if counter is None:
            return self._try_counter_j(time_ns, counter_j, max_w)
        used_j, span_s = counter_j - counter.counter_j, (time_ns - counter.time_ns) / NS_PER_S
        oldest = self._believed[0] if self._believed else counter
        is_possible = 0 <= used_j <= most_j(span_s, max_w) and counter_j - oldest.counter_j <= most_j(
            (time_ns - oldest.time_ns) / NS_PER_S, max_w
        )
        if is_possible and self._has_returned(time_ns, counter_j, max_w):
            return self._believe_counter_j(time_ns, counter_j, counter.energy_j + used_j)
        if self._trial is None and used_j < 0:
            self.counter_fault = f"its energy counter has fallen by {-used_j:.4g} J, as after a reset"
        elif self._trial is None:
            shows = f"{used_j:.4g} J in {span_s:.3g} s"
            self.counter_fault = f"its energy counter shows {shows}, which a board of {max_w:g} W cannot use"
        return self._try_counter_j(time_ns, counter_j, max_w)

    def _has_returned(self, time_ns: int, counter_j: float, max_w: float) -> bool:
        """Return whether a possible reading goes on from the last believed one, and not from where a trial began.

        A counter that was reset passes its former value some time later.
        """
        counter, trial = self._counter, self._trial
        if counter is None or trial is None:
            return True
        power_j = None if self._refutation else self._power.since_j(counter, time_ns)
        if power_j is None:
            return not 0 <= counter_j - trial.counter_j <= most_j((time_ns - trial.time_ns) / NS_PER_S, max_w)
        return self._fits(counter, time_ns, counter_j, power_j, max_w)

    def _believe_counter_j(self, time_ns: int, counter_j: float, energy_j: float) -> float:
        """Believe a reading of the counter, with this total [J], and return the total."""
        mark = self._mark(time_ns, counter_j, energy_j)
        if self._moved is None or counter_j > self._moved.counter_j:
            is_far = self._moved is not None and time_ns - self._moved.time_ns > STILL_S * NS_PER_S
            self._sound, self._moved = self._moved if is_far else None, mark
        self._counter, self._trial, self._seen_ns, self.counter_fault = mark, None, time_ns, ""
        self._trial_ratios.clear()
        self._believed.append(mark)
        while time_ns - self._believed[0].time_ns > BELIEVED_S * NS_PER_S:
            self._believed.popleft()
        return energy_j

    def _try_counter_j(self, time_ns: int, counter_j: float, max_w: float) -> float | None:
        """Return the total by a counter that was not believed, once it agrees with the power, or there is none."""
        trial = self._trial
        if trial is None or counter_j < trial.counter_j:
            self._trial_ratios.clear()
            self._trial_from_j = counter_j
            return None
        span_s, used_j = (time_ns - trial.time_ns) / NS_PER_S, counter_j - trial.counter_j
        if span_s < REFUTING_TRIAL_S:
            return None
        power_j = None if self._refutation else self._power.since_j(trial, time_ns)
        if power_j is None and (self._refutation or self._power.fault):
            return self._try_alone_j(trial, time_ns, counter_j, max_w)
        if power_j is None:
            self._restart_trial(counter_j, used_j / span_s)
        elif used_j > most_j(span_s, max_w) or not _agree(used_j, power_j, span_s, max_w):
            self._trial_ratios.clear()
            self._restart_trial(counter_j, used_j / span_s)
        elif span_s >= self._power.trial_s(trial) and self._fits(trial, time_ns, counter_j, power_j, max_w):
            self._adopted_j = counter_j
        elif span_s >= MAX_TRIAL_S:
            self._end_trial(counter_j, used_j, power_j, span_s)
        return None

    def _end_trial(self, counter_j: float, used_j: float, power_j: float, span_s: float) -> None:
        """Begin a trial anew that is as long as it may be, or believe a counter that keeps another ratio."""
        self._trial_ratios.append(used_j / power_j)
        low_ratio, high_ratio = min(self._trial_ratios), max(self._trial_ratios)
        is_steady = low_ratio >= 1 / AGREEMENT_RATIO and high_ratio <= min(CLOSE_RATIO * low_ratio, AGREEMENT_RATIO)
        if is_steady and len(self._trial_ratios) == N_STEADY_TRIALS:
            self._usual_ratio, self._n_compared = fmean(self._trial_ratios), N_USUAL_RATIO
            self._adopted_j = counter_j
        else:
            self._restart_trial(counter_j, used_j / span_s)

    def _try_alone_j(self, trial: _Mark, time_ns: int, counter_j: float, max_w: float) -> float | None:
        """Return the total where no power can check the counter, once it has moved as a board draws."""
        span_s, used_j = (time_ns - trial.time_ns) / NS_PER_S, counter_j - trial.counter_j
        known_ns = trial.time_ns if self._known_ns is None else self._known_ns
        is_counted_by_power = known_ns > trial.time_ns
        if is_counted_by_power or not IDLE_RATIO * max_w * span_s <= used_j <= most_j(span_s, max_w):
            self._restart_trial(counter_j, used_j / span_s)
            return None
        if known_ns < trial.time_ns:
            self._add_unmeasured((trial.time_ns - known_ns) / NS_PER_S)
            self._uncounted_ns = trial.time_ns
        self._moved = None
        self._believed.clear()
        return self._believe_counter_j(time_ns, counter_j, self.energy_j + used_j)

    def _restart_trial(self, counter_j: float, mean_w: float) -> None:
        self.counter_fault = self.counter_fault or f"its energy counter shows {mean_w:.3g} W"
        self._trial_from_j = counter_j

    def _fits(self, mark: _Mark, time_ns: int, counter_j: float, power_j: float, max_w: float) -> bool:
        """Return whether a counter not believed before agrees with the power: closely where its scale can be known."""
        used_j, span_s = counter_j - mark.counter_j, (time_ns - mark.time_ns) / NS_PER_S
        if self._n_compared == 0 or not self._power.is_dense_since(mark):
            return _agree(used_j, power_j, span_s, max_w)
        return _agree(used_j, power_j * self._usual_ratio, span_s, max_w, ratio=CLOSE_RATIO)

    def _contradiction(self, time_ns: int, power_w: float | None, max_w: float) -> _Mark | None:
        """Return since when the counter is not believed any more, because of what the power says; None: it is."""
        counter, moved = self._counter, self._moved
        if counter is None or moved is None:
            return None
        moved = max(moved, self._rested or moved, key=lambda mark: mark.time_ns)
        sound = (self._sound if moved is self._moved else None) or moved
        still_s = (time_ns - moved.time_ns) / NS_PER_S
        power_j = None if power_w is None or self._refutation else self._power.since_j(moved, time_ns)
        wrong = None
        if power_j is None and still_s >= CHECK_S:
            wrong, self.counter_fault = sound, f"its energy counter has been stuck for {still_s:.3g} s"
        elif power_j is not None and still_s >= STILL_S and power_j > IDLE_RATIO * max_w * still_s:
            wrong = sound
            self.counter_fault = f"its energy counter is stuck while its power reads {power_j / still_s:.3g} W"
        elif power_w is not None and time_ns - self._checked_ns >= CHECK_S * NS_PER_S:
            self._checked_ns = time_ns
            wrong = self._compare(max_w)
        if wrong is not None:
            self._counter = self._moved = self._sound = self._dispute = None
            self._believed.clear()
            self._trial_from_j = counter.counter_j
        return wrong

    def _compare(self, max_w: float) -> _Mark | None:
        """Compare the meters over the last seconds; return since when the counter is wrong, if it is.

        Twice in a row is a contradiction: one may be the edge of a load.
        """
        marks = self._believed
        times_ns = np.array([mark.time_ns for mark in marks])
        span_s = (marks[-1].time_ns - marks[0].time_ns) / NS_PER_S
        if span_s < CHECK_S or self._power.begun_ns > marks[0].time_ns:
            return None
        counters_j, powers_j = ([mark.counter_j for mark in marks], [mark.power_j for mark in marks])
        lag_ns = POWER_LAG_S * NS_PER_S
        late = [times_ns[0] + lag_ns, times_ns[-1]]
        power_j = float(np.diff(np.interp(late, times_ns, powers_j))[0])
        counter_j = float(np.diff(np.interp(late, times_ns, counters_j))[0])
        counter_before_j = float(np.diff(np.interp([times_ns[0], times_ns[-1] - lag_ns], times_ns, counters_j))[0])
        window_s = span_s - POWER_LAG_S
        if any(_agree(each_j, power_j, window_s, max_w) for each_j in (counter_j, counter_before_j)):
            self._dispute, self._refutation, self.is_disputed = None, "", False
            if power_j > 0:
                self._n_compared = min(self._n_compared + 1, N_USUAL_RATIO)
                self._usual_ratio += (counter_j / power_j - self._usual_ratio) / self._n_compared
            return None
        is_counter_low = counter_j < IDLE_RATIO * max_w * window_s
        is_dense = bool(np.diff(times_ns).max() <= DENSE_S * NS_PER_S)
        self.is_disputed = True
        if self._refutation or not (is_dense or is_counter_low):
            return None
        begin, self._dispute = self._dispute, self._dispute or marks[0]
        if begin is None:
            return None
        means = f"{counter_j / window_s:.3g} W by its energy counter, {power_j / window_s:.3g} W by its power"
        if is_counter_low:
            self.counter_fault = f"its energy counter does not fit its power: {means}"
            return begin
        self._refutation = f"its power does not fit its energy counter: {means}"
        return None

    def _replace(self, wrong: _Mark, time_ns: int, *, has_power: bool) -> None:
        """Count by the power what the counter has told since it was wrong, or leave that time unknown."""
        power_j = self._power.since_j(wrong, time_ns) if has_power else None
        if power_j is None:
            self._known_ns, self._is_behind = max(wrong.time_ns, self._uncounted_ns), True
            self._known_power_w = wrong.known_power_w  # since then a counter that stood still told it
        else:
            self.energy_j = max(self.energy_j, wrong.energy_j + power_j)
            self._uncounted_ns = time_ns

    def _counter_power_w(self) -> float | None:
        """Return the mean power of the last seconds, by the counter [W]."""
        if len(self._believed) < 2:  # noqa: PLR2004 — one is no interval
            return None
        begin, end = self._believed[0], self._believed[-1]
        return (end.counter_j - begin.counter_j) * NS_PER_S / (end.time_ns - begin.time_ns)


def most_j(duration_s: float, max_power_limit_w: float | None) -> float:
    """Return the most energy that a counter of a board with this maximum limit [W] can show for a time [J]."""
    max_w, span_s = max_power_limit_w or UNKNOWN_MAX_POWER_LIMIT_W, duration_s + COUNTER_LAG_S
    return max_w * max(PEAK_RATIO * min(span_s, 1.0), MEAN_RATIO * span_s)


def _agree(counter_j: float, power_j: float, span_s: float, max_w: float, *, ratio: float = AGREEMENT_RATIO) -> bool:
    """Return whether a counter and the integral of the power may both be right over a time."""
    low_j, high_j = sorted((counter_j, power_j))
    lag_j = COUNTER_LAG_S * high_j / span_s
    return high_j <= ratio * low_j + lag_j or high_j - low_j <= IDLE_RATIO * max_w * span_s
