"""When an energy counter moves, found out from its readings, and the energy that it has not counted yet.

Counters move in steps: on an H100 every 100.00 ms, on other boards every 20 to 100 ms. Between two readings it is
known exactly what was used between the last steps before them, not between the readings themselves: in half a second
that is an error of several percent. So bursts of close readings look for steps, as seldom as suffices to predict them:

    step k at phase + k * period, both by least squares over the steps that were seen

and to each later reading belongs the energy since its last step, by the mean power of the steps before. A counter
that moves irregularly, or more often than it can be read, is left as it is.
"""

import math
from collections import deque
from typing import Final, NamedTuple

import numpy as np

from controller.ports import Sample
from controller.runtime.clock import NS_PER_S

PROBE_S: Final = 0.01
"""A burst reads as often."""
MAX_GAP_S: Final = 0.03
"""Readings farther apart do not tell when a step between them was."""
N_FIRST_STEPS: Final = 8
"""The first burst lasts until so many steps were seen, …"""
FIRST_BURST_S: Final = 2.0
"""… or for so long at most."""
REST_S: Final = 600.0
"""A counter without steps that can be told is left alone for so long."""
SHORT_REST_S: Final = 60.0
"""One that has changed its steps, or could not be read often enough, is looked at again after so long."""
N_STEPS: Final = 2
"""A later burst lasts until so many steps were seen, or for so long at most."""
BURST_S: Final = 0.5
MAX_STEPS: Final = 64
PHASE_ERROR_S: Final = 0.006
"""A burst is due when the error of the next step's time is above this."""
MAX_AGE_S: Final = 300.0
"""And when the last step was seen so long ago."""
LATE_S: Final = 0.008
"""So near to a step it cannot be told by the time whether a reading holds it."""
CLEAR_S: Final = 0.02
"""Farther from any step than this even a reading that takes some milliseconds leaves no doubt."""
MIN_STILL_RATIO: Final = 1.5
"""Of the readings in a burst so many for each step must not move, else steps are too frequent."""
MAX_ODD_RATIO: Final = 0.15
"""At most this share of steps may come at another time than the fit says."""
RECENT_STEPS: Final = 2
"""Over so many steps the present power is the mean."""
FAR_STEPS: Final = 15
"""After more steps than this the power does not tell which of two neighbouring ones the counter shows."""
FORGET_S: Final = 5.0
"""After a longer time without a reading nothing is known of the present power."""
MAX_SURPRISES: Final = 3.0
"""A counter that moves so often when it should not, or does not when it should, is looked at anew …"""
FORGIVEN_RATIO: Final = 0.1
"""… where it keeps to its steps less than ten times as often."""
MIN_FITTED: Final = 3


class _Reading(NamedTuple):
    time_s: float
    counter_j: float
    read_s: float


class _Step(NamedTuple):
    """A step that was seen: its number, when it was, and by how much earlier or later it may have been [s]."""

    number: int
    time_s: float
    half_s: float


class _Fit(NamedTuple):
    """When steps are: number `n` at `phase_s + n * period_s`.

    Attributes:
        phase_s, period_s: the fit [s].
        n: of how many steps.
        step_error_s: how well each of them is known (standard error) [s].
        mean_s: the mean of their times [s].
        spread_s2: the sum of squared differences from it [s²].
    """

    phase_s: float
    period_s: float
    n: int
    step_error_s: float
    mean_s: float
    spread_s2: float

    def error_s(self, time_s: float) -> float:
        """Return the standard error of the predicted step next to a time [s]."""
        return self.step_error_s * math.sqrt(1 / self.n + (time_s - self.mean_s) ** 2 / self.spread_s2)


