"""The books of a run on the node that leads it: what it did, at which limit and what for, and the signal meanwhile.

`policies.savings` computes from them what the run has saved. They begin with the run, and outlive its time budget and
its controller. Ratios hold for the curve that they were measured on: where the run gets another one, the books of the
former one are closed, with its ratios, and new ones are opened. Where a part of the run is in no books, or ran below
the top limit on a curve that was never measured, nothing is said. Of a run on several nodes they hold this node's
share, in energy and in saving. No clock, no GPU, no bus.
"""

import logging
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Final, Literal

import msgspec
import numpy as np

from controller.accounting.meter_intervals import MeterInterval
from controller.accounting.run_ledger import (
    MAX_AMOUNT,
    MAX_LIMITS,
    ROUNDING_SLACK,
    LedgerSnapshot,
    LimitHistory,
    limit_key,
    looks_of,
)
from controller.runtime.clock import NS_PER_S
from policies.profiling.curve_model import estimate_ratios
from policies.profiling.paired_looks import Looks, Pair
from policies.savings.books import MAX_SLOTS, Books, Purpose, open_books, with_activity, with_pause
from policies.savings.interval import MIN_LOOKS, KnownSaving, Segment, UnknownSaving, correlation_of, estimate_saving
from policies.thermal.board import Metered, ThermalState, advance_thermal
from policies.thermal.correction import corrected
from policies.vocabulary.limit_ratios import LimitRatios
from policies.vocabulary.profile import LIMIT_TOLERANCE_W, PowerProfile
from policies.vocabulary.signal import Signal
from policies.vocabulary.units import HOUR_S, Values

MIN_SLOT_S: Final = 300.0
"""Slots are as short as the step of the signal, but no shorter: the books are bounded, and are saved often."""
N_STEPS: Final = 48
"""So many of the signal's latest steps show how long its steps are."""
MISSING_S: Final = 1.0
MISSING_RATIO: Final = 0.001
"""Books may lack so much of what the account holds: more is a part that was never entered."""
MIN_PAUSED_S: Final = 300.0
"""After so long a wait it is known what GPUs draw that wait."""
LATE_S: Final = 2 * HOUR_S
"""The time that tells how often there is a look [s]."""
LATE_SLOTS: Final = 24
"""No more slots are looked at: shorter ones follow a signal that changes each five minutes."""
MAX_CLOSED: Final = 32
"""Closed books that are kept: of a run with more curves nothing is said."""
MAX_VALUES: Final = 20_000
"""Values of the signal that are kept: more than 60 days of five minutes each. Of more, the newest."""

Gap = Literal["incomplete", "curve_changed", "limits_differ"]
"""Why nothing is said of a run: a part of it is not in the books, or ran on a curve of which nothing is known, or with
GPUs at unlike limits."""
_WHY_UNKNOWN: Final = {
    "incomplete": "a part of the run is missing in its books",
    "curve_changed": "a part of it ran on another curve, or on other GPUs",
    "limits_differ": "its GPUs had unlike limits, which no look compares",
    "not_computed": "it was not computed in time",
    "no_baseline": "the highest limit would have cost nothing, or may have",
}

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpusNow:
    """How the GPUs of a run stand now.

    Attributes:
        in_force: the limit of the run [W], and since when [ns]; None where it is not known.
        highest_w: the highest limit that the run might have; 0 where that is not known [W].
        are_at_prior: whether every GPU is known to have its prior limit, or more.
        are_reduced: whether some are to have less than the run, as they wait for another one.
    """

    in_force: tuple[float, int] | None
    highest_w: float = 0.0
    are_at_prior: bool = True
    are_reduced: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedBooks:
    """What a run did on a curve that it has no more.

    Attributes:
        books: the books.
        curve: the curve, as it was measured, without stalls; None where there was none.
        pairs: what the limits were relative to the top one.
        top_power_limit_w: the top limit [W].
    """

    books: Books
    curve: PowerProfile | None
    pairs: tuple[Pair, ...]
    top_power_limit_w: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BooksSnapshot:
    """Books as they are stored.

    Attributes:
        books: the books.
        curve: their curve, as it was measured; None before there is one.
        closed: those of former curves, each a `ClosedBooks`: they are encoded once.
        gap: why nothing is said of the run; None where all of it is in them.
        was_limited: whether a GPU ever had less than its prior limit while the run iterated.
        top_power_limit_w: the highest limit that the run might have had; 0 where that is not known [W].
        thermal: how its GPUs warm, to be made a `ThermalState`: what is wrong with it costs it alone.
    """

    books: Books = field(default_factory=open_books)
    curve: PowerProfile | None = None
    closed: tuple[msgspec.Raw, ...] = ()
    gap: Gap | None = None
    was_limited: bool = False
    top_power_limit_w: float = 0.0
    thermal: Any = field(default_factory=ThermalState)

    def check(self) -> None:
        """Check what was read from a file.

        Raises:
            ValueError: the books are damaged: savings would be made of them.
        """
        _check_books(self.books)
        if not -ROUNDING_SLACK < self.top_power_limit_w <= MAX_AMOUNT:
            raise ValueError("a top limit is impossible")


