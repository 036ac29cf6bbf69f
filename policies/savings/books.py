"""The books of a run: how long it ran at each limit, and what it used, hour by hour of the clock.

They hold what happened, and nothing that was estimated. So the baseline is computed from them as a whole, whenever more
is known of the limits or of the signal, and no sum has ever to be corrected.

>>> books = open_books(slot_s=3_600.0)
>>> books = with_activity(books, begins_s=0.0, duration_s=5_400.0, power_limit_w=200.0, energy_j=900_000.0)
>>> [slot.active_s for slot in books.slots]
[3600.0, 1800.0]
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, Literal

from policies.vocabulary.units import HOUR_S

MAX_SLOTS: Final = 1_024
"""Books with more are made coarser at their old end: hours of six weeks, before that pairs of hours, and so on."""
LONG_PAUSE_S: Final = 300.0
"""When a run goes on after a pause as long as this, another slot begins within the hour."""
SAME_SLOT_RATIO: Final = 1e-9
"""A time closer than this to the end of a slot, as a share of it, is at its end."""


class Purpose(StrEnum):
    """Why a limit was in force."""

    PLAN = "plan"
    LOOK = "look"
    """At the top for a moment, to compare."""
    FIRST_PASS = "first_pass"  # noqa: S105 — of the profiler, and no password
    """To measure the curve, before there was a plan."""
    PINNED = "pinned"
    """A person has pinned it."""


PauseKind = Literal["own", "asked"]
"""A pause of the job's own (validation, checkpoint, waiting for data), or one that plan or people have asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitUse:
    """How long a run iterated at a limit, and what it used meanwhile.

    Attributes:
        power_limit_w: the limit in force [W].
        purpose: why it was in force.
        active_s: for how long [s].
        energy_j: the energy of all GPUs of the run [J].
    """

    power_limit_w: float
    purpose: Purpose
    active_s: float
    energy_j: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """What a run did in one hour of the clock, or in the part of it in which the run was there.

    It iterated first, and paused then: after a long pause another slot begins, and a short one may be anywhere.

    Attributes:
        begins_s, ends_s: from when to when [Unix s]. Time in between that is neither active nor a pause is none of the
            run's.
        uses: one for each limit and purpose.
        pause_s, pause_energy_j: of the pauses of its own [s], [J].
        asked_pause_s, asked_pause_energy_j: of those that its plan or a person has asked for [s], [J].
        idle_s: for how long it has paused at its end [s].
    """

    begins_s: float
    ends_s: float
    uses: tuple[LimitUse, ...] = ()
    pause_s: float = 0.0
    pause_energy_j: float = 0.0
    asked_pause_s: float = 0.0
    asked_pause_energy_j: float = 0.0
    idle_s: float = 0.0

    @property
    def active_s(self) -> float:
        """Return for how long iterations ran [s]."""
        return math.fsum(use.active_s for use in self.uses)

    @property
    def energy_j(self) -> float:
        """Return the energy of all of it [J]."""
        return math.fsum((*(use.energy_j for use in self.uses), self.pause_energy_j, self.asked_pause_energy_j))


@dataclass(frozen=True, slots=True, kw_only=True)
class Books:
    """The slots of a run, in order and without overlap; the last one may still grow.

    Attributes:
        slot_s: the length of a slot, which begins at a multiple of it [s]: an hour, or the step of the signal where
            that is shorter. Old slots may be several of these long.
        slots: the slots; time between two of them is none of the run's.
    """

    slot_s: float = HOUR_S
    slots: tuple[Slot, ...] = ()


def open_books(*, slot_s: float = HOUR_S) -> Books:
    """Return the books of a run that begins.

    Raises:
        ValueError: a slot has no length.
    """
    if not (math.isfinite(slot_s) and slot_s > 0):
        raise ValueError(f"slot_s = {slot_s}: must be finite and above 0")
    return Books(slot_s=slot_s)


def with_activity(
    books: Books,
    *,
    begins_s: float,
    duration_s: float,
    power_limit_w: float,
    energy_j: float,
    purpose: Purpose = Purpose.PLAN,
) -> Books:
    """Return the books after iterations at a limit [W] from a time on [Unix s], for so long [s].

    What begins before the books end, because a clock was set back, is entered at their end, for as long as it took.
    """
    return _with_parts(
        books,
        [
            replace(
                part,
                uses=(
                    LimitUse(
                        power_limit_w=power_limit_w,
                        purpose=purpose,
                        active_s=share_ratio * duration_s,
                        energy_j=share_ratio * energy_j,
                    ),
                ),
            )
            for part, share_ratio in _parts(books, begins_s, duration_s)
        ],
    )


