"""The energy account of a run: energy, carbon and cost, and the time in which they were used.

An interval between two readings of the meters in which iterations ran throughout is active; any other is a pause. So is
time in which one of several GPUs could not be read, with its energy.

An account outlives its controller: after a restart it resumes from a snapshot, and the time without a controller is one
pause, with the energy that the GPUs' own counters show.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from controller.accounting.iteration_log import RankLog
from controller.accounting.meter_intervals import MeterInterval, meter_intervals
from controller.ports import EnergyMeter, Sample, SignalSource
from controller.runtime.clock import NS_PER_S, Clock, Now
from policies.vocabulary.units import carbon_g, cost, energy_kwh

METER_TIMEOUT_DIVISOR = 12
"""A meter that fails is waited for this many times less long than iterations are."""
HOLD_BACK_S = 750.0
"""Energy waits so long for the iterations that go with it; after that the time was a pause."""
HOLD_BACK_TICKS = 7_500
"""Nor does it wait longer than so many ticks (750 s at the usual 0.1 s): a meter remembers somewhat more."""
SIGNAL_PATIENCE_S = 60.0
"""A resumed account waits so long for a signal to price the time without a controller."""
GPU_PATIENCE_S = 30.0
"""And so long for its GPUs, which come with the ranks' statuses: for three heartbeats."""
PRICED_S = 300.0
"""Each part of that time, so long, has a price of its own."""
UNMEASURED_RATIO = 0.01
"""A record that lacks more of the run's time than this says so."""
LEAST_UNMEASURED_S = 0.01
"""Less is not told: a run often begins within a sample period."""


@dataclass(slots=True, kw_only=True)
class EnergyTotals:
    """The running totals of a run on this node; every interval is added once.

    Attributes:
        energy_j, duration_s: in all [J], [s].
        signal_energy: ∫ c·P dt, in joules times the unit of the signal. Energy without a value counts with the last
            known one, and before any was known with the first.
        signal_time: ∫ c dt, in seconds times the unit of the signal: what a watt beside the GPUs has cost.
        has_signal: whether a value of the signal was ever known.
        last_value: the last known value of the signal.
        unmeasured_s: for how long the GPUs were not read: before the first interval, of which no energy is known, and
            since then, where their energy is an estimate [s].
        paused_s: how long the pauses were that were asked for [s].
    """

    energy_j: float = 0.0
    duration_s: float = 0.0
    signal_energy: float = 0.0
    signal_time: float = 0.0
    has_signal: bool = False
    last_value: float | None = None
    unmeasured_s: float = 0.0
    paused_s: float = 0.0

    @property
    def is_unmeasured(self) -> bool:
        """Return whether a part of the run that matters was not measured."""
        return self.unmeasured_s > UNMEASURED_RATIO * (self.duration_s + self.unmeasured_s)

    def add(self, interval: MeterInterval, signal_value: float | None) -> None:
        """Add an interval during which the signal had a value; the last known one replaces a missing one."""
        if signal_value is not None and not self.has_signal:
            self._price_earlier(signal_value)
        value = self.last_value if signal_value is None else signal_value
        self.last_value = value
        self.energy_j += interval.energy_j
        self.duration_s += interval.duration_s
        self.unmeasured_s += interval.unmeasured_s
        if interval.is_asked:
            self.paused_s += interval.duration_s
        if value is not None:
            self.signal_energy += interval.energy_j * value
            self.signal_time += interval.duration_s * value

    def forget_signal(self) -> None:
        """Forget sums in the unit of a former signal; the first value of the new one prices what ran before."""
        self.signal_energy = self.signal_time = 0.0
        self.has_signal, self.last_value = False, None

    def _price_earlier(self, value: float) -> None:
        """Price what ran before the signal was known with its first value: a budget has paid for it."""
        self.has_signal = True
        self.signal_energy = self.energy_j * value
        self.signal_time = self.duration_s * value

    def spent(self, *, kind: str, host_power_w: float = 0.0, pue: float = 1.0) -> float | None:
        """Return what a budget has paid so far: grams or money, or kWh where the signal is plain energy.

        None while no value of the signal has been known.

        Args:
            kind: the kind of the signal: `carbon`, `price` or `energy`.
            host_power_w: what the rest of the machine draws all the time [W].
            pue: what the building draws per watt of the machine.
        """
        if kind == "energy":
            return energy_kwh(pue * (self.energy_j + host_power_w * self.duration_s))
        convert = cost if kind == "price" else carbon_g
        return convert(pue * (self.signal_energy + host_power_w * self.signal_time), 1.0) if self.has_signal else None

    def report(self, *, kind: str) -> dict[str, float | None]:
        """Return the totals by the names of `RunEnergy`."""
        fields: dict[str, float | None] = {"energy_j": self.energy_j, "duration_s": self.duration_s}
        if self.paused_s:
            fields["paused_s"] = self.paused_s
        if self.unmeasured_s >= LEAST_UNMEASURED_S:
            fields["unmeasured_s"] = self.unmeasured_s
        name, convert = ("cost", cost) if kind == "price" else ("carbon_g", carbon_g)
        if self.has_signal and kind != "energy":
            fields[name] = convert(self.signal_energy, 1.0)
        return fields


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountSnapshot:
    """An account as it stands.

    Attributes:
        totals: the totals.
        until_ns: up to when they go [ns].
        counters_j: where the counter of each GPU stood then, by UUID [J].
        signal: the kind and the unit of the signal that the totals count by, as far as they are known.
        reassigned_gpus: GPUs that another run has had since; their energy meanwhile is in its account.
    """

    totals: EnergyTotals
    until_ns: int
    counters_j: Mapping[str, float | None]
    signal: tuple[str | None, str | None] = None, None
    reassigned_gpus: tuple[str, ...] = ()

    def without_gpu(self, uuid: str) -> "AccountSnapshot":
        """Return the account of the other GPUs: nothing more is expected of this one."""
        return replace(self, counters_j={gpu: at_j for gpu, at_j in self.counters_j.items() if gpu != uuid})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Resumption:
    """A former account that is continued, until it is known what the GPUs have used since.

    Attributes:
        snapshot: the former account.
        at_ns: when it was continued [ns].
        skips_downtime: whether the time until then is none of the run's.
    """

    snapshot: AccountSnapshot
    at_ns: int
    skips_downtime: bool

    @property
    def has_foreign_past(self) -> bool:
        """Return whether what the meters counted before is, or may be, another run's."""
        return bool(self.snapshot.reassigned_gpus) or self.skips_downtime


