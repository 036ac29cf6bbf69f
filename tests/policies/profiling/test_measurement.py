"""Measurements: stalls, ticks of the energy counter, iterations that began before the window."""

import math
from dataclasses import replace
from itertools import pairwise
from typing import Final

import numpy as np
import pytest

from policies.profiling import Observation, State, advance
from policies.profiling.measurement import (
    EMPTY_WINDOW,
    KNOWN_WINDOWS,
    MAX_TIMES,
    NOT_SETTLED,
    PRIOR_SCATTER,
    Estimates,
    Scatter,
    Window,
    WindowNoise,
    estimate_point,
    is_known_early,
    is_precise_enough,
)
from policies.profiling.sweep import Measuring, SweepRecord
from policies.vocabulary.profile import ProfilePoint
from tests.policies.profiling.gpu import SETTINGS


def window_of(*times_s: float, power_w: float = 200.0, tells_times: bool = True) -> Window:
    """Return a window of slices of an iteration each."""
    window = EMPTY_WINDOW
    for time_s in times_s:
        window = window.with_observation(
            Observation(
                power_limit_w=300.0,
                active_s=time_s,
                n_iterations=1.0,
                energy_j=power_w * time_s,
                iteration_times_s=(time_s,) if tells_times else (),
            )
        )
    return window


