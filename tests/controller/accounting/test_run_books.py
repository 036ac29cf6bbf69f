"""Tests of the books of a run: every interval once, at its limit and with its purpose; and what is said, and when."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from controller.accounting.meter_intervals import MeterInterval
from controller.accounting.reports import with_saving
from controller.accounting.run_books import MAX_CLOSED, MAX_VALUES, MIN_PAUSED_S, GpusNow, RunBooks, describe_saving
from controller.accounting.run_ledger import MAX_LIMITS
from policies.profiling.paired_looks import Looks, Pair, PooledLog
from policies.savings.books import Purpose, Slot
from policies.savings.counterfactual import Saving
from policies.savings.interval import MAX_CI90_RATIO, KnownSaving, UnknownSaving
from policies.thermal.board import TIME_CONSTANTS_S, ThermalState
from policies.vocabulary.profile import PowerProfile
from policies.vocabulary.signal import Signal
from policies.vocabulary.units import DAY_S, HOUR_S
from publishers.messages.codec import decode, encode
from publishers.messages.reports import KNOWN_EVIDENCE, RunEnergy
from tests.controller.messages import ns, run_energy
from tests.fakes import MIDNIGHT_S
from tests.policies.days import hourly

TOP_W = 300.0
CURVE = PowerProfile.from_rows([(200.0, 180.0, 3.5), (240.0, 216.0, 3.7), (TOP_W, 270.0, 4.0)])
SEEN: Any = {"power_w2": 1.0, "warmed_w2": (1.0,) * len(TIME_CONSTANTS_S)}
"""Of a pair that has seen all of the warming."""


@dataclass
class Course:
    """What a run does, one thing after the other, as its node sees it.

    Attributes:
        books: its books.
        at_s: the monotonic time [s].
        step_s: by how much the wall clock was stepped [s].
        in_force: the limit and since when, as the GPUs have it now.
        are_at_prior, are_reduced: as in `GpusNow`.
        added: the intervals.
    """

    books: RunBooks = field(default_factory=RunBooks)
    at_s: float = 0.0
    step_s: float = 0.0
    in_force: tuple[float, int] | None = (TOP_W, 0)
    are_at_prior: bool = True
    are_reduced: bool = False
    added: list[MeterInterval] = field(default_factory=list)

    def set_limit(self, power_limit_w: float, purpose: Purpose) -> None:
        """Set a limit, for a purpose, which is in force at once."""
        self.in_force, self.books.purpose = (power_limit_w, ns(self.at_s)), purpose

    def work(self, duration_s: float, power_w: float = 100.0, **changes: Any) -> None:  # noqa: ANN401 — the record checks them
        """Iterate for a while."""
        begin_ns, end_ns = ns(self.at_s), ns(self.at_s + duration_s)
        fields: dict[str, Any] = {"active": True, "n_iterations": 4.0, "energy_j": power_w * duration_s} | changes
        each = MeterInterval(begin_ns=begin_ns, end_ns=end_ns, **fields)
        now = GpusNow(in_force=self.in_force, are_at_prior=self.are_at_prior, are_reduced=self.are_reduced)
        self.books.add(each, now, begins_s=MIDNIGHT_S + self.at_s + self.step_s)
        self.added.append(each)
        self.at_s += duration_s

    def pause(self, duration_s: float, power_w: float = 20.0, *, is_asked: bool = False) -> None:
        """Do nothing for a while."""
        self.work(duration_s, power_w, active=False, n_iterations=0.0, is_asked=is_asked)

    @property
    def slots(self) -> tuple[Slot, ...]:
        """Return what is in the books."""
        return self.books.books.slots


def duration_s(course: Course) -> float:
    """Return for how long the run was there [s]."""
    return sum(each.duration_s for each in course.added)


def uses(course: Course) -> dict[tuple[float, str], float]:
    """Return the seconds at each limit, for each purpose."""
    sums: dict[tuple[float, str], float] = {}
    for use in (use for slot in course.slots for use in slot.uses):
        key = use.power_limit_w, str(use.purpose)
        sums[key] = sums.get(key, 0.0) + use.active_s
    return sums


def test_first_pass_plan_and_looks_are_told_apart() -> None:
    course = Course()
    course.work(10.0)
    course.set_limit(200.0, Purpose.FIRST_PASS)
    course.work(20.0)
    course.set_limit(250.0, Purpose.PLAN)
    course.work(100.0)
    course.set_limit(TOP_W, Purpose.LOOK)
    course.work(15.0)
    course.set_limit(250.0, Purpose.PLAN)
    course.work(100.0)
    assert uses(course) == pytest.approx(
        {(TOP_W, "first_pass"): 10.0, (200.0, "first_pass"): 20.0, (250.0, "plan"): 200.0, (TOP_W, "look"): 15.0}
    )


def test_how_often_there_is_a_look_is_that_of_the_last_two_hours() -> None:
    course = Course()
    assert course.books.look_ratio == 0
    for look_s in (900.0, 900.0, 360.0, 360.0):
        course.set_limit(TOP_W, Purpose.LOOK)
        course.work(look_s)
        course.set_limit(250.0, Purpose.PLAN)
        course.work(3_600.0 - look_s)
    assert course.books.look_ratio == pytest.approx(0.1)


def test_limits_of_the_books_are_relative_to_the_top_of_their_curve() -> None:
    course = played()
    assert course.books.curve is None
    assert course.books.limit_ratios(Looks(), [200.0])[0] == ()
    course.books.curve = CURVE
    (low, top), correlation = course.books.limit_ratios(
        looks_at(200.0, rate_ratio=0.9, energy_ratio=0.9), [200.0, TOP_W]
    )
    assert correlation.shape == (2, 2)
    assert (low.power_limit_w, top.rate_ratio, top.energy_ratio) == (200.0, 1.0, 1.0)
    assert low.n_looks > 0
    assert low.rate_ratio < 1 < low.energy_ratio


def test_a_limit_may_serve_another_purpose_from_some_time_on() -> None:
    """The first pass ends at the limit that the plan chooses; later intervals of it are the plan's."""
    course = Course()
    course.set_limit(200.0, Purpose.FIRST_PASS)
    course.work(20.0)
    course.books.purpose = Purpose.PLAN
    course.work(30.0)
    course.work(30.0)
    assert uses(course) == pytest.approx({(200.0, "first_pass"): 20.0, (200.0, "plan"): 60.0})


