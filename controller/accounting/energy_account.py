"""The energy account of a run: energy, carbon and cost, and the baseline of the same work at the prior limit.

The account of a run: its energy, carbon and cost, beside what the same work would have used at the prior limit.

Time is cut into slices at the readings of the meters. A slice in which iterations ran all the time is active: it counts
for the profile, and for the baseline by its iterations. Any other is a pause, which a limit does not change: it counts
the same on both sides. So does time in which a GPU of several could not be read, and what that one has used meanwhile.

The books of a run on this node: what has become known since the last time is cut into slices, and entered once.

Where a former controller kept books of the same run, they go on: the time without a controller is one pause, with the
energy that the GPUs' own counters tell.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from controller.accounting.iteration_log import IterationLog
from controller.clock import NS_PER_S, Clock
from controller.ports import EnergyMeter, Sample, SignalSource
from policies.vocabulary.profile import PowerProfile
from policies.vocabulary.units import carbon_g, cost, energy_kwh

MAX_TIMES = 64
"""So many durations say how iterations scatter; a job with thousands a second must not fill the memory."""
LEAST_J = 1e-3
"""Less is rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeterInterval:
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
    logs: Sequence[IterationLog],
    meters: Sequence[EnergyMeter],
    since_ns: int,
    until_ns: int,
    patient_from_ns: int = 0,
    to_the_end: bool = False,
    entered_j: dict[EnergyMeter, float] | None = None,
) -> list[MeterInterval]:
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
) -> list[MeterInterval]:
    """Return what meters have read between the former cuts and this one, if anything, and note how far they are now."""
    missed_j = sum(max(float(at_j[0]) - entered_j.get(meter, float(at_j[0])), 0.0) for meter, at_j in read_j.items())
    entered_j |= {meter: float(at_j[-1]) for meter, at_j in read_j.items()}
    if missed_j < LEAST_J:
        return []
    return [MeterInterval(begin_ns=begin_ns, end_ns=begin_ns, active=False, n_iterations=0.0, energy_j=missed_j)]


