"""The power of a window: by the counter between its steps and by instant readings, and how well it is known."""

import math
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from policies.profiling import Observation
from policies.profiling.measurement import EMPTY_WINDOW, PRIOR_SCATTER, Window, estimate_window
from policies.profiling.paired_looks import LookLengths, Looks, advance_looks

SECOND_CV_RATIO = 0.004
"""By so much the power of a second scatters."""


class Meters:
    """The meters of a board at 200 W: an H100's, unless told otherwise."""

    def __init__(
        self, seed: int, *, tick_s: float = 0.1, counter_noise_ratio: float = 0.0155, instant_noise_ratio: float = 0.07
    ) -> None:
        self._rng = np.random.default_rng(seed)
        self._tick_s, self._counter_noise_ratio = tick_s, counter_noise_ratio
        self._instant_noise_ratio = instant_noise_ratio
        self._phase_s = float(self._rng.uniform(0, tick_s))
        self._counted: dict[int, float] = {}
        self._times_s = np.arange(0.0, 61.0, 0.05)
        self._wander_j = 200.0 * SECOND_CV_RATIO * np.cumsum(math.sqrt(0.05) * self._rng.standard_normal(1220))

    def window(self, duration_s: float, *, is_interpolated: bool = True, has_instants: bool = True) -> Window:
        """Return a window read every 0.11 s."""
        window, before, begin_s = EMPTY_WINDOW, self._counted_j(0.0), 0.0
        swing = self._rng.standard_normal()
        for n in range(1, round(duration_s / 0.11) + 1):
            end_s = 0.11 * n
            after = self._counted_j(end_s)
            swing = -0.8 * swing + 0.6 * self._rng.standard_normal()
            instant_w = 200.0 * (1 + self._instant_noise_ratio * swing) if has_instants else 0.0
            window = window.with_observation(
                Observation(
                    power_limit_w=300.0,
                    active_s=end_s - begin_s,
                    n_iterations=2.0,
                    energy_j=after[0] - before[0],
                    interpolated_energy_j=sum(after) - sum(before) if is_interpolated else None,
                    n_instants=float(has_instants),
                    instants_w=instant_w,
                    instants_w2=instant_w**2,
                )
            )
            before, begin_s = after, end_s
        return window

    def _counted_j(self, time_s: float) -> tuple[float, float]:
        """Return what the counter shows [J], and what it has not counted [J]."""
        number = math.floor((time_s + self._phase_s) / self._tick_s)
        noise_j = self._counted.setdefault(number, self._counter_noise_ratio * 200.0 * self._tick_s * self._normal())
        tick_s = number * self._tick_s - self._phase_s
        used_j = 200.0 * tick_s + float(np.interp(tick_s, self._times_s, self._wander_j))
        return used_j + noise_j, 200.0 * (time_s - tick_s)

    def _normal(self) -> float:
        return float(self._rng.standard_normal())


