"""The replay of a recurring job: what a run takes, when it stops, and what a policy is told."""

from collections.abc import Sequence

import numpy as np
import pytest

from policies.batch_size.study import Choice, Study
from policies.replay.batch_size.simulation import (
    MAX_TRIES,
    EpochSampler,
    JobHistory,
    Policy,
    common_random_epochs,
    simulate,
)
from policies.replay.batch_size.workload import Consumption, Workload
from tests.policies.replay.batch_size.toy import HIGH_W, toy

ETA = 0.5
EPOCH_16 = Consumption(energy_j=1_800.0, duration_s=10.0)
"""At the higher limit, which is the cheaper one: at the lower one twice the time takes the same energy."""
PROFILING_16 = Consumption(energy_j=1_800.0, duration_s=15.0)


def always(batch_size: int, cost_bound: float | None = None) -> Policy:
    return lambda _: Choice(batch_size=batch_size, reason="test", detail="", cost_bound=cost_bound)


def one_by_one(choices: Sequence[Choice], seen: list[Study]) -> Policy:
    """Return a policy that makes given choices, the last for ever, and keeps what it was told."""
    waiting = list(choices)

    def choose(study: Study) -> Choice:
        seen.append(study)
        return waiting.pop(0) if len(waiting) > 1 else waiting[0]

    return choose


def choice(batch_size: int, cost_bound: float | None = None) -> Choice:
    return Choice(batch_size=batch_size, reason="test", detail="", cost_bound=cost_bound)


def run(policy: Policy, *, n: int = 3, workload: Workload | None = None, **how: object) -> JobHistory:
    job = workload or toy()
    return simulate(job, policy, sampler=common_random_epochs(job, seed=0), eta=ETA, n_recurrences=n, **how)  # type: ignore[arg-type]


def test_the_first_run_at_a_batch_size_tries_every_limit_in_its_first_epoch() -> None:
    history = run(always(16))
    first, second = history.runs[0], history.runs[1]
    assert first.spent == PROFILING_16.plus(EPOCH_16.times(3))
    assert second.spent == EPOCH_16.times(4)
    assert first.power_limit_w == second.power_limit_w == HIGH_W


def test_a_cost_weighs_energy_and_the_time_at_full_power() -> None:
    run_16 = run(always(16)).runs[1]
    assert run_16.cost == ETA * 7_200.0 + (1 - ETA) * HIGH_W * 40.0
    assert run_16.reached


def test_a_run_stops_before_the_epoch_that_would_exceed_its_bound() -> None:
    epoch_cost = EPOCH_16.cost(ETA, HIGH_W)
    history = run(always(16, cost_bound=2.9 * epoch_cost), n=1)
    assert {run.n_epochs for run in history.runs} == {2.0}
    assert not any(run.reached for run in history.runs)


def test_a_target_on_the_last_epoch_that_fits_is_reached() -> None:
    assert run(always(16, cost_bound=4 * EPOCH_16.cost(ETA, HIGH_W))).runs[1].reached


def test_a_run_without_an_epoch_costs_nothing_and_is_observed() -> None:
    seen: list[Study] = []
    history = run(one_by_one([choice(16, cost_bound=1.0), choice(32)], seen), n=1)
    assert [run.batch_size for run in history.runs] == [32]
    told = seen[1].observations[0]
    assert (told.batch_size, told.outcome, told.epochs, told.cost) == (16, "stopped", 0.0, 0.0)
    assert 16 in seen[1].epoch_costs


def test_a_run_is_given_up_after_the_largest_number_of_epochs() -> None:
    history = run(always(64), n=1, workload=toy(max_epochs=8))
    assert len(history.runs) == MAX_TRIES
    assert {run.n_epochs for run in history.runs} == {8.0}
    assert history.n_unreached == 1


def test_retries_are_charged_to_their_recurrence() -> None:
    seen: list[Study] = []
    history = run(one_by_one([choice(64, 1_000.0), choice(16), choice(32)], seen), n=2)
    assert [run.recurrence for run in history.runs] == [0, 0, 1]
    assert history.costs[0] == pytest.approx(history.runs[0].cost + history.runs[1].cost)
    assert history.costs[1] == pytest.approx(history.runs[2].cost)
    assert history.energies_j.sum() == pytest.approx(sum(run.spent.energy_j for run in history.runs))
    assert history.durations_s.sum() == pytest.approx(sum(run.spent.duration_s for run in history.runs))


