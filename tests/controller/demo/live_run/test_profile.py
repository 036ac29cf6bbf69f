"""Runs of a known curve under the controller as it runs by default."""

import pytest

from controller.demo.live_run.profile import MAX_SLOWDOWN, simulate_on
from policies.replay.profiling.slowdown import least_energy_j
from tests.policies.replay.profiling.curves import bending, flat

OVER_RATIO = 0.003
"""How far a run may be above its budget: the first pass tells the rates of the limits to less than that."""


@pytest.mark.parametrize("seed", [0, 1])
def test_a_run_keeps_its_budget_and_finds_a_good_mix(seed: int) -> None:
    curve, n_iterations = bending(), 20_000
    base_s = n_iterations * curve.iteration_time_s
    run = simulate_on(curve, n_iterations, seed=seed)
    assert base_s < run.duration_s <= (MAX_SLOWDOWN + OVER_RATIO) * base_s
    assert 0 <= run.highest_s < run.duration_s
    least_j = least_energy_j(curve, n_iterations, run.duration_s)
    assert least_j <= run.energy_j < 1.03 * least_j
    top_j = base_s * curve.profile.fastest.power_w
    assert run.energy_j < 0.95 * top_j


def test_a_run_that_no_limit_slows_ends_at_a_low_one() -> None:
    curve = flat()
    run = simulate_on(curve, 5_000, seed=0)
    assert run.duration_s == pytest.approx(5_000 * curve.iteration_time_s, rel=1e-3)
    assert run.energy_j < 0.6 * run.duration_s * curve.profile.fastest.power_w
