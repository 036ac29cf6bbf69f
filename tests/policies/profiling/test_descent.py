"""Which limits the first pass leaves out, because not even the peaks of the draw reach them."""

from dataclasses import replace

import pytest

from policies.profiling import ProfilerSettings, begin
from policies.vocabulary.profile import PowerProfile, ProfilePoint
from tests.policies.profiling.gpu import SETTINGS, Job, profiled


def curve(*points: tuple[float, float, float]) -> PowerProfile:
    """Return a curve through limits, powers [W] and rates [1/s]."""
    return PowerProfile(tuple(ProfilePoint(power_limit_w=w, power_w=p, iterations_per_s=r) for w, p, r in points))


def test_limits_far_above_the_draw_are_skipped() -> None:
    light = curve((100.0, 95.0, 8.0), (140.0, 130.0, 10.0), (300.0, 130.0, 10.0))
    _, wanted_w = profiled(SETTINGS, begin(SETTINGS), Job(light))
    assert wanted_w == [300.0, 155.0, 125.0, 100.0]
    two = replace(SETTINGS, n_gpus=2)
    _, wanted_w = profiled(two, begin(two), Job(light, energy_scale_ratio=2.0))
    assert wanted_w == [300.0, 155.0, 125.0, 100.0]


@pytest.mark.parametrize("mean_w", [63.0, 80.0, 93.0, 100.0])
@pytest.mark.parametrize("n_gpus", [1, 4])
def test_a_floor_that_may_cut_peaks_is_measured(mean_w: float, n_gpus: int) -> None:
    bounds = ProfilerSettings(prior_power_limit_w=250.0, floor_power_limit_w=125.0, n_gpus=n_gpus)
    bursty = curve((125.0, 0.9 * mean_w, 14.9), (200.0, mean_w, 15.0), (250.0, mean_w, 15.0))
    state, wanted_w = profiled(bounds, begin(bounds), Job(bursty, energy_scale_ratio=n_gpus))
    assert wanted_w == [250.0, 125.0]
    assert state.points[0].power_w == pytest.approx(0.9 * mean_w * n_gpus)


@pytest.mark.parametrize("n_gpus", [1, 4])
def test_limits_above_all_peaks_are_skipped(n_gpus: int) -> None:
    bounds = replace(SETTINGS, n_gpus=n_gpus)
    _, wanted_w = profiled(bounds, begin(bounds), Job(curve((300.0, 48.0, 10.0)), energy_scale_ratio=n_gpus))
    assert wanted_w == [300.0]