def _slice(logs: Sequence[IterationLog], begin_ns: int, end_ns: int, energy_j: float) -> MeterInterval:
    counts = [log.count(begin_ns, end_ns) for log in logs]
    slowest = logs[counts.index(min(counts))]
    return MeterInterval(
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
class EnergyTotals:
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

    def add(self, piece: MeterInterval, signal_value: float | None) -> None:
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


METER_PATIENCE = 12
"""A meter that fails is not waited for longer than this part of what iterations are waited for."""
HOLD_BACK_S = 750.0
"""Energy waits so long for the iterations that go with it; after that the time was a pause."""
HOLD_BACK_TICKS = 7_500
"""Nor does it wait longer than so many ticks (750 s at the usual 0.1 s): a meter remembers somewhat more."""
SIGNAL_PATIENCE_S = 60.0
"""Books that are taken up wait so long for a signal to price the time without a controller by."""
GPU_PATIENCE_S = 30.0
"""And so long for the GPUs that they are of, which come with the ranks' statuses: for three heartbeats."""
PRICED_S = 300.0
"""Of that time, each so long a part has a price of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountSnapshot:
    """The books as they stand: the account, up to when it goes [ns], and where each GPU's counter stood then [J].

    `signal`: the kind and the unit of the signal that the account counts by, as far as they are known. `passed_on`: the
    GPUs that another run has had since; what they have used meanwhile is in its account.
    """

    account: EnergyTotals
    cut_ns: int
    counters_j: Mapping[str, float | None]
    signal: tuple[str | None, str | None] = None, None
    passed_on: tuple[str, ...] = ()


class EnergyAccount:
    """The account of a run, and how far it goes."""

    def __init__(self, *, clock: Clock, signal: SignalSource) -> None:
        self.account = EnergyTotals()
        self._clock = clock
        self._signal = signal
        self._cut_ns: int | None = None
        self._unit: str | None = None
        """Of the signal that the account counts by; None before one was known."""
        self._before: AccountSnapshot | None = None
        """Of a former controller, until it is known what the GPUs have used since."""
        self._taken_up_ns = 0
        self._entered_j: dict[EnergyMeter, float] = {}
        """How far each meter's energy is in the account [J]."""
        self.is_blind = False
        """Whether a GPU cannot be read: what is measured is not the whole run."""

    def go_on_from(self, before: AccountSnapshot) -> None:
        """Take up the books of a former controller, before anything is entered."""
        self.account, self._cut_ns, self._before = replace(before.account), before.cut_ns, before
        self._taken_up_ns = self._clock.monotonic_ns()
        kind, self._unit = before.signal
        if kind not in {None, self._signal.kind}:
            self._unit = None
            self.account.forget_signal()

    def awaits(self, uuid: str) -> bool:
        """Return whether nothing is entered yet since former books were taken up, and a GPU is one of theirs."""
        return self._before is not None and uuid in self._before.counters_j

    def leave_the_gap(self) -> bool:
        """Leave the time without a controller out, where nothing was entered since: nobody knows when the run ended.

        Returns:
            Whether nothing was: the former books are still the ones to go on from.
        """
        left, self._before = self._before, None
        return left is not None

    def balance(self, meters: Mapping[str, EnergyMeter]) -> AccountSnapshot | None:
        """Return the books as they stand, with the counters of the run's GPUs, by UUID; None where they are empty."""
        if self._cut_ns is None or self._before is not None:
            return self._before
        counters_j = {uuid: meter.counter_at_j(self._cut_ns) for uuid, meter in meters.items()}
        signal = self._signal.kind, self._unit
        return AccountSnapshot(account=replace(self.account), cut_ns=self._cut_ns, counters_j=counters_j, signal=signal)

    def cut(
        self,
        known_ns: tuple[int, int],
        *,
        logs: Sequence[IterationLog],
        meters: Mapping[str, EnergyMeter],
        tick_s: float,
        to_the_end: bool = False,
    ) -> Iterator[MeterInterval]:
        """Yield what has become known since the last cut, oldest first, each once it stands in the account.

        Args:
            known_ns: from when to when the iterations of every rank are known [ns].
            logs: the ranks on this node.
            meters: the GPUs of the run, by UUID.
            tick_s: how often this is called at least [s].
            to_the_end: wait for nothing more: the run has ended.
        """
        now_s, now_ns = self._clock.now_s(), self._clock.monotonic_ns()
        if not to_the_end and self._waits(now_ns, meters):
            return
        patience_ns = int(min(HOLD_BACK_S, HOLD_BACK_TICKS * tick_s) * NS_PER_S)
        patient_from_ns = now_ns - patience_ns // METER_PATIENCE
        since_ns, until_ns = self._span_ns(known_ns, least_until_ns=0 if to_the_end else now_ns - patience_ns)
        self.is_blind = any(_last_ns(meter, now_ns) < patient_from_ns for meter in meters.values())
        pieces = cut(
            logs=logs,
            meters=list(meters.values()),
            since_ns=since_ns,
            until_ns=until_ns,
            patient_from_ns=patient_from_ns,
            to_the_end=to_the_end,
            entered_j=self._entered_j,
        )
        if pieces or to_the_end:
            pieces[:0] = self._gap(pieces[0].begin_ns if pieces else now_ns, meters)
        history = self._signal.history()
        if history is not None:
            self._count_in(history.unit)
        for piece in pieces:
            self._cut_ns = piece.end_ns
            at_s = now_s - (now_ns - piece.begin_ns) / NS_PER_S
            self.account.add(piece, history.value_at(at_s) if history else None)
            yield piece

    def _span_ns(self, known_ns: tuple[int, int], *, least_until_ns: int) -> tuple[int, int]:
        """Return from when to when the books may be cut now [ns]."""
        since_ns, until_ns = known_ns if self._cut_ns is None else (self._cut_ns, known_ns[1])
        until_ns = max(until_ns, least_until_ns)
        if self._before is None or not self._before.passed_on:
            return since_ns, until_ns
        since_ns = max(since_ns, self._taken_up_ns)  # until then the meters tell of another run, too
        return since_ns, max(since_ns, until_ns)

    def _gap(self, until_ns: int, meters: Mapping[str, EnergyMeter]) -> list[MeterInterval]:
        """Return the time between the former books and what is entered first, once."""
        if self._before is None:
            return []
        before, self._before = self._before, None
        if not before.counters_j.keys() <= meters.keys():  # no curve of fewer GPUs tells what theirs would be
            self.account.close_curve(None)
        return _between(before, until_ns, meters)

    def _count_in(self, unit: str) -> None:
        """Count by a signal of this unit from here on; sums in another one, of a former controller, are void."""
        if self._unit not in {None, unit}:
            self.account.forget_signal()
        self._unit = unit

    def _waits(self, now_ns: int, meters: Mapping[str, EnergyMeter]) -> bool:
        """Return whether the signal that priced the former books, or one of their GPUs, has not come yet, and may."""
        if self._before is None:
            return False
        waited_s = (now_ns - self._taken_up_ns) / NS_PER_S
        if waited_s < GPU_PATIENCE_S and not self._before.counters_j.keys() <= meters.keys():
            return True
        lacks_signal = self._before.account.has_signal and self._signal.history() is None
        return lacks_signal and waited_s < SIGNAL_PATIENCE_S


def _last_ns(meter: EnergyMeter, now_ns: int) -> int:
    """Return when a meter was read last [ns]."""
    samples = meter.samples_since(now_ns)
    return samples[-1].time_ns if samples else 0


def _between(before: AccountSnapshot, until_ns: int, meters: Mapping[str, EnergyMeter]) -> list[MeterInterval]:
    """Return the time without a controller as one pause, in parts; nothing where its books do not end before it.

    What a GPU without a counter has used since, or one whose counter fell, is what it used before on average.
    """
    if until_ns <= before.cut_ns:
        return []
    duration_s, account = (until_ns - before.cut_ns) / NS_PER_S, before.account
    mean_power_w = account.energy_j / account.duration_s / len(before.counters_j) if account.duration_s else 0.0
    energy_j = 0.0
    for uuid, then_j in before.counters_j.items():
        now_j = meters[uuid].counter_at_j(until_ns) if uuid in meters else None
        if uuid in before.passed_on:
            continue
        if then_j is not None and now_j is not None and now_j >= then_j:
            energy_j += now_j - then_j
        else:
            energy_j += mean_power_w * duration_s
    marks_ns = np.linspace(before.cut_ns, until_ns, math.ceil(duration_s / PRICED_S) + 1).astype(np.int64).tolist()
    part_j = energy_j / (len(marks_ns) - 1)
    return [
        MeterInterval(begin_ns=begin_ns, end_ns=end_ns, active=False, n_iterations=0.0, energy_j=part_j)
        for begin_ns, end_ns in pairwise(marks_ns)
    ]
