"""Which readings of a GPU are believed: power and counter against what the board can draw, and against each other."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.gpu.meter.checked_energy import STILL_S, CheckedEnergy, most_j
from controller.ports import Sample
from tests.controller.messages import ns

MAX_W = 300.0
PERIOD_S = 0.1
Fault = Callable[[Sample], Sample | None]


@dataclass(frozen=True)
class Outage:
    """What a board answers from one second to another, instead of the truth; None: nothing."""

    begin_s: float
    end_s: float
    answer: Fault


def readings(duration_s: float, *, power_w: float = 235.0, has_counter: bool = True) -> Iterable[Sample]:
    """Yield true readings of a board that draws the same all the time."""
    for i in range(round(duration_s / PERIOD_S) + 1):
        energy_j = 5_000.0 + power_w * i * PERIOD_S if has_counter else None
        yield Sample(time_ns=ns(i * PERIOD_S), power_w=power_w, energy_j=energy_j)


def measured(duration_s: float, *outages: Outage, has_counter: bool = True, power_w: float = 235.0) -> CheckedEnergy:
    """Return the energy of a board that answers wrongly now and then."""
    energy = CheckedEnergy(max_gap_s=5.0)
    for true in readings(duration_s, has_counter=has_counter, power_w=power_w):
        raw: Sample | None = true
        for outage in outages:
            if outage.begin_s <= true.time_ns / 1e9 < outage.end_s:
                raw = outage.answer(true)
        if raw is None:
            energy.miss()
        else:
            energy.add(raw, MAX_W)
    return energy


def no_answer(_: Sample) -> None:
    """Answer nothing."""


def power_of(power_w: float | None) -> Fault:
    """Answer this power."""
    return lambda true: replace(true, power_w=power_w)


def counter_of(energy_j: float | None) -> Fault:
    """Answer this energy."""
    return lambda true: replace(true, energy_j=energy_j)


def factor(of_counter: float, of_power: float = 1.0) -> Fault:
    """Answer so much more than the truth."""
    return lambda true: replace(
        true, energy_j=(true.energy_j or 0.0) * of_counter, power_w=(true.power_w or 0.0) * of_power
    )


@pytest.mark.parametrize("has_counter", [True, False])
def test_what_is_possible_is_believed(has_counter: bool) -> None:
    energy = measured(600.0, has_counter=has_counter)
    assert energy.energy_j == pytest.approx(600 * 235)
    assert (energy.unmeasured_s, energy.power_w, energy.power_fault, energy.counter_fault) == (0.0, 235.0, "", "")


@pytest.mark.parametrize("power_w", [3.7e6, 1.51 * MAX_W, 0.0, -1.0, float("nan"), float("inf"), None])
@pytest.mark.parametrize("has_counter", [True, False])
def test_a_power_that_no_board_draws_counts_for_nothing(has_counter: bool, power_w: float | None) -> None:
    energy = measured(60.0, Outage(10.0, 10.45, power_of(power_w)), has_counter=has_counter)
    assert energy.energy_j == pytest.approx(60 * 235)
    assert energy.unmeasured_s == pytest.approx(0.0 if has_counter else 0.6)
    assert energy.power_fault == ""


def test_a_spike_is_believed_for_a_moment_and_not_for_a_second() -> None:
    outages = Outage(10.0, 10.3, power_of(400.0)), Outage(30.0, 40.0, power_of(400.0))
    short = measured(60.0, outages[0], has_counter=False)
    assert short.unmeasured_s == 0.0
    assert short.energy_j == pytest.approx(60 * 235 + 0.3 * 165, abs=1)
    long = measured(60.0, outages[1], has_counter=False)
    assert long.unmeasured_s == pytest.approx(9.5, abs=0.5)
    assert long.energy_j <= 50 * 235 + 1.1 * MAX_W * 10 + 0.5 * 400


def test_time_without_a_reading_counts_at_the_power_before_and_is_told() -> None:
    energy = measured(600.0, Outage(100.0, 160.0, no_answer), has_counter=False)
    assert energy.energy_j == pytest.approx(600 * 235)
    assert energy.unmeasured_s == pytest.approx(60.1)


def test_a_counter_tells_what_was_used_meanwhile() -> None:
    energy = measured(600.0, Outage(100.0, 160.0, no_answer))
    assert energy.energy_j == pytest.approx(600 * 235)
    assert energy.unmeasured_s == 0.0


def test_a_counter_that_never_moves_is_replaced_by_the_power_at_once() -> None:
    energy = measured(STILL_S + 0.2, Outage(0.0, 1e9, counter_of(0.0)))
    assert "stuck" in energy.counter_fault
    assert energy.energy_j == pytest.approx((STILL_S + 0.2) * 235)
    assert energy.counter_at_j(energy.energy_j) is None


def test_energy_that_is_found_late_says_since_when_it_was_used() -> None:
    energy = CheckedEnergy(max_gap_s=5.0)
    since_ns = [energy.add(replace(true, energy_j=7.0), MAX_W) for true in readings(1.0)]
    assert since_ns[:7] == [ns(0.0), ns(0.0), ns(0.1), ns(0.2), ns(0.3), ns(0.0), ns(0.5)]


@pytest.mark.parametrize(
    "fault",
    [
        counter_of(1e12),
        counter_of(0.0),
        counter_of(None),
        counter_of(float("nan")),
        factor(1_000.0),
        factor(0.001),
        lambda true: replace(true, energy_j=5_000.0 + 235.0 * 100),
    ],
    ids=["huge", "zero", "absent", "nan", "millijoules", "kilojoules", "frozen"],
)
@pytest.mark.parametrize("duration_s", [0.3, 1.0, 10.0, 60.0])
def test_a_counter_that_is_wrong_for_a_while_costs_less_than_a_hundredth(fault: Fault, duration_s: float) -> None:
    energy = measured(600.0, Outage(100.0, 100.0 + duration_s, fault))
    assert energy.energy_j == pytest.approx(600 * 235, rel=0.01)
    assert (energy.counter_fault, energy.power_fault, energy.unmeasured_s) == ("", "", 0.0)
    assert energy.counter_at_j(energy.energy_j) is not None


@pytest.mark.parametrize("ratio", [0.3, 0.8, 1.2, 1.5, 3.0])
@pytest.mark.parametrize("reads_w", [0.94, 1.0, 1.06])
def test_a_counter_of_a_wrong_scale_costs_less_than_a_hundredth(ratio: float, reads_w: float) -> None:
    usual, wrong = Outage(0.0, 1e9, factor(1.0, reads_w)), Outage(100.0, 160.0, factor(ratio, reads_w))
    energy = measured(600.0, usual, wrong)
    assert energy.energy_j == pytest.approx(600 * 235, rel=0.01)
    assert (energy.counter_fault, energy.unmeasured_s) == ("", 0.0), "believed again, whatever the power usually reads"


@pytest.mark.parametrize("period_s", [0.25, 0.2, 0.1])
@pytest.mark.parametrize("hole_s", [0.0, 0.5, 1.3, 1.6, 2.5, 4.9, 5.5, 7.0])
@pytest.mark.parametrize("ratio", [1.4, 0.6])
def test_a_slow_reading_lets_no_counter_of_a_wrong_scale_in(ratio: float, hole_s: float, period_s: float) -> None:
    """Some gaps are a little longer than a quarter of a second: clocks jitter."""
    energy = CheckedEnergy(max_gap_s=5.0)
    for i in range(round(230 / period_s)):
        time_s = i * period_s + 0.02 * (i % 3)
        if not 150.0 < time_s < 150.0 + hole_s:
            energy_j = (5_000.0 + 235.0 * time_s) * (ratio if time_s >= 100.0 else 1.0)
            energy.add(Sample(time_ns=ns(time_s), power_w=235.0, energy_j=energy_j), MAX_W)
    assert energy.energy_j == pytest.approx(230 * 235, rel=0.01)
    assert energy.counter_fault


def test_readings_that_are_slow_again_and_again_shut_no_counter_out() -> None:
    """The load changes in each hole, so that what is interpolated there is wrong."""
    energy, energy_j, power_w = CheckedEnergy(max_gap_s=5.0), 0.0, 200.0
    for i in range(2_000):
        power_w = 200.0 if i // 50 % 2 else 100.0
        energy_j += power_w * 0.1
        if i % 50 >= 12:
            energy.add(
                Sample(time_ns=ns(i * 0.1), power_w=power_w, energy_j=energy_j + (9e6 if i > 1_000 else 0)), MAX_W
            )
    assert energy.counter_fault == ""


@pytest.mark.parametrize("ratio", [0.6, 0.9, 1.12, 1.3])
def test_a_counter_that_cannot_be_read_at_first_is_believed_at_its_own_scale(ratio: float) -> None:
    energy = measured(30.0, Outage(0.0, 1e9, factor(ratio)), Outage(0.0, 0.05, counter_of(None)))
    assert energy.counter_at_j(energy.energy_j) == pytest.approx(ratio * (5_000 + 30 * 235))
    reset = Outage(30.0, 1e9, lambda true: replace(true, energy_j=((true.energy_j or 0.0) - 12_050) * ratio))
    energy = measured(40.0, Outage(0.0, 30.0, factor(ratio)), Outage(0.0, 0.05, counter_of(None)), reset)
    assert energy.counter_at_j(energy.energy_j) is not None, "its usual ratio is known soon"


@pytest.mark.parametrize("ratio", [0.6, 0.9, 1.12])
def test_a_steady_ratio_that_is_not_the_usual_one_is_believed_after_three_trials(ratio: float) -> None:
    other = Outage(100.0, 1e9, lambda true: replace(true, energy_j=ratio * ((true.energy_j or 0.0) - 28_000)))
    before, after = (measured(duration_s, other) for duration_s in (279.0, 282.0))
    assert before.energy_j == pytest.approx(279 * 235, rel=0.001)
    assert (bool(before.counter_fault), after.counter_fault) == (True, "")
    reset = Outage(400.0, 1e9, lambda true: replace(true, energy_j=ratio * ((true.energy_j or 0.0) - 98_000)))
    assert measured(410.0, other, reset).counter_fault == "", "that is the usual one now"


def test_a_ratio_that_changes_from_trial_to_trial_is_not_believed() -> None:
    energy, energy_j = CheckedEnergy(max_gap_s=5.0), 0.0
    for i, true in enumerate(readings(600.0)):
        energy_j += 23.5 * (1.0 if i < 1_000 else (0.55, 0.8)[i // 600 % 2])
        energy.add(replace(true, energy_j=energy_j - (20_000 if i >= 1_000 else 0)), MAX_W)
    assert energy.counter_fault
    assert energy.energy_j == pytest.approx(600 * 235, rel=0.01)


@pytest.mark.parametrize("period_s", [0.1, 0.5, 2.0])
@pytest.mark.parametrize("utilization_ratio", [None, 0.0])
def test_a_power_of_0_w_beside_a_still_counter_is_believed(period_s: float, utilization_ratio: float | None) -> None:
    energy = CheckedEnergy(max_gap_s=6.0)
    for i in range(round(600 / period_s) + 1):
        time_s = i * period_s
        used_s, power_w = min(time_s, 100.0) + max(time_s - 200.0, 0.0), 0.0 if 100.0 < time_s <= 200.0 else 235.0
        raw = Sample(time_ns=ns(time_s), power_w=power_w, energy_j=9.0 + 235 * (used_s // 0.1 * 0.1))
        energy.add(replace(raw, utilization_ratio=utilization_ratio), MAX_W)
        if 104.0 < time_s <= 200.0:
            assert (energy.power_w, energy.power_fault, energy.counter_fault) == (0.0, "", "")
    assert energy.energy_j == pytest.approx(500 * 235, rel=0.001)
    assert (energy.unmeasured_s, energy.power_w, energy.counter_fault) == (0.0, 235.0, "")


def test_a_counter_that_stays_still_when_a_board_draws_again_is_found_at_once() -> None:
    asleep = Outage(100.0, 200.0, lambda true: replace(true, power_w=0.0, energy_j=28_500.0))
    energy = measured(202.0, asleep, Outage(200.0, 1e9, counter_of(28_500.0)))
    assert "stuck" in energy.counter_fault
    assert energy.energy_j == pytest.approx(102 * 235, rel=0.002)
    assert energy.unmeasured_s == 0.0


@pytest.mark.parametrize("power_w", [None, 0.0, 3.7e6])
@pytest.mark.parametrize("period_s", [0.1, 2.0])
def test_power_before_a_counter_stops_is_what_counts_meanwhile(period_s: float, power_w: float | None) -> None:
    energy = CheckedEnergy(max_gap_s=6.0)
    for true in list(readings(600.0))[:: round(period_s / PERIOD_S)]:
        is_wrong = 99.0 <= true.time_ns / 1e9 < 159.0
        wrong = replace(true, energy_j=5_000.0 + 235 * 99, power_w=power_w, utilization_ratio=1.0)
        energy.add(wrong if is_wrong else true, MAX_W)
    assert energy.energy_j == pytest.approx(600 * 235, rel=0.002)
    assert energy.unmeasured_s == pytest.approx(60.0, abs=2 * period_s)


def test_a_counter_reset_twice_while_the_board_was_lost_has_not_returned() -> None:
    """It passes the value that it had before it was reset, and nothing was measured in between."""
    energy, zero_j = CheckedEnergy(max_gap_s=5.0), 0.0
    for true in readings(200.0):
        time_s, energy_j = true.time_ns / 1e9, true.energy_j or 0.0
        if 100.0 <= time_s < 106.0 or 115.0 <= time_s < 121.0:
            zero_j = energy_j
            energy.miss()
        else:
            energy.add(replace(true, energy_j=energy_j - zero_j), MAX_W)
    assert energy.energy_j == pytest.approx(200 * 235, rel=0.001)
    assert energy.unmeasured_s == pytest.approx(12.2)


def test_what_the_power_has_counted_is_not_counted_again_by_a_counter_in_trial() -> None:
    reset = Outage(30.0, 1e9, lambda true: replace(true, energy_j=(true.energy_j or 0.0) - 12_050))
    power_gone = Outage(30.8, 40.0, lambda true: replace(true, energy_j=(true.energy_j or 0.0) - 12_050, power_w=None))
    energy = measured(60.0, reset, power_gone)
    assert energy.energy_j == pytest.approx(60 * 235, rel=0.001)


def test_a_counter_that_begins_again_is_bridged_and_believed_again() -> None:
    energy = measured(60.0, Outage(30.0, 1e9, lambda true: replace(true, energy_j=(true.energy_j or 0.0) - 12_050)))
    assert energy.energy_j == pytest.approx(60 * 235)
    assert energy.counter_fault == ""
    assert energy.counter_at_j(energy.energy_j) == pytest.approx(5_000 + 60 * 235 - 12_050)


def test_a_counter_that_begins_again_where_no_power_can_be_read_is_believed_again() -> None:
    no_power = Outage(20.0, 1e9, power_of(None))
    begins = Outage(30.0, 1e9, lambda true: replace(true, energy_j=(true.energy_j or 0.0) - 12_000, power_w=None))
    energy = measured(60.0, no_power, begins)
    assert energy.energy_j == pytest.approx(60 * 235, rel=0.001)
    assert energy.unmeasured_s == pytest.approx(0.1)
    assert energy.power_w == pytest.approx(235.0), "by the counter"


@pytest.mark.parametrize("power_w", [1.0, 30.0])
def test_a_power_that_stands_still_is_replaced_by_a_counter_that_moves(power_w: float) -> None:
    energy = measured(60.0, Outage(20.0, 1e9, power_of(power_w)))
    assert energy.energy_j == pytest.approx(60 * 235)
    assert "does not fit its energy" in energy.power_fault
    assert energy.power_w == pytest.approx(235.0)
    back = measured(120.0, Outage(20.0, 60.0, power_of(power_w)))
    assert (back.power_fault, back.power_w) == ("", 235.0)


@pytest.mark.parametrize(("freeze_s", "every_s"), [(1.5, 15.0), (2.9, 29.0), (4.0, 40.0), (10.0, 100.0)])
@pytest.mark.parametrize("offset_s", [0.0, 0.7, 1.5])
@pytest.mark.parametrize("catches_up", [True, False])
def test_a_counter_that_freezes_again_and_again_costs_less_than_a_hundredth(
    freeze_s: float, every_s: float, offset_s: float, *, catches_up: bool
) -> None:
    energy, lost_j, last_j = CheckedEnergy(max_gap_s=5.0), 0.0, 0.0
    for true in readings(600.0):
        energy_j = (true.energy_j or 0.0) - lost_j
        if (true.time_ns / 1e9 + offset_s) % every_s < freeze_s and last_j:
            if not catches_up:
                lost_j += energy_j - last_j
            energy_j = last_j
        last_j = energy_j
        energy.add(replace(true, energy_j=energy_j), MAX_W)
    assert energy.energy_j == pytest.approx(600 * 235, rel=0.01)


@pytest.mark.parametrize("every_s", [0.25, 2.5])
@pytest.mark.parametrize("is_missed", [True, False])
def test_a_frozen_counter_is_found_beside_a_power_that_fails_now_and_then(every_s: float, *, is_missed: bool) -> None:
    energy = CheckedEnergy(max_gap_s=5.0)
    for true in readings(600.0):
        if (true.time_ns / 1e9) % every_s >= PERIOD_S:
            energy.add(replace(true, energy_j=7.0), MAX_W)
        elif is_missed:
            energy.miss()
        else:
            energy.add(replace(true, energy_j=7.0, power_w=3.7e6), MAX_W)
    assert energy.energy_j == pytest.approx(600 * 235, rel=0.01)
    assert "stuck" in energy.counter_fault


@pytest.mark.parametrize("ratio", [4.0, 10.0])
def test_a_counter_that_shows_more_than_the_board_can_draw_is_not_believed(ratio: float) -> None:
    faulty = Outage(0.0, 1e9, lambda true: replace(true, energy_j=ratio * (true.energy_j or 0.0)))
    energy = measured(600.0, faulty)
    assert energy.energy_j == pytest.approx(600 * 235, rel=0.01)
    assert "cannot use" in energy.counter_fault


@pytest.mark.parametrize("answers_j", [(1_000.0, 999.0), (5.0, 4.0, 3.0, 2.0, 1.0)])
def test_a_counter_that_only_trembles_is_not_believed(answers_j: tuple[float, ...]) -> None:
    energy = CheckedEnergy(max_gap_s=5.0)
    for i, true in enumerate(readings(600.0)):
        energy.add(replace(true, energy_j=answers_j[i % len(answers_j)]), MAX_W)
    assert energy.energy_j == pytest.approx(600 * 235, rel=0.01)


def test_a_power_that_was_refuted_is_no_judge_of_a_counter_that_begins_again() -> None:
    stuck = Outage(50.0, 1e9, lambda true: replace(true, power_w=20.0))
    reset = Outage(100.0, 1e9, lambda true: replace(true, energy_j=(true.energy_j or 0.0) - 20_000, power_w=20.0))
    energy = measured(600.0, stuck, reset)
    assert energy.energy_j == pytest.approx(600 * 235, rel=0.01)
    assert energy.power_w == pytest.approx(235.0, rel=0.01)


def test_a_counter_without_power_that_stands_still_is_not_known() -> None:
    energy = measured(60.0, Outage(20.0, 1e9, lambda true: replace(true, energy_j=9_700.0, power_w=None)))
    assert (energy.is_current, energy.power_w) == (False, None)


def test_where_the_counter_stood_is_known_while_it_cannot_be_read() -> None:
    energy = measured(60.0, Outage(20.0, 1e9, counter_of(None)))
    assert energy.counter_at_j(energy.energy_j) == pytest.approx(5_000 + 60 * 235)


@pytest.mark.parametrize("period_s", [0.1, 0.5, 1.0, 2.0, 5.0, 10.0])
@pytest.mark.parametrize(("burst_s", "every_s"), [(0.5, 1.0), (0.2, 0.4), (1.5, 3.0), (0.4, 2.0), (3.0, 10.0)])
@pytest.mark.parametrize("mean_s", [0.025, 1.0])
def test_bursts_of_a_healthy_board_are_believed(period_s: float, burst_s: float, every_s: float, mean_s: float) -> None:
    """As on an H100: the counter and the power move every 100 ms; on other boards the power is a mean of a second."""
    step_s = 0.005
    powers_w = [700.0 if (i * step_s) % every_s < burst_s else 70.0 for i in range(round(300 / step_s))]
    energies_j = np.concatenate([[0.0], np.cumsum(powers_w)]) * step_s
    energy, now_j = CheckedEnergy(max_gap_s=max(5.0, 3 * period_s)), 0.0
    for i in range(1, round(300 / period_s)):
        time_s = i * period_s
        moved_s = time_s // 0.1 * 0.1
        now_j, before_j = (energies_j[max(round(each_s / step_s), 0)] for each_s in (moved_s, moved_s - mean_s))
        power_w = (now_j - before_j) / min(mean_s, max(moved_s, step_s))
        energy.add(Sample(time_ns=ns(time_s), power_w=power_w, energy_j=now_j), 700.0)
        assert (energy.power_fault, energy.counter_fault) == ("", "")
    assert energy.energy_j == pytest.approx(now_j - energies_j[round(period_s // 0.1 * 0.1 / step_s)], rel=0.01)


def test_an_idle_board_of_little_power_is_believed() -> None:
    energy = measured(60.0, Outage(0.0, 1e9, counter_of(0.0)), power_w=2.0)
    assert (energy.counter_fault, energy.power_fault) == ("", "")


def test_a_board_that_never_says_anything_possible_has_used_nothing_that_is_known() -> None:
    energy = measured(60.0, Outage(0.0, 1e9, lambda true: replace(true, power_w=3.7e6)), has_counter=False)
    assert (energy.energy_j, energy.power_w, energy.is_current) == (0.0, None, False)


@pytest.mark.parametrize("max_w", [None, MAX_W])
def test_without_a_known_maximum_limit_a_generous_one_holds(max_w: float | None) -> None:
    energy = CheckedEnergy(max_gap_s=5.0)
    energy.add(Sample(time_ns=0, power_w=235.0), max_w)
    energy.add(Sample(time_ns=ns(1), power_w=3.7e6), max_w)
    energy.add(Sample(time_ns=ns(2), power_w=235.0), max_w)
    assert energy.energy_j == pytest.approx(470)


ANY = st.one_of(st.none(), st.floats(allow_nan=True), st.floats(0, 2 * MAX_W))


@given(
    st.lists(st.tuples(st.floats(0.01, 20.0), ANY, st.one_of(ANY, st.floats(0, 1e5)), st.booleans()), max_size=60),
)
def test_whatever_a_board_answers_the_total_grows_no_faster_than_it_can_draw(
    answers: list[tuple[float, float | None, float | None, bool]],
) -> None:
    energy, time_s, before_j = CheckedEnergy(max_gap_s=5.0), 0.0, 0.0
    for step_s, power_w, energy_j, fails in answers:
        time_s += step_s
        if fails:
            energy.miss()
            continue
        begin_ns = energy.add(Sample(time_ns=ns(time_s), power_w=power_w, energy_j=energy_j), MAX_W)
        assert begin_ns <= ns(time_s)
        assert energy.energy_j >= before_j
        before_j = energy.energy_j
        assert energy.unmeasured_s <= time_s
        assert energy.power_w is None or energy.power_w >= 0
    assert before_j <= 1.5 * most_j(time_s, MAX_W)
