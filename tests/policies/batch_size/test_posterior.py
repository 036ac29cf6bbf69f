"""The posterior: proper from the first run on, with epochs and epoch costs apart."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.batch_size.posterior import CostPosterior, infer
from policies.batch_size.study import LearningSettings, Observation, Study
from tests.policies.batch_size.studies import COSTS, SETTINGS, SIZES, reached, stopped, study

RUNS = st.builds(
    Observation,
    batch_size=st.sampled_from(SIZES),
    outcome=st.sampled_from(["reached", "stopped", "failed"]),
    epochs=st.floats(0, 1e6),
    cost=st.none() | st.floats(0, 1e15),
)


def believed(of: Study, settings: LearningSettings = SETTINGS) -> CostPosterior:
    """Return the posterior of a study that has one."""
    posterior = infer(of, settings)
    assert posterior is not None
    return posterior


def mean_epochs(of: Study, batch_size: int) -> float:
    """Return the posterior median of the epochs to the target."""
    return math.exp(float(believed(of).log_epochs.mean[SIZES.index(batch_size)]))


def test_there_is_no_posterior_before_the_first_run() -> None:
    assert infer(study(), SETTINGS) is None


@given(
    st.lists(RUNS, min_size=1, max_size=30),
    st.dictionaries(st.sampled_from(SIZES), st.floats(1e-9, 1e12)),
    st.none() | st.floats(0.01, 1),
)
def test_the_posterior_is_always_proper(runs: list[Observation], costs: dict[int, float], ratio: float | None) -> None:
    posterior = infer(study(*runs, costs=costs), LearningSettings(forgetting_ratio=ratio))
    if posterior is None:
        assert all(run.outcome == "failed" for run in runs)
        return
    for belief in (posterior.log_epochs, posterior.log_cost):
        assert np.isfinite(belief.mean).all()
        assert np.isfinite(belief.covariance).all()
        assert (belief.variance > 0).all()
    assert 0 < posterior.noise_variance < math.inf


def test_a_run_informs_near_sizes_most() -> None:
    variance = believed(study(reached(32, 10))).log_epochs.variance
    assert np.argmin(variance) == SIZES.index(32)
    assert variance[SIZES.index(64)] < variance[SIZES.index(128)] < variance[SIZES.index(256)]


def test_identical_runs_leave_a_variance() -> None:
    one, many = (believed(study(*[reached(32, 10)] * n)) for n in (1, 50))
    at = SIZES.index(32)
    assert 1e-6 < many.log_epochs.variance[at] < one.log_epochs.variance[at]


def test_a_neighbour_moves_an_untried_size() -> None:
    assert mean_epochs(study(reached(32, 10), reached(64, 30)), 128) > mean_epochs(study(reached(32, 10)), 128)


def test_epoch_costs_do_not_change_the_epochs() -> None:
    before = believed(study(reached(32, 10), reached(64, 14)))
    after = believed(study(reached(32, 10), reached(64, 14), costs={size: 3 * cost for size, cost in COSTS.items()}))
    np.testing.assert_allclose(after.log_epochs.mean, before.log_epochs.mean)
    np.testing.assert_allclose(after.log_cost.mean - before.log_cost.mean, math.log(3))


def test_a_stopped_run_counts_as_its_epochs_and_a_restart() -> None:
    # 20 epochs here, and a restart of 10 epochs at the best, which cost 10 * 1250 / 1125 epochs here.
    of_stopped = study(reached(32, 10), stopped(64, 20))
    of_reached = study(reached(32, 10), reached(64, 20 + 10 * COSTS[32] / COSTS[64]))
    np.testing.assert_allclose(believed(of_stopped).log_epochs.mean, believed(of_reached).log_epochs.mean)


def test_a_run_stopped_in_its_first_epoch_counts_by_its_cost() -> None:
    of_stopped = study(reached(32, 10), stopped(8, 0, cost=COSTS[8] / 2))
    of_share = study(reached(32, 10), stopped(8, 0.5))
    np.testing.assert_allclose(believed(of_stopped).log_epochs.mean, believed(of_share).log_epochs.mean)


def test_stopped_runs_alone_give_no_least_cost() -> None:
    posterior = believed(study(stopped(32, 10)))
    assert posterior.least_cost is None
    assert mean_epochs(study(stopped(32, 10)), 32) == pytest.approx(20, rel=1e-2)


def test_the_least_cost_is_a_posterior_mean() -> None:
    runs = [reached(32, epochs) for epochs in (10, 10, 10, 10, 10, 10, 10, 4)]
    least_cost = believed(study(*runs)).least_cost
    assert least_cost is not None
    assert least_cost > 8.5 * COSTS[32]


def test_the_least_cost_needs_a_measured_success() -> None:
    assert believed(study(reached(32, 10), costs={64: 5.0})).least_cost is None
    assert believed(study(reached(32, 10), costs={32: 5.0})).least_cost == pytest.approx(50)


def test_noisy_runs_widen_the_posterior() -> None:
    calm = believed(study(*[reached(32, epochs) for epochs in (10, 10.2, 9.9, 10.1)]))
    noisy = believed(study(*[reached(32, epochs) for epochs in (5, 20, 8, 13)]))
    assert noisy.noise_variance > 3 * calm.noise_variance
    assert (noisy.log_epochs.variance > calm.log_epochs.variance).all()


def test_a_given_factor_forgets_old_runs() -> None:
    runs = study(*[reached(32, 10)] * 20, *[reached(32, 20)] * 5)
    kept, forgotten = (
        math.exp(float(believed(runs, LearningSettings(forgetting_ratio=ratio)).log_epochs.mean[SIZES.index(32)]))
        for ratio in (1.0, 0.8)
    )
    assert 11 < kept < 12.5
    assert 15.5 < forgotten < 20


def test_forgetting_widens_sizes_that_no_longer_run() -> None:
    runs = study(reached(64, 20), *[reached(32, 10)] * 40)
    kept, forgotten = (
        believed(runs, LearningSettings(forgetting_ratio=ratio)).log_epochs.variance[SIZES.index(64)]
        for ratio in (1.0, 0.9)
    )
    assert forgotten > 1.5 * kept


def test_divergence_informs_neighbours_little() -> None:
    """Its run had no bound and ran out of epochs; one stopped at its bound counts by its cost."""
    of_its_own, at_its_bound = study(stopped(32, 100), reached(16, 10)), study(reached(16, 10), stopped(32, 100))
    assert mean_epochs(of_its_own, 32) > 40
    assert mean_epochs(of_its_own, 64) < 0.8 * mean_epochs(at_its_bound, 64)


def test_a_late_success_ends_the_divergence() -> None:
    early = study(stopped(32, 100), reached(16, 10), reached(32, 20))
    late = study(reached(16, 10), stopped(32, 100), reached(32, 20))
    assert mean_epochs(early, 64) == mean_epochs(late, 64)
