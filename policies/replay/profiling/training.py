"""A simulated training run on one GPU: what a controller observes of it, and what it truly uses.

The job follows a true curve with the noise of a `NoisePath`. A new limit changes the rate at once, and the power with
a time constant. The energy counter updates in ticks, and where a controller can tell them, it knows when. It knows the
iterations that have ended and the counter at its own readings; readings during an iteration become usable when that has
ended.

>>> from policies.replay.profiling.noise import LEVELS
>>> from policies.vocabulary.profile import PowerProfile
>>> profile = PowerProfile.from_rows([(200.0, 180.0, 9.0), (300.0, 240.0, 10.0)])
>>> curve = TrueCurve(name="toy", profile=profile, is_assumed=False)
>>> training = SimulatedTraining(curve, LEVELS["clean"], seed=1)
>>> training.set_power_limit(200.0)
>>> [observation.power_limit_w for observation in training.observe()]
[200.0]
"""

import math
from dataclasses import dataclass
from typing import Final

from policies.profiling.measurement import Observation
from policies.replay.profiling.curves import TrueCurve
from policies.replay.profiling.noise import NoiseLevel, NoisePath

READING_S: Final = 0.11
"""The period of counter readings: no multiple of the counter's ticks, which would alias."""
MAX_READINGS: Final = 5.0
"""Readings during one iteration; more would only slow the simulation down."""
LATE_S: Final = 0.02
"""The largest delay of a reading."""
LEAST_TOLD_TICK_S: Final = 0.04
"""Shorter ticks are not told from each other: to read a counter takes milliseconds."""
RECENT_TICKS: Final = 2
"""What was used since the last tick is estimated by the mean of so many before it, as a controller's meter does."""
GOLDEN_RATIO: Final = (math.sqrt(5) - 1) / 2
"""The fractional parts of its multiples are spread evenly (a low-discrepancy sequence)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitPeriod:
    """A period at one limit.

    Attributes:
        power_limit_w: the limit [W].
        power_w: the settled power at that limit [W].
        iteration_time_s: the mean time of an iteration [s].
        begin_s: when it began [s].
        begin_work_iterations, begin_j, n_before: work, energy [J] and iterations before it.
        excess_w: the power at its beginning minus the settled power [W].
    """

    power_limit_w: float
    power_w: float
    iteration_time_s: float
    begin_s: float
    begin_work_iterations: float
    begin_j: float
    n_before: int
    excess_w: float

    def work_iterations(self, time_s: float) -> float:
        """Return the work done by a time."""
        return self.begin_work_iterations + (time_s - self.begin_s) / self.iteration_time_s


class SimulatedTraining:
    """A run and its GPU, which starts at the highest limit.

    Args:
        curve: the true curve of the job.
        noise: the level of noise.
        seed: of the noise.

    Attributes:
        now_s: the time since the start [s].
        n_iterations: how many iterations have ended; time always stands at the end of one.
        reading_s: the controller's period of counter readings [s].
    """

    def __init__(self, curve: TrueCurve, noise: NoiseLevel, *, seed: int) -> None:
        self.curve = curve
        self.now_s = 0.0
        self.n_iterations = 0
        self._noise = noise
        self._noise_path = NoisePath(noise, iteration_time_s=curve.iteration_time_s, seed=seed)
        self.reading_s = max(READING_S, curve.iteration_time_s / MAX_READINGS)
        self._n_readings = 0
        self._due_s = 0.0
        self._read_next()
        self._read_s = self._read_iterations = self._read_j = self._read_uncounted_j = 0.0
        self._limit_periods: list[LimitPeriod] = []
        self.set_power_limit(curve.max_power_limit_w)

    @property
    def limit_periods(self) -> tuple[LimitPeriod, ...]:
        """Return the limits so far, in order."""
        return tuple(self._limit_periods)

    @property
    def power_limit_w(self) -> float:
        """Return the limit in force [W]."""
        return self._limit_periods[-1].power_limit_w

    @property
    def energy_j(self) -> float:
        """Return the energy that was truly used [J]."""
        return self._energy_j(self.now_s)

    @property
    def counter_j(self) -> float:
        """Return the energy that the counter shows [J]."""
        return self._shown_j(self.now_s)

    def set_power_limit(self, power_limit_w: float) -> None:
        """Change the limit [W]."""
        if self._limit_periods and power_limit_w == self.power_limit_w:
            return
        power_w, rate_per_s = self.curve.profile.at(power_limit_w)
        self._limit_periods.append(
            LimitPeriod(
                power_limit_w=power_limit_w,
                power_w=power_w,
                iteration_time_s=1 / rate_per_s,
                begin_s=self.now_s,
                begin_work_iterations=float(self._noise_path.work[self.n_iterations]),
                begin_j=self.energy_j if self._limit_periods else 0.0,
                n_before=self.n_iterations,
                excess_w=self._drawn_w() - power_w if self._limit_periods else 0.0,
            )
        )

    def iterate(self, n_iterations: int = 1) -> None:
        """Train so many iterations."""
        self._advance_to(self.n_iterations + n_iterations)

    def observe(self) -> tuple[Observation, ...]:
        """Train until there is an observation at the limit in force; return the observations between readings.

        An interval that began before the limit changed is left out.
        """
        found: list[Observation] = []
        while not found:
            end_s = max(self._next_s, self.now_s)
            self._advance_to(math.ceil(self._noise_path.n_done(self._limit_periods[-1].work_iterations(end_s))))
            while self._next_s <= self.now_s:
                found += self._observation_until(self._next_s)
                self._read_next()
        return tuple(found)

    def _drawn_w(self) -> float:
        """Return the power now, settling towards that of the limit, without noise [W]."""
        period = self._limit_periods[-1]
        return period.power_w + period.excess_w * math.exp((period.begin_s - self.now_s) / self._noise.settling_s)

    def _advance_to(self, n_iterations: int) -> None:
        self._noise_path.reach(n_iterations)
        period = self._limit_periods[-1]
        work = float(self._noise_path.work[n_iterations])
        self.now_s = period.begin_s + (work - period.begin_work_iterations) * period.iteration_time_s
        self.n_iterations = n_iterations

    def _read_next(self) -> None:
        self._n_readings += 1
        self._due_s += self.reading_s
        self._next_s = self._due_s + self._n_readings * GOLDEN_RATIO % 1.0 * LATE_S

    def _observation_until(self, reading_s: float) -> list[Observation]:
        """Return the slice that ends with a reading, unless it began before the present period."""
        period, noise_path = self._limit_periods[-1], self._noise_path
        begin_s, begin_iterations, begin_j = self._read_s, self._read_iterations, self._read_j
        begin_uncounted_j, is_told = self._read_uncounted_j, self._noise.tick_s >= LEAST_TOLD_TICK_S
        self._read_s = reading_s
        if reading_s < period.begin_s:
            return []
        self._read_j, self._read_uncounted_j = self._shown_j(reading_s), self._uncounted_j(reading_s)
        self._read_iterations = noise_path.n_done(period.work_iterations(reading_s))
        if begin_s < period.begin_s:
            return []
        energy_j = self._read_j - begin_j
        first, last = math.floor(begin_iterations), math.floor(self._read_iterations)
        ends = noise_path.work[first : last + 1]
        return [
            Observation(
                power_limit_w=period.power_limit_w,
                active_s=reading_s - begin_s,
                n_iterations=self._read_iterations - begin_iterations,
                energy_j=energy_j,
                interpolated_energy_j=energy_j + self._read_uncounted_j - begin_uncounted_j if is_told else None,
                iteration_times_s=tuple(((ends[1:] - ends[:-1]) * period.iteration_time_s).tolist()),
            )
        ]

    def _shown_j(self, time_s: float) -> float:
        """Return the counter's value: the energy at its last tick [J]."""
        return self._energy_j(self._last_tick_s(time_s))

    def _last_tick_s(self, time_s: float) -> float:
        tick_s = self._noise.tick_s
        phase_s = self._noise_path.phase_ratio * tick_s
        return max(phase_s + math.floor((time_s - phase_s) / tick_s) * tick_s, 0.0)

    def _uncounted_j(self, time_s: float) -> float:
        """Return what a controller takes to be used since the last tick [J]."""
        last_s = self._last_tick_s(time_s)
        first_s = max(last_s - RECENT_TICKS * self._noise.tick_s, 0.0)
        if first_s == last_s:
            return 0.0
        return (time_s - last_s) * (self._energy_j(last_s) - self._energy_j(first_s)) / (last_s - first_s)

    def _energy_j(self, time_s: float) -> float:
        period = next(period for period in reversed(self._limit_periods) if period.begin_s <= time_s)
        noise_path, settling_s = self._noise_path, self._noise.settling_s
        weighed = noise_path.weighted_iterations(period.work_iterations(time_s)) - float(
            noise_path.weighted_work[period.n_before]
        )
        settled = 1 - math.exp((period.begin_s - time_s) / settling_s)
        return (
            period.begin_j + period.power_w * period.iteration_time_s * weighed + period.excess_w * settling_s * settled
        )
