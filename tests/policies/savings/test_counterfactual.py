"""The twin at the top limit: by hand, by an hour's arithmetic, and whatever a run has done."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.savings.books import Purpose, open_books
from policies.savings.counterfactual import Counterfactual, Saving
from policies.vocabulary.limit_ratios import LimitRatios
from policies.vocabulary.signal import Signal, constant_signal
from policies.vocabulary.units import HOUR_S
from tests.policies.days import hourly
from tests.policies.savings.histories import (
    LIMITS_W,
    TOP_W,
    Deed,
    begins_of,
    books_of,
    curves,
    deeds,
    entered,
    histories,
    ratios_at,
    signals,
)

STEP = hourly(np.array([100.0, 600.0, 600.0, 100.0]))
HALF_SPEED = [ratios_at(200.0, 0.5, 0.8)]


def saving(
    history: list[Deed],
    ratios: list[LimitRatios],
    signal: Signal | None,
    *,
    begins_s: float = 0.0,
    host_power_w: float = 0.0,
    pue: float = 1.0,
) -> Saving:
    books = books_of(history, begins_s=begins_s)
    return Counterfactual(
        books, ratios, top_power_limit_w=TOP_W, signal=signal, host_power_w=host_power_w, pue=pue
    ).saving()


def at(power_limit_w: float, hours: float, *, power_w: float = 100.0, purpose: Purpose = Purpose.PLAN) -> Deed:
    return Deed(duration_s=hours * HOUR_S, power_w=power_w, power_limit_w=power_limit_w, purpose=purpose)


def waits(hours: float, *, power_w: float = 10.0, asked: bool = False) -> Deed:
    return Deed(duration_s=hours * HOUR_S, power_w=power_w, power_limit_w=None, pause="asked" if asked else "own")


def test_the_twin_does_the_work_when_it_would_have_done_it() -> None:
    found = saving([at(200.0, 2.0)], HALF_SPEED, STEP)
    assert found.signal_energy == pytest.approx(HOUR_S * 100.0 * (100.0 + 600.0))
    assert found.baseline_signal_energy == pytest.approx(2 * HOUR_S * 100.0 * 0.8 * 100.0)
    assert (found.duration_s, found.baseline_duration_s) == (2 * HOUR_S, HOUR_S)
    assert found.saved_ratio == pytest.approx(1 - 700.0 / 160.0)


def test_the_twin_pauses_as_the_run_did_but_earlier() -> None:
    found = saving([at(200.0, 1.0), waits(1.0, power_w=50.0)], HALF_SPEED, STEP)
    # Its pause goes from half past to half past: half of it at 100 g, half at 600.
    assert found.baseline_signal_energy == pytest.approx(HOUR_S * (80.0 * 100.0 + 50.0 * 350.0))


def test_the_twin_does_not_wait_when_the_plan_asks_the_run_to() -> None:
    found = saving([at(200.0, 1.0), waits(2.0, power_w=50.0, asked=True), at(200.0, 1.0)], HALF_SPEED, STEP)
    assert found.baseline_duration_s == HOUR_S
    assert found.baseline_energy_j == pytest.approx(2 * HOUR_S * 80.0)
    assert found.baseline_signal_energy == pytest.approx(2 * HOUR_S * 80.0 * 100.0)
    assert found.energy_j == pytest.approx(2 * HOUR_S * 100.0 + 2 * HOUR_S * 50.0)


def test_the_twin_waits_while_the_run_is_not_there() -> None:
    books, _ = entered(open_books(), 0.0, at(200.0, 1.0))
    books, _ = entered(books, 3 * HOUR_S, at(200.0, 1.0))
    found = Counterfactual(books, HALF_SPEED, top_power_limit_w=TOP_W, signal=STEP).saving()
    # Half an hour at 100 g, two hours of waiting, and half an hour of which all is at 600 g.
    assert found.baseline_signal_energy == pytest.approx(HOUR_S * 80.0 * (100.0 + 600.0))
    assert (found.duration_s, found.baseline_duration_s) == (2 * HOUR_S, HOUR_S)


def test_what_comes_after_a_long_pause_is_priced_after_it() -> None:
    found = saving([waits(0.9, power_w=0.0), at(200.0, 0.2)], HALF_SPEED, STEP)
    # A tenth of an hour of work at 100 g and one at 600; the twin needs half as long, and is done when the hour ends.
    assert found.signal_energy == pytest.approx(HOUR_S * 100.0 * (0.1 * 100.0 + 0.1 * 600.0))
    assert found.baseline_signal_energy == pytest.approx(HOUR_S * 80.0 * 0.2 * 100.0)


@given(histories, curves, begins_of, st.floats(0.01, 900.0))
def test_at_a_constant_signal_the_saving_is_that_of_energy(
    history: list[Deed], ratios: list[LimitRatios], begins_s: float, value: float
) -> None:
    constant = constant_signal(value, kind="average", unit="g/kWh", now_s=0.0)
    found = saving(history, ratios, constant, begins_s=begins_s)
    plain = saving(history, ratios, None, begins_s=begins_s)
    assert found.saved_ratio == pytest.approx(1 - found.energy_j / found.baseline_energy_j, abs=1e-9)
    assert found.saved_ratio == pytest.approx(plain.saved_ratio, abs=1e-9)
    assert found.baseline_signal_energy == pytest.approx(value * plain.baseline_signal_energy)


@given(histories, curves, signals(), begins_of, st.floats(0.0, 500.0), st.floats(1.0, 2.0))
def test_the_parts_add_up(
    history: list[Deed],
    ratios: list[LimitRatios],
    signal: Signal,
    begins_s: float,
    host_power_w: float,
    pue: float,
) -> None:
    found = saving(history, ratios, signal, begins_s=begins_s, host_power_w=host_power_w, pue=pue)
    parts = found.better_limit_ratio + found.following_ratio + found.looks_ratio + found.first_pass_ratio
    assert found.saved_ratio == parts
    assert parts == pytest.approx(1 - found.signal_energy / found.baseline_signal_energy, rel=1e-9, abs=1e-9)


@given(
    st.lists(deeds([TOP_W], is_paused=False) | deeds([TOP_W]), min_size=1, max_size=12),
    curves,
    signals(),
    begins_of,
    st.floats(0.0, 500.0),
)
def test_a_run_at_the_top_alone_saves_nothing(
    history: list[Deed], ratios: list[LimitRatios], signal: Signal, begins_s: float, host_power_w: float
) -> None:
    found = saving(history, ratios, signal, begins_s=begins_s, host_power_w=host_power_w)
    assert found.saved_ratio == pytest.approx(0.0, abs=1e-9)
    assert found.baseline_energy_j == pytest.approx(found.energy_j)
    assert found.baseline_duration_s == pytest.approx(found.duration_s)


@given(histories, curves, signals(), st.floats(1.0, 20_000.0), st.floats(0.0, 400.0), st.data())
def test_a_pause_of_its_own_counts_alike_on_both_sides(
    history: list[Deed], ratios: list[LimitRatios], signal: Signal, pause_s: float, power_w: float, data: st.DataObject
) -> None:
    where = data.draw(st.integers(0, len(history)))
    pause = Deed(duration_s=pause_s, power_w=power_w, power_limit_w=None)
    without = saving(history, ratios, signal)
    found = saving([*history[:where], pause, *history[where:]], ratios, signal)
    assert found.energy_j - without.energy_j == pytest.approx(pause_s * power_w, rel=1e-6, abs=1e-3)
    assert found.baseline_energy_j - without.baseline_energy_j == pytest.approx(pause_s * power_w, rel=1e-6, abs=1e-3)
    assert found.baseline_duration_s - without.baseline_duration_s == pytest.approx(pause_s)


@given(histories, curves, curves, signals(), begins_of)
def test_newer_ratios_give_what_they_would_have_given_from_the_start(
    history: list[Deed], older: list[LimitRatios], newer: list[LimitRatios], signal: Signal, begins_s: float
) -> None:
    books, at_s = open_books(), begins_s
    for deed in history:
        # A controller estimates while it goes on, and readings cut the time into pieces.
        for _ in range(4):
            piece = Deed(
                duration_s=deed.duration_s / 4,
                power_w=deed.power_w,
                power_limit_w=deed.power_limit_w,
                purpose=deed.purpose,
            )
            books, at_s = entered(books, at_s, piece)
        Counterfactual(books, older, top_power_limit_w=TOP_W, signal=signal).saving()
    found = Counterfactual(books, newer, top_power_limit_w=TOP_W, signal=signal).saving()
    once = saving(history, newer, signal, begins_s=begins_s)
    assert found.saved_ratio == pytest.approx(once.saved_ratio, rel=1e-6, abs=1e-6)
    assert found.following_ratio == pytest.approx(once.following_ratio, rel=1e-6, abs=1e-6)


@given(histories, curves, signals(), begins_of, st.floats(1.0, 3.0))
def test_pue_alone_changes_no_share(
    history: list[Deed], ratios: list[LimitRatios], signal: Signal, begins_s: float, pue: float
) -> None:
    found, without = (saving(history, ratios, signal, begins_s=begins_s, pue=each) for each in (pue, 1.0))
    assert found.saved_ratio == pytest.approx(without.saved_ratio, abs=1e-9)
    assert found.baseline_signal_energy == pytest.approx(pue * without.baseline_signal_energy)


def test_the_host_draws_for_as_long_as_each_of_them_runs() -> None:
    found = saving([at(200.0, 2.0), waits(1.0)], HALF_SPEED, None, host_power_w=300.0, pue=1.5)
    assert found.energy_j == pytest.approx(1.5 * HOUR_S * (2 * 100.0 + 10.0 + 3 * 300.0))
    assert found.baseline_energy_j == pytest.approx(1.5 * HOUR_S * (2 * 80.0 + 10.0 + 2 * 300.0))


@pytest.mark.parametrize("power_limit_w", LIMITS_W[:3])
def test_a_limit_that_stays_follows_nothing(power_limit_w: float) -> None:
    convex = [ratios_at(150.0, 0.7, 1.25), ratios_at(200.0, 0.9, 1.2), ratios_at(250.0, 0.97, 1.1)]
    found = saving([at(power_limit_w, 4.0)], convex, STEP)
    assert found.following_ratio == pytest.approx(0.0, abs=1e-12)
    assert found.better_limit_ratio == pytest.approx(found.saved_ratio)


def test_what_is_fast_in_clean_hours_and_slow_in_dirty_ones_follows() -> None:
    ratios = [ratios_at(200.0, 0.9, 1.2)]
    slow_w, fast_w = 100.0 * 0.9 / 1.2, 100.0
    fast, slow = at(TOP_W, 1.0, power_w=fast_w), at(200.0, 2.0, power_w=slow_w)
    following = saving([fast, slow, fast], ratios, STEP)
    against = saving([at(200.0, 1.0, power_w=slow_w), at(TOP_W, 2.0), at(200.0, 1.0, power_w=slow_w)], ratios, STEP)
    mix = (2 * fast_w + 2 * slow_w) / 4 * 1_400.0
    spent = fast_w * 200.0 + slow_w * 1_200.0
    assert following.following_ratio == pytest.approx((mix - spent) * HOUR_S / following.baseline_signal_energy)
    assert against.following_ratio < 0 < following.following_ratio


def test_to_wait_for_a_clean_hour_is_to_follow_the_grid() -> None:
    """Blind to the signal, the second hour of the work would have been a dirty one."""
    ratios, work = [ratios_at(200.0, 0.9, 1.2)], at(200.0, 1.0, power_w=75.0)
    found = saving([work, waits(2.0, asked=True), work], ratios, STEP)
    gained = 75.0 * (600.0 - 100.0) - 10.0 * 2 * 600.0
    assert found.following_ratio == pytest.approx(gained * HOUR_S / found.baseline_signal_energy)
    assert found.better_limit_ratio == pytest.approx(found.saved_ratio - found.following_ratio)
    asleep = saving([work, waits(2.0), work], ratios, STEP)
    assert asleep.following_ratio == pytest.approx(0.0, abs=1e-12), "a pause of its own follows nothing"


def test_a_look_at_the_top_costs_what_the_mix_would_not_have_needed() -> None:
    ratios = [ratios_at(200.0, 0.9, 1.2)]
    slow = at(200.0, 1.0, power_w=75.0)
    look = at(TOP_W, 0.1, purpose=Purpose.LOOK)
    found = saving([slow, look, slow], ratios, None)
    cost_j = 0.1 * HOUR_S * (100.0 - 75.0 / 0.9)
    assert found.looks_ratio == pytest.approx(-cost_j / found.baseline_energy_j)
    assert found.following_ratio == pytest.approx(0.0, abs=1e-12)
    assert found.first_pass_ratio == 0.0


def test_the_first_pass_is_told_apart() -> None:
    ratios = [ratios_at(150.0, 0.5, 0.9), ratios_at(200.0, 0.9, 1.2)]
    first = at(150.0, 0.1, power_w=100.0 * 0.5 / 0.9, purpose=Purpose.FIRST_PASS)
    found = saving([first, at(200.0, 2.0, power_w=75.0)], ratios, None)
    cost_j = 0.1 * HOUR_S * (100.0 * 0.5 / 0.9 - 75.0 / 0.9 * 0.5)
    assert found.first_pass_ratio == pytest.approx(-cost_j / found.baseline_energy_j)


def test_before_there_is_a_plan_all_is_a_better_limit() -> None:
    found = saving([at(200.0, 1.0, purpose=Purpose.FIRST_PASS)], [ratios_at(200.0, 0.9, 1.2)], None)
    assert found.saved_ratio == found.better_limit_ratio == pytest.approx(1 - 1 / 1.2)


def test_a_limit_between_two_known_ones_is_between_them() -> None:
    found = saving([at(275.0, 1.0)], [ratios_at(250.0, 0.9, 1.2)], None)
    assert found.baseline_duration_s == pytest.approx(0.95 * HOUR_S)
    assert found.baseline_energy_j == pytest.approx(1.1 * HOUR_S * 100.0)


def test_of_an_unknown_curve_the_twin_does_what_the_run_did() -> None:
    assert saving([at(200.0, 1.0), at(TOP_W, 1.0)], [], STEP).saved_ratio == pytest.approx(0.0, abs=1e-12)


def test_missing_values_are_replaced_by_the_last_before_them() -> None:
    gaps = hourly(np.array([np.nan, 100.0, np.nan, 600.0]))
    assert saving([at(TOP_W, 6.0)], [], gaps).signal_energy == pytest.approx(HOUR_S * 100.0 * (3 * 100.0 + 3 * 600.0))


def test_of_a_signal_without_any_value_energy_counts() -> None:
    found = saving([at(200.0, 1.0)], HALF_SPEED, hourly(np.array([np.nan])))
    assert found.signal_energy == found.energy_j


def test_empty_books_are_refused() -> None:
    with pytest.raises(ValueError, match="the books are empty"):
        Counterfactual(open_books(), [], top_power_limit_w=TOP_W, signal=None)
