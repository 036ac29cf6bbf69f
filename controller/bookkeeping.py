"""The books of a run on this node: what has become known since the last time is cut into slices, and entered once.

Where a former controller kept books of the same run, they go on: the time without a controller is one pause, with the
energy that the GPUs' own counters tell.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from controller.clock import NS_PER_S, Clock
from controller.ports import EnergyMeter, SignalSource
from controller.run_account import RunAccount, Slice, cut
from controller.run_log import RankLog

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
class Balance:
    """The books as they stand: the account, up to when it goes [ns], and where each GPU's counter stood then [J].

    `signal`: the kind and the unit of the signal that the account counts by, as far as they are known. `passed_on`: the
    GPUs that another run has had since; what they have used meanwhile is in its account.
    """

    account: RunAccount
    cut_ns: int
    counters_j: Mapping[str, float | None]
    signal: tuple[str | None, str | None] = None, None
    passed_on: tuple[str, ...] = ()


class Bookkeeping:
    """The account of a run, and how far it goes."""

    def __init__(self, *, clock: Clock, signal: SignalSource) -> None:
        self.account = RunAccount()
        self._clock = clock
        self._signal = signal
        self._cut_ns: int | None = None
        self._unit: str | None = None
        """Of the signal that the account counts by; None before one was known."""
        self._before: Balance | None = None
        """Of a former controller, until it is known what the GPUs have used since."""
        self._taken_up_ns = 0
        self._entered_j: dict[EnergyMeter, float] = {}
        """How far each meter's energy is in the account [J]."""
        self.is_blind = False
        """Whether a GPU cannot be read: what is measured is not the whole run."""

    def go_on_from(self, before: Balance) -> None:
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

    def balance(self, meters: Mapping[str, EnergyMeter]) -> Balance | None:
        """Return the books as they stand, with the counters of the run's GPUs, by UUID; None where they are empty."""
        if self._cut_ns is None or self._before is not None:
            return self._before
        counters_j = {uuid: meter.counter_at_j(self._cut_ns) for uuid, meter in meters.items()}
        signal = self._signal.kind, self._unit
        return Balance(account=replace(self.account), cut_ns=self._cut_ns, counters_j=counters_j, signal=signal)

    def cut(
        self,
        known_ns: tuple[int, int],
        *,
        logs: Sequence[RankLog],
        meters: Mapping[str, EnergyMeter],
        tick_s: float,
        to_the_end: bool = False,
    ) -> Iterator[Slice]:
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

    def _gap(self, until_ns: int, meters: Mapping[str, EnergyMeter]) -> list[Slice]:
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


def _between(before: Balance, until_ns: int, meters: Mapping[str, EnergyMeter]) -> list[Slice]:
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
        Slice(begin_ns=begin_ns, end_ns=end_ns, active=False, n_iterations=0.0, energy_j=part_j)
        for begin_ns, end_ns in pairwise(marks_ns)
    ]
