"""What a policy wastes while it finds a limit, what it ends with and what it knows."""

import numpy as np
import pytest

from policies.replay.profiling.evaluation import (
    JOB_LENGTHS,
    ProfilingEvaluation,
    ProfilingRow,
    curve_errors,
    evaluate,
    excess_iterations,
    profiling_rows,
    summary_rows,
)
from policies.replay.profiling.noise import LEVELS
from policies.replay.profiling.policies import POLICIES, best_limit_w, search_limit
from policies.replay.profiling.training import SimulatedTraining
from policies.vocabulary.power_curve import fit_curve
from policies.vocabulary.profile import PowerProfile
from tests.policies.replay.profiling.curves import QUIET, bending, flat

ETA = 0.5


CURVES = (bending(), bending(iteration_time_s=0.04), flat())
BENDING, FLAT = CURVES[0].name, CURVES[2].name


@pytest.fixture(scope="module")
def evaluations() -> list[ProfilingEvaluation]:
    simulated = [(curve, name) for curve in CURVES for name in POLICIES]
    simulated.remove((CURVES[1], "gridchase"))  # two of them say enough
    return [evaluate(curve, name, "realistic", eta=ETA, n_seeds=2) for curve, name in simulated]


def test_excess_is_counted_limit_by_limit() -> None:
    training = SimulatedTraining(bending(), QUIET, seed=0)
    best_w = best_limit_w(training.curve.profile, eta=ETA, max_power_limit_w=300.0)
    training.iterate(10)
    training.set_power_limit(100.0)
    training.iterate(30)
    training.set_power_limit(best_w)
    top, bottom = (training.curve.cost_ratio(limit_w, ETA) - 1 for limit_w in (300.0, 100.0))
    assert excess_iterations(training, 1_000, eta=ETA) == pytest.approx(10 * top + 30 * bottom)
    assert excess_iterations(training, 25, eta=ETA) == pytest.approx(10 * top + 15 * bottom)
    assert excess_iterations(training, 5, eta=ETA) == pytest.approx(5 * top)


def test_the_kept_limit_counts_to_the_end() -> None:
    training = SimulatedTraining(bending(), QUIET, seed=0)
    training.iterate(10)
    top = training.curve.cost_ratio(300.0, ETA) - 1
    assert excess_iterations(training, 20_000, eta=ETA) == pytest.approx(20_000 * top)


def test_curve_errors_are_relative_and_zero_for_the_true_curve() -> None:
    curve = bending()
    assert curve_errors(curve, curve.profile) == (0.0, 0.0, 0.0)
    assert curve_errors(curve, curve.profile.with_overhead(0.0, 1.1)) == pytest.approx((0.0, 0.1, 0.1))
    top = PowerProfile(tuple(point for point in curve.profile.points if point.power_limit_w >= 190.0))
    assert curve_errors(curve, fit_curve(top, step_w=5.0))[2] == pytest.approx(0.0), (
        "nobody goes below the least energy"
    )


@pytest.mark.parametrize("name", POLICIES)
def test_without_noise_every_policy_finds_a_good_limit_and_the_curve(name: str) -> None:
    training = SimulatedTraining(bending(), QUIET, seed=0)
    simulated = search_limit(name, training, eta=ETA, rng=np.random.default_rng(0))  # type: ignore[arg-type]
    assert training.curve.cost_ratio(training.power_limit_w, ETA) < 1.005
    assert max(curve_errors(training.curve, simulated.curve)) < 0.03
    assert training.n_iterations >= simulated.iterations_to_plan > 0
    assert 0 < simulated.seconds_to_plan_s <= training.now_s


def test_a_run_is_independent_of_runs_before(evaluations: list[ProfilingEvaluation]) -> None:
    again = evaluate(CURVES[0], "gridchase", "realistic", eta=ETA, n_seeds=1)
    assert again.runs == evaluations[0].runs[:1]


def test_the_controllers_profiler_beats_the_sweep(evaluations: list[ProfilingEvaluation]) -> None:
    """Under realistic noise it plans sooner, wastes less, and ends well."""
    rows = {(row.curve, row.policy): row for row in profiling_rows(evaluations)}
    for curve in (BENDING, FLAT):
        ours, zeus = rows[curve, "gridchase"], rows[curve, "zeus"]
        assert ours.iterations_to_plan < zeus.iterations_to_plan / 3
        assert ours.excess_iterations["1000"] < zeus.excess_iterations["1000"] / 3
        assert ours.selection_error_ratio < 0.01


def test_a_row_is_the_mean_of_its_runs_and_compares_with_zeus(
    evaluations: list[ProfilingEvaluation],
) -> None:
    rows = profiling_rows(evaluations)
    ours, zeus = rows[0], rows[2]
    assert (ours.policy, zeus.policy, ours.n_seeds) == ("gridchase", "zeus", 2)
    runs = evaluations[0].runs
    assert ours.selection_error_ratio == pytest.approx(
        (runs[0].selection_error_ratio + runs[1].selection_error_ratio) / 2
    )
    assert ours.excess_iterations["5000"] == pytest.approx(
        (runs[0].excess_iterations[1] + runs[1].excess_iterations[1]) / 2
    )
    assert ours.selection_against_zeus_ratio == pytest.approx(ours.selection_error_ratio - zeus.selection_error_ratio)
    against = (ours.excess_iterations["1000"] - zeus.excess_iterations["1000"]) / 1_000
    assert (ours.cost_against_zeus_ratio or {})["1000"] == pytest.approx(against)
    assert profiling_rows(evaluations[:2])[0].selection_against_zeus_ratio is None


def test_summaries_are_over_the_power_bound_curves_and_over_all(evaluations: list[ProfilingEvaluation]) -> None:
    rows = profiling_rows(evaluations)
    summaries = {(row.curve, row.policy): row for row in summary_rows(rows)}
    assert len(summaries) == len(POLICIES) * 4

    def of(curve: str) -> ProfilingRow:
        return summaries[curve, "zeus"]

    zeus = [row for row in rows if row.policy == "zeus"]
    assert (of("mean over power-bound").n_curves, of("mean over all").n_curves) == (2, 3)
    assert of("mean over all").iterations_to_plan == pytest.approx(sum(row.iterations_to_plan for row in zeus) / 3)
    errors = sorted(row.selection_error_ratio for row in zeus)
    assert of("median over all").selection_error_ratio == pytest.approx(errors[1])
    worst = max(row.selection_against_zeus_ratio or 0.0 for row in rows if row.policy == "gridchase")
    assert summaries["mean over all", "gridchase"].selection_against_zeus_ratio == pytest.approx(worst)
    assert set(of("mean over all").excess_iterations) == {str(length) for length in JOB_LENGTHS}


def test_more_noise_means_larger_errors() -> None:
    """The same seeds bring the same chance, only more of it."""
    errors = []
    for noise in LEVELS:
        runs = evaluate(bending(), "gridchase-unrefined", noise, eta=ETA, n_seeds=20).runs
        errors.append(np.mean([run.curve_worst_error_ratio for run in runs]))
    assert errors == sorted(errors)
