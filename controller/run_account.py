"""The account of a run: its energy, carbon and cost, beside what the same work would have used at the prior limit.

Time is cut into slices at the readings of the meters. A slice in which iterations ran all the time is active: it counts
for the profile, and for the baseline by its iterations. Any other is a pause, which a limit does not change: it counts
the same on both sides. So does time in which a GPU of several could not be read, and what that one has used meanwhile.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from controller.clock import NS_PER_S
from controller.ports import EnergyMeter, Sample
from controller.run_log import RankLog
from policies.profile import PowerProfile
from policies.units import carbon_g, cost, energy_kwh

MAX_TIMES = 64
"""So many durations say how iterations scatter; a job with thousands a second must not fill the memory."""
LEAST_J = 1e-3
"""Less is rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """What a run did between two readings of the meters: all its GPUs, and its slowest rank.

    Attributes:
        begin_ns, end_ns: from when to when it was [ns].
        active: whether iterations ran all the time.
        n_iterations: how many passed, with fractions of those that began or ended outside.
        energy_j: what the GPUs used [J].
        gaps_s: the short gaps between iterations in it, as at the turn of an epoch [s].
        iteration_times_s: how long each took that ended in it, `MAX_TIMES` of them at most, evenly spread [s].
    """

    begin_ns: int
    end_ns: int
    active: bool
    n_iterations: float
    energy_j: float
    gaps_s: float = 0.0
    iteration_times_s: tuple[float, ...] = ()

    @property
    def duration_s(self) -> float:
        """Return how long it lasted [s]."""
        return (self.end_ns - self.begin_ns) / NS_PER_S


def cut(
    *,
    logs: Sequence[RankLog],
    meters: Sequence[EnergyMeter],
    since_ns: int,
    until_ns: int,
    patient_from_ns: int = 0,
    to_the_end: bool = False,
    entered_j: dict[EnergyMeter, float] | None = None,
) -> list[Slice]:
    """Return the slices from `since_ns` to `until_ns`, as far as every meter has read.

    Args:
        logs: the ranks on this node; a slice is active where each of them ran, and counts the slowest one's iterations.
        meters: the GPUs of the run; their energy is summed.
        since_ns: where the last cut ended [ns].
        until_ns: how far the ranks' iterations are known [ns].
        patient_from_ns: a meter that has not read since then is not waited for: its energy is missing, so no slice is
            active [ns].
        to_the_end: cut at `until_ns` too, between two readings: for the end of the run.
        entered_j: how far each meter's energy is in the slices of former cuts [J]; it is brought up to date. What has
            been missing of one that reads again is a slice without duration.
    """
    # In a long pause `until_ns` stands still while readings come: what is past it is left for later.
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
    read_j = {meter: _energy_at_j(samples, marks_ns) for meter, samples in readings.items()}
    energy_j = sum(read_j.values(), np.zeros(len(marks_ns)))
    pieces = [
        _slice(logs, a_ns, b_ns, float(energy_j[i + 1] - energy_j[i]))
        for i, (a_ns, b_ns) in enumerate(pairwise(marks_ns))
    ]
    if len(readings) < len(meters):
        pieces = [replace(piece, active=False) for piece in pieces]
    if pieces and entered_j is not None:
        pieces[:0] = _missed(read_j, entered_j, begin_ns)
    return pieces


def _missed(
    read_j: Mapping[EnergyMeter, NDArray[np.float64]], entered_j: dict[EnergyMeter, float], begin_ns: int
) -> list[Slice]:
    """Return what meters have read between the former cuts and this one, if anything, and note how far they are now."""
    missed_j = sum(max(float(at_j[0]) - entered_j.get(meter, float(at_j[0])), 0.0) for meter, at_j in read_j.items())
    entered_j |= {meter: float(at_j[-1]) for meter, at_j in read_j.items()}
    if missed_j < LEAST_J:
        return []
    return [Slice(begin_ns=begin_ns, end_ns=begin_ns, active=False, n_iterations=0.0, energy_j=missed_j)]


def _slice(logs: Sequence[RankLog], begin_ns: int, end_ns: int, energy_j: float) -> Slice:
    counts = [log.count(begin_ns, end_ns) for log in logs]
    slowest = logs[counts.index(min(counts))]
    return Slice(
        begin_ns=begin_ns,
        end_ns=end_ns,
        active=all(log.covers(begin_ns, end_ns) for log in logs),
        n_iterations=min(counts),
        energy_j=energy_j,
        gaps_s=slowest.gaps_s(begin_ns, end_ns),
        iteration_times_s=slowest.iteration_times_s(begin_ns, end_ns, at_most=MAX_TIMES),
    )


def _energy_at_j(samples: Sequence[Sample], marks_ns: Sequence[int]) -> NDArray[np.float64]:
    """Return a meter's cumulative energy at each mark, shape (n_marks,) [J]."""
    times_ns = [sample.time_ns for sample in samples]
    return np.interp(marks_ns, times_ns, [sample.energy_j or 0.0 for sample in samples])


