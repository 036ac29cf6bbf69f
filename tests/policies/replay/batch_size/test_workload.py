"""What a workload costs: epochs, limits, the best of them, and runs that have to be tried again."""

import math

import pytest

from policies.replay.batch_size.workload import Consumption, fixed_choice, optimum
from tests.policies.replay.batch_size.toy import HIGH_W, LOW_W, toy


def test_a_cost_weighs_energy_and_time() -> None:
    spent = Consumption(energy_j=1_000.0, duration_s=8.0)
    assert [spent.cost(eta, 250.0) for eta in (1.0, 0.0, 0.25)] == [1_000.0, 2_000.0, 1_750.0]


def test_the_best_limit_depends_on_the_weight_of_energy() -> None:
    draws_w = {LOW_W: 30.0, HIGH_W: 180.0}
    job = toy(average_power_w={(size, limit_w): draw_w for size in (16, 32, 64) for limit_w, draw_w in draws_w.items()})
    assert (job.best_limit_w(16, 1.0), job.best_limit_w(16, 0.0)) == (LOW_W, HIGH_W)


def test_the_highest_of_equally_good_limits_is_chosen() -> None:
    assert toy().best_limit_w(16, 1.0) == HIGH_W


def test_a_profiling_epoch_is_the_mean_over_the_limits() -> None:
    assert toy().profiling_epoch(16) == Consumption(energy_j=1_800.0, duration_s=15.0)


def test_expected_epochs_include_runs_that_are_given_up() -> None:
    job = toy(recorded_epochs={16: (4.0, None), 32: (5.0, 25.0), 64: (None,)})
    assert job.n_expected_epochs(16) == pytest.approx(4 + 20)
    assert job.n_expected_epochs(32) == pytest.approx(5 + 20)
    assert job.n_expected_epochs(64) == math.inf
    assert [job.always_reaches(size) for size in job.candidates] == [False, False, False]


def test_noise_makes_runs_longer_on_average() -> None:
    job = toy(max_epochs=1_000)
    assert job.n_expected_epochs(16, 0.25) == pytest.approx(4 * math.exp(0.25**2 / 2), rel=1e-3)


def test_the_optimum_is_the_least_cost_of_all_choices() -> None:
    job = toy()
    best = optimum(job, eta=0.5)
    each = [fixed_choice(job, size, limit_w, eta=0.5).cost for size in job.candidates for limit_w in (LOW_W, HIGH_W)]
    assert best.cost == min(each)
    assert (best.batch_size, best.power_limit_w) == (32, HIGH_W)