def with_pause(books: Books, *, begins_s: float, duration_s: float, energy_j: float, kind: PauseKind = "own") -> Books:
    """Return the books after a pause from a time on [Unix s], for so long [s]; even one of 0 s may have an energy."""
    parts = []
    for part, share_ratio in _parts(books, begins_s, duration_s):
        pause_s, pause_j = share_ratio * duration_s, share_ratio * energy_j
        parts.append(
            replace(part, idle_s=pause_s, pause_s=pause_s, pause_energy_j=pause_j)
            if kind == "own"
            else replace(part, idle_s=pause_s, asked_pause_s=pause_s, asked_pause_energy_j=pause_j)
        )
    return _with_parts(books, parts)


def _parts(books: Books, begins_s: float, duration_s: float) -> Iterator[tuple[Slot, float]]:
    """Yield what a time covers of each slot, as an empty one, and its share of that time.

    Durations are given, since Unix times are known to a quarter of a microsecond only: sums would be off by that.

    Raises:
        ValueError: the duration is not finite, or less than 0.
    """
    if not (math.isfinite(begins_s) and math.isfinite(duration_s) and duration_s >= 0):
        raise ValueError(f"duration_s = {duration_s} from {begins_s} on: must be finite and at least 0")
    if books.slots:
        begins_s = max(begins_s, books.slots[-1].ends_s)
    ends_s = begins_s + duration_s
    if ends_s <= begins_s:
        yield Slot(begins_s=begins_s, ends_s=begins_s), 1.0
    at_s, number = begins_s, _number(books, begins_s)
    while at_s < ends_s:
        number += 1  # counted, so that rounding at the edge of a slot cannot hold it up
        until_s = min(number * books.slot_s, ends_s)
        if until_s > at_s:
            yield Slot(begins_s=at_s, ends_s=until_s), (until_s - at_s) / (ends_s - begins_s)
            at_s = until_s


def _number(books: Books, at_s: float) -> int:
    """Return the number of the slot that a time is in; one at its edge, but for rounding, is in the later one."""
    return math.floor(at_s / books.slot_s + SAME_SLOT_RATIO)


def _with_parts(books: Books, parts: Sequence[Slot]) -> Books:
    """Return the books with parts of slots at their end; each goes on with the last slot, or begins the next."""
    slots, last = books.slots, None
    if slots:
        slots, last = slots[:-1], slots[-1]
    for part in parts:
        if last is None:
            last = part
        elif _continues(books, last, part):
            last = _merged(last, part)
        else:
            slots, last = (*slots, last), part
    slots = slots if last is None else (*slots, last)
    return replace(books, slots=slots if len(slots) <= MAX_SLOTS else _coarser(slots))


def _continues(books: Books, last: Slot, part: Slot) -> bool:
    """Return whether a part belongs to the last slot: it is in the same hour, and no long pause is between."""
    if part.begins_s == part.ends_s:
        return True
    is_back = bool(part.uses) and last.idle_s >= LONG_PAUSE_S
    return _number(books, part.begins_s) == _number(books, last.begins_s) and not is_back


def _merged(earlier: Slot, later: Slot) -> Slot:
    uses = {(use.power_limit_w, use.purpose): use for use in earlier.uses}
    for use in later.uses:
        former = uses.get((use.power_limit_w, use.purpose))
        uses[use.power_limit_w, use.purpose] = (
            use
            if former is None
            else replace(use, active_s=former.active_s + use.active_s, energy_j=former.energy_j + use.energy_j)
        )
    return Slot(
        begins_s=earlier.begins_s,
        ends_s=max(earlier.ends_s, later.ends_s),
        uses=tuple(uses.values()),
        pause_s=earlier.pause_s + later.pause_s,
        pause_energy_j=earlier.pause_energy_j + later.pause_energy_j,
        asked_pause_s=earlier.asked_pause_s + later.asked_pause_s,
        asked_pause_energy_j=earlier.asked_pause_energy_j + later.asked_pause_energy_j,
        idle_s=later.idle_s if later.uses else earlier.idle_s + later.pause_s + later.asked_pause_s,
    )


def _coarser(slots: tuple[Slot, ...]) -> tuple[Slot, ...]:
    """Return slots of which the older half are merged in pairs."""
    half = len(slots) // 4 * 2
    return (*(_merged(slots[i], slots[i + 1]) for i in range(0, half, 2)), *slots[half:])