def _decode_closed(stored: msgspec.Raw) -> ClosedBooks:
    """Return closed books that were read from a file.

    Raises:
        ValueError: they are damaged.
    """
    closed = msgspec.json.decode(stored, type=ClosedBooks)
    _check_books(closed.books)
    LedgerSnapshot(pairs=list(closed.pairs)).check()
    if not -ROUNDING_SLACK < closed.top_power_limit_w <= MAX_AMOUNT:
        raise ValueError("a top limit is impossible")
    return closed


def _thermal(stored: object) -> ThermalState:
    """Return what was stored of how GPUs warm; where it is damaged, nothing is known of that, and the log says so."""
    try:
        thermal = msgspec.convert(stored, ThermalState)
        thermal.check()
    except (ValueError, msgspec.MsgspecError) as error:
        _LOGGER.warning("how the GPUs of a run warm is learnt anew: %s", error)
        return ThermalState()
    return thermal


def _check_books(books: Books) -> None:
    """Check the amounts and the order of books that were read from a file.

    Raises:
        ValueError: they are damaged.
    """
    slots = books.slots
    uses = [use for slot in slots for use in slot.uses]
    amounts = [x for use in uses for x in (use.active_s, use.energy_j)]
    for slot in slots:
        amounts += [slot.begins_s, slot.ends_s, slot.idle_s, slot.pause_s, slot.pause_energy_j]
        amounts += [slot.asked_pause_s, slot.asked_pause_energy_j]
    if not all(-ROUNDING_SLACK < x < MAX_AMOUNT for x in amounts) or not all(
        0 < use.power_limit_w < MAX_AMOUNT for use in uses
    ):
        raise ValueError("an amount of the books is impossible")
    if not MIN_SLOT_S <= books.slot_s <= HOUR_S:
        raise ValueError("the slots of the books have an impossible length")
    if len(slots) > MAX_SLOTS or len({use.power_limit_w for use in uses}) > MAX_LIMITS:
        raise ValueError("the books are too long")
    times_s = [time_s for slot in slots for time_s in (slot.begins_s, slot.ends_s)]
    if any(later_s < earlier_s for earlier_s, later_s in pairwise(times_s)):
        raise ValueError("the slots of the books must ascend")


