"""The policy of the Zeus paper: the reference's choices, and those where the reference fails."""

import math
from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from policies.batch_size import zeus
from policies.batch_size.study import Choice, LearningSettings, Observation, Outcome, Study
from policies.replay.batch_size.evaluation import Conditions, replay_policy
from policies.replay.batch_size.simulation import learning_policy
from policies.replay.batch_size.workload import Workload
from tests.policies.replay.batch_size.toy import toy

SETTINGS = LearningSettings(policy="zeus")
SIZES = (8, 16, 32, 64, 128, 256)

Ends = list[tuple[int, Outcome, float | None]]
"""Batch size, outcome and cost of each run."""
Peer = Callable[..., Any]


@pytest.fixture(scope="session")
def reference() -> Peer:
    """Return Zeus's own optimizer behind our interface."""
    needed = "needs Zeus: pip install zeus-ml"
    return cast("Peer", pytest.importorskip("tests.policies.batch_size.reference", reason=needed).Reference)


def study_of(*ends: tuple[int, Outcome, float | None], default: int = 32, in_flight: tuple[int, ...] = ()) -> Study:
    """Return a study of (batch size, outcome, cost)."""
    seen = tuple(Observation(batch_size=size, outcome=how, epochs=5.0, cost=cost) for size, how, cost in ends)
    return Study(candidates=SIZES, default=default, observations=seen, in_flight=in_flight)


def choose(study: Study) -> Choice:
    return zeus.choose(study, SETTINGS, rng=np.random.default_rng(0))


def explored(outcomes: dict[int, Outcome], default: int = 32) -> Iterator[int]:
    """Yield the explored batch sizes if each has one outcome, and a cost equal to its size."""
    ends: Ends = []
    while (choice := choose(study_of(*ends, default=default))).reason == "pruning":
        yield choice.batch_size
        ends.append((choice.batch_size, outcomes.get(choice.batch_size, "reached"), float(choice.batch_size)))


@given(
    sizes=st.lists(st.integers(1, 4096), min_size=1, max_size=7, unique=True),
    place=st.integers(0, 6),
    seed=st.integers(0, 2**32),
    ends=st.lists(
        st.tuples(st.floats(1.0, 1e7), st.sampled_from(["reached"] * 6 + ["stopped", "never ran"])),
        min_size=5,
        max_size=60,
    ),
)
def test_the_choices_are_those_of_the_reference(
    reference: Peer, sizes: list[int], place: int, seed: int, ends: list[tuple[float, str]]
) -> None:
    candidates = tuple(sorted(sizes))
    default = candidates[place % len(candidates)]
    theirs = reference(candidates=candidates, default=default, seed=seed)
    rng = np.random.default_rng(seed)
    seen: tuple[Observation, ...] = ()
    for cost, how in ends:
        study = Study(candidates=candidates, default=default, observations=seen)
        assume(all(_differ(study, size) for size in candidates))
        expected = theirs(study)
        chosen = zeus.choose(study, SETTINGS, rng=rng)
        if theirs.error is not None:
            assert chosen.batch_size in candidates
            return
        assert (chosen.batch_size, chosen.cost_bound) == (expected.batch_size, expected.cost_bound)
        never_ran = how == "never ran" and chosen.cost_bound is not None
        seen += (
            Observation(
                batch_size=chosen.batch_size,
                outcome="reached" if how == "reached" else "stopped",
                epochs=0.0 if never_ran else 3.0,
                cost=0.0 if never_ran else cost,
            ),
        )


def _differ(study: Study, size: int) -> bool:
    """Return whether the costs of a batch size are not all equal: there the reference's precision is infinite."""
    costs = [one.cost for one in study.observations if one.batch_size == size]
    return len(costs) < 2 or float(np.std([cost or 0.0 for cost in costs])) > 1e-6 * max(cost or 0.0 for cost in costs)


def noisy() -> Workload:
    """Return a job whose runs differ, and whose largest batch size fails now and then."""
    return toy(recorded_epochs={16: (4.0, 6.0, 5.0), 32: (5.0, 6.0, 9.0), 64: (10.0, 14.0, 11.0, None)}, default=16)


def test_whole_histories_are_those_of_the_reference(reference: Peer) -> None:
    for seed in range(10):
        workload, conditions = noisy(), Conditions(n_recurrences=60)
        theirs = reference(candidates=workload.candidates, default=workload.default, seed=seed)
        expected = replay_policy(workload, theirs, conditions, seed=seed)
        ours = replay_policy(workload, learning_policy(SETTINGS, seed=seed), conditions, seed=seed)
        assert theirs.error is None
        assert ours.runs == expected.runs


def test_two_rounds_explore_down_then_up_from_the_best() -> None:
    assert list(explored({})) == [32, 16, 8, 64, 128, 256, 8, 16, 32, 64, 128, 256]


def test_a_missed_target_ends_the_direction() -> None:
    assert list(explored({16: "stopped", 128: "stopped"})) == [32, 16, 64, 128, 32, 64]


