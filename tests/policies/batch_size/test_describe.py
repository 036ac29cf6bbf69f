"""The description of the posterior: a row for each candidate."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.batch_size.choose import choose_batch_size, describe
from policies.batch_size.study import Belief, Observation
from tests.policies.batch_size.studies import COSTS, SETTINGS, SIZES, failed, reached, stopped, study


def rows(*observations: Observation, **changes: dict[int, float]) -> dict[int, Belief]:
    """Return the posterior of each size."""
    return {belief.batch_size: belief for belief in describe(study(*observations, **changes), SETTINGS)}  # type: ignore[arg-type]


def test_every_candidate_has_a_row() -> None:
    assert list(rows()) == list(SIZES)
    assert rows()[32].epochs is None
    assert rows()[32].cost is None


def test_a_row_counts_outcomes() -> None:
    found = rows(reached(32, 10), reached(32, 11), stopped(8, 20), failed(256))
    assert (found[32].n_reached, found[32].n_stopped, found[8].n_stopped) == (2, 0, 1)
    assert [size for size, belief in found.items() if belief.is_pruned] == [256]
    assert found[256].score is None


def test_a_cost_is_epochs_times_the_cost_of_an_epoch() -> None:
    for belief in rows(reached(32, 10), reached(64, 13)).values():
        assert belief.cost == pytest.approx((belief.epochs or 0) * (belief.epoch_cost or 0))
        assert belief.epoch_cost == pytest.approx(COSTS[belief.batch_size])


def test_inferred_epoch_costs_are_flagged() -> None:
    found = rows(reached(32, 10), costs={32: 1_250.0})
    assert [size for size, belief in found.items() if belief.epoch_cost_is_known] == [32]
    assert (found[64].epoch_cost or 0) < 1_250


def test_costs_are_none_without_a_measurement() -> None:
    belief = rows(reached(32, 10), costs={})[32]
    assert (belief.cost, belief.epoch_cost) == (None, None)
    assert belief.epochs == pytest.approx(10, rel=0.01)


def test_the_lowest_score_is_chosen() -> None:
    runs = study(reached(32, 10), reached(16, 11))
    scores = {belief.batch_size: belief.score for belief in describe(runs, SETTINGS) if belief.score is not None}
    assert min(scores, key=scores.__getitem__) == choose_batch_size(runs, SETTINGS, rng=None).batch_size  # type: ignore[arg-type]


@given(st.lists(st.tuples(st.sampled_from(SIZES), st.floats(0.1, 1e5)), min_size=1, max_size=20))
def test_intervals_are_in_order_and_proper(runs: list[tuple[int, float]]) -> None:
    for belief in rows(*(reached(*run) for run in runs)).values():
        assert 0 < (belief.epochs_lower or 0) < (belief.epochs or 0) < (belief.epochs_upper or 0) < math.inf
        assert 0 < (belief.cost_lower or 0) < (belief.cost or 0) < (belief.cost_upper or 0) < math.inf
        assert 0 < (belief.log_cost_sd or 0) < math.inf