class CounterStep:
    """The steps of one counter."""

    def __init__(self) -> None:
        self._origin_ns: int | None = None
        self._before: _Reading | None = None
        """The last reading of a burst."""
        self._steps: deque[_Step] = deque(maxlen=MAX_STEPS)
        self._fit: _Fit | None = None
        self._burst_since_s: float | None = None
        self._n_seen = self._n_still = 0
        """In this burst."""
        self._rests_until_s = -math.inf
        self._recent: deque[tuple[int, float]] = deque(maxlen=RECENT_STEPS + 1)
        """The last steps at which the counter was read: number, counter [J]."""
        self._read_s = -math.inf
        self._surprises = 0.0

    @property
    def period_s(self) -> float | None:
        """Return the time between two steps [s]; None where it is not known."""
        return None if self._fit is None else self._fit.period_s

    @property
    def is_seeking(self) -> bool:
        """Return whether a burst of close readings is under way."""
        return self._burst_since_s is not None

    def is_sought(self, time_ns: int) -> bool:
        """Return whether close readings are needed now."""
        time_s = self._since_s(time_ns)
        if self._burst_since_s is not None:
            return True
        if time_s < self._rests_until_s:
            return False
        fit = self._fit
        return fit is None or fit.error_s(time_s) > PHASE_ERROR_S or time_s - self._steps[-1].time_s > MAX_AGE_S

    def look(self, raw: Sample) -> None:
        """Add one of the close readings."""
        if raw.energy_j is None:
            self._before = None
            return
        reading = _Reading(self._since_s(raw.time_ns), raw.energy_j, raw.read_s)
        if self._burst_since_s is None:
            self._burst_since_s, self._n_seen, self._n_still, self._before = reading.time_s, 0, 0, None
        before, self._before = self._before, reading
        if before is not None and 0 < reading.time_s - before.time_s <= MAX_GAP_S:
            self._compare(before, reading)
        self._end_burst(reading.time_s)

    def uncounted_j(self, raw: Sample) -> float | None:
        """Return what the board has used since the counter moved last [J]; None where that is not known.

        It is below 0 where a slow reading has seen a step that came after its middle.
        """
        fit = self._fit
        if fit is None or raw.energy_j is None:
            self._recent.clear()
            return None
        time_s = self._since_s(raw.time_ns)
        if time_s - self._read_s > FORGET_S or (self._recent and raw.energy_j < self._recent[-1][1]):
            self._recent.clear()
        self._read_s = time_s
        number = self._number_of(time_s, raw, fit)
        self._watch(number, raw.energy_j, time_s)
        if not self._recent or number > self._recent[-1][0]:
            self._recent.append((number, raw.energy_j))
        step_j = self._step_j()
        return None if step_j is None else ((time_s - fit.phase_s) / fit.period_s - number) * step_j

    def _since_s(self, time_ns: int) -> float:
        if self._origin_ns is None:
            self._origin_ns = time_ns
        return (time_ns - self._origin_ns) / NS_PER_S

    def _compare(self, before: _Reading, reading: _Reading) -> None:
        if reading.counter_j <= before.counter_j:
            self._n_still += 1
            return
        self._n_seen += 1
        time_s = (before.time_s + reading.time_s) / 2
        half_s = (reading.time_s - before.time_s) / 2 + (before.read_s + reading.read_s) / 4
        if self._fit is not None:
            number = round((time_s - self._fit.phase_s) / self._fit.period_s)
        else:
            number = self._steps[-1].number + 1 if self._steps else 0
        self._steps.append(_Step(number, time_s, half_s))

    def _end_burst(self, time_s: float) -> None:
        lasted_s = time_s - (self._burst_since_s or 0.0)
        is_first = self._fit is None
        is_whole = self._n_seen >= (N_FIRST_STEPS if is_first else N_STEPS)
        if not is_whole and lasted_s < (FIRST_BURST_S if is_first else BURST_S):
            return
        self._burst_since_s = self._before = None
        if not is_whole:  # readings came too late, or fail; a fit that is good for long yet is kept
            is_kept = self._fit is not None and self._fit.error_s(time_s + SHORT_REST_S) < LATE_S
            self._rest(time_s, SHORT_REST_S, keeps_fit=is_kept)
            return
        is_coarse = self._n_still >= MIN_STILL_RATIO * self._n_seen
        fit = _fitted(list(self._steps), has_numbers=not is_first) if is_coarse else None
        if fit is None:
            self._rest(time_s, REST_S)
            return
        if is_first:
            self._steps = deque(_renumbered(self._steps, fit), maxlen=MAX_STEPS)
        self._fit = fit

    def _rest(self, time_s: float, rest_s: float, *, keeps_fit: bool = False) -> None:
        """Leave the counter as it is for a while."""
        self._burst_since_s = self._before = None
        self._rests_until_s = time_s + rest_s
        if not keeps_fit:
            self._fit = None
            self._steps.clear()
            self._recent.clear()
            self._surprises = 0.0

    def clear_in_s(self, time_ns: int) -> float:
        """Return how long after a moment the counter is best read [s]: soon after a step, but not too near to it."""
        fit = self._fit
        if fit is None:
            return 0.0
        since_step_s = (self._since_s(time_ns) - fit.phase_s) % fit.period_s
        is_clear = CLEAR_S <= since_step_s <= fit.period_s - CLEAR_S
        return 0.0 if is_clear else (CLEAR_S - since_step_s) % fit.period_s

    def _number_of(self, time_s: float, raw: Sample, fit: _Fit) -> int:
        """Return the number of the last step that a reading holds: near to a step its energy decides."""
        reach_s = min(LATE_S + raw.read_s / 2, fit.period_s)
        first, nearest, last = (
            math.floor((time_s + off_s - fit.phase_s) / fit.period_s) for off_s in (-reach_s, 0.0, reach_s)
        )
        candidates, step_j = range(first, last + 1), self._step_j()
        if len(candidates) == 1 or step_j is None or raw.energy_j is None:
            return nearest
        before, before_j = self._recent[-1]
        if nearest - before > FAR_STEPS:
            self._recent.clear()
            return nearest
        used_j = raw.energy_j - before_j
        return min(candidates, key=lambda number: abs(used_j - (number - before) * step_j))

    def _step_j(self) -> float | None:
        """Return the mean energy of the last steps [J]."""
        if not self._recent or self._recent[-1][0] == self._recent[0][0]:
            return None
        (first, first_j), (last, last_j) = self._recent[0], self._recent[-1]
        return (last_j - first_j) / (last - first)

    def _watch(self, number: int, counter_j: float, time_s: float) -> None:
        """Begin anew where the counter does not keep to its steps any more."""
        if not self._recent:
            return
        last, last_j = self._recent[-1]
        is_surprise = (number > last) != (counter_j > last_j)
        self._surprises = max(self._surprises + (1.0 if is_surprise else -FORGIVEN_RATIO), 0.0)
        if self._surprises >= MAX_SURPRISES:
            self._rest(time_s, SHORT_REST_S)