def test_the_bound_is_a_multiple_of_the_cheapest_recurrence() -> None:
    study = study_of((32, "reached", 90.0), (16, "stopped", 30.0), (64, "reached", 50.0))
    assert choose(study).cost_bound == SETTINGS.beta * 80.0


def test_there_is_no_bound_before_the_first_success() -> None:
    assert choose(study_of((32, "stopped", 90.0))).cost_bound is None


def test_concurrent_runs_take_the_best_so_far() -> None:
    first = choose(study_of(in_flight=(32,)))
    assert (first.batch_size, first.reason) == (32, "concurrent")
    later = choose(study_of((32, "reached", 50.0), (16, "reached", 40.0), in_flight=(8,)))
    assert (later.batch_size, later.reason) == (16, "concurrent")


@pytest.mark.parametrize(
    ("ends", "size"),
    [
        ([(32, "reached", 50.0), (16, "reached", 40.0), (16, "failed", None)], 32),
        ([(32, "reached", 60.0), (16, "reached", 50.0), (8, "reached", 40.0), (8, "failed", None)], 16),
        ([(64, "reached", 50.0), (64, "failed", None)], 32),
    ],
)
def test_concurrent_runs_avoid_failed_sizes(ends: Ends, size: int) -> None:
    exploring = choose(study_of(*ends)).batch_size
    choice = choose(study_of(*ends, in_flight=(exploring,)))
    assert (choice.batch_size, choice.reason) == (size, "concurrent")


def test_a_size_out_of_memory_is_never_drawn() -> None:
    ends: Ends = [(size, "reached", 10.0 + size) for size in (32, 16, 8, 64, 128, 256)]
    ends += [(size, "reached", 11.0 + size) for size in (8, 16, 32, 64, 128, 256)]
    ends += [(8, "failed", None)]
    rng = np.random.default_rng(1)
    drawn = {zeus.choose(study_of(*ends), SETTINGS, rng=rng).batch_size for _ in range(50)}
    assert 8 not in drawn
    assert 16 in drawn


def test_if_all_are_pruned_former_successes_stay() -> None:
    ends: Ends = [(32, "reached", 9.0), (16, "stopped", 9.0), (64, "stopped", 9.0)]
    ends += [(32, "stopped", 18.0)]
    assert choose(study_of(*ends)).batch_size == 32


def test_it_chooses_without_any_success() -> None:
    ends: Ends = [(32, "stopped", 9.0), (64, "stopped", 9.0)]
    assert choose(study_of(*ends)).batch_size in SIZES


def test_unmeasured_runs_count_without_a_cost() -> None:
    sizes = [32, 16, 8, 64, 128, 256]
    ends: Ends = [(size, "reached", None) for size in [*sizes, *sorted(sizes)]]
    assert choose(study_of(*ends, (32, "reached", None), default=32)).batch_size in SIZES
    assert all(
        belief.cost is None and belief.log_cost_sd is None for belief in zeus.describe(study_of(*ends), SETTINGS)
    )


@given(costs=st.lists(st.floats(1.0, 1e9), min_size=1, max_size=6), n_equal=st.integers(1, 4))
def test_the_posterior_is_proper_from_the_first_observation(costs: list[float], n_equal: int) -> None:
    ends: Ends = [(32, "reached", cost) for cost in costs]
    ends += [(16, "reached", costs[0])] * n_equal
    for belief in zeus.describe(study_of(*ends), SETTINGS):
        if belief.batch_size in {16, 32}:
            assert belief.log_cost_sd is not None
            assert 0 < belief.log_cost_sd < math.inf
            assert belief.cost is not None
            assert belief.cost_lower is not None
            assert belief.cost_upper is not None
            assert 0 < belief.cost_lower < belief.cost < belief.cost_upper < math.inf
        else:
            assert belief.cost is None


def test_equal_costs_leave_a_variance() -> None:
    """The reference's precision would be infinite, and the batch size frozen."""
    ends: Ends = [
        (32, "reached", 100.0),
        (16, "reached", 101.0),
        (8, "stopped", 1.0),
    ]
    ends += [(64, "stopped", 1.0), (32, "reached", 100.0), (16, "reached", 101.0)]
    rng = np.random.default_rng(2)
    assert {zeus.choose(study_of(*ends), SETTINGS, rng=rng).batch_size for _ in range(40)} == {16, 32}


def test_exploration_skips_sizes_known_to_fail() -> None:
    """A probe finds it, perhaps before any run; its failure comes last among the observations, or first."""
    ends: Ends = [(32, "reached", 10.0), (16, "reached", 12.0), (8, "reached", 14.0), (64, "reached", 11.0)]
    found: Ends = [(128, "failed", None)]
    second_round = [choose(study_of(*order)) for order in (ends + found, found + ends)]
    assert [(choice.batch_size, choice.reason) for choice in second_round] == [(32, "pruning")] * 2