def test_an_interval_that_comes_late_is_entered_at_its_own_limit() -> None:
    course = Course()
    course.work(10.0)
    course.in_force, course.books.purpose = (200.0, ns(30.0)), Purpose.LOOK  # while what began at 10 s is not known yet
    course.work(20.0)
    course.work(5.0)
    assert uses(course) == pytest.approx({(TOP_W, "first_pass"): 30.0, (200.0, "look"): 5.0})


def test_gaps_and_pauses_are_entered_as_such() -> None:
    course = Course()
    course.work(10.0, gaps_s=2.0)
    course.pause(60.0)
    course.pause(30.0, is_asked=True)
    (slot,) = course.slots
    assert (slot.active_s, slot.uses[0].energy_j) == pytest.approx((8.0, 800.0))
    assert (slot.pause_s, slot.pause_energy_j) == pytest.approx((62.0, 200.0 + 1_200.0))
    assert (slot.asked_pause_s, slot.asked_pause_energy_j) == pytest.approx((30.0, 600.0))


def test_what_gpus_draw_that_wait_is_known_after_some_minutes_on_whatever_curve() -> None:
    course = Course()
    course.pause(MIN_PAUSED_S)
    course.pause(200.0, 30.0, is_asked=True)
    assert course.books.asked_pause_power_w is None
    course.work(10.0)
    course.books.close(Looks())
    course.pause(MIN_PAUSED_S - 200.0, 60.0, is_asked=True)
    assert course.books.asked_pause_power_w == pytest.approx((200.0 * 30.0 + 100.0 * 60.0) / 300.0)


@pytest.mark.parametrize(("unmeasured_s", "active_s"), [(0.0, 12.0), (1.0, 0.0)])
def test_what_ran_before_a_pause_within_an_interval_is_no_pause(unmeasured_s: float, active_s: float) -> None:
    course = Course()
    course.work(20.0, active=False, gaps_s=8.0, unmeasured_s=unmeasured_s)
    (slot,) = course.slots
    assert (slot.active_s, slot.pause_s, slot.energy_j) == pytest.approx((active_s, 20.0 - active_s, 2_000.0))
    assert slot.pause_energy_j == pytest.approx(100.0 * (20.0 - active_s))


