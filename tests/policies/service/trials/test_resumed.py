"""Runs whose process was replaced, as a scheduler does that requeues them: how many epochs they needed, and at what."""

import pytest
from msgspec.structs import replace

from policies.service.records import Job, Result
from policies.service.trials.lifecycle import n_epochs, with_inferred_end, with_metric, with_renewed_lease, with_result
from policies.service.trials.observations import epoch_costs, run_cost, study_of
from tests.policies.service.trials.trial_reports import a_trial, reached_at, validated

JOB = Job(name="job", batch_sizes=(16, 32, 64), default_batch_size=32, created_at_s=0.0)
FIRST = Result(epochs=8, energy_j=800.0, duration_s=8.0, max_power_w=300.0)
SECOND = Result(epochs=2, energy_j=200.0, duration_s=2.0, max_power_w=300.0)


def test_a_process_that_numbers_its_epochs_on_counts_them_all() -> None:
    trial = with_result(validated(a_trial(), 7, now_s=8.0), FIRST, 8.0)
    trial = with_inferred_end(trial, was_lost=True, now_s=9.0)
    trial = with_inferred_end(with_result(reached_at(trial, 9, now_s=12.0), SECOND, 12.0), was_lost=False, now_s=13.0)
    assert (trial.state, n_epochs(trial), trial.has_lost_count) == ("reached", 10, False)
    assert run_cost(trial, 1.0, None) == pytest.approx(1000.0)


@pytest.mark.parametrize("was_lost", [True, False])
def test_one_that_numbers_them_anew_has_lost_count_and_needed_at_least_what_was_heard(was_lost: bool) -> None:
    trial = with_result(validated(a_trial(), 7, now_s=8.0), FIRST, 8.0)
    if was_lost:
        trial = with_inferred_end(trial, was_lost=True, now_s=9.0)
    trial = reached_at(validated(trial, 0, now_s=10.0), 1, now_s=11.0)
    trial = with_result(trial, SECOND, 11.0)
    trial = with_result(trial, Result(outcome="reached"), 12.0)
    assert (trial.state, n_epochs(trial), trial.has_lost_count) == ("reached", 8, True)
    study = study_of(JOB, [trial], 1.0, now_s=20.0)
    assert study.observations == ()
    assert study.epoch_costs == {32: pytest.approx(100.0)}


def test_one_that_begins_anew_and_goes_farther_counts_as_far_as_it_went() -> None:
    trial = reached_at(validated(a_trial(), 2, now_s=3.0), 9, now_s=20.0)
    assert (n_epochs(trial), trial.has_lost_count) == (10, False)


def test_what_was_reached_before_counts_though_a_new_process_reaches_it_once_more() -> None:
    trial = with_inferred_end(reached_at(a_trial(), 6, now_s=7.0), was_lost=True, now_s=8.0)
    trial = reached_at(trial, 1, now_s=10.0)
    assert (n_epochs(trial), trial.has_lost_count) == (7, False)


def test_epochs_of_one_process_that_are_reported_out_of_order_are_no_new_process() -> None:
    trial = reached_at(with_renewed_lease(validated(a_trial(), 7, now_s=8.0), 50.0), 5, now_s=6.0)
    assert (n_epochs(trial), trial.has_lost_count) == (6, False)


def test_of_the_accounts_of_two_processes_one_is_taken_as_a_whole() -> None:
    hot = Result(epochs=2, energy_j=900.0, duration_s=3.0, max_power_w=400.0, gpu_model="T4")
    for accounts in ((FIRST, hot), (hot, FIRST), (FIRST, hot, FIRST, hot)):
        trial = a_trial()
        for at_s, account in enumerate(accounts):
            trial = with_result(trial, account, float(at_s))
        assert trial.result == replace(FIRST, gpu_model="T4")
        ended_trial = replace(trial, state="stopped", ended_at_s=9.0)
        assert epoch_costs([ended_trial], 1.0) == {32: pytest.approx(100.0)}


def test_a_metric_without_its_epoch_is_no_new_process() -> None:
    trial = with_metric(validated(a_trial(), 0, now_s=1.0), epoch=0, value=0.9, reached=True, now_s=9.0)
    assert (n_epochs(trial), trial.has_lost_count) == (1, False)


@pytest.mark.parametrize(("n_told", "has_lost_count"), [(10, False), (7, True)])
def test_who_counts_the_epochs_after_all_heals_it(n_told: int, has_lost_count: bool) -> None:
    trial = reached_at(validated(validated(a_trial(), 7, now_s=8.0), 0, now_s=10.0), 1, now_s=11.0)
    assert trial.has_lost_count
    trial = with_result(trial, Result(outcome="reached", epochs=n_told, reached_epochs=n_told, energy_j=1.0), 12.0)
    assert trial.has_lost_count is has_lost_count
