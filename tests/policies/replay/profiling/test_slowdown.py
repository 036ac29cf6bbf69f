"""How runs under a budget are scored: against the best mix in the same time, and against that of the whole budget."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.replay.profiling.curves import TrueCurve
from policies.replay.profiling.evaluation import JOB_LENGTHS
from policies.replay.profiling.slowdown import SimulatedRun, least_energy_j, slowdown_row, slowdown_summaries
from tests.policies.replay.profiling.curves import bending, flat

BUDGET = 1.03
CURVES = st.sampled_from([bending(), bending(0.04), flat()])


def mix(curve: TrueCurve, n_iterations: int, limits_w: list[float], shares: list[float]) -> SimulatedRun:
    """Return the run that has each limit for a share of its time [W]."""
    found = [curve.profile.at(limit_w) for limit_w in limits_w]
    powers_w, rates_per_s = (np.array(column) for column in zip(*found, strict=True))
    duration_s = n_iterations / float(np.dot(shares, rates_per_s))
    highest = sum(share for limit_w, share in zip(limits_w, shares, strict=True) if limit_w == curve.max_power_limit_w)
    return SimulatedRun(
        n_iterations=n_iterations,
        energy_j=float(np.dot(shares, powers_w)) * duration_s,
        duration_s=duration_s,
        highest_s=highest * duration_s,
    )


@given(CURVES, st.lists(st.tuples(st.sampled_from(range(100, 305, 5)), st.floats(0.01, 1.0)), min_size=1, max_size=5))
def test_no_mix_uses_less_than_the_least(curve: TrueCurve, parts: list[tuple[int, float]]) -> None:
    whole = sum(share for _, share in parts)
    run = mix(curve, 1_000, [float(limit_w) for limit_w, _ in parts], [share / whole for _, share in parts])
    assert run.energy_j >= least_energy_j(curve, 1_000, run.duration_s) * (1 - 1e-12)


@given(CURVES, st.floats(1.0, 3.0), st.floats(1.0, 1.5))
def test_more_time_never_needs_more_energy(curve: TrueCurve, slowdown: float, longer: float) -> None:
    least_s = 1_000 * curve.iteration_time_s
    one_j, other_j = (least_energy_j(curve, 1_000, least_s * time) for time in (slowdown, slowdown * longer))
    assert other_j <= one_j * (1 + 1e-12)
    assert other_j >= 1_000 * curve.profile.energy_minimal.iteration_energy_j * (1 - 1e-12)


def test_a_run_at_the_highest_limit_has_left_its_budget_unspent() -> None:
    curve = bending()
    row = slowdown_row(curve, [mix(curve, length, [300.0], [1.0]) for length in JOB_LENGTHS], max_slowdown=BUDGET)
    assert (row.curve, row.n_seeds, row.is_power_bound) == (curve.name, 1, True)
    for length in JOB_LENGTHS:
        assert row.slowdown_ratio[str(length)] == pytest.approx(0.0)
        assert row.excess_iterations[str(length)] == pytest.approx(0.0, abs=1e-6)
        assert row.highest_ratio[str(length)] == pytest.approx(1.0)
        least_j = least_energy_j(curve, length, BUDGET * length * curve.iteration_time_s)
        assert row.excess_ratio[str(length)] == pytest.approx(240.0 * length * curve.iteration_time_s / least_j - 1)
    assert row.excess_ratio["1000"] > 0.1


def test_looks_and_first_passes_cost_iterations() -> None:
    curve = bending()
    runs = [mix(curve, length, [300.0, 100.0, 250.0], [0.1, 0.1, 0.8]) for length in JOB_LENGTHS for _ in range(2)]
    row = slowdown_row(curve, runs, max_slowdown=BUDGET)
    share = runs[0].energy_j / least_energy_j(curve, 1_000, runs[0].duration_s) - 1
    assert row.n_seeds == 2
    assert row.excess_iterations == pytest.approx({str(length): length * share for length in JOB_LENGTHS})
    assert share > 0.01


def test_means_are_over_the_power_bound_curves_and_over_all() -> None:
    rows = [
        slowdown_row(curve, [mix(curve, length, [200.0], [1.0]) for length in JOB_LENGTHS], max_slowdown=BUDGET)
        for curve in (bending(), flat())
    ]
    bound, over_all = slowdown_summaries(rows)
    assert (bound.curve, bound.n_curves, bound.slowdown_ratio) == ("mean over power-bound", 1, rows[0].slowdown_ratio)
    assert (over_all.curve, over_all.n_curves, over_all.is_power_bound) == ("mean over all", 2, False)
    assert over_all.excess_ratio["1000"] == pytest.approx(sum(row.excess_ratio["1000"] for row in rows) / 2)
    assert [row.n_curves for row in slowdown_summaries(rows[1:])] == [1]