@pytest.mark.parametrize("in_force", [None, (200.0, ns(5.0))])
def test_iterations_at_a_limit_that_is_not_known_are_a_pause(in_force: tuple[float, int] | None) -> None:
    course = Course(in_force=in_force)
    course.work(4.0)
    (slot,) = course.slots
    assert (slot.active_s, slot.pause_s, slot.pause_energy_j) == pytest.approx((0.0, 4.0, 400.0))


@pytest.mark.parametrize(("step_s", "gap_s"), [(-6 * HOUR_S, 0.0), (6 * HOUR_S, 6 * HOUR_S)])
def test_a_clock_that_is_stepped_loses_nothing(step_s: float, gap_s: float) -> None:
    course = Course()
    course.work(600.0)
    course.step_s = step_s
    course.work(600.0)
    assert sum(slot.active_s for slot in course.slots) == pytest.approx(1_200.0)
    assert course.slots[-1].ends_s == pytest.approx(MIDNIGHT_S + 1_200.0 + gap_s)


steps = st.tuples(
    st.sampled_from(["work", "broken off", "pause", "asked", "limit", "look", "clock"]),
    st.floats(1e-4, 5_000.0),
    st.floats(0.0, 1.0),
)


def did(course_of: Sequence[tuple[str, float, float]]) -> Course:
    """Return the course of a run that did one thing after the other."""
    course = Course()
    for what, duration_s, share in course_of:
        match what:
            case "work" | "broken off":
                course.work(duration_s, 300.0 * share, gaps_s=share * duration_s / 2, active=what == "work")
            case "pause" | "asked":
                course.pause(duration_s, 300.0 * share, is_asked=what == "asked")
            case "limit" | "look":
                course.set_limit(100.0 + 200.0 * share, Purpose.LOOK if what == "look" else Purpose.PLAN)
            case _:
                course.step_s += (share - 0.5) * duration_s
    return course


@given(st.lists(steps, min_size=1, max_size=40))
def test_nothing_that_is_entered_is_lost(course_of: list[tuple[str, float, float]]) -> None:
    course = did(course_of)
    entered = course.added
    active = [each for each in entered if each.active or each.gaps_s]
    assert sum(slot.active_s for slot in course.slots) == pytest.approx(
        sum(each.duration_s - each.gaps_s for each in active), rel=1e-9
    )
    assert sum(slot.active_s + slot.pause_s + slot.asked_pause_s for slot in course.slots) == pytest.approx(
        sum(each.duration_s for each in entered), rel=1e-9
    )
    assert sum(slot.asked_pause_s for slot in course.slots) == pytest.approx(
        sum(each.duration_s for each in entered if each.is_asked), rel=1e-9
    )
    assert sum(slot.energy_j for slot in course.slots) == pytest.approx(
        sum(each.energy_j for each in entered), rel=1e-9
    )


def test_limits_are_bounded_in_number() -> None:
    course = Course()
    for number in range(2 * MAX_LIMITS):
        course.set_limit(100.0 + 1.7 * number, Purpose.PLAN)
        course.work(1.0)
    assert len(uses(course)) == MAX_LIMITS
    assert sum(uses(course).values()) == pytest.approx(2 * MAX_LIMITS)


def played() -> Course:
    """Return a run that did a bit of everything."""
    course = Course()
    course.work(2_000.0, gaps_s=3.0)
    course.set_limit(200.0, Purpose.PLAN)
    course.work(4_000.0)
    course.pause(100.0)
    course.pause(100.0, is_asked=True)
    course.work(30.0)
    return course


def test_stored_books_go_on_as_they_were() -> None:
    course, resumed = played(), RunBooks()
    resumed.resume(course.books.stored(), duration_s=duration_s(course))
    assert (resumed.books, resumed.gap) == (course.books.books, None)
    after = Course(books=resumed, at_s=course.at_s, in_force=(200.4, 0))
    after.books.purpose = Purpose.PLAN
    after.work(500.0)
    assert uses(after)[200.0, "plan"] == pytest.approx(4_530.0), "the limit is the same within a watt"
    resumed.close(Looks())
    assert resumed.gap == "curve_changed", "the limits of the former controller count, too"


