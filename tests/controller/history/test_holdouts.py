"""A/B over the record: which runs are compared, and how it is told on the bus and in words."""

from typing import Any

import pytest

from controller.history.holdouts import compare_with, with_comparison
from controller.history.run_history import EndedRun
from policies.savings.holdout import HoldoutComparison, TooFewHoldouts
from publishers.messages.holdouts import describe_holdouts
from tests.controller.history.outcomes import ended_run
from tests.controller.messages import run_energy


def runs(n_blocks: int, **changes: Any) -> list[EndedRun]:  # noqa: ANN401 — the record checks them
    """Return blocks of two: one held out, and one that takes 10 % less energy and 2 % more time, give or take."""
    found = []
    for block in range(n_blocks):
        drift_ratio = 1 + 0.01 * block + 0.001 * (block % 2)
        found += [
            ended_run(2 * block, energy_j=2e6 * drift_ratio, active_s=7_500.0, is_held_out=True, **changes),
            ended_run(2 * block + 1, energy_j=1.8e6 * (1 + 0.01 * block), active_s=7_650.0, **changes),
        ]
    return found


def test_runs_held_out_are_compared_with_the_others() -> None:
    known = runs(4)
    found = compare_with(known[-1], known, holdout_ratio=0.5)
    assert isinstance(found, HoldoutComparison)
    assert (found.n_runs, found.n_held_out) == (8, 4)
    assert found.energy.less_ratio == pytest.approx(0.1, abs=0.001)
    assert found.time.less_ratio == pytest.approx(-0.02)


@pytest.mark.parametrize(
    "changes",
    [{"end": "lost"}, {"is_complete": False}, {"batch_size": 64}, {"world_size": 2}, {"n_gpus": 2}, {"energy_j": 0.0}],
)
def test_runs_that_are_not_comparable_do_not_count(changes: dict[str, Any]) -> None:
    others = [ended_run(8 + n, is_held_out=n % 2 == 0, **changes) for n in range(8)]
    known = runs(3)
    found = compare_with(known[-1], [*known, *others], holdout_ratio=0.5)
    assert found == TooFewHoldouts(n_runs=6, n_held_out=3, n_missing=1)


def test_a_comparison_is_told_with_its_intervals() -> None:
    known = runs(4)
    record = with_comparison(run_energy(final=True), compare_with(known[-1], known, holdout_ratio=0.5))
    assert (record.ab_runs, record.ab_held_out_runs, record.ab_more_runs) == (8, 4, 0)
    lower, upper = record.ab_saved_energy_lower_ratio, record.ab_saved_energy_upper_ratio
    assert lower is not None
    assert upper is not None
    assert lower < 0.1 < upper
    assert record.ab_slowdown_ratio == pytest.approx(1.02)
    assert describe_holdouts(record) == (
        "A/B: 4 of 8 comparable runs were held out; an iteration of the others took 10.0 % less energy (90 %: 10.0 to"
        " 10.1 %) and 2.0 % more time (2.0 to 2.0 %)"
    )


def test_what_is_too_early_is_told_without_numbers() -> None:
    known = runs(3)
    record = with_comparison(run_energy(final=True), compare_with(known[-1], known, holdout_ratio=0.5))
    assert (record.ab_more_runs, record.ab_saved_energy_ratio, record.ab_slowdown_ratio) == (None, None, None)
    assert describe_holdouts(record) == (
        "A/B: 3 of 6 comparable runs were held out: too early to compare the others with them"
    )


def test_where_no_runs_are_held_out_nothing_is_told() -> None:
    assert describe_holdouts(run_energy(final=True)) == ""
