"""Tests of what is learnt of a board that warms, and of one whose sensor is no help."""

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import cycle

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.thermal.board import (
    GAP_S,
    TIME_CONSTANTS_S,
    UNKNOWN_S,
    Metered,
    ThermalState,
    advance_thermal,
)
from policies.thermal.correction import PER_K_ERROR_RATIO, PER_K_RATIO, WARMER_K, kelvin_per_watt, power_per_kelvin
from tests.policies.thermal.boards import TOP_W, WarmingBoard, told


@settings(max_examples=8, deadline=None)
@given(
    per_k=st.floats(0.001, 0.006),
    slow=st.floats(0.01, 0.08),
    fast=st.floats(0.0, 0.03),
    tau_s=st.floats(20.0, 150.0),
    seed=st.integers(0, 1_000),
)
def test_what_a_board_does_is_found_within_its_error(
    per_k: float, slow: float, fast: float, tau_s: float, seed: int
) -> None:
    board = WarmingBoard(
        per_k_ratio=per_k,
        slow_k_per_w=slow,
        fast_k_per_w=fast,
        time_constant_s=tau_s,
        wander_ratio=0.003,
        seed=seed,
    ).train(6)
    found = power_per_kelvin(board.state)
    assert abs(found.value - per_k) <= 4 * found.error < 4 * PER_K_ERROR_RATIO
    per_w, found_s = kelvin_per_watt(board.state, top_power_w=600.0)
    assert abs(per_w.value - slow) <= 4 * per_w.error + 0.1 * slow
    if slow >= 0.04:  # else nothing depends on it
        assert tau_s / 2 <= found_s <= 2 * tau_s


def test_the_better_it_is_known_the_less_is_its_error() -> None:
    few, many = (WarmingBoard(wander_ratio=0.01).train(n).state for n in (2, 12))
    assert power_per_kelvin(many).error < 0.7 * power_per_kelvin(few).error < 0.7 * PER_K_ERROR_RATIO
    assert (
        kelvin_per_watt(many, top_power_w=600.0)[0].error < kelvin_per_watt(few, top_power_w=600.0)[0].error < 20 / 600
    )


def test_a_job_that_needs_more_for_a_while_shows_nothing_of_the_board() -> None:
    """Its power warms the board: that its energy rises with the temperature is not the temperature's work."""
    board = WarmingBoard(per_k_ratio=0.0, slow_k_per_w=0.08)
    for power_w in (600.0, 450.0) * 4:
        board.work(power_w, 300.0)  # at the same limit all the time
    assert power_per_kelvin(board.state).value == pytest.approx(PER_K_RATIO, abs=PER_K_ERROR_RATIO)
    assert board.state.slopes.n <= 1


def test_a_job_that_needs_more_after_each_pause_is_not_taken_for_a_board() -> None:
    board = WarmingBoard()
    for _ in range(10):
        for power_w, lasts_s in ((720.0, 10.0), (660.0, 20.0), (620.0, 30.0), (600.0, 240.0)):
            board.work(power_w, lasts_s)
        board.work(150.0, 120.0, limit_w=None)
    assert board.state.slopes.mean_log < -PER_K_RATIO
    assert power_per_kelvin(board.state).value == PER_K_RATIO


def test_a_slope_that_no_board_has_does_not_count() -> None:
    """A job that stands almost still after each change, on a board that warms by 3 K meanwhile."""
    state, now_s = ThermalState(), 0.0
    for _ in range(4):
        for age_s in range(0, 200, 2):
            state = advance_thermal(
                state,
                Metered(
                    begins_s=now_s,
                    duration_s=2.0,
                    energy_j=1_000.0,
                    n_iterations=0.5 if age_s < 40 else 10.0,
                    power_limit_w=400.0,
                    temperature_c=60.0 - 3.0 * math.exp(-age_s / 60.0),
                ),
            )
            now_s += 2.0
        state = advance_thermal(state, Metered(begins_s=now_s, duration_s=60.0, energy_j=6_000.0, temperature_c=57.0))
        now_s += 60.0
    assert state.slopes.n == 0
    state.check()


SENSORS: dict[str, Callable[[], Callable[[float], float | None]]] = {
    "none": lambda: lambda _: None,
    "stuck": lambda: lambda _: 60.0,
    "not a number": lambda: lambda _: math.nan,
    "infinite": lambda: lambda _: math.inf,
    "nonsense": lambda: told(cycle([-273.0, 255.0])),
    "jumping": lambda: told(cycle([20.0, 90.0])),
}


