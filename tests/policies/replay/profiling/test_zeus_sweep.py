"""Zeus's sweep is Zeus's: the same measurements and limits as its own optimizer, on the same simulated runs."""

import pytest

from policies.replay.profiling.noise import LEVELS, NoiseName
from policies.replay.profiling.training import SimulatedTraining
from policies.replay.profiling.zeus_sweep import Measurement, choose_limit_w, measured_profile, sweep, sweep_limits_w
from tests.policies.replay.profiling.curves import bending, flat
from tests.policies.replay.profiling.zeus_reference import run_reference


@pytest.mark.parametrize("eta", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("noise", ["clean", "realistic", "harsh"])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_sweep_equals_that_of_zeus(
    noise: NoiseName, eta: float, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for curve in (bending(), bending(iteration_time_s=0.01), flat()):
        ours, theirs = (SimulatedTraining(curve, LEVELS[noise], seed=seed) for _ in range(2))
        measurements = sweep(ours)
        ours.set_power_limit(choose_limit_w(measurements, eta=eta))
        optimizer = run_reference(theirs, eta=eta, monkeypatch=monkeypatch)
        found = [(one.power_limit, one.energy, one.time) for one in optimizer.measurements]
        assert found == [(one.power_limit_w, one.energy_j, one.duration_s) for one in measurements]
        assert theirs.power_limit_w == ours.power_limit_w
        assert theirs.n_iterations == ours.n_iterations


def test_the_sweep_takes_one_iteration_and_fifty_for_each_limit() -> None:
    training = SimulatedTraining(bending(), LEVELS["realistic"], seed=0)
    assert len(sweep(training)) == len(sweep_limits_w(training.curve.profile)) == 9
    assert training.n_iterations == 1 + 9 * 50
    assert [stay.power_limit_w for stay in training.limit_periods] == [300.0 - 25.0 * step for step in range(9)]


def test_the_first_of_equal_limits_is_chosen() -> None:
    same = [Measurement(power_limit_w=limit_w, energy_j=10.0, duration_s=1.0) for limit_w in (300.0, 200.0)]
    assert choose_limit_w(same, eta=0.5) == 300.0


def test_a_limit_without_counter_movement_is_left_out() -> None:
    measurements = [
        Measurement(power_limit_w=limit_w, energy_j=energy_j, duration_s=2.0)
        for limit_w, energy_j in ((300.0, 400.0), (275.0, 0.0), (250.0, 300.0))
    ]
    points = measured_profile(measurements).points
    assert [(point.power_limit_w, point.power_w, point.iterations_per_s) for point in points] == [
        (250.0, 150.0, 20.0),
        (300.0, 200.0, 20.0),
    ]