def _renumbered(steps: deque[_Step], fit: _Fit) -> list[_Step]:
    return [step._replace(number=round((step.time_s - fit.phase_s) / fit.period_s)) for step in steps]


def _fitted(steps: list[_Step], *, has_numbers: bool) -> _Fit | None:
    """Return the fit; None where the steps are not regular."""
    times_s = np.array([step.time_s for step in steps])
    if has_numbers:
        numbers = np.array([step.number for step in steps], dtype=np.float64)
    else:
        period_s = float(np.median(np.diff(times_s)))
        numbers = np.concatenate([[0.0], np.cumsum(np.round(np.diff(times_s) / period_s))])
    if len(steps) < MIN_FITTED or np.ptp(numbers) == 0:
        return None
    period_s, phase_s = np.polyfit(numbers, times_s, 1).tolist()
    halves_s = np.array([step.half_s for step in steps])
    off_s = np.abs(times_s - phase_s - period_s * numbers)
    if period_s <= 0 or float((off_s > halves_s + LATE_S).mean()) > MAX_ODD_RATIO:
        return None
    return _Fit(
        phase_s=phase_s,
        period_s=period_s,
        n=len(steps),
        step_error_s=float(np.sqrt((halves_s**2).mean() / 3)),
        mean_s=float(times_s.mean()),
        spread_s2=float(((times_s - times_s.mean()) ** 2).sum()),
    )
