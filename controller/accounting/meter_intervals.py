"""Meter readings divide the time of a run into intervals: what its GPUs used, and what its ranks did meanwhile."""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from controller.accounting.iteration_log import RankLog, n_together
from controller.ports import EnergyMeter, Sample
from controller.runtime.clock import NS_PER_S

MAX_TIMES = 64
"""So many durations show how iterations scatter; a job with thousands a second must not fill the memory."""
LEAST_J = 1e-3
"""Less is rounding."""
CARRIED_S = 5.0
"""A GPU that was not read for longer before the end of a run is taken to have drawn its last power."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeterInterval:
    """What a run did between two readings of the meters: all its GPUs, and its slowest rank.

    Attributes:
        begin_ns, end_ns: from when to when [ns].
        active: whether iterations ran all the time.
        n_iterations: how many passed, with fractions of those that began or ended outside; where their work is known,
            how many of mean work.
        energy_j: the energy of the GPUs [J].
        interpolated_energy_j: the same, with what their counters had not counted at its ends [J]; None: not known.
        instant_power_w: the draw of the GPUs at its end [W]; None where one does not tell it.
        n_instants: the share of them that have told a new one in it.
        gaps_s: the short gaps between iterations in it, as at the turn of an epoch [s].
        iteration_times_s: how long each took that ended in it, `MAX_TIMES` of them at most, evenly spread [s].
        is_asked: whether it is a pause that was asked for.
        unmeasured_s: for how long a GPU could not be read: its energy is estimated, so the interval is not active [s].
        temperature_c: the mean temperature of the GPUs [°C]; None where one does not tell it.
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
    unmeasured_s: float = 0.0
    temperature_c: float | None = None
    interpolated_energy_j: float | None = None
    instant_power_w: float | None = None
    n_instants: float = 0.0
    duration_s: float = field(init=False)

    def __post_init__(self) -> None:
        """Compute the duration."""
        object.__setattr__(self, "duration_s", (self.end_ns - self.begin_ns) / NS_PER_S)

    @property
    def gaps_energy_j(self) -> float:
        """Return the energy of the gaps [J]: their share of the interval's, since readings do not tell them apart."""
        return self.energy_j * self.gaps_s / self.duration_s if self.gaps_s and self.duration_s else 0.0