class EnergyAccount:
    """The totals of a run, and how far they go.

    Attributes:
        totals: the totals.
        has_unreadable_gpu: whether a GPU cannot be read: what is measured is not the whole run.
    """

    def __init__(self, *, clock: Clock, signal: SignalSource) -> None:
        self.totals = EnergyTotals()
        self.has_unreadable_gpu = False
        self._clock = clock
        self._signal = signal
        self._until_ns: int | None = None
        self._unit: str | None = None
        """Of the signal that the totals count by; None before one was known."""
        self._resumption: _Resumption | None = None
        self._has_other_gpus = False
        self._suspended: AccountSnapshot | None = None
        self._accounted: dict[EnergyMeter, Sample] = {}
        """How far each meter is in the totals."""

    def resume(self, snapshot: AccountSnapshot, *, skips_downtime: bool = False) -> None:
        """Continue a former account, before anything is added.

        Args:
            snapshot: the account of a former controller, or of what was broken off.
            skips_downtime: whether the time since then is none of the run's: no process of it was there.
        """
        self.totals, self._until_ns = replace(snapshot.totals), snapshot.until_ns
        self._resumption = _Resumption(
            snapshot=snapshot, at_ns=self._clock.monotonic_ns(), skips_downtime=skips_downtime
        )
        kind, self._unit = snapshot.signal
        if kind not in {None, self._signal.kind}:
            self._unit = None
            self.totals.forget_signal()

    def suspend(self, meters: Mapping[str, EnergyMeter]) -> None:
        """Add nothing from now on: the run does not iterate, and what its GPUs use may not be its own."""
        if self._suspended is None and not self.is_resuming:
            self._suspended = self.snapshot(meters)

    def resume_after_suspend(self) -> None:
        """Go on after a suspension: the run iterates again, so that all of it was a pause."""
        snapshot, self._suspended = self._suspended, None
        if snapshot is not None:
            self.resume(snapshot)
            self._accounted.clear()  # the GPUs' own counters tell what they have used meanwhile

    @property
    def is_resuming(self) -> bool:
        """Return whether the time without a controller is still to be added: until then the totals are old ones."""
        return self._resumption is not None

    def is_waiting_for_gpu(self, uuid: str) -> bool:
        """Return whether nothing was added since the account was resumed, and a GPU is one of its GPUs."""
        return self._resumption is not None and uuid in self._resumption.snapshot.counters_j

    def forget(self, meter: EnergyMeter, uuid: str) -> None:
        """Expect nothing more of a GPU: it is another's."""
        self._accounted.pop(meter, None)
        if self._resumption is not None:
            self._resumption = replace(self._resumption, snapshot=self._resumption.snapshot.without_gpu(uuid))
        if self._suspended is not None:
            self._suspended = self._suspended.without_gpu(uuid)

    def take_other_gpus(self) -> bool:
        """Return, once, whether a resumed account goes on with other GPUs than it had."""
        has_others, self._has_other_gpus = self._has_other_gpus, False
        return has_others

    def skip_downtime(self) -> bool:
        """Leave the time without a controller out, where nothing was added since: it is unknown when the run ended.

        Returns:
            Whether nothing was added: the former snapshot is still the one to resume from.
        """
        skipped, self._resumption = self._resumption, None
        return skipped is not None

    def snapshot(self, meters: Mapping[str, EnergyMeter]) -> AccountSnapshot | None:
        """Return the account as it stands, with the counters of the run's GPUs, by UUID; None where it is empty."""
        if self._suspended is not None:
            return self._suspended
        if self._resumption is not None:
            return self._resumption.snapshot
        if self._until_ns is None:
            return None
        return AccountSnapshot(
            totals=replace(self.totals),
            until_ns=self._until_ns,
            counters_j={uuid: meter.counter_at_j(self._until_ns) for uuid, meter in meters.items()},
            signal=(self._signal.kind, self._unit),
        )

    def advance(
        self,
        known_ns: tuple[int, int],
        *,
        logs: Sequence[RankLog],
        meters: Mapping[str, EnergyMeter],
        tick_s: float,
        to_the_end: bool = False,
        was_asked_to_pause: Callable[[int], bool] = lambda _time_ns: False,
    ) -> Iterator[MeterInterval]:
        """Add the intervals that have become known since the last call; yield each once it is in the totals.

        Args:
            known_ns: from when to when the iterations of every rank are known [ns].
            logs: the ranks on this node.
            meters: the GPUs of the run, by UUID.
            tick_s: how often this is called at least [s].
            to_the_end: wait for nothing more: the run has ended.
            was_asked_to_pause: returns whether the training waited at a time because it was asked to [ns].
        """
        now = Now.of(self._clock)
        if self._suspended is not None and not to_the_end:
            return
        resumption = self._resumption
        if resumption and not to_the_end and self._is_waiting(resumption, now.monotonic_ns, meters):
            return
        patience_ns = int(min(HOLD_BACK_S, HOLD_BACK_TICKS * tick_s) * NS_PER_S)
        patient_from_ns = now.monotonic_ns - patience_ns // METER_TIMEOUT_DIVISOR
        self.has_unreadable_gpu = any((m.latest.time_ns if m.latest else 0) < patient_from_ns for m in meters.values())
        least_until_ns = 0 if to_the_end else now.monotonic_ns - patience_ns
        since_ns, until_ns = self._span_ns(known_ns, least_until_ns=least_until_ns)
        if until_ns <= since_ns and not (resumption or to_the_end):  # no iteration and no time to account for
            return
        intervals = meter_intervals(
            logs=logs,
            meters=list(meters.values()),
            since_ns=since_ns,
            until_ns=until_ns,
            patient_from_ns=patient_from_ns,
            to_the_end=to_the_end,
            accounted=self._accounted,
        )
        if self._until_ns is None and (intervals or to_the_end):
            self.totals.unmeasured_s += _unmeasured_s(logs, intervals[0].begin_ns if intervals else until_ns)
        if resumption and (intervals or to_the_end):
            resumed_ns = intervals[0].begin_ns if intervals else now.monotonic_ns
            intervals[:0] = self._downtime(resumption, resumed_ns, meters)
        history = self._signal.history()
        if history is not None and history.unit != self._unit:
            self._switch_unit(history.unit)
        for each in intervals:
            is_asked = not each.active and was_asked_to_pause((each.begin_ns + each.end_ns) // 2)
            interval = replace(each, is_asked=is_asked) if is_asked else each
            self._until_ns = interval.end_ns
            self.totals.add(interval, self._signal.value_at(now.wall_at_s(interval.begin_ns)))
            yield interval

    def _span_ns(self, known_ns: tuple[int, int], *, least_until_ns: int) -> tuple[int, int]:
        """Return from when to when time can be accounted for now [ns]."""
        since_ns, until_ns = known_ns if self._until_ns is None else (self._until_ns, known_ns[1])
        until_ns = max(until_ns, least_until_ns)
        if self._resumption is None or not self._resumption.has_foreign_past:
            return since_ns, until_ns
        since_ns = max(since_ns, self._resumption.at_ns)
        return since_ns, max(since_ns, until_ns)

    def _downtime(
        self, resumption: _Resumption, until_ns: int, meters: Mapping[str, EnergyMeter]
    ) -> list[MeterInterval]:
        """Return the time between the former account and the first interval since, once."""
        self._resumption = None
        self._has_other_gpus = resumption.snapshot.counters_j.keys() != meters.keys()
        return [] if resumption.skips_downtime else _downtime_intervals(resumption.snapshot, until_ns, meters)

    def _switch_unit(self, unit: str) -> None:
        """Count by a signal of this unit from here on; sums of a former controller in another one are void."""
        if self._unit is not None:
            self.totals.forget_signal()
        self._unit = unit

    def _is_waiting(self, resumption: _Resumption, now_ns: int, meters: Mapping[str, EnergyMeter]) -> bool:
        """Return whether the signal that priced the former account, or one of its GPUs, has not come yet, and may."""
        waited_s, former = (now_ns - resumption.at_ns) / NS_PER_S, resumption.snapshot
        if waited_s < GPU_PATIENCE_S and not former.counters_j.keys() <= meters.keys():
            return True
        lacks_signal = former.totals.has_signal and self._signal.history() is None
        return lacks_signal and waited_s < SIGNAL_PATIENCE_S


def _unmeasured_s(logs: Sequence[RankLog], measured_from_ns: int) -> float:
    """Return for how long the ranks iterated, all of them, before the first reading of the meters [s]."""
    begins_ns = [log.first_begin_ns for log in logs if log.first_begin_ns is not None]
    return max(measured_from_ns - max(begins_ns, default=measured_from_ns), 0) / NS_PER_S


def _downtime_intervals(
    snapshot: AccountSnapshot, until_ns: int, meters: Mapping[str, EnergyMeter]
) -> list[MeterInterval]:
    """Return the time without a controller as one pause, in parts; nothing where the account does not end before it.

    A GPU without a counter, or one whose counter shows what it cannot have used, has drawn its former average power.
    """
    if until_ns <= snapshot.until_ns:
        return []
    duration_s, totals = (until_ns - snapshot.until_ns) / NS_PER_S, snapshot.totals
    mean_power_w = totals.energy_j / totals.duration_s / max(len(snapshot.counters_j), 1) if totals.duration_s else 0.0
    energy_j, unmeasured_s = 0.0, 0.0
    for uuid, then_j in snapshot.counters_j.items():
        if uuid in snapshot.reassigned_gpus:
            continue
        meter = meters.get(uuid)
        now_j = meter.counter_at_j(until_ns) if meter else None
        used_j = now_j - then_j if then_j is not None and now_j is not None else -1.0
        if meter and 0 <= used_j <= meter.most_j(duration_s):
            energy_j += used_j
        else:
            energy_j += mean_power_w * duration_s
            unmeasured_s = duration_s
    n_parts = math.ceil(duration_s / PRICED_S)
    marks_ns = np.linspace(snapshot.until_ns, until_ns, n_parts + 1).astype(np.int64).tolist()
    return [
        MeterInterval(
            begin_ns=begin_ns,
            end_ns=end_ns,
            active=False,
            n_iterations=0.0,
            energy_j=energy_j / n_parts,
            unmeasured_s=unmeasured_s / n_parts,
        )
        for begin_ns, end_ns in pairwise(marks_ns)
    ]