@pytest.mark.parametrize("sensor", SENSORS)
def test_from_a_sensor_that_is_no_help_nothing_is_learnt(sensor: str) -> None:
    state = WarmingBoard(sensor=SENSORS[sensor]()).train(2).state
    known, (warmer, tau_s) = power_per_kelvin(state), kelvin_per_watt(state, top_power_w=600.0)
    assert (known.value, known.error) == pytest.approx((PER_K_RATIO, PER_K_ERROR_RATIO))
    assert (warmer.value, tau_s) == pytest.approx((WARMER_K / 600.0, 60.0))
    assert warmer.error >= 20.0 / 600.0


def test_single_wrong_temperatures_change_little() -> None:
    n_told = 0

    def sensor(true_c: float) -> float:
        nonlocal n_told
        n_told += 1
        return 120.0 if n_told % 50 == 0 else float(round(true_c))

    good, bad = WarmingBoard().train(6).state, WarmingBoard(sensor=sensor).train(6).state
    one, other = (kelvin_per_watt(each, top_power_w=600.0)[0] for each in (good, bad))
    assert other.value == pytest.approx(one.value, rel=0.05)
    assert power_per_kelvin(bad).value == pytest.approx(power_per_kelvin(good).value, rel=0.1)


@given(
    st.lists(
        st.tuples(
            st.floats(allow_nan=True),
            st.floats(-1.0, 1e6),
            st.floats(allow_nan=True),
            st.floats(allow_nan=True),
            st.sampled_from([None, 200.0, TOP_W]),
            st.one_of(st.none(), st.floats(allow_nan=True)),
        ),
        max_size=30,
    )
)
def test_whatever_meters_say_the_state_is_finite(
    readings: list[tuple[float, float, float, float, float, float]],
) -> None:
    state = ThermalState()
    for begins_s, duration_s, energy_j, n_iterations, limit_w, temperature_c in readings:
        seen = Metered(
            begins_s=begins_s,
            duration_s=duration_s,
            energy_j=energy_j,
            n_iterations=n_iterations,
            power_limit_w=limit_w,
            temperature_c=temperature_c,
        )
        state = advance_thermal(state, seen)
    assert math.isfinite(power_per_kelvin(state).value)
    assert math.isfinite(kelvin_per_watt(state, top_power_w=600.0)[0].value)


def test_after_a_gap_it_is_not_known_how_warm_the_board_is() -> None:
    board = WarmingBoard().train(1)
    assert len(board.state.warmth_w) == len(TIME_CONSTANTS_S)
    board.at_s += 2 * GAP_S
    board.work(600.0, 10.0)
    assert board.state.warmth_w == ()
    sums_s = board.state.sums_s
    board.work(600.0, UNKNOWN_S - 20.0)
    assert (board.state.warmth_w, board.state.sums_s) == ((), sums_s)
    board.work(600.0, 20.0)
    assert board.state.warmth_w == pytest.approx((board.slow_w,) * len(TIME_CONSTANTS_S), rel=0.01)
    board.work(600.0, 10.0)
    assert board.state.sums_s != sums_s


def test_the_filters_are_exact_however_long_readings_are() -> None:
    short, long = ThermalState(), ThermalState()
    for state, n, lasts_s in ((short, 100, 1.0), (long, 1, 100.0)):
        seen = advance_thermal(state, Metered(begins_s=-10.0, duration_s=10.0, energy_j=1_000.0))
        for number in range(n):
            seen = advance_thermal(
                seen, Metered(begins_s=number * lasts_s, duration_s=lasts_s, energy_j=500.0 * lasts_s)
            )
        expected_w = [500.0 - 400.0 * math.exp(-100.0 / each_s) for each_s in TIME_CONSTANTS_S]
        assert seen.filtered_w == pytest.approx(expected_w)


def test_the_state_is_stored_and_read_again() -> None:
    state = WarmingBoard().train(2).state
    stored = msgspec.json.encode(state)
    read = msgspec.json.decode(stored, type=ThermalState)
    read.check()
    assert read == state
    assert len(stored) < 8_000


@pytest.mark.parametrize(
    "changes",
    [
        {"sums_s": ((0.0,) * 15,)},
        {"filtered_w": (1.0,)},
        {"seen_w": (1e30,) * len(TIME_CONSTANTS_S)},
        {"slopes": replace(ThermalState().slopes, precision=-1.0)},
        {"slopes": replace(ThermalState().slopes, mean_log=2.0)},
        {"block": replace(ThermalState().block, sums_s=(0.0,))},
    ],
)
def test_a_damaged_state_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="temperature is"):
        replace(ThermalState(), **changes).check()  # type: ignore[arg-type]  # damaged