def test_how_the_boards_warm_is_stored_and_older_books_do_not_know_it() -> None:
    course, resumed = Course(), RunBooks()
    for number in range(60):
        course.work(2.0, 100.0 + number, temperature_c=40.0 + number // 10)
    assert course.books.thermal.warmth_w
    resumed.resume(course.books.stored(), duration_s=duration_s(course))
    assert resumed.thermal == course.books.thermal
    older = msgspec.json.decode(course.books.stored())
    del older["thermal"]
    resumed.resume(msgspec.Raw(msgspec.json.encode(older)), duration_s=duration_s(course))
    assert (resumed.thermal, resumed.gap) == (ThermalState(), None)


@pytest.mark.parametrize("thermal", [{"sums_s": []}, {"slopes": {"n": -1.0}}, "warm"], ids=["short", "below 0", "text"])
def test_a_damaged_state_of_the_warming_costs_nothing_else(thermal: object, caplog: pytest.LogCaptureFixture) -> None:
    course, resumed = played(), RunBooks()
    resumed.resume(spoilt(course.books.stored(), ["thermal"], thermal), duration_s=duration_s(course))
    assert (resumed.books, resumed.gap, resumed.thermal) == (course.books.books, None, ThermalState())
    assert "how the GPUs of a run warm is learnt anew" in caplog.text


CLOSED: dict[str, Any] = {"books": {"slot_s": HOUR_S}, "curve": None, "pairs": [], "top_power_limit_w": TOP_W}


def spoilt(stored: msgspec.Raw, place: list[str | int], value: object) -> msgspec.Raw:
    """Return stored books with one thing in them changed."""
    whole: Any = msgspec.json.decode(stored)
    *folders, last = place
    inner = whole
    for each in folders:
        inner = inner[each]
    inner[last] = value
    return msgspec.Raw(msgspec.json.encode(whole))


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (["books", "slots", 0, "uses", 0, "active_s"], -5.0),
        (["books", "slots", 0, "uses", 0, "energy_j"], 1e30),
        (["books", "slots", 0, "uses", 0, "power_limit_w"], 0.0),
        (["books", "slots", 0, "uses", 0, "purpose"], "fun"),
        (["books", "slots", 0, "pause_energy_j"], None),
        (["books", "slots", 0, "ends_s"], 1.0),
        (["books", "slots", 1, "begins_s"], 1.0),
        (["books", "slot_s"], 0.0),
        (["books", "slots"], [{"begins_s": float(i), "ends_s": float(i)} for i in range(2_000)]),
        (["gap"], "none"),
        (["closed"], [{}]),
        (["closed"], [CLOSED | {"top_power_limit_w": 1e30}]),
        (["closed"], [CLOSED | {"books": {"slot_s": 0.0}}]),
        (["closed"], [CLOSED | {"pairs": [{"lower_w": 5.0, "upper_w": 4.0}]}]),
        (["closed"], [CLOSED] * 40),
    ],
)
def test_damaged_books_begin_anew_and_nothing_is_said(place: list[str | int], value: object) -> None:
    books = RunBooks()
    with pytest.raises((ValueError, msgspec.MsgspecError)):
        books.resume(spoilt(played().books.stored(), place, value), duration_s=0.0)
    assert (books.books.slots, books.gap) == ((), "incomplete")


def test_of_a_run_whose_beginning_is_not_in_the_books_nothing_is_said() -> None:
    course = Course()
    course.books.resume(msgspec.Raw(b"null"), duration_s=0.0)
    course.work(10_000.0)
    found = course.books.saving(Looks())
    assert found == UnknownSaving(code="incomplete", n_looks=0)
    assert "a part of the run is missing" in describe_saving(found)


@pytest.mark.parametrize(("lacking_s", "gap"), [(0.0, None), (5.0, None), (20.0, "incomplete"), (1e4, "incomplete")])
def test_books_that_lack_a_part_of_the_account_are_incomplete(lacking_s: float, gap: str | None) -> None:
    course, resumed = on_two_curves(), RunBooks()
    resumed.resume(course.books.stored(), duration_s=2 * HOUR_S + lacking_s)
    assert resumed.gap == gap


@pytest.mark.parametrize(
    "gpus",
    [
        pytest.param({"are_reduced": True}, id="some have less than the run"),
        pytest.param({"are_at_prior": False}, id="the least prior limit is the top of all"),
    ],
)
def test_of_gpus_at_unlike_limits_nothing_is_told(gpus: dict[str, bool]) -> None:
    course = Course(**gpus)  # type: ignore[arg-type]  # flags alone
    course.work(4_000.0)
    resumed = RunBooks()
    resumed.resume(course.books.stored(), duration_s=duration_s(course))
    for books in (course.books, resumed):
        assert books.saving(Looks()) == UnknownSaving(code="limits_differ", n_looks=0)
    assert "unlike limits" in describe_saving(course.books.saving(Looks()))


