"""A training run on one GPU, simulated: what a controller would see of it, and what it truly spends.

The job follows a true curve, disturbed by a `Course`. A limit takes effect at once in the rate, and with a time
constant in the power. Energy can be read only as a counter shows it, which moves in ticks. A controller knows the
iterations that have ended, and the counter at its own readings; what it saw of an iteration under way it can use once
that has ended.

>>> from policies.vocabulary.profile import PowerProfile, ProfilePoint
>>> from policies.replay.profiling.noise import LEVELS
>>> points = (ProfilePoint(power_limit_w=200.0, power_w=180.0, iterations_per_s=9.0),
...           ProfilePoint(power_limit_w=300.0, power_w=240.0, iterations_per_s=10.0))
>>> training = Training(TrueCurve(name="toy", profile=PowerProfile(points), is_assumed=False), LEVELS["clean"], seed=1)
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
"""How often the counter is read; no multiple of its ticks, with which it would keep step."""
MAX_READINGS: Final = 5.0
"""A controller reads so often during an iteration, too; here, more than this would only take time."""
LATE_S: Final = 0.02
"""A reading is late by up to this much."""
GOLDEN_RATIO: Final = (math.sqrt(5) - 1) / 2
"""Its multiples, without their whole parts, spread evenly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitPeriod:
    """The time at one limit [W].

    Attributes:
        power_limit_w: the limit.
        power_w: what the job draws at it, in the end.
        iteration_time_s: how long a mean iteration takes.
        begin_s: when it began; likewise the work, the energy and the number of iterations before it.
        excess_w: by how much the power then was above that of the limit; it settles.
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
        """Return the work done by a moment."""
        return self.begin_work_iterations + (time_s - self.begin_s) / self.iteration_time_s


class SimulatedTraining:
    """A run and its GPU, which begins at the highest limit.

    Args:
        curve: what the job truly does.
        noise: the level of noise.
        seed: of the chance that comes to it.

    Attributes:
        now_s: the time since its beginning [s].
        n_iterations: how many iterations have ended; it always stands at the end of one.
        reading_s: how often the controller reads the counter [s].
    """

    def __init__(self, curve: TrueCurve, noise: NoiseLevel, *, seed: int) -> None:
        self.curve = curve
        self.now_s = 0.0
        self.n_iterations = 0
        self._noise = noise
        self._course = NoisePath(noise, iteration_time_s=curve.iteration_time_s, seed=seed)
        self.reading_s = max(READING_S, curve.iteration_time_s / MAX_READINGS)
        self._n_readings = 0
        self._due_s = 0.0
        self._read_next()
        self._read_s = self._read_iterations = self._read_j = 0.0
        self._stays: list[LimitPeriod] = []
        self.set_power_limit(curve.max_power_limit_w)

    @property
    def stays(self) -> tuple[LimitPeriod, ...]:
        """Return the limits that there were, in their order."""
        return tuple(self._stays)

    @property
    def power_limit_w(self) -> float:
        """Return the limit in force [W]."""
        return self._stays[-1].power_limit_w

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
        if self._stays and power_limit_w == self.power_limit_w:
            return
        power_w, rate_per_s = self.curve.profile.at(power_limit_w)
        self._stays.append(
            LimitPeriod(
                power_limit_w=power_limit_w,
                power_w=power_w,
                iteration_time_s=1 / rate_per_s,
                begin_s=self.now_s,
                begin_work_iterations=float(self._course.work[self.n_iterations]),
                begin_j=self.energy_j if self._stays else 0.0,
                n_before=self.n_iterations,
                excess_w=self._drawn_w() - power_w if self._stays else 0.0,
            )
        )

    def iterate(self, n_iterations: int = 1) -> None:
        """Train so many iterations."""
        self._advance_to(self.n_iterations + n_iterations)

    def observe(self) -> tuple[Observation, ...]:
        """Train until something is known of the limit in force; return it, in slices between readings.

        A slice that began before the limit was changed says nothing of it, and is left out.
        """
        found: list[Observation] = []
        while not found:
            end_s = max(self._next_s, self.now_s)
            self._advance_to(math.ceil(self._course.n_done(self._stays[-1].work_iterations(end_s))))
            while self._next_s <= self.now_s:
                found += self._slice_until(self._next_s)
                self._read_next()
        return tuple(found)

    def _drawn_w(self) -> float:
        """Return the power now, on its way from one limit's to the other's; what chance adds to it left out [W]."""
        stay = self._stays[-1]
        return stay.power_w + stay.excess_w * math.exp((stay.begin_s - self.now_s) / self._noise.settling_s)

    def _advance_to(self, n_iterations: int) -> None:
        """Train to the end of an iteration."""
        self._course.reach(n_iterations)
        stay = self._stays[-1]
        work = float(self._course.work[n_iterations])
        self.now_s = stay.begin_s + (work - stay.begin_work_iterations) * stay.iteration_time_s
        self.n_iterations = n_iterations

    def _read_next(self) -> None:
        """Decide when the counter is read next."""
        self._n_readings += 1
        self._due_s += self.reading_s
        self._next_s = self._due_s + self._n_readings * GOLDEN_RATIO % 1.0 * LATE_S

    def _slice_until(self, reading_s: float) -> list[Observation]:
        """Return the slice that ends with a reading, unless it began before the present stay."""
        stay, course = self._stays[-1], self._course
        begin_s, begin_iterations, begin_j = self._read_s, self._read_iterations, self._read_j
        self._read_s = reading_s
        if reading_s < stay.begin_s:
            return []
        self._read_j = self._shown_j(reading_s)
        self._read_iterations = course.n_done(stay.work_iterations(reading_s))
        if begin_s < stay.begin_s:
            return []
        first, last = math.floor(begin_iterations), math.floor(self._read_iterations)
        ends = course.work[first : last + 1]
        return [
            Observation(
                power_limit_w=stay.power_limit_w,
                active_s=reading_s - begin_s,
                n_iterations=self._read_iterations - begin_iterations,
                energy_j=self._read_j - begin_j,
                iteration_times_s=tuple(((ends[1:] - ends[:-1]) * stay.iteration_time_s).tolist()),
            )
        ]

    def _shown_j(self, time_s: float) -> float:
        """Return what the counter shows: the energy at its last tick [J]."""
        tick_s = self._noise.tick_s
        phase_s = self._course.phase_ratio * tick_s
        return self._energy_j(max(phase_s + math.floor((time_s - phase_s) / tick_s) * tick_s, 0.0))

    def _energy_j(self, time_s: float) -> float:
        """Return the energy used by a moment [J]."""
        stay = next(stay for stay in reversed(self._stays) if stay.begin_s <= time_s)
        course, settling_s = self._course, self._noise.settling_s
        weighed = course.weighed_iterations(stay.work_iterations(time_s)) - float(course.weighed_work[stay.n_before])
        settled = 1 - math.exp((stay.begin_s - time_s) / settling_s)
        return stay.begin_j + stay.power_w * stay.iteration_time_s * weighed + stay.excess_w * settling_s * settled
