"""Histories of runs, for the tests of what they have saved: what they did, at which limits, under which signal."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from policies.savings.books import Books, PauseKind, Purpose, open_books, with_activity, with_pause
from policies.vocabulary.limit_ratios import LimitRatios
from policies.vocabulary.signal import Signal
from policies.vocabulary.units import HOUR_S
from tests.policies.days import hourly

TOP_W = 300.0
LIMITS_W = (150.0, 200.0, 250.0, TOP_W)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deed:
    """What a run did for a while: iterations at a limit or, without one, a pause."""

    duration_s: float
    power_w: float
    power_limit_w: float | None
    purpose: Purpose = Purpose.PLAN
    pause: PauseKind = "own"


def entered(books: Books, begins_s: float, deed: Deed) -> tuple[Books, float]:
    """Return the books after a deed, and when it ended [Unix s]."""
    ends_s, energy_j = begins_s + deed.duration_s, deed.duration_s * deed.power_w
    if deed.power_limit_w is None:
        return with_pause(
            books, begins_s=begins_s, duration_s=deed.duration_s, energy_j=energy_j, kind=deed.pause
        ), ends_s
    return (
        with_activity(
            books,
            begins_s=begins_s,
            duration_s=deed.duration_s,
            power_limit_w=deed.power_limit_w,
            energy_j=energy_j,
            purpose=deed.purpose,
        ),
        ends_s,
    )


def books_of(deeds: Sequence[Deed], *, begins_s: float = 0.0, slot_s: float = HOUR_S) -> Books:
    """Return the books of a run that did one thing after the other."""
    books, at_s = open_books(slot_s=slot_s), begins_s
    for deed in deeds:
        books, at_s = entered(books, at_s, deed)
    return books


def ratios_at(
    power_limit_w: float, rate_ratio: float, energy_ratio: float, *, error_ratio: float = 0.0, n_looks: int = 8
) -> LimitRatios:
    """Return the ratios of a limit, both with the same error."""
    return LimitRatios(
        power_limit_w=power_limit_w,
        rate_ratio=rate_ratio,
        rate_error_ratio=error_ratio,
        energy_ratio=energy_ratio,
        energy_error_ratio=error_ratio,
        n_looks=n_looks,
    )


def deeds(limits_w: Sequence[float] = LIMITS_W, *, is_paused: bool = True) -> st.SearchStrategy[Deed]:
    """Return what a run may do for a while."""
    durations_s, powers_w = st.floats(0.1, 20_000.0), st.floats(1.0, 500.0)
    active = st.builds(
        Deed,
        duration_s=durations_s,
        power_w=powers_w,
        power_limit_w=st.sampled_from(limits_w),
        purpose=st.sampled_from(Purpose),
    )
    if not is_paused:
        return active
    return st.one_of(active, st.builds(Deed, duration_s=durations_s, power_w=powers_w, power_limit_w=st.none()))


histories = st.lists(deeds(), min_size=1, max_size=12)
"""What a run may have done, pauses of its own included."""
begins_of = st.floats(0.0, 100_000.0)


@st.composite
def signals(draw: st.DrawFn) -> Signal:
    """Draw some hours of a carbon intensity, from the middle of the first day on, or from before."""
    values = draw(st.lists(st.floats(1.0, 900.0) | st.just(float("nan")), min_size=1, max_size=72))
    return hourly(np.array(values))


curves = st.lists(st.tuples(st.floats(0.3, 1.0), st.floats(0.7, 1.6)), min_size=3, max_size=3).map(
    lambda pairs: [ratios_at(limit_w, *pair) for limit_w, pair in zip(LIMITS_W[:3], pairs, strict=True)]
)
"""Ratios of the limits below the top."""
