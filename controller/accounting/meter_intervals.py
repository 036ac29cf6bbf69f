"""Meter readings divide the time of a run into intervals: what its GPUs used, and what its ranks did meanwhile."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from controller.accounting.iteration_log import IterationLog
from controller.clock import NS_PER_S
from controller.ports import EnergyMeter, Sample

MAX_TIMES = 64
"""So many durations show how iterations scatter; a job with thousands a second must not fill the memory."""
LEAST_J = 1e-3
"""Less is rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeterInterval:
    """What a run did between two readings of the meters: all its GPUs, and its slowest rank.

    Attributes:
        begin_ns, end_ns: from when to when [ns].
        active: whether iterations ran all the time.
        n_iterations: how many passed, with fractions of those that began or ended outside.
        energy_j: the energy of the GPUs [J].
        gaps_s: the short gaps between iterations in it, as at the turn of an epoch [s].
        iteration_times_s: how long each took that ended in it, `MAX_TIMES` of them at most, evenly spread [s].
        is_asked: whether it is a pause that was asked for.
        duration_s: how long the interval lasted [s].
    """

    begin_ns: int
    end_ns: int
    active: bool
    n_iterations: float
    energy_j: float
    gaps_s: float = 0.0
    iteration_times_s: tuple[float, ...] = ()
    is_asked: bool = False
    duration_s: float = field(init=False)

    def __post_init__(self) -> None:
        """Compute the duration."""
        object.__setattr__(self, "duration_s", (self.end_ns - self.begin_ns) / NS_PER_S)

    @property
    def gaps_energy_j(self) -> float:
        """Return the energy of the gaps [J]: their share of the interval's, since readings do not tell them apart."""
        return self.energy_j * self.gaps_s / self.duration_s if self.gaps_s else 0.0


def meter_intervals(
    *,
    logs: Sequence[IterationLog],
    meters: Sequence[EnergyMeter],
    since_ns: int,
    until_ns: int,
    patient_from_ns: int = 0,
    to_the_end: bool = False,
    accounted_j: dict[EnergyMeter, float] | None = None,
) -> list[MeterInterval]:
    """Return the intervals from `since_ns` to `until_ns`, as far as every meter has read.

    Args:
        logs: the ranks on this node; an interval is active where each of them ran, and counts the slowest one's
            iterations.
        meters: the GPUs of the run; their energy is summed.
        since_ns: where the last call ended [ns].
        until_ns: how far the ranks' iterations are known [ns].
        patient_from_ns: a meter that has not read since then is not waited for: its energy is missing, so no interval
            is active [ns].
        to_the_end: cut at `until_ns` too, between two readings: for the end of the run.
        accounted_j: how far each meter's energy is in the intervals of former calls [J]; it is updated. The missing
            energy of a meter that reads again is an interval without duration.
    """
    # In a long pause `until_ns` stands still while readings come: those past it are left for later.
    readings = {meter: meter.samples_since(since_ns, until_ns=until_ns) for meter in meters}
    awaited_ns = min(patient_from_ns, until_ns)
    alive = {meter: samples for meter, samples in readings.items() if samples and samples[-1].time_ns >= awaited_ns}
    readings = alive or readings
    if not readings or not all(readings.values()):
        return []
    until_ns = min(until_ns, *(samples[-1].time_ns for samples in readings.values()))
    begin_ns = max(since_ns, *(samples[0].time_ns for samples in readings.values()))
    first = next(iter(readings.values()))
    marks_ns = [begin_ns, *(s.time_ns for s in first if begin_ns < s.time_ns <= until_ns)]
    if to_the_end and marks_ns[-1] < until_ns:
        marks_ns.append(until_ns)
    if len(marks_ns) < 2:  # noqa: PLR2004 — no interval has ended
        return []
    read_j = {meter: _energy_at_j(samples, marks_ns) for meter, samples in readings.items()}
    energy_j = sum(read_j.values(), np.zeros(len(marks_ns)))
    intervals = [
        _interval(logs, a_ns, b_ns, float(energy_j[i + 1] - energy_j[i]))
        for i, (a_ns, b_ns) in enumerate(pairwise(marks_ns))
    ]
    if len(readings) < len(meters):
        intervals = [replace(interval, active=False) for interval in intervals]
    if accounted_j is not None:
        for meter in meters:  # what one that fails from the very beginning has used is known when it reads again
            if meter not in accounted_j and (samples := meter.samples_since(begin_ns, until_ns=begin_ns)):
                accounted_j[meter] = float(_energy_at_j(samples, [begin_ns])[0])
        intervals[:0] = _missed(read_j, accounted_j, begin_ns)
    return intervals


def _missed(
    read_j: Mapping[EnergyMeter, NDArray[np.float64]], accounted_j: dict[EnergyMeter, float], begin_ns: int
) -> list[MeterInterval]:
    """Return what meters have read between the former intervals and these, if anything, and update `accounted_j`."""
    missed_j = sum(max(float(at_j[0]) - accounted_j.get(meter, float(at_j[0])), 0.0) for meter, at_j in read_j.items())
    accounted_j |= {meter: float(at_j[-1]) for meter, at_j in read_j.items()}
    if missed_j < LEAST_J:
        return []
    return [MeterInterval(begin_ns=begin_ns, end_ns=begin_ns, active=False, n_iterations=0.0, energy_j=missed_j)]


def _interval(logs: Sequence[IterationLog], begin_ns: int, end_ns: int, energy_j: float) -> MeterInterval:
    activities = [log.activity(begin_ns, end_ns) for log in logs]
    counts = [activity.n_iterations for activity in activities]
    slowest = counts.index(min(counts))
    return MeterInterval(
        begin_ns=begin_ns,
        end_ns=end_ns,
        active=all(activity.is_continuous for activity in activities),
        n_iterations=counts[slowest],
        energy_j=energy_j,
        gaps_s=max(activity.gaps_s for activity in activities),  # the others wait for it
        iteration_times_s=logs[slowest].iteration_times_s(begin_ns, end_ns, at_most=MAX_TIMES),
    )


def _energy_at_j(samples: Sequence[Sample], marks_ns: Sequence[int]) -> NDArray[np.float64]:
    """Return a meter's cumulative energy at each mark, shape (n_marks,) [J]."""
    times_ns = [sample.time_ns for sample in samples]
    return np.interp(marks_ns, times_ns, [sample.energy_j or 0.0 for sample in samples])