def meter_intervals(
    *,
    logs: Sequence[RankLog],
    meters: Sequence[EnergyMeter],
    since_ns: int,
    until_ns: int,
    patient_from_ns: int = 0,
    to_the_end: bool = False,
    accounted: dict[EnergyMeter, Sample] | None = None,
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
        to_the_end: cut at `until_ns` too, between two readings: for the end of the run. A GPU that cannot be read any
            more has drawn its last power until then.
        accounted: how far each meter is in the intervals of former calls; it is updated. The missing energy of a meter
            that reads again is an interval without duration.
    """
    readings = _readings(meters, since_ns, until_ns, to_the_end=to_the_end)
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
    read = {meter: [_at(samples, mark_ns) for mark_ns in marks_ns] for meter, samples in readings.items()}
    intervals = [_interval(logs, [(each[i], each[i + 1]) for each in read.values()]) for i in range(len(marks_ns) - 1)]
    if len(readings) < len(meters):
        never_read = any(meter.latest is None for meter in meters)  # what it uses is in no later interval
        intervals = [
            replace(each, active=False, unmeasured_s=each.duration_s if never_read else each.unmeasured_s)
            for each in intervals
        ]
    if accounted is not None:
        for meter in meters:  # what one that fails from the very beginning has used is known when it reads again
            if meter not in accounted and (samples := meter.samples_since(begin_ns, until_ns=begin_ns)):
                accounted[meter] = _at(samples, begin_ns)
        intervals[:0] = _missed(read, accounted, begin_ns)
    return intervals


def _readings(
    meters: Sequence[EnergyMeter], since_ns: int, until_ns: int, *, to_the_end: bool
) -> dict[EnergyMeter, Sequence[Sample]]:
    # In a long pause `until_ns` stands still while readings come: those past it are left for later.
    readings = {meter: meter.samples_since(since_ns, until_ns=until_ns) for meter in meters}
    return {m: _carried_forward(each, until_ns) for m, each in readings.items()} if to_the_end else readings


def _carried_forward(samples: Sequence[Sample], until_ns: int) -> Sequence[Sample]:
    """Return samples with one more where a GPU could not be read at the end: it has drawn its last power since."""
    if not samples or (missing_s := (until_ns - samples[-1].time_ns) / NS_PER_S) <= CARRIED_S:
        return samples
    last = samples[-1]
    energy_j = (last.energy_j or 0.0) + (last.power_w or 0.0) * missing_s
    unmeasured_s = last.unmeasured_s + missing_s
    return [*samples, replace(last, time_ns=until_ns, energy_j=energy_j, unmeasured_s=unmeasured_s, uncounted_j=None)]


def _missed(
    read: Mapping[EnergyMeter, Sequence[Sample]], accounted: dict[EnergyMeter, Sample], begin_ns: int
) -> list[MeterInterval]:
    """Return what meters have read between the former intervals and these, if anything, and update `accounted`."""
    pairs = [(accounted.get(meter, samples[0]), samples[0]) for meter, samples in read.items()]
    missed_j, unmeasured_s = sum(max(_used_j(pair), 0.0) for pair in pairs), _unmeasured_s(pairs)
    accounted |= {meter: samples[-1] for meter, samples in read.items()}
    if missed_j < LEAST_J and not unmeasured_s:
        return []
    return [
        MeterInterval(
            begin_ns=begin_ns,
            end_ns=begin_ns,
            active=False,
            n_iterations=0.0,
            energy_j=missed_j,
            unmeasured_s=unmeasured_s,
        )
    ]


def _interval(logs: Sequence[RankLog], readings: Sequence[tuple[Sample, Sample]]) -> MeterInterval:
    begin_ns, end_ns = (sample.time_ns for sample in readings[0])
    unmeasured_s = _unmeasured_s(readings)
    activities = [log.activity(begin_ns, end_ns) for log in logs]
    counts = [activity.n_iterations for activity in activities]
    slowest = counts.index(min(counts))
    return MeterInterval(
        begin_ns=begin_ns,
        end_ns=end_ns,
        active=not unmeasured_s and all(activity.is_continuous for activity in activities),
        n_iterations=n_together(logs, activities),
        energy_j=sum(map(_used_j, readings)),
        unmeasured_s=unmeasured_s,
        gaps_s=max(activity.gaps_s for activity in activities),  # the others wait for it
        iteration_times_s=logs[slowest].iteration_times_s(begin_ns, end_ns, at_most=MAX_TIMES),
        temperature_c=_mean_temperature_c(readings),
        interpolated_energy_j=_interpolated_j(readings),
        instant_power_w=_instant_power_w(readings),
        n_instants=sum(after.n_instants > before.n_instants for before, after in readings) / len(readings),
    )


def _mean_temperature_c(readings: Sequence[tuple[Sample, Sample]]) -> float | None:
    temperatures_c = [sample.temperature_c for pair in readings for sample in pair]
    known_c = [each_c for each_c in temperatures_c if each_c is not None]
    return sum(known_c) / len(known_c) if len(known_c) == len(temperatures_c) else None


def _instant_power_w(readings: Sequence[tuple[Sample, Sample]]) -> float | None:
    instants_w = [after.instant_power_w for _, after in readings]
    known_w = [each_w for each_w in instants_w if each_w is not None]
    return sum(known_w) if len(known_w) == len(instants_w) else None


def _interpolated_j(readings: Sequence[tuple[Sample, Sample]]) -> float | None:
    energy_j = 0.0
    for before, after in readings:
        if before.uncounted_j is None or after.uncounted_j is None:
            return None
        energy_j += _used_j((before, after)) + after.uncounted_j - before.uncounted_j
    return energy_j


def _used_j(readings: tuple[Sample, Sample]) -> float:
    before, after = readings
    return (after.energy_j or 0.0) - (before.energy_j or 0.0)


def _unmeasured_s(readings: Iterable[tuple[Sample, Sample]]) -> float:
    """Return for how long the energy between two readings of each meter is an estimate, at most [s]."""
    return max((after.unmeasured_s - before.unmeasured_s for before, after in readings), default=0.0)


def _at(samples: Sequence[Sample], time_ns: int) -> Sample:
    """Return a meter's sums at a moment; beyond its samples those of the nearest one."""
    after_at = bisect_left(samples, time_ns, key=lambda sample: sample.time_ns)
    before, after = samples[max(after_at - 1, 0)], samples[min(after_at, len(samples) - 1)]
    if after.time_ns == time_ns:  # nearly always
        return after
    if not before.time_ns < time_ns < after.time_ns:
        return replace(after if time_ns >= after.time_ns else before, time_ns=time_ns)
    share = (time_ns - before.time_ns) / (after.time_ns - before.time_ns)
    return replace(
        before,
        time_ns=time_ns,
        energy_j=(before.energy_j or 0.0) + share * _used_j((before, after)),
        uncounted_j=None
        if before.uncounted_j is None or after.uncounted_j is None
        else before.uncounted_j + share * (after.uncounted_j - before.uncounted_j),
        unmeasured_s=before.unmeasured_s + share * (after.unmeasured_s - before.unmeasured_s),
    )