def test_a_limit_that_is_lowered_after_an_interval_says_nothing_of_it() -> None:
    course = Course()
    course.work(10.0)
    course.in_force, course.are_at_prior = (200.0, ns(20.0)), False  # while what began at 10 s is not known yet
    course.work(10.0)
    found = course.books.saving(Looks())
    assert isinstance(found, KnownSaving)
    assert found.is_unchanged
    course.work(10.0)
    assert course.books.saving(Looks()) == UnknownSaving(code="too_early", n_looks=0)


@pytest.mark.parametrize(("limit_w", "gap"), [(TOP_W, None), (200.0, "curve_changed")])
def test_what_ran_below_the_top_on_a_dropped_curve_has_no_ratios(limit_w: float, gap: str | None) -> None:
    course = Course()
    course.work(100.0)
    course.set_limit(limit_w, Purpose.PLAN)
    course.work(100.0)
    course.books.close(Looks())
    assert course.books.gap == gap


def test_a_run_that_never_had_a_curve_was_too_short_whatever_else_changed() -> None:
    course = Course()
    course.work(100.0)
    course.set_limit(200.0, Purpose.PLAN)
    course.work(100.0)
    course.books.close(Looks())
    assert course.books.saving(Looks()) == UnknownSaving(code="too_early", n_looks=0)
    course.books.curve = CURVE
    assert course.books.saving(Looks()) == UnknownSaving(code="curve_changed", n_looks=0)


def looks_at(power_limit_w: float, *, rate_ratio: float, energy_ratio: float) -> Looks:
    """Return ten looks that agree, and that have seen how the board warms: what a limit is, relative to the top."""
    rate, energy = (
        PooledLog(n=10, precision=1e7, mean_log=math.log(ratio), square=9.0) for ratio in (rate_ratio, energy_ratio)
    )
    pair = Pair(lower_w=power_limit_w, upper_w=TOP_W, rate=rate, energy=energy, **SEEN)
    return Looks(pairs=(pair,), n_pairs=10)


def on_two_curves() -> Course:
    """Return a run of two hours at 200 W: of 100 W in the first, and of 150 W, on another curve, in the second."""
    course = Course()
    course.set_limit(200.0, Purpose.PLAN)
    course.work(HOUR_S)
    course.books.curve = CURVE
    course.books.close(looks_at(200.0, rate_ratio=0.9, energy_ratio=0.8))
    course.work(HOUR_S, 150.0)
    return course


def test_each_curve_has_its_own_ratios() -> None:
    course = on_two_curves()
    course.books.curve = CURVE
    found = course.books.saving(looks_at(200.0, rate_ratio=0.96, energy_ratio=0.75))
    assert isinstance(found, KnownSaving)
    assert found.saving.energy_j == pytest.approx(250.0 * HOUR_S)
    assert found.saving.baseline_energy_j == pytest.approx((100.0 / 0.8 + 150.0 / 0.75) * HOUR_S, rel=2e-3)
    assert found.saving.baseline_duration_s == pytest.approx((0.9 + 0.96) * HOUR_S, rel=2e-3)


def test_in_the_first_pass_on_another_curve_nothing_is_told() -> None:
    course = on_two_curves()
    course.books.top_power_limit_w = TOP_W
    found = course.books.saving(looks_at(200.0, rate_ratio=0.96, energy_ratio=0.75))
    assert found == UnknownSaving(code="too_early", n_looks=10)


tiny_steps = st.tuples(
    st.sampled_from(["work", "broken off", "pause", "asked", "limit", "look", "clock"]),
    st.floats(1e-9, 5_000.0) | st.sampled_from([1e-9, 20_000.0]),
    st.floats(0.0, 1.0) | st.sampled_from([0.0, 1e-300, 0.5]),
)