def ticking(duration_s: float, *, phase_s: float, tick_s: float = 0.05, reading_s: float = 0.11) -> Window:
    """Return a window at 200 W whose energy counter moves in ticks."""
    window, shown_j = EMPTY_WINDOW, 0.0
    for n in range(1, round(duration_s / reading_s) + 1):
        now_j = 200.0 * tick_s * ((n * reading_s + phase_s) // tick_s)
        window = window.with_observation(
            Observation(power_limit_w=300.0, active_s=reading_s, n_iterations=1.1, energy_j=now_j - shown_j)
        )
        shown_j = now_j
    return window


def metered(window: Window) -> Window:
    """Return a window in which it is known what the counter had not counted."""
    return replace(
        window,
        n_interpolated=window.n_readings,
        interpolated_j=window.energy_j,
        interpolated_te_j_s=window.slice_te_j_s,
        interpolated_ee_j2=window.slice_ee_j2,
    )


STEADY: Final = Scatter(seen_cv_ratio=0.0003, n_iterations=30)


@pytest.mark.parametrize(
    ("window", "scatter", "is_known"),
    [
        (metered(window_of(*[0.1] * 3)), STEADY, True),
        (metered(window_of(*[0.1] * 2)), STEADY, False),
        (metered(window_of(*[0.05] * 4)), STEADY, False),
        (window_of(*[0.1] * 3), STEADY, False),
        (metered(window_of(*[0.1] * 3)), replace(STEADY, seen_cv_ratio=0.02), False),
        (metered(window_of(*[0.1] * 3)), PRIOR_SCATTER, False),
        (replace(metered(window_of(*[0.1] * 3)), interpolated_ee_j2=3 * 21.5**2), STEADY, False),
    ],
    ids=["steady", "two iterations", "too short", "counter in steps", "scatters", "not known", "power scatters"],
)
def test_a_window_may_end_early_where_rate_and_power_are_known(
    window: Window, scatter: Scatter, *, is_known: bool
) -> None:
    assert is_known_early(SETTINGS, window, scatter) == is_known


@pytest.mark.parametrize("tells_times", [True, False])
def test_a_stall_is_winsorised(*, tells_times: bool) -> None:
    times_s = [0.1, 0.102, 0.098, 0.101, 0.099] * 3
    times_s[7] = 0.3
    window = window_of(*times_s, tells_times=tells_times)
    point = estimate_point(window, power_limit_w=300.0, scatter=PRIOR_SCATTER.with_window(window))
    assert point.iterations_per_s == pytest.approx(10.0, rel=0.01)
    assert point.active_s == pytest.approx(sum(times_s))
    assert point.n == 15


def test_an_iteration_begun_before_the_window_is_excluded() -> None:
    first = Observation(
        power_limit_w=300.0, active_s=0.2, n_iterations=1.5, energy_j=40.0, iteration_times_s=(0.4, 0.1)
    )
    assert EMPTY_WINDOW.with_observation(first).times_s == (0.1,)
    assert window_of(0.1, 0.1).times_s == (0.1, 0.1)


def test_a_window_keeps_a_bounded_number_of_iterations() -> None:
    for tells_times in (True, False):
        window = window_of(*[0.003] * (MAX_TIMES + 50), tells_times=tells_times)
        assert window.n_counted == MAX_TIMES
        assert window.n_iterations == MAX_TIMES + 50


def test_power_is_a_slope_over_all_ticks() -> None:
    rng, slope_errors, end_errors = np.random.default_rng(2), [], []
    for _ in range(300):
        window = ticking(2.0, phase_s=float(rng.uniform(0, 0.05)))
        point = estimate_point(window, power_limit_w=300.0, scatter=PRIOR_SCATTER)
        slope_errors.append(point.power_w / 200.0 - 1)
        end_errors.append(window.energy_j / window.active_s / 200.0 - 1)
        assert abs(point.power_w - 200.0) <= (point.power_ci_w or 0.0)
    assert np.std(slope_errors) < 0.75 * np.std(end_errors)


def test_a_single_reading_gives_the_mean_power() -> None:
    window = window_of(1.0)
    assert estimate_point(window, power_limit_w=300.0, scatter=PRIOR_SCATTER).power_w == 200.0


def test_short_iterations_wait_for_counter_ticks() -> None:
    short = ticking(0.6, phase_s=0.01)
    many = replace(short, times_s=(0.003,) * 180)
    settings = replace(SETTINGS, settle_s=0.0)
    scatter = PRIOR_SCATTER.with_window(many)
    assert not is_precise_enough(settings, many, scatter, is_prior=False)
    longer = replace(ticking(2.2, phase_s=0.01), times_s=(0.003,) * 256)
    assert is_precise_enough(settings, longer, scatter, is_prior=False)


def test_a_measurement_ends_early_once_energy_has_risen() -> None:
    """No plan uses such a limit: by how much it is too low does not matter."""
    points = tuple(
        ProfilePoint(power_limit_w=w, power_w=p, iterations_per_s=r, power_ci_w=2.0, iterations_per_s_ci=0.1)
        for w, p, r in ((240.0, 200.0, 9.0), (300.0, 240.0, 10.0))
    )
    n_iterations = []
    for power_w in (400.0, 180.0):
        state: State = Measuring(record=SweepRecord(points=points), power_limit_w=190.0, enforced_power_limit_w=190.0)
        n = 0
        while isinstance(state, Measuring):
            time_s = 0.09 if n % 2 else 0.1
            seen = Observation(
                power_limit_w=190.0,
                active_s=time_s,
                n_iterations=1.0,
                energy_j=power_w * time_s,
                iteration_times_s=(time_s,),
            )
            state, n = advance(SETTINGS, state, seen), n + 1
        n_iterations.append(n)
    assert n_iterations[0] < n_iterations[1]


def scattered(cv_ratio: float, n: int, *, stall_ratio: float = 0.0, seed: int = 4) -> Window:
    """Return a window of iterations that scatter, some of which stall."""
    rng = np.random.default_rng(seed)
    times_s = 0.1 * np.exp(cv_ratio * rng.standard_normal(n))
    return window_of(*np.where(rng.random(n) < stall_ratio, 3 * times_s, times_s).tolist())


@pytest.mark.parametrize("cv_ratio", [0.0003, 0.005, 0.02])
def test_steadier_iterations_are_believed_soon(cv_ratio: float) -> None:
    few, many = (PRIOR_SCATTER.with_window(scattered(cv_ratio, n)).cv_ratio for n in (8, 120))
    assert cv_ratio < few < 0.05
    assert cv_ratio / 1.3 < many < 1.8 * cv_ratio
    with_stalls = PRIOR_SCATTER.with_window(scattered(cv_ratio, 120, stall_ratio=0.05)).cv_ratio
    assert with_stalls < 2 * cv_ratio, "a few stalls are no scatter"


def test_a_scatter_above_the_prior_counts_as_it_is() -> None:
    assert 0.1 < PRIOR_SCATTER.with_window(scattered(0.15, 40)).cv_ratio < 0.2


def compared(rates_per_s: list[float], powers_w: list[float] | None = None, *, duration_s: float = 2.0) -> WindowNoise:
    """Return the noise of windows that follow one another."""
    seen = [
        Estimates(iterations_per_s=rate_per_s, rate_error_ratio=0.0, power_w=power_w, power_error_ratio=0.0)
        for rate_per_s, power_w in zip(rates_per_s, powers_w or [200.0] * len(rates_per_s), strict=True)
    ]
    noise = WindowNoise()
    for before, after in pairwise(seen):
        noise = noise.with_neighbours(before, after, duration_s=duration_s)
    return noise


def test_the_noise_of_windows_is_what_neighbours_differ_by() -> None:
    rng = np.random.default_rng(5)
    noise = compared(
        (10 * np.exp(0.002 * rng.standard_normal(300))).tolist(),
        (200 * np.exp(0.01 * rng.standard_normal(300))).tolist(),
    )
    rate_error_ratio, power_error_ratio = noise.errors_ratio(2.0)
    assert rate_error_ratio == pytest.approx(0.002, rel=0.15)
    assert power_error_ratio == pytest.approx(0.01, rel=0.15)


def test_a_stall_between_windows_is_no_noise() -> None:
    rates_per_s = [10.0 + 0.001 * (-1) ** n for n in range(60)]
    rates_per_s[40] = 7.0
    assert compared(rates_per_s).errors_ratio(2.0)[0] < 2 * compared(rates_per_s[:40]).errors_ratio(2.0)[0]


def test_few_windows_tell_no_errors() -> None:
    assert not compared([10.0] * KNOWN_WINDOWS).is_known
    assert compared([10.0] * (KNOWN_WINDOWS + 1)).is_known


def window_observation(time_s: float) -> Observation:
    """Return an observation of one iteration."""
    return Observation(power_limit_w=300.0, active_s=time_s, n_iterations=1, energy_j=1, iteration_times_s=(time_s,))


def settled_after_s(times_s: list[float], *, settle_s: float = 0.5) -> float:
    """Return after how long a job has settled whose iterations take so long, one after the other [s]."""
    settle = NOT_SETTLED
    for time_s in times_s:
        if settle.is_over(settle_s):
            break
        settle = settle.with_observation(window_observation(time_s))
    return settle.active_s


def test_steady_iterations_show_that_a_limit_has_bitten() -> None:
    bites = [0.064 * (1 + 0.08 * math.exp(-n * 0.064 / 0.1)) for n in range(30)]
    assert settled_after_s([0.06, *[0.064] * 30]) == pytest.approx(0.252), "half of the time it takes at least"
    assert 0.25 < settled_after_s(bites) <= 0.5
    assert abs(bites[round(settled_after_s(bites) / 0.064)] / 0.064 - 1) < 0.005
    assert settled_after_s([0.064, 0.07] * 10) >= 0.5, "what scatters shows nothing"
    assert settled_after_s([0.3] * 10) == pytest.approx(0.6)
    assert settled_after_s([0.09, *[0.1] * 30], settle_s=4.0) == pytest.approx(2.0, abs=0.11)


@pytest.mark.parametrize("bites_s", [0.3, 0.4])
def test_iterations_as_steady_as_before_show_no_limit_that_has_bitten(bites_s: float) -> None:
    """A limit that bites late is waited for: a measurement would else begin at the speed of the one before."""
    late = [0.02 if n * 0.02 < bites_s else 0.022 for n in range(40)]
    assert bites_s < settled_after_s(late) <= 0.52
    assert settled_after_s([0.02] * 40) == pytest.approx(0.5), "nor does a limit that changes no speed"


def test_without_single_iterations_the_whole_time_is_waited_for() -> None:
    seen = Observation(power_limit_w=300.0, active_s=0.4, n_iterations=4.0, energy_j=1.0)
    settle = NOT_SETTLED.with_observation(seen)
    assert not settle.is_over(0.5)
    assert settle.with_observation(seen).is_over(0.5)


def test_other_nodes_that_follow_later_may_hold_steady_iterations_up() -> None:
    settle = NOT_SETTLED
    for time_s in (0.09, 0.1, 0.1, 0.1):
        settle = settle.with_observation(window_observation(time_s))
    assert settle.is_over(0.5)
    assert not settle.is_over(0.5, is_seen=False)
