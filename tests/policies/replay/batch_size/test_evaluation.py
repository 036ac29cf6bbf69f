"""The evaluation of policies: the yardsticks are what they should be on a job without randomness."""

import numpy as np
import pytest

from policies.batch_size.study import LearningSettings
from policies.replay.batch_size.evaluation import (
    POLICIES,
    Conditions,
    drifted,
    evaluate,
    reference_costs,
    regrets,
    replay_named_policy,
)
from policies.replay.batch_size.workload import optimum
from tests.policies.replay.batch_size.toy import HIGH_W, LOW_W, toy

CONDITIONS = Conditions(n_recurrences=20)


def test_the_oracle_has_no_regret_and_the_default_has_ratio_one() -> None:
    oracle = evaluate(toy(), "oracle", CONDITIONS, n_seeds=2)
    assert oracle.regret == pytest.approx(0.0, abs=1e-9)
    default = evaluate(toy(), "default", CONDITIONS, n_seeds=2)
    ratios = (default.energy_ratio, default.duration_ratio, default.last_energy_ratio, default.last_duration_ratio)
    assert ratios == pytest.approx((1.0, 1.0, 1.0, 1.0))
    best, default_cost = optimum(toy(), eta=0.5).cost, reference_costs(toy(), CONDITIONS).default[0].cost
    assert default.regret == pytest.approx(20 * (default_cost / best - 1))


def test_regret_is_the_cost_beyond_the_oracle() -> None:
    history = replay_named_policy(toy(), "zeus", CONDITIONS, seed=0)
    expected = history.costs.sum() / optimum(toy(), eta=0.5).cost - 20
    assert regrets(history, reference_costs(toy(), CONDITIONS))[-1] == pytest.approx(expected)


def test_grid_search_visits_every_choice_once_and_keeps_the_best() -> None:
    history = replay_named_policy(toy(), "grid", CONDITIONS, seed=0)
    places = [(run.batch_size, run.power_limit_w) for run in history.runs]
    assert places[:6] == [(size, limit_w) for size in (16, 32, 64) for limit_w in (HIGH_W, LOW_W)]
    assert set(places[6:]) == {(32, HIGH_W)}


def test_grid_search_drops_a_batch_size_that_misses_its_target() -> None:
    job = toy(recorded_epochs={16: (None,), 32: (5.0,), 64: (10.0,)})
    history = replay_named_policy(job, "grid", CONDITIONS, seed=0)
    assert [run.batch_size for run in history.runs].count(16) == 1
    assert history.runs[1].recurrence == 0


def test_the_horizon_is_twice_the_choices_by_default() -> None:
    assert Conditions().horizon(toy()) == 12
    assert Conditions(drift="mirror").horizon(toy()) == 100
    assert CONDITIONS.horizon(toy()) == 20


def test_a_mirrored_job_exchanges_the_ends_of_those_that_reach_their_target() -> None:
    job = toy(candidates=(8, 16, 32, 64), recorded_epochs={8: (None,), 16: (4.0,), 32: (5.0,), 64: (10.0,)})
    assert drifted(job, Conditions(drift="mirror")).recorded_epochs == {8: (None,), 16: (10.0,), 32: (5.0,), 64: (4.0,)}


def test_a_swapped_job_exchanges_the_best_and_the_default() -> None:
    assert drifted(toy(), Conditions(drift="swap")).recorded_epochs == {16: (4.0,), 32: (10.0,), 64: (5.0,)}


def test_the_oracle_knows_the_drift() -> None:
    conditions = Conditions(n_recurrences=10, drift="swap")
    assert evaluate(toy(), "oracle", conditions, n_seeds=1).regret == pytest.approx(0.0, abs=1e-9)
    assert evaluate(toy(), "default", conditions, n_seeds=1).energy_ratio == pytest.approx(1.0)


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_is_deterministic(policy: str) -> None:
    first, second = (evaluate(toy(), policy, CONDITIONS, n_seeds=2) for _ in range(2))  # type: ignore[arg-type]
    assert first.regret == second.regret
    assert np.array_equal(first.regret_by_recurrence, second.regret_by_recurrence)
    assert first.n_unreached == 0


def test_a_job_whose_default_never_reaches_its_target_has_no_ratio() -> None:
    job = toy(default=16, recorded_epochs={16: (None,), 32: (5.0,), 64: (10.0,)})
    found = evaluate(job, "zeus", CONDITIONS, n_seeds=1, settings=LearningSettings())
    assert (found.energy_ratio, found.duration_ratio) == (None, None)
