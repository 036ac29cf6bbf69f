"""The chance of a run: as much of it as the level says, and the same for whoever comes by."""

from dataclasses import replace

import numpy as np
import pytest

from policies.replay.profiling.noise import LEVELS, MIN_BLOCK_ITERATIONS, NoiseLevel, NoisePath
from tests.policies.replay.profiling.curves import QUIET


def noise_path(noise: NoiseLevel, *, iteration_time_s: float = 0.1, seed: int = 0, n: int = 100_000) -> NoisePath:
    drawn = NoisePath(noise, iteration_time_s=iteration_time_s, seed=seed)
    drawn.reach(n)
    return drawn


def level(**parts: float) -> NoiseLevel:
    return replace(QUIET, **parts)


def test_without_noise_every_iteration_is_one() -> None:
    drawn = noise_path(QUIET, n=100)
    assert np.diff(drawn.work) == pytest.approx(1.0)
    assert drawn.weighted_work == pytest.approx(drawn.work)


@pytest.mark.parametrize("name", LEVELS)
def test_the_mean_iteration_is_the_measured_one(name: str) -> None:
    drawn = noise_path(LEVELS[name])  # type: ignore[index]
    assert np.diff(drawn.work).mean() == pytest.approx(1.0, abs=3e-3)
    assert drawn.weighted_work[-1] / drawn.work[-1] == pytest.approx(1.0, abs=3e-3)


def test_iteration_times_scatter_by_the_level() -> None:
    assert np.diff(noise_path(level(step_ratio=0.05)).work).std() == pytest.approx(0.05, rel=0.02)


def test_stalls_take_three_times_as_long() -> None:
    times = np.diff(noise_path(level(stall_ratio=0.01)).work)
    assert (times > 2 * times.min()).mean() == pytest.approx(0.01, rel=0.15)
    assert times.max() / times.min() == pytest.approx(3.0)


@pytest.mark.parametrize(("iteration_time_s", "n_block"), [(0.1, 20), (4.0, MIN_BLOCK_ITERATIONS)])
def test_a_block_shares_its_noise(iteration_time_s: float, n_block: int) -> None:
    """It is two seconds long, at least ten iterations: no window of that length averages it out."""
    drawn = noise_path(level(block_ratio=0.008), iteration_time_s=iteration_time_s, n=n_block * 2_000)
    times = np.diff(drawn.work)[: n_block * 2_000].reshape(-1, n_block)
    powers = np.diff(drawn.weighted_work)[: n_block * 2_000].reshape(-1, n_block) / times
    for values in (times, powers):
        assert np.ptp(values, axis=1).max() < 1e-9
        assert values[:, 0].std() == pytest.approx(0.008, rel=0.1)
    assert abs(np.corrcoef(times[:, 0], powers[:, 0])[0, 1]) < 0.1


def test_noise_depends_on_seed_and_position_only() -> None:
    """Whoever asks for a lot at once finds what somebody else finds bit by bit."""
    slowly, at_once = (
        NoisePath(LEVELS["harsh"], iteration_time_s=0.1, seed=7),
        noise_path(LEVELS["harsh"], seed=7, n=20_000),
    )
    for n in range(0, 20_000, 111):
        slowly.n_done(float(n))
    slowly.reach(20_000)
    assert (slowly.work[:20_000] == at_once.work[:20_000]).all()
    assert slowly.phase_ratio == at_once.phase_ratio
    assert not (noise_path(LEVELS["harsh"], seed=8).work[1:20_000] == at_once.work[1:20_000]).any()


def test_work_gives_iterations_and_fractions() -> None:
    drawn = noise_path(LEVELS["realistic"], n=100)
    assert drawn.n_done(float(drawn.work[17])) == pytest.approx(17.0)
    assert drawn.n_done(float(drawn.work[17] + drawn.work[18]) / 2) == pytest.approx(17.5)
    assert drawn.weighted_iterations(float(drawn.work[17])) == pytest.approx(float(drawn.weighted_work[17]))