class RunBooks:
    """The books of a run.

    Attributes:
        books: what the run did on its curve.
        curve: the curve, as it is measured, without stalls; None before there is one.
        closed: what it did on former ones.
        gap: why nothing is said of the run; None where all of it is in the books.
        was_limited: whether a GPU ever had less than its prior limit while the run iterated.
        purpose: what the limit that was last asked for is for.
        top_power_limit_w: the highest limit that the run might have had; 0 where that is not known [W].
        thermal: how its GPUs warm, as far as that is known.
    """

    def __init__(self, *, gap: Gap | None = None) -> None:
        self.books = open_books()
        self.curve: PowerProfile | None = None
        self.closed: tuple[ClosedBooks, ...] = ()
        self.gap = gap
        self.was_limited = False
        self.purpose = Purpose.FIRST_PASS
        self.top_power_limit_w = 0.0
        self.thermal = ThermalState()
        self._stored_closed: tuple[msgspec.Raw, ...] = ()
        self._in_force = LimitHistory()
        self._limits_w: dict[int, float] = {}
        self._signal: Signal | None = None
        """The values that the run has seen, each in its newest revision, up to when they were last looked at."""
        self._source, self._source_from_s = "", -math.inf
        """The source of the latest ones, and from when on they are its own [Unix s]."""

    def resume(self, stored: msgspec.Raw, *, duration_s: float) -> None:
        """Go on with stored books. Where there are none, a part of the run is missing.

        Args:
            stored: as `stored` returned them.
            duration_s: for how long the run was accounted for when they were stored: books of less lack a part [s].

        Raises:
            ValueError: they are damaged; they begin anew.
        """
        self.gap = "incomplete"
        snapshot = msgspec.json.decode(stored, type=BooksSnapshot | None)
        if snapshot is None:
            return
        snapshot.check()
        if len(snapshot.closed) > MAX_CLOSED:
            raise ValueError("there are too many closed books")
        closed = tuple(_decode_closed(each) for each in snapshot.closed)
        self.books, self.curve, self.closed = snapshot.books, snapshot.curve, closed
        self._stored_closed, self.was_limited = snapshot.closed, snapshot.was_limited
        self.top_power_limit_w, self.thermal = snapshot.top_power_limit_w, _thermal(snapshot.thermal)
        entered_s = sum(_duration_s(each) for each in (self.books, *(each.books for each in closed)))
        is_whole = entered_s >= duration_s - max(MISSING_S, MISSING_RATIO * duration_s)
        self.gap = snapshot.gap if is_whole else "incomplete"
        for limit_w in _limits_w(self.books):
            self._limits_w.setdefault(limit_key(limit_w, self._limits_w), limit_w)

    def stored(self) -> msgspec.Raw:
        """Return the books as `resume` takes them. The signal has a file of its own."""
        snapshot = BooksSnapshot(
            books=self.books,
            curve=self.curve,
            closed=self._stored_closed,
            gap=self.gap,
            was_limited=self.was_limited,
            top_power_limit_w=self.top_power_limit_w,
            thermal=self.thermal,
        )
        return msgspec.Raw(msgspec.json.encode(snapshot))

    @property
    def is_empty(self) -> bool:
        """Return whether nothing was entered yet."""
        return not (self.books.slots or self.closed)

    @property
    def was_below_top(self) -> bool:
        """Return whether the run ever iterated below the top limit."""
        parts = ((self.books, self._top_w(self.curve)), *((each.books, each.top_power_limit_w) for each in self.closed))
        return any(_is_below(books, top_w) for books, top_w in parts)

    @property
    def asked_pause_power_w(self) -> float | None:
        """Return what the GPUs have drawn while the run waited because it was asked to [W]; None while not known."""
        slots = [slot for books in (*(each.books for each in self.closed), self.books) for slot in books.slots]
        paused_s = math.fsum(slot.asked_pause_s for slot in slots)
        if paused_s < MIN_PAUSED_S:
            return None
        return math.fsum(slot.asked_pause_energy_j for slot in slots) / paused_s

    @property
    def look_ratio(self) -> float:
        """Return which share of the time of plan and looks the looks have taken of late."""
        late_s = self.books.slots[-1].ends_s - LATE_S if self.books.slots else 0.0
        uses = [use for slot in self.books.slots[-LATE_SLOTS:] if slot.ends_s > late_s for use in slot.uses]
        look_s, plan_s = (
            math.fsum(use.active_s for use in uses if use.purpose is purpose)
            for purpose in (Purpose.LOOK, Purpose.PLAN)
        )
        return look_s / (look_s + plan_s) if look_s > 0 else 0.0

    @property
    def pinned_s(self) -> float:
        """Return for how long iterations ran at a limit that a person had pinned [s]."""
        slots = [slot for books in (*(each.books for each in self.closed), self.books) for slot in books.slots]
        return math.fsum(use.active_s for slot in slots for use in slot.uses if use.purpose is Purpose.PINNED)

    def limit_ratios(self, looks: Looks, limits_w: Sequence[float]) -> tuple[Sequence[LimitRatios], Values]:
        """Return what limits [W] are relative to the top of the curve when boards are warm, and how errors correlate.

        None without a curve.
        """
        return ((), np.empty((0, 0))) if self.curve is None else _ratios(self.curve, looks, limits_w, self.thermal)

    def add(self, interval: MeterInterval, gpus: GpusNow, *, begins_s: float) -> None:
        """Enter an interval: its iterations at the limit that was in force when it began, and the rest as a pause.

        Where a pause begins or ends in it the energy is divided by time, since readings do not tell the two apart.
        Iterations at a limit that is not known, or whose energy is not, are a pause, too: for run and twin the same.

        Args:
            interval: what the run did.
            gpus: how the GPUs stand now.
            begins_s: when the interval began [Unix s].
        """
        self._in_force.note(gpus.in_force, self.purpose, at_ns=interval.begin_ns)
        self.top_power_limit_w = max(self.top_power_limit_w, gpus.highest_w)
        began_so = gpus.in_force is not None and interval.begin_ns >= gpus.in_force[1]  # else the limit came after it
        if interval.active and began_so and not gpus.are_at_prior:
            self.was_limited = True
        if interval.active and gpus.are_reduced:
            self.gap = self.gap or "limits_differ"
        rest_s, rest_j = interval.duration_s, interval.energy_j
        ran_s, ran_j = max(rest_s - interval.gaps_s, 0.0), rest_j - interval.gaps_energy_j
        is_partly = ran_s > 0 and interval.gaps_s > 0 and not interval.unmeasured_s
        limit = self._in_force.at(interval.begin_ns) if interval.active or is_partly else None
        self.thermal = advance_thermal(self.thermal, _metered(interval, limit[0] if limit else None))
        if limit is not None:
            limit_w = self._limits_w.setdefault(limit_key(limit[0], self._limits_w), limit[0])
            self.books = with_activity(
                self.books, begins_s=begins_s, duration_s=ran_s, power_limit_w=limit_w, energy_j=ran_j, purpose=limit[1]
            )
            begins_s, rest_s, rest_j = begins_s + ran_s, rest_s - ran_s, rest_j - ran_j
        if rest_s or rest_j:
            kind: Literal["own", "asked"] = "asked" if interval.is_asked else "own"
            self.books = with_pause(self.books, begins_s=begins_s, duration_s=rest_s, energy_j=rest_j, kind=kind)

    def add_signal(self, history: Signal | None, *, until_s: float, is_stopgap: bool) -> bool:
        """Keep the values of a signal that the run has seen; return whether they are the first, or of another unit.

        Args:
            history: the signal up to now, in its newest revision; None where there is none.
            until_s: up to when [Unix s].
            is_stopgap: whether another source stands in, or an old value: it holds from where the former one ends on.
        """
        if history is None or self.is_empty:
            return False
        steps_s = np.diff(history.starts_s[-N_STEPS:])
        if len(steps_s):
            step_s = max(float(np.median(steps_s)), MIN_SLOT_S)
            self.books = replace(self.books, slot_s=min(self.books.slot_s, step_s))
        kept = self._signal if self._signal is not None and self._signal.unit == history.unit else None
        if kept is None or not is_stopgap:
            self._source_from_s = -math.inf
        elif history.source != self._source:
            self._source_from_s = kept.ends_s
        self._source = history.source
        begins_s = (self.closed[0].books if self.closed else self.books).slots[0].begins_s
        seen = history.between(max(begins_s, self._source_from_s), until_s)
        if kept is not None:
            seen = kept.revised(replace(seen, kind=kept.kind, zone=kept.zone))
        if not len(seen):
            return False
        self._signal = seen.between(float(seen.starts_s[-MAX_VALUES:][0]), math.inf)
        return kept is None

    def close(self, looks: Looks) -> None:
        """Close the books, with the ratios of their curve, and open new ones: another curve holds from here on.

        Args:
            looks: what the limits were relative to the top one.
        """
        curve, self.curve = self.curve, None
        if not self.books.slots:
            return
        top_w = self._top_w(curve)
        if (curve is None and _is_below(self.books, top_w)) or len(self.closed) >= MAX_CLOSED:
            self.gap = self.gap or "curve_changed"
            return
        closed = ClosedBooks(books=self.books, curve=curve, pairs=looks.pairs, top_power_limit_w=top_w)
        self.closed = (*self.closed, closed)
        self._stored_closed = (*self._stored_closed, msgspec.Raw(msgspec.json.encode(closed)))
        self.books, self.top_power_limit_w = open_books(slot_s=self.books.slot_s), 0.0
        self._limits_w.clear()

    def saving(self, looks: Looks) -> KnownSaving | UnknownSaving:
        """Return what the run has saved beside its twin at the top limit, or why that is not known.

        It takes some 30 ms for a day at 20 limits, and up to seconds for six weeks at 128: call it in a thread. Without
        a curve nothing was saved where the run was at the top limit all the time, and else nothing is known.

        Args:
            looks: what the limits are relative to the top one.
        """
        curve, top_w = self.curve, self._top_w(self.curve)
        n_looks = looks.n_looks(top_w)
        if self.gap == "curve_changed" and curve is None and all(each.curve is None for each in self.closed):
            return UnknownSaving(code="too_early", n_looks=n_looks)
        if self.gap is not None:
            return UnknownSaving(code=self.gap, n_looks=n_looks)
        if self.was_limited and not self.was_below_top:
            return UnknownSaving(code="limits_differ", n_looks=n_looks)
        if curve is None and _is_below(self.books, top_w):  # in a first pass: nothing compares what runs now
            return UnknownSaving(code="too_early", n_looks=n_looks)
        segments = [
            _segment(each.books, each.curve, looks_of(each.pairs), each.top_power_limit_w, self.thermal)
            for each in self.closed
        ]
        now = _segment(self.books, curve, looks, top_w, self.thermal)
        return estimate_saving([*segments, now], signal=self._signal)

    def _top_w(self, curve: PowerProfile | None) -> float:
        """Return the highest limit that the run might have had on a curve [W]."""
        if curve is not None:
            return curve.fastest.power_limit_w
        return max((self.top_power_limit_w, *_limits_w(self.books))) or MAX_AMOUNT