def powers_of(windows: Iterable[Window]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return by how much the powers of windows are off, as ratios, and their standard errors."""
    seen = [estimate_window(window, PRIOR_SCATTER) for window in windows]
    return np.array([each.power_w / 200.0 - 1 for each in seen]), np.array([each.power_error_ratio for each in seen])


@pytest.mark.parametrize("duration_s", [0.5, 2.0, 10.0])
@pytest.mark.parametrize("is_interpolated", [True, False])
def test_counter_and_instants_together_are_no_worse_than_the_better_one(
    duration_s: float, *, is_interpolated: bool
) -> None:
    off = {}
    for name, has_instants, is_known in (
        ("counter", False, is_interpolated),
        ("instants", True, False),
        ("both", True, is_interpolated),
    ):
        noise_ratio = 5.0 if name == "instants" else 0.0155
        windows = [
            Meters(seed, counter_noise_ratio=noise_ratio).window(
                duration_s, is_interpolated=is_known, has_instants=has_instants
            )
            for seed in range(150)
        ]
        off[name] = powers_of(windows)[0].std()
    best = min(off["counter"], off["instants"]) if is_interpolated else off["instants"]
    assert off["both"] < 1.25 * best, "150 windows tell a standard deviation to 6 %"


@pytest.mark.parametrize("duration_s", [0.5, 4.0])
@pytest.mark.parametrize("tick_s", [0.1, 0.05])
@pytest.mark.parametrize("noise_ratio", [0.0155, 0.05])
@pytest.mark.parametrize("is_interpolated", [True, False])
def test_the_power_lies_within_its_interval(
    duration_s: float, tick_s: float, noise_ratio: float, *, is_interpolated: bool
) -> None:
    meters = [Meters(seed, tick_s=tick_s, counter_noise_ratio=noise_ratio) for seed in range(150)]
    off, errors = powers_of(each.window(duration_s, is_interpolated=is_interpolated) for each in meters)
    assert np.mean(np.abs(off) <= 1.96 * errors) > 0.93
    assert np.sqrt(np.mean(errors**2)) < 5 * off.std(), "and is not told to be much worse than it is"


def test_a_long_window_is_the_counters() -> None:
    window = Meters(1).window(60.0)
    instants_off = replace(window, instants_w=1.03 * window.instants_w, instants_w2=1.03**2 * window.instants_w2)
    power_w = estimate_window(instants_off, PRIOR_SCATTER).power_w
    assert power_w == pytest.approx(window.interpolated_j / window.active_s, rel=1e-3)


def test_where_one_reading_does_not_know_what_is_not_counted_the_slope_is_taken() -> None:
    whole = Meters(1).window(1.0, has_instants=False)
    slope = Meters(1).window(1.0, has_instants=False, is_interpolated=False)
    missing = replace(whole, n_interpolated=whole.n_interpolated - 1)
    powers_w = [estimate_window(window, PRIOR_SCATTER).power_w for window in (whole, missing, slope)]
    assert powers_w[1] == powers_w[2] != powers_w[0]


@pytest.mark.parametrize("duration_s", [0.5, 2.0, 8.0])
@pytest.mark.parametrize("off_ratio", [-0.2, 0.03, 0.1])
def test_instants_that_all_show_one_part_of_an_iteration_do_not_shift_the_power(
    duration_s: float, off_ratio: float
) -> None:
    """Those of iterations that take nearly as long as it is from one instant to the next."""
    windows = [Meters(seed, instant_noise_ratio=0.0).window(duration_s) for seed in range(150)]
    shown_ratio = 1 + off_ratio
    off, errors = powers_of(
        replace(each, instants_w=shown_ratio * each.instants_w, instants_w2=shown_ratio**2 * each.instants_w2)
        for each in windows
    )
    assert np.mean(np.abs(off) <= 1.645 * errors) > 0.86


def test_instants_that_do_not_scatter_are_believed_to_a_percent() -> None:
    """A driver that repeats a mean of the last second as if it were new each time would else count for everything."""
    window = Meters(1, instant_noise_ratio=0.0).window(1.0)
    off = replace(window, instants_w=1.2 * window.instants_w, instants_w2=1.44 * window.instants_w2)
    alone_w = estimate_window(replace(window, n_instants=0.0), PRIOR_SCATTER).power_w
    assert estimate_window(off, PRIOR_SCATTER).power_w - alone_w < 0.85 * 40.0


def test_chunks_of_a_look_keep_what_is_known_of_their_power() -> None:
    seen = Observation(
        power_limit_w=300.0,
        active_s=0.4,
        n_iterations=4.0,
        energy_j=70.0,
        interpolated_energy_j=80.0,
        n_instants=1.0,
        instants_w=200.0,
        instants_w2=200.0**2,
    )
    for unknown, interpolated_j in ((seen, 240.0), (replace(seen, interpolated_energy_j=None), None)):
        looks = Looks()
        for observation in (seen, unknown, seen):
            looks = advance_looks(looks, observation, lengths=LookLengths(), scatter=PRIOR_SCATTER, settle_s=0.0)
        (chunk,) = looks.stretches[0].head
        assert chunk.interpolated_energy_j == interpolated_j
        assert (chunk.n_instants, chunk.instants_w, chunk.instants_w2) == (3.0, 600.0, 3 * 200.0**2)
