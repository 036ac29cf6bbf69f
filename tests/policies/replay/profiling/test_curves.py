"""The truth of a power trace: monotone, linear between measured limits, every 5 W, in seconds an iteration."""

from typing import Final

import numpy as np
import pytest

from policies.replay.profiling.curves import ASSUMED_ITERATION_TIME_S, CurveShape, TrueCurve, linear_curve, true_curves
from policies.replay.traces import POWER_COLUMNS, parse_power
from policies.vocabulary.profile import PowerProfile
from tests.policies.replay.profiling.curves import bending, flat

ROWS = (
    "cifar100,net,{size},sgd,100,30,80",
    "cifar100,net,{size},sgd,150,20,120",
    "cifar100,net,{size},sgd,200,20.5,118",
    "cifar100,net,{size},sgd,250,10,200",
)

SHAPES: Final[tuple[CurveShape, ...]] = ("linear", "smooth")


def curves(*rows: str, shape: CurveShape = "linear") -> list[TrueCurve]:
    trace = parse_power("data/gpu.csv", "\n".join((",".join(POWER_COLUMNS), *rows)))
    return list(true_curves(trace, shape=shape))


def test_every_batch_size_is_a_curve() -> None:
    found = curves(*(row.format(size=size) for size in (64, 8) for row in ROWS))
    assert [curve.name for curve in found] == ["cifar100/net/sgd/8@gpu", "cifar100/net/sgd/64@gpu"]


def test_an_iteration_is_a_batch_of_an_epoch() -> None:
    (curve,) = curves(*(row.format(size=100) for row in ROWS))
    assert curve.iteration_time_s == pytest.approx(10 / (50_000 / 100))
    assert not curve.is_assumed


def test_epochs_of_movielens_have_four_negatives_for_each_rating() -> None:
    (curve,) = curves("movielens-1m,ncf,1000,adam,100,10,80", "movielens-1m,ncf,1000,adam,200,5,120")
    assert curve.iteration_time_s == pytest.approx(5 / (5 * 994_169 / 1000))


def test_without_known_samples_the_iteration_time_is_assumed() -> None:
    (curve,) = curves(*(row.format(size=100).replace("cifar100", "mine") for row in ROWS))
    assert curve.is_assumed
    assert curve.iteration_time_s == pytest.approx(ASSUMED_ITERATION_TIME_S)
    assert curve.profile.iterations_per_s[-1] / curve.profile.iterations_per_s[0] == pytest.approx(3.0)


def test_the_true_curve_is_monotone_and_linear_between_with_a_point_every_5_w() -> None:
    (curve,) = curves(*(row.format(size=100) for row in ROWS))
    assert curve.profile.power_limits_w.tolist() == list(range(100, 255, 5))
    assert (np.diff(curve.profile.iterations_per_s) >= -1e-9).all()
    assert (np.diff(curve.profile.power_w) >= -1e-9).all()
    pooled_s, pooled_w = np.sqrt(20 * 20.5), np.sqrt(120 * 118)
    found = {limit_w: curve.profile.at(limit_w) for limit_w in (150.0, 175.0, 225.0)}
    assert {limit_w: power_w for limit_w, (power_w, _) in found.items()} == pytest.approx(
        {150.0: pooled_w, 175.0: pooled_w, 225.0: (pooled_w + 200) / 2}
    )
    assert {limit_w: 500 / rate_per_s for limit_w, (_, rate_per_s) in found.items()} == pytest.approx(
        {150.0: pooled_s, 175.0: pooled_s, 225.0: (pooled_s + 10) / 2}
    )


def test_every_point_may_count_as_measured() -> None:
    (curve,) = curves(*(row.format(size=100) for row in ROWS), shape="as_measured")
    per_epoch_s = {limit_w: 500 / curve.profile.at(limit_w)[1] for limit_w in (100.0, 150.0, 175.0, 200.0, 240.0)}
    assert per_epoch_s == pytest.approx({100.0: 30.0, 150.0: 20.0, 175.0: 20.25, 200.0: 20.5, 240.0: 12.1})
    powers_w = [curve.profile.at(limit_w)[0] for limit_w in (150.0, 175.0, 200.0)]
    assert powers_w == pytest.approx([120.0, 119.0, 118.0]), "though more watts should not draw less"


def test_a_smooth_curve_has_the_pooled_points_and_bends_between_them() -> None:
    (linear,), (smooth,) = (curves(*(row.format(size=100) for row in ROWS), shape=shape) for shape in SHAPES)
    assert smooth.profile.at(150.0) == pytest.approx(linear.profile.at(150.0))
    assert smooth.profile.at(125.0)[1] > 1.01 * linear.profile.at(125.0)[1]


def test_a_measured_limit_off_the_grid_stays() -> None:
    measured = PowerProfile.from_rows([(102.5, 80.0, 1.0), (110.0, 95.0, 2.0)])
    assert linear_curve(measured).power_limits_w.tolist() == [102.5, 105.0, 110.0]
    assert linear_curve(measured).points[0] == measured.points[0]


def test_a_curve_needs_two_limits() -> None:
    assert not curves(ROWS[0].format(size=100))


def test_a_curve_is_power_bound_if_the_lowest_limit_slows_it() -> None:
    assert bending().is_power_bound
    assert not flat().is_power_bound


def test_cost_is_least_at_the_best_limit() -> None:
    curve = bending()
    ratios = [curve.cost_ratio(limit_w, 0.5) for limit_w in curve.profile.power_limits_w]
    assert min(ratios) == pytest.approx(1.0)
    limit_w, (power_w, rate_per_s) = 200.0, curve.profile.at(200.0)
    cost_j = (0.5 * power_w + 0.5 * 300.0) / rate_per_s
    assert curve.cost_ratio(limit_w, 0.5) == pytest.approx(cost_j / curve.costs_j(0.5).min())