def _metered(interval: MeterInterval, power_limit_w: float | None) -> Metered:
    return Metered(
        begins_s=interval.begin_ns / NS_PER_S,
        duration_s=interval.duration_s,
        energy_j=interval.energy_j,
        n_iterations=interval.n_iterations,
        power_limit_w=power_limit_w if interval.active else None,
        temperature_c=interval.temperature_c,
    )


def _segment(
    books: Books, curve: PowerProfile | None, looks: Looks, top_power_limit_w: float, thermal: ThermalState
) -> Segment:
    """Return books with the ratios of their limits, as they are when the boards have warmed."""
    limits_w: list[float] = []
    if curve is not None:
        limits_w = _limits_apart_w({*_limits_w(books), *curve.power_limits_w}, below_w=top_power_limit_w)
    if curve is None or not limits_w:
        return Segment(books=books, ratios=(), top_power_limit_w=top_power_limit_w)
    ratios, correlation = _ratios(curve, looks, limits_w, thermal)
    return Segment(
        books=books,
        ratios=ratios,
        top_power_limit_w=top_power_limit_w,
        n_again=looks.n_again(top_power_limit_w),
        correlation=correlation,
    )


def _ratios(
    curve: PowerProfile, looks: Looks, limits_w: Sequence[float], thermal: ThermalState
) -> tuple[Sequence[LimitRatios], Values]:
    """Return what limits are relative to the top of a curve when boards are warm, and how their errors correlate."""
    estimate = estimate_ratios(curve, looks, limits_w)
    ratios = corrected(estimate.ratios, looks.pairs, thermal, top_power_w=curve.fastest.power_w)
    return ratios, correlation_of(estimate.rate_covariance)