@dataclass(slots=True, kw_only=True)
class RunAccount:
    """The running totals of a run on this node; every slice is added once."""

    energy_j: float = 0.0
    duration_s: float = 0.0
    n_iterations: float = 0.0
    """Of the active slices alone: a pause stands on both sides whole, with what iterations ran at its edges."""
    active_s: float = 0.0
    pause_s: float = 0.0
    """With the short gaps between iterations: no limit changes them, and no curve counts them."""
    pause_energy_j: float = 0.0
    signal_energy: float = 0.0
    """∫ c·P dt, in joules times the unit of the signal; what has no value counts with the last known one, and
    before any was known with the first."""
    pause_signal_energy: float = 0.0
    signal_iterations: float = 0.0
    signal_time: float = 0.0
    """∫ c dt, in seconds times the unit of the signal: what a watt beside the GPUs has cost."""
    has_signal: bool = False
    closed_energy_j: float = 0.0
    """The baseline of what ran on curves that hold no more; likewise the next two."""
    closed_s: float = 0.0
    closed_signal_energy: float = 0.0
    open_energy_j: float = 0.0
    """What the active slices since then have used; likewise the next two, in time without its gaps."""
    open_s: float = 0.0
    open_signal_energy: float = 0.0
    last_value: float | None = None
    """The last value of the signal that was known."""

    def add(self, piece: Slice, signal_value: float | None) -> None:
        """Add a slice during which the signal had a value; the last that was known stands in for a missing one."""
        if signal_value is not None and not self.has_signal:
            self._price_what_was_before(signal_value)
        value = self.last_value if signal_value is None else signal_value
        self.last_value = value
        self.energy_j += piece.energy_j
        self.duration_s += piece.duration_s
        if piece.active:
            self.n_iterations += piece.n_iterations
            self.active_s += piece.duration_s
            self.pause_s += piece.gaps_s
            self.open_energy_j += piece.energy_j
            self.open_s += piece.duration_s - piece.gaps_s
        else:
            self.pause_s += piece.duration_s
            self.pause_energy_j += piece.energy_j
        if value is not None:
            self.signal_energy += piece.energy_j * value
            self.signal_time += piece.duration_s * value
            if piece.active:
                self.signal_iterations += piece.n_iterations * value
                self.open_signal_energy += piece.energy_j * value
            else:
                self.pause_signal_energy += piece.energy_j * value

    def forget_signal(self) -> None:
        """Forget what was counted by a signal that is another one now: its first value prices what was before."""
        self.signal_energy = self.pause_signal_energy = self.closed_signal_energy = 0.0
        self.signal_iterations = self.signal_time = self.open_signal_energy = 0.0
        self.has_signal, self.last_value = False, None

    def _price_what_was_before(self, value: float) -> None:
        """Give what ran before the signal was known its first value: a budget has paid for it, whatever it was."""
        self.has_signal = True
        self.signal_energy = self.energy_j * value
        self.signal_time = self.duration_s * value
        self.signal_iterations = self.n_iterations * value
        self.pause_signal_energy = self.pause_energy_j * value
        self.closed_signal_energy = self.closed_energy_j * value
        self.open_signal_energy = self.open_energy_j * value

    def close_curve(self, profile: PowerProfile | None) -> None:
        """Settle the baseline of the iterations so far: another curve holds for those to come.

        Without a curve nothing is known of them but what they were: that is what they would have been.
        """
        if profile is None:
            self.closed_energy_j += self.open_energy_j
            self.closed_s += self.open_s
            self.closed_signal_energy += self.open_signal_energy
        else:
            iteration_energy_j = profile.fastest.power_w / profile.fastest.iterations_per_s
            self.closed_energy_j += self.n_iterations * iteration_energy_j
            self.closed_s += self.n_iterations / profile.fastest.iterations_per_s
            self.closed_signal_energy += self.signal_iterations * iteration_energy_j
        self.n_iterations = self.signal_iterations = 0.0
        self.open_energy_j = self.open_s = self.open_signal_energy = 0.0

    def spent(self, *, kind: str, host_power_w: float = 0.0, pue: float = 1.0) -> float | None:
        """Return what a budget has paid so far: grams or money, or kWh where the signal is plain energy.

        None while the signal has never been known.

        Args:
            kind: the kind of the signal: `carbon`, `price` or `energy`.
            host_power_w: what the rest of the machine draws all the time [W].
            pue: what the building draws per watt of the machine.
        """
        if kind == "energy":
            return energy_kwh(pue * (self.energy_j + host_power_w * self.duration_s))
        convert = cost if kind == "price" else carbon_g
        return convert(pue * (self.signal_energy + host_power_w * self.signal_time), 1.0) if self.has_signal else None

    def report(self, *, kind: str, profile: PowerProfile | None) -> dict[str, float | None]:
        """Return the totals and, where the profile is known, the baseline, by the names of `RunEnergy`."""
        fields: dict[str, float | None] = {"energy_j": self.energy_j, "duration_s": self.duration_s}
        name, convert = ("cost", cost) if kind == "price" else ("carbon_g", carbon_g)
        if self.has_signal and kind != "energy":
            fields[name] = convert(self.signal_energy, 1.0)
        if profile is None or self.n_iterations <= 0:
            return fields
        fastest = profile.fastest
        iteration_energy_j = fastest.power_w / fastest.iterations_per_s
        baseline_energy_j = self.n_iterations * iteration_energy_j + self.pause_energy_j + self.closed_energy_j
        baseline_duration_s = self.n_iterations / fastest.iterations_per_s + self.pause_s + self.closed_s
        fields |= {"baseline_energy_j": baseline_energy_j, "baseline_duration_s": baseline_duration_s}
        fields["slowdown_ratio"] = self.duration_s / baseline_duration_s
        saved, baseline = self.energy_j, baseline_energy_j
        if self.has_signal and kind != "energy":
            baseline = (
                self.signal_iterations * iteration_energy_j + self.pause_signal_energy + self.closed_signal_energy
            )
            saved = self.signal_energy
            if kind == "carbon":
                fields["baseline_carbon_g"] = carbon_g(baseline, 1.0)
        fields["saved_ratio"] = 1 - saved / baseline if baseline > 0 else None
        return fields
