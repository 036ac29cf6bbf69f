"""The books of a run: nothing is lost, whatever the hours; and they stay small."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.savings.books import MAX_SLOTS, Books, Purpose, open_books, with_activity, with_pause
from policies.vocabulary.units import HOUR_S
from tests.policies.savings.histories import Deed, begins_of, books_of, entered, histories


def limit_sums(books: Books) -> dict[tuple[float, Purpose], tuple[float, float]]:
    """Return seconds and joules by limit and purpose."""
    sums: dict[tuple[float, Purpose], tuple[float, float]] = {}
    for slot in books.slots:
        for use in slot.uses:
            active_s, energy_j = sums.get((use.power_limit_w, use.purpose), (0.0, 0.0))
            sums[use.power_limit_w, use.purpose] = active_s + use.active_s, energy_j + use.energy_j
    return sums


@given(histories, begins_of, st.sampled_from([300.0, 1_800.0, HOUR_S]))
def test_what_is_entered_is_in_the_books(history: list[Deed], begins_s: float, slot_s: float) -> None:
    books = books_of(history, begins_s=begins_s, slot_s=slot_s)
    assert sum(slot.energy_j for slot in books.slots) == pytest.approx(
        sum(deed.duration_s * deed.power_w for deed in history)
    )
    for (limit_w, purpose), (active_s, energy_j) in limit_sums(books).items():
        same = [deed for deed in history if (deed.power_limit_w, deed.purpose) == (limit_w, purpose)]
        assert active_s == pytest.approx(sum(deed.duration_s for deed in same), abs=1e-6)
        assert energy_j == pytest.approx(sum(deed.duration_s * deed.power_w for deed in same), rel=1e-6)


@given(histories, begins_of, st.sampled_from([300.0, 1_800.0, HOUR_S, 100.7]))
def test_a_slot_lies_within_its_hour_and_follows_the_last(history: list[Deed], begins_s: float, slot_s: float) -> None:
    books = books_of(history, begins_s=begins_s, slot_s=slot_s)
    for slot in books.slots[-20:]:
        assert slot.ends_s <= (math.floor(slot.begins_s / slot_s + 1e-9) + 1) * slot_s + 1e-6
        assert slot.active_s + slot.pause_s == pytest.approx(slot.ends_s - slot.begins_s, abs=1e-6)
    assert all(earlier.ends_s == later.begins_s for earlier, later in pairwise(books.slots))


def test_books_of_months_stay_small_and_lose_nothing() -> None:
    books = open_books()
    n_hours = 10 * MAX_SLOTS
    for hour in range(n_hours):
        begins_s = hour * HOUR_S
        books = with_activity(
            books, begins_s=begins_s, duration_s=1_800.0, power_limit_w=200.0 + hour % 3, energy_j=7.0
        )
        books = with_pause(books, begins_s=begins_s + 1_800.0, duration_s=1_800.0, energy_j=1.0)
    assert len(books.slots) <= MAX_SLOTS
    assert sum(slot.active_s for slot in books.slots) == n_hours * 1_800.0
    assert sum(slot.energy_j for slot in books.slots) == pytest.approx(8.0 * n_hours)
    assert all(slot.ends_s - slot.begins_s == HOUR_S for slot in books.slots[-MAX_SLOTS // 4 :])
    assert all(len(slot.uses) <= 3 for slot in books.slots)


def test_a_clock_that_is_set_back_moves_nothing_into_the_past() -> None:
    books = with_pause(open_books(), begins_s=5_800.0, duration_s=200.0, energy_j=1.0)
    books = with_activity(books, begins_s=4_000.0, duration_s=600.0, power_limit_w=200.0, energy_j=1.0)
    assert [(slot.begins_s, slot.ends_s) for slot in books.slots] == [(5_800.0, 6_600.0)]


def test_time_in_which_the_run_was_not_there_is_in_no_slot() -> None:
    books = with_pause(open_books(), begins_s=0.0, duration_s=60.0, energy_j=1.0)
    books = with_pause(books, begins_s=7_300.0, duration_s=60.0, energy_j=1.0)
    assert [(slot.begins_s, slot.ends_s) for slot in books.slots] == [(0.0, 60.0), (7_300.0, 7_360.0)]


@pytest.mark.parametrize(("pause_s", "n_slots"), [(200.0, 1), (400.0, 2)])
def test_after_a_long_pause_another_slot_begins(pause_s: float, n_slots: int) -> None:
    books, at_s = open_books(), 0.0
    for seconds, limit_w in [(100.0, 200.0), (pause_s / 2, None), (pause_s / 2, None), (50.0, 200.0), (50.0, 250.0)]:
        books, at_s = entered(books, at_s, Deed(duration_s=seconds, power_w=1.0, power_limit_w=limit_w))
    assert len(books.slots) == n_slots
    assert books.slots[0].idle_s == (pause_s if n_slots == 2 else 0.0)


def test_energy_without_a_duration_is_entered() -> None:
    books = with_pause(open_books(), begins_s=100.0, duration_s=0.0, energy_j=5.0)
    books = with_pause(books, begins_s=100.0, duration_s=3_500.0, energy_j=1.0)
    books = with_pause(books, begins_s=HOUR_S, duration_s=0.0, energy_j=5.0)
    assert [(slot.pause_s, slot.pause_energy_j) for slot in books.slots] == [(3_500.0, 11.0)]


def test_asked_pauses_are_told_apart() -> None:
    books = with_pause(open_books(), begins_s=0.0, duration_s=60.0, energy_j=5.0, kind="asked")
    assert (books.slots[0].asked_pause_s, books.slots[0].asked_pause_energy_j) == (60.0, 5.0)
    assert (books.slots[0].pause_s, books.slots[0].pause_energy_j) == (0.0, 0.0)


@pytest.mark.parametrize("slot_s", [0.0, -1.0, math.nan, math.inf])
def test_a_slot_has_a_length(slot_s: float) -> None:
    with pytest.raises(ValueError, match="slot_s = "):
        open_books(slot_s=slot_s)


@pytest.mark.parametrize("duration_s", [-1.0, math.nan, math.inf])
def test_a_duration_that_is_none_is_refused(duration_s: float) -> None:
    with pytest.raises(ValueError, match="must be finite and at least 0"):
        with_pause(open_books(), begins_s=10.0, duration_s=duration_s, energy_j=0.0)


def test_short_times_add_up_exactly_though_unix_time_is_coarse() -> None:
    books = open_books()
    for number in range(1_000):
        begins_s = 1.75e9 + number * 0.0123
        books = with_activity(books, begins_s=begins_s, duration_s=0.0007, power_limit_w=200.0, energy_j=0.1)
        books = with_pause(books, begins_s=begins_s + 0.0007, duration_s=0.0116, energy_j=0.2)
    assert sum(slot.active_s for slot in books.slots) == pytest.approx(0.7, rel=1e-9)
    assert sum(slot.pause_s for slot in books.slots) == pytest.approx(11.6, rel=1e-9)