@settings(max_examples=200)
@example([("work", 1.0, 0.0)] * 9 + [("work", 1.0, 1e-300), ("asked", 1.0, 1.0)], [0.0], 1.0, 1.0, None)
@given(
    st.lists(tiny_steps, min_size=1, max_size=20),
    st.lists(st.floats(-500.0, 500.0) | st.sampled_from([0.0, 1e-12, 400.0]), min_size=1, max_size=8),
    st.floats(0.01, 3.0),
    st.floats(0.01, 3.0),
    st.sampled_from([None, "carbon", "price"]),
)
def test_whatever_a_run_did_a_number_is_told_to_a_point_or_not_at_all(
    course_of: list[tuple[str, float, float]],
    values: list[float],
    rate_ratio: float,
    energy_ratio: float,
    kind: str | None,
) -> None:
    """It may last no time or need no energy, and its hours may cost next to nothing, or less."""
    course = did(course_of)
    course.books.curve = CURVE
    if kind is not None:
        shown = [abs(value) for value in values] if kind == "carbon" else values
        unit = "g/kWh" if kind == "carbon" else "EUR/kWh"
        course.books.add_signal(day(*shown, unit=unit), until_s=MIDNIGHT_S + DAY_S, is_stopgap=False)
    found = course.books.saving(looks_at(200.0, rate_ratio=rate_ratio, energy_ratio=energy_ratio))
    used = {"carbon": {"carbon_g": 1.0}, "price": {"cost": 1.0}}.get(str(kind), {})
    record = decode(encode(with_saving(run_energy(**used), found)), RunEnergy)  # its bounds hold
    if isinstance(found, UnknownSaving):
        assert record.evidence not in KNOWN_EVIDENCE
        assert record.saved_ratio is None
        return
    halves = found.saved_ci90_ratio, found.saved_energy_ci90_ratio, found.slowdown_ci90_ratio
    assert max(halves) <= MAX_CI90_RATIO
    ratios = found.saving.saved_ratio, found.saving.saved_energy_ratio, found.saving.slowdown_ratio
    assert all(math.isfinite(each) for each in ratios)


def test_closed_books_are_stored_and_go_on() -> None:
    course, resumed = on_two_curves(), RunBooks()
    course.books.curve = CURVE
    course.books.add_signal(day(100.0, 200.0), until_s=MIDNIGHT_S + 2 * HOUR_S, is_stopgap=False)
    assert seen(course) == [100.0, 200.0], "the signal goes back to the beginning of the run"
    resumed.resume(course.books.stored(), duration_s=duration_s(course))
    assert (resumed.books, resumed.curve, resumed.closed) == (course.books.books, CURVE, course.books.closed)


def test_a_run_with_endless_curves_is_not_followed() -> None:
    course = on_two_curves()
    for _ in range(2 * MAX_CLOSED):
        course.work(100.0)
        course.books.curve = CURVE
        course.books.close(Looks())
    assert (len(course.books.closed), course.books.gap) == (MAX_CLOSED, "curve_changed")


@pytest.mark.parametrize("curve", [None, CURVE])
def test_a_run_that_was_never_throttled_has_saved_nothing(curve: PowerProfile | None) -> None:
    course = Course()
    course.work(4_000.0)
    course.pause(100.0)
    course.books.curve = curve
    found = course.books.saving(Looks())
    assert isinstance(found, KnownSaving)
    assert (found.is_unchanged, found.saving.saved_ratio, found.saving.slowdown_ratio) == (True, 0.0, 1.0)
    assert describe_saving(found) == "saved nothing: its power limit was never lowered"


def test_a_run_that_was_below_the_top_all_the_time_has_not_saved_nothing() -> None:
    """Its curve was known from the beginning; the GPUs are others at its end, and there is no curve of them."""
    course = Course()
    course.books.top_power_limit_w = TOP_W
    course.set_limit(200.0, Purpose.PLAN)
    course.work(4_000.0)
    assert course.books.saving(Looks()) == UnknownSaving(code="too_early", n_looks=0)
    resumed = RunBooks()
    resumed.resume(course.books.stored(), duration_s=duration_s(course))
    resumed.close(Looks())
    assert resumed.gap == "curve_changed"


def test_without_a_curve_it_is_too_early() -> None:
    found = played().books.saving(Looks())
    assert describe_saving(found) == "too early to tell what was saved: 0 of 8 looks"