def test_concurrent_runs_are_chosen_before_their_results() -> None:
    seen: list[Study] = []
    run(one_by_one([choice(16), choice(32), choice(64)], seen), n=6, concurrency=3)
    assert [study.in_flight for study in seen] == [(), (16,), (16, 32), (), (64,), (64, 64)]
    assert [len(study.observations) for study in seen] == [0, 0, 0, 3, 3, 3]


def test_failed_recurrences_are_repeated_together() -> None:
    seen: list[Study] = []
    history = run(
        one_by_one([choice(64, 1_000.0), choice(16), choice(64, 1_000.0), choice(32)], seen), n=3, concurrency=3
    )
    assert [run.recurrence for run in history.runs] == [0, 1, 2, 0, 2]
    assert [study.in_flight for study in seen[3:]] == [(), (32,)]


def test_epoch_costs_are_learned_by_running() -> None:
    seen: list[Study] = []
    run(one_by_one([choice(16), choice(32)], seen), n=2)
    assert [sorted(study.epoch_costs) for study in seen] == [[], [16]]
    assert seen[1].epoch_costs[16] == EPOCH_16.cost(ETA, HIGH_W)
    assert not seen[1].epoch_times


def test_probes_give_all_epoch_costs_and_count_in_the_first_recurrence() -> None:
    seen: list[Study] = []
    history = run(one_by_one([choice(16)], seen), knowledge="probed")
    assert sorted(seen[0].epoch_costs) == [16, 32, 64]
    assert history.probes.duration_s == pytest.approx(30 * (16 * 10 + 32 * 6 + 64 * 5) / 1_000_000)
    assert history.costs[0] == pytest.approx(history.runs[0].cost + history.probes.cost(ETA, HIGH_W))


def test_a_probe_takes_at_most_three_seconds() -> None:
    history = run(always(16), knowledge="probed", workload=toy(n_samples=100))
    assert history.probes.duration_s == pytest.approx(9.0)


def test_times_can_be_known_from_the_start() -> None:
    seen: list[Study] = []
    run(one_by_one([choice(16)], seen), knowledge="timed")
    assert (dict(seen[0].epoch_costs), dict(seen[0].epoch_times)) == ({}, {16: 10.0, 32: 6.0, 64: 5.0})


def drawn(sampler: EpochSampler, sizes: Sequence[int]) -> dict[int, list[float | None]]:
    found: dict[int, list[float | None]] = {}
    for size in sizes:
        found.setdefault(size, []).append(sampler(size, 0))
    return found


def test_the_kth_run_of_a_batch_size_is_independent_of_the_others() -> None:
    workload = toy(recorded_epochs=dict.fromkeys((16, 32, 64), tuple(map(float, range(1, 200)))))

    def fresh(seed: int = 3) -> EpochSampler:
        return common_random_epochs(workload, seed=seed, noise_ratio=0.1)

    assert drawn(fresh(), [16, 32, 16, 64]) == drawn(fresh(), [64, 16, 16, 32])
    assert drawn(fresh(), [16]) != drawn(fresh(seed=4), [16])


def test_noise_spreads_the_logarithm_of_the_epochs() -> None:
    sampler = common_random_epochs(toy(), seed=0, noise_ratio=0.25)
    logs = np.log([sampler(16, 0) or 0.0 for _ in range(4_000)])
    assert float(logs.mean()) == pytest.approx(np.log(4.0), abs=0.02)
    assert float(logs.std()) == pytest.approx(0.25, abs=0.01)


def test_a_drift_changes_the_runs_from_its_recurrence_on() -> None:
    sampler = common_random_epochs(toy(), seed=0, later=(5, toy(recorded_epochs={16: (7.0,), 32: (5.0,), 64: (10.0,)})))
    assert (sampler(16, 4), sampler(16, 5)) == (4.0, 7.0)


def test_the_only_batch_size_is_not_timed() -> None:
    alone = toy(candidates=(64,), recorded_epochs={64: (10.0,)})
    assert run(always(64), workload=alone, knowledge="timed").probes == Consumption(energy_j=0.0, duration_s=0.0)
    assert run(always(64), knowledge="timed").probes.duration_s > 0