def describe_saving(found: KnownSaving | UnknownSaving) -> str:
    """Return what was saved, with its interval and its parts, or why that is not known: for the log.

    >>> describe_saving(UnknownSaving(code="too_early", n_looks=3))
    'too early to tell what was saved: 3 of 8 looks'
    """
    if isinstance(found, UnknownSaving):
        if found.code == "too_early":
            few = f"{found.n_looks} of {MIN_LOOKS} looks" if found.n_looks < MIN_LOOKS else "its interval is too wide"
            return f"too early to tell what was saved: {few}"
        return f"what was saved is not known ({found.code}): {_WHY_UNKNOWN[found.code]}"
    saving = found.saving
    parts = {
        "better limit": saving.better_limit_ratio,
        "following": saving.following_ratio,
        "looks": saving.looks_ratio,
        "first pass": saving.first_pass_ratio,
    }
    if found.is_unchanged:
        return "saved nothing: its power limit was never lowered"
    lower, upper = (100 * (saving.saved_ratio + sign * found.saved_ci90_ratio) for sign in (-1, 1))
    return f"saved {100 * saving.saved_ratio:z.1f} % (90 %: {lower:z.1f} to {upper:z.1f} %): " + ", ".join(
        f"{name} {100 * ratio:z.1f}" for name, ratio in parts.items()
    )


def _duration_s(books: Books) -> float:
    return math.fsum(slot.active_s + slot.pause_s + slot.asked_pause_s for slot in books.slots)


def _is_below(books: Books, top_power_limit_w: float) -> bool:
    return any(limit_w < top_power_limit_w - LIMIT_TOLERANCE_W for limit_w in _limits_w(books))


def _limits_w(books: Books) -> set[float]:
    return {use.power_limit_w for slot in books.slots for use in slot.uses}


def _limits_apart_w(limits_w: Iterable[float], *, below_w: float) -> list[float]:
    """Return limits below another one, ascending, so far apart that a look is of one of them alone [W]."""
    kept: list[float] = []
    for limit_w in sorted(limits_w):
        is_below = limit_w < below_w - LIMIT_TOLERANCE_W
        if is_below and (not kept or limit_w - kept[-1] > 2 * LIMIT_TOLERANCE_W):
            kept.append(limit_w)
    return kept