def test_what_was_saved_is_told_with_its_interval_and_its_parts() -> None:
    saving = Saving(
        **dict.fromkeys(("energy_j", "duration_s"), 1.0),
        **dict.fromkeys(("baseline_energy_j", "baseline_duration_s"), 1.1),
        signal_energy=8_761.0,
        baseline_signal_energy=10_000.0,
        following_signal_energy=150.0,
        looks_signal_energy=-10.0,
        first_pass_signal_energy=-1.0,
    )
    assert describe_saving(KnownSaving(saving=saving, saved_ci90_ratio=0.0055)) == (
        "saved 12.4 % (90 %: 11.8 to 12.9 %): better limit 11.0, following 1.5, looks -0.1, first pass 0.0"
    )


def seen(course: Course) -> list[float]:
    """Return the values of the signal that are kept."""
    signal = course.books._signal
    return [] if signal is None else signal.values.tolist()


def day(*values: float, from_s: float = MIDNIGHT_S, unit: str = "g/kWh", zone: str = "XX") -> Signal:
    """Return a signal with so many hours."""
    starts_s = from_s + HOUR_S * np.arange(float(len(values)))
    return replace(hourly(np.array(values)), starts_s=starts_s, ends_s=starts_s[-1] + HOUR_S, unit=unit, zone=zone)


def test_the_newest_revision_of_a_value_wins_and_older_ones_stay() -> None:
    course = Course()
    course.work(4 * HOUR_S)
    course.books.add_signal(day(100.0, 200.0, 300.0), until_s=MIDNIGHT_S + 2.5 * HOUR_S, is_stopgap=False)
    later = day(250.0, 330.0, 400.0, from_s=MIDNIGHT_S + HOUR_S)
    course.books.add_signal(later, until_s=MIDNIGHT_S + 4 * HOUR_S, is_stopgap=False)
    assert seen(course) == [100.0, 250.0, 330.0, 400.0]


def test_what_stands_in_for_the_source_does_not_change_the_past() -> None:
    course = Course()
    course.work(4 * HOUR_S)
    course.books.add_signal(day(100.0, 200.0), until_s=MIDNIGHT_S + 2 * HOUR_S, is_stopgap=False)
    constant = replace(day(600.0, zone=""), ends_s=math.inf, kind="marginal", source="constant")
    course.books.add_signal(constant, until_s=MIDNIGHT_S + 3 * HOUR_S, is_stopgap=True)
    assert seen(course) == [100.0, 200.0, 600.0]
    revised = replace(constant, values=np.array([610.0]))
    course.books.add_signal(revised, until_s=MIDNIGHT_S + 3.5 * HOUR_S, is_stopgap=True)
    assert seen(course) == [100.0, 200.0, 610.0], "it revises its own values"
    back = day(100.0, 200.0, 290.0, 390.0)
    course.books.add_signal(back, until_s=MIDNIGHT_S + 4 * HOUR_S, is_stopgap=False)
    assert seen(course) == [100.0, 200.0, 290.0, 390.0]


def test_a_signal_in_another_unit_replaces_the_former_one() -> None:
    course = Course()
    course.work(2 * HOUR_S)
    course.books.add_signal(day(100.0, 200.0), until_s=MIDNIGHT_S + 2 * HOUR_S, is_stopgap=False)
    course.books.add_signal(day(0.3, 0.2, unit="EUR/kWh"), until_s=MIDNIGHT_S + 2 * HOUR_S, is_stopgap=True)
    assert seen(course) == [0.3, 0.2]


@pytest.mark.parametrize(("step_s", "slot_s"), [(300.0, 300.0), (1.0, 300.0), (86_400.0, HOUR_S)])
def test_slots_are_as_short_as_the_steps_of_the_signal(step_s: float, slot_s: float) -> None:
    course = Course()
    course.work(100.0)
    starts_s = MIDNIGHT_S + step_s * np.arange(30_000.0)
    signal = replace(day(1.0), starts_s=starts_s, values=np.ones(30_000), ends_s=math.inf, estimated=np.array(False))
    course.books.add_signal(signal, until_s=math.inf, is_stopgap=False)
    assert course.books.books.slot_s == slot_s
    assert len(seen(course)) == MAX_VALUES


def test_before_anything_has_run_no_value_is_kept() -> None:
    course = Course()
    course.books.add_signal(day(100.0), until_s=MIDNIGHT_S + HOUR_S, is_stopgap=False)
    course.work(10.0)
    course.books.add_signal(None, until_s=MIDNIGHT_S + HOUR_S, is_stopgap=False)
    assert seen(course) == []
