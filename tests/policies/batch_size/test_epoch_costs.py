"""The cost of an epoch: measured, else by its time, else by the law of fixed and variable time."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.batch_size.epoch_costs import infer_epoch_costs
from tests.policies.batch_size.studies import COSTS, SIZES, study

AT = {size: index for index, size in enumerate(SIZES)}


def ratio(of: dict[int, float], size: int, to: int, times: dict[int, float] | None = None) -> float:
    """Return the expected cost of an epoch of one size over that of another."""
    log = infer_epoch_costs(study(costs=of, times=times)).log.mean
    return math.exp(float(log[AT[size]] - log[AT[to]]))


@given(st.dictionaries(st.sampled_from(SIZES), st.floats(1e-6, 1e9), min_size=1))
def test_measured_costs_are_exact(costs: dict[int, float]) -> None:
    inferred = infer_epoch_costs(study(costs=costs))
    for size, cost in costs.items():
        assert inferred.known[AT[size]]
        assert inferred.log.mean[AT[size]] == pytest.approx(math.log(cost))
        assert inferred.log.covariance[AT[size], AT[size]] == 0
    assert inferred.known.sum() == len(costs)
    assert np.isfinite(inferred.log.covariance).all()


def test_the_prior_favours_larger_batches() -> None:
    means = infer_epoch_costs(study(costs={})).log.mean
    assert (np.diff(means) < 0).all()
    assert means[AT[8]] - means[AT[16]] > means[AT[128]] - means[AT[256]]


def test_two_measurements_fix_the_overhead() -> None:
    flat, steep = {32: 100.0, 16: 101.0}, {32: 100.0, 16: 195.0}
    assert ratio(flat, 8, 16) < 1.1
    assert ratio(steep, 8, 16) > 1.6
    assert ratio(steep, 64, 32) < 0.7


def test_units_do_not_change_ratios() -> None:
    costs = {16: 120.0, 64: 90.0}
    assert ratio(costs, 256, 8) == pytest.approx(ratio({size: 1e6 * cost for size, cost in costs.items()}, 256, 8))


def test_epoch_times_predict_unmeasured_costs() -> None:
    times = {size: 1.0 + 50.0 / size for size in SIZES}
    for size in SIZES:
        assert ratio({32: 777.0}, size, 32, times) == pytest.approx(times[size] / times[32], rel=0.02)


def test_only_ratios_of_times_matter() -> None:
    times = {size: 1.0 + 50.0 / size for size in SIZES}
    assert ratio({32: 7.0}, 8, 32, times) == pytest.approx(
        ratio({32: 7.0}, 8, 32, {size: 60 * time for size, time in times.items()}), rel=1e-6
    )


def test_a_measured_cost_overrides_its_time() -> None:
    times = dict.fromkeys(SIZES, 1.0)
    assert ratio({32: 100.0, 8: 400.0}, 8, 32, times) == pytest.approx(4.0)


def test_times_of_some_sizes_inform_the_others() -> None:
    some = {8: 10.0, 16: 5.2, 32: 2.8}
    assert ratio({32: 1.0}, 64, 32, some) < ratio({32: 1.0}, 64, 32, {8: 3.0, 16: 2.9, 32: 2.8})


def test_an_invalid_epoch_cost_is_rejected() -> None:
    for wrong in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="epoch_costs"):
            study(costs=COSTS | {8: wrong})
