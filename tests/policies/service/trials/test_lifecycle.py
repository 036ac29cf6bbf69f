"""The life of a trial: leases, ends, and what reports of a run, of a resumed one too, make of it."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from policies.batch_size import Choice, Outcome
from policies.service.errors import RequestError, TrialConflictError
from policies.service.records import IN_FLIGHT, Job, Result, Trial
from policies.service.trials.lifecycle import (
    is_expired,
    is_in_flight,
    n_epochs,
    new_trial,
    next_recurrence,
    with_ended_reason,
    with_expired_lease,
    with_inferred_end,
    with_metric,
    with_renewed_lease,
    with_result,
)
from policies.service.trials.observations import epoch_costs, run_cost, study_of
from publishers.messages.reports import TrialState
from tests.fakes import USER
from tests.policies.service.repositories import run_key
from tests.policies.service.trials.trial_reports import LEASE_S, a_trial, reached_at, validated


def test_a_new_trial_is_the_promise_of_a_batch_size() -> None:
    trial = a_trial(number=3, recurrence=2)
    assert (trial.state, trial.batch_size, trial.cost_bound, trial.number, trial.recurrence) == ("open", 32, 5.0, 3, 2)
    assert trial.requested_at_s == trial.heard_at_s == 0.0


@pytest.mark.parametrize("bound", [math.inf, math.nan])
def test_a_bound_that_is_no_number_is_none(bound: float) -> None:
    choice = Choice(batch_size=32, reason="best_so_far", detail="", cost_bound=bound)
    trial = new_trial(run=run_key("run"), number=0, recurrence=0, choice=choice, lease_s=LEASE_S, now_s=0.0)
    assert trial.cost_bound is None


def test_a_lease_runs_out_after_its_time_of_silence_and_not_before() -> None:
    trial = a_trial()
    assert [is_expired(trial, now_s) for now_s in (LEASE_S, LEASE_S + 0.1)] == [False, True]
    assert [is_in_flight(trial, now_s) for now_s in (LEASE_S, LEASE_S + 0.1)] == [True, False]
    assert not is_expired(replace(trial, state="reached"), 1e9)


def test_a_sign_of_life_renews_the_lease_when_a_quarter_of_it_has_passed() -> None:
    running = with_renewed_lease(a_trial(), 1.0)
    assert (running.state, running.heard_at_s) == ("running", 1.0)
    assert with_renewed_lease(running, 25.9) is running
    assert with_renewed_lease(running, 26.0).heard_at_s == 26.0


def test_a_lost_trial_that_is_heard_of_later_lives_again() -> None:
    lost = with_inferred_end(a_trial(), was_lost=True, now_s=50.0)
    assert with_renewed_lease(lost, 50.0) is lost
    alive = with_renewed_lease(lost, 51.0)
    assert (alive.state, alive.heard_at_s, alive.ended_at_s) == ("running", 51.0, None)


def test_late_reports_from_before_the_loss_do_not_undo_it_nor_shorten_a_lease() -> None:
    lost = with_inferred_end(a_trial(), was_lost=True, now_s=50.0)
    assert validated(lost, 2, 40.0).state == with_result(lost, Result(epochs=3), 40.0).state == "lost"
    assert with_result(with_renewed_lease(a_trial(), 60.0), Result(epochs=3), 40.0).heard_at_s == 60.0


def test_an_ended_trial_is_deaf_to_signs_of_life() -> None:
    trial = with_result(a_trial(), Result(outcome="stopped", epochs=3), 5.0)
    assert with_renewed_lease(trial, 1e6) is trial


def test_a_run_has_one_end() -> None:
    trial = with_result(a_trial(), Result(outcome="reached", epochs=4), 5.0)
    with pytest.raises(TrialConflictError, match="has ended as reached, and cannot end as failed"):
        with_result(trial, Result(outcome="failed"), 6.0)


@pytest.mark.parametrize("outcome", ["reached", "stopped", "failed"])
def test_a_late_result_of_a_lost_trial_is_taken(outcome: Outcome) -> None:
    lost = with_inferred_end(a_trial(), was_lost=True, now_s=50.0)
    assert with_result(lost, Result(outcome=outcome, epochs=4), 90.0).state == outcome


@pytest.mark.parametrize(
    ("trial", "was_lost", "state"),
    [
        (reached_at(a_trial(), 3), True, "reached"),
        (reached_at(a_trial(), 3), False, "reached"),
        (validated(a_trial(), 0), False, "stopped"),
        (validated(a_trial(), 0), True, "lost"),
        (with_result(a_trial(), Result(epochs=1), 1.0), False, "stopped"),
        (a_trial(), False, "lost"),
        (a_trial(stop_ordered_at_s=1.0), True, "stopped"),
    ],
)
def test_how_a_run_is_over_of_which_nobody_said_how(trial: Trial, was_lost: bool, state: str) -> None:
    over = with_inferred_end(trial, was_lost=was_lost, now_s=9.0)
    assert (over.state, over.ended_at_s) == (state, 9.0)
    assert with_inferred_end(over, was_lost=was_lost, now_s=20.0) == over


def test_an_end_that_was_inferred_is_corrected() -> None:
    stopped = with_inferred_end(validated(a_trial(), 5), was_lost=False, now_s=9.0)
    for corrected in (
        reached_at(stopped, 5, 10.0),
        with_result(stopped, Result(outcome="reached"), 10.0),
        with_result(stopped, Result(reached_epochs=6), 10.0),
    ):
        assert (corrected.state, n_epochs(corrected), corrected.ended_at_s) == ("reached", 6, 9.0)


def test_an_end_that_was_reported_is_not_corrected_by_a_validation() -> None:
    stopped = with_result(a_trial(), Result(outcome="stopped", epochs=6), 9.0)
    assert reached_at(stopped, 3, 10.0).state == "stopped"
    assert n_epochs(reached_at(stopped, 3, 10.0)) == 6
    assert reached_at(stopped, 3, 10.0).result == stopped.result
    late = reached_at(with_result(a_trial(), Result(outcome="reached", epochs=6), 9.0), 3, 10.0)
    assert (late.state, n_epochs(late)) == ("reached", 4)


def test_the_last_word_of_a_lost_run_that_comes_again_does_not_raise_it() -> None:
    word = Result(epochs=2, energy_j=5.0)
    lost = with_inferred_end(with_result(a_trial(), word, 1.0), was_lost=True, now_s=2.0)
    assert with_result(lost, word, 50.0) is lost
    assert with_result(lost, Result(epochs=3), 50.0).state == "running"


@pytest.mark.parametrize(
    ("states", "recurrence"),
    [
        ([], 0),
        ([(0, "reached")], 1),
        ([(0, "open"), (1, "running")], 2),
        ([(0, "stopped")], 0),
        ([(0, "failed"), (0, "lost")], 0),
        ([(0, "lost"), (0, "reached")], 1),
        ([(0, "reached"), (0, "lost")], 1),
        ([(0, "stopped"), (1, "lost"), (0, "open")], 1),
        ([(0, "open"), (1, "lost"), (2, "stopped")], 1),
        ([(1, "lost"), (0, "lost")], 1),
    ],
)
def test_a_retry_has_the_recurrence_of_the_first_that_was_given_up(
    states: list[tuple[int, TrialState]], recurrence: int
) -> None:
    trials = [a_trial(number=i, recurrence=r, state=state) for i, (r, state) in enumerate(states)]
    assert next_recurrence(trials, 1.0) == recurrence


def test_a_lease_that_ran_out_gives_its_recurrence_up_before_anybody_wrote_it_down() -> None:
    assert next_recurrence([a_trial()], LEASE_S) == 1
    assert next_recurrence([a_trial()], LEASE_S + 1) == 0


@given(st.lists(st.sampled_from(["open", "running", "reached", "stopped", "failed", "lost"]), max_size=30))
def test_those_in_flight_have_recurrences_of_their_own(states: list[TrialState]) -> None:
    trials: list[Trial] = []
    for number, state in enumerate(states):
        trials.append(a_trial(number=number, recurrence=next_recurrence(trials, 1.0), state=state))
    in_flight = [trial.recurrence for trial in trials if trial.state in IN_FLIGHT]
    assert len(set(in_flight)) == len(in_flight)
    assert {trial.recurrence for trial in trials} == set(range(len({trial.recurrence for trial in trials})))


def test_a_run_that_was_heard_of_by_a_clock_ahead_has_its_lease_from_now_on() -> None:
    trial = a_trial(state="running", heard_at_s=86_400.0)
    mended = with_expired_lease(trial, 0.0)
    assert (mended.state, mended.heard_at_s) == ("running", 0.0)
    assert is_expired(mended, LEASE_S + 1.0)
    assert with_expired_lease(mended, LEASE_S + 1.0).state == "lost"


@pytest.mark.parametrize(("state", "since_end_s"), [("running", 86_400.0), ("lost", 86_400.0), ("reached", LEASE_S)])
def test_a_run_that_has_not_ended_or_only_just_gets_its_trial_as_it_is(state: TrialState, since_end_s: float) -> None:
    trial = a_trial(state=state, ended_at_s=0.0)
    assert with_ended_reason(trial, since_end_s) is trial


def test_the_earliest_epoch_that_reached_the_target_counts() -> None:
    assert reached_at(reached_at(a_trial(), 7), 9).result.reached_epochs == 8
    assert reached_at(reached_at(a_trial(), 9), 7).result.reached_epochs == 8


def test_the_newest_validation_is_kept() -> None:
    trial = with_metric(validated(a_trial(), 5), epoch=4, value=0.7, reached=False, now_s=2.0)
    assert (trial.last_epoch, trial.last_metric) == (5, 0.1)


@pytest.mark.parametrize(
    ("epoch", "value", "n_faults"),
    [(-1, 0.5, 1), (1 << 60, 0.5, 1), (0, math.nan, 1), (0, 2e18, 1), (-1, -math.inf, 2)],
)
def test_a_validation_that_is_no_number_is_refused(epoch: int, value: float, n_faults: int) -> None:
    with pytest.raises(RequestError) as refused:
        with_metric(a_trial(), epoch=epoch, value=value, reached=False, now_s=1.0)
    assert len(refused.value.faults) == n_faults


def test_progress_makes_a_trial_run_and_grows() -> None:
    trial = with_result(a_trial(), Result(epochs=2, energy_j=10.0, gpu_model="A40"), 1.0)
    trial = with_result(trial, Result(epochs=1, energy_j=5.0, duration_s=3.0), 2.0)
    assert trial.state == "running"
    assert trial.result == Result(epochs=2, energy_j=10.0, duration_s=3.0, gpu_model="A40")
    assert trial.heard_at_s == 2.0


def test_an_end_that_was_reported_is_told_once() -> None:
    trial = with_result(a_trial(), Result(outcome="reached", epochs=4, energy_j=10.0), 5.0)
    assert (trial.state, trial.ended_at_s) == ("reached", 5.0)
    assert with_result(trial, Result(outcome="reached", epochs=9, energy_j=99.0), 6.0) == trial


def test_an_ended_trial_takes_what_it_does_not_know_yet() -> None:
    trial = with_result(
        with_result(a_trial(), Result(outcome="reached", epochs=4), 5.0), Result(energy_j=7.0, epochs=9), 6.0
    )
    assert trial.result == Result(outcome="reached", epochs=9, reached_epochs=4, energy_j=7.0)
    assert (trial.ended_at_s, n_epochs(trial)) == (5.0, 4)


def test_the_last_account_counts_though_it_comes_after_the_end() -> None:
    so_far = with_result(a_trial(), Result(epochs=2, energy_j=5.0, duration_s=1.0, carbon_g=1.0, money=2.0), 1.0)
    over = with_result(so_far, Result(outcome="reached", reached_epochs=4), 5.0)
    last = Result(epochs=4, energy_j=10.0, duration_s=2.0, carbon_g=3.0, money=1.5)
    whole = with_result(over, last, 6.0)
    assert whole.result == replace(last, outcome="reached", reached_epochs=4)
    assert with_result(whole, Result(epochs=3, energy_j=7.0, duration_s=1.5, money=9.0), 7.0) == whole


ACCOUNT = Result(outcome="reached", epochs=12, reached_epochs=12, energy_j=8.4e6, duration_s=14400.0)


@pytest.mark.parametrize("account", [ACCOUNT, replace(ACCOUNT, outcome=None)])
@pytest.mark.parametrize("epochs", [2, 30])
def test_what_a_run_has_used_comes_with_the_epochs_that_it_was_used_for(account: Result, epochs: int) -> None:
    over = with_result(with_result(a_trial(), Result(epochs=epochs), 1.0), Result(outcome="reached"), 2.0)
    whole = with_result(over, account, 3.0)
    assert whole.result == ACCOUNT
    assert with_result(whole, account, 4.0) == whole


def test_an_account_of_fewer_epochs_does_not_shorten_a_run_that_was_stopped() -> None:
    over = with_result(a_trial(), Result(outcome="stopped", epochs=12), 1.0)
    assert n_epochs(with_result(over, Result(epochs=2, energy_j=5.0, duration_s=1.0), 2.0)) == 12


@pytest.mark.parametrize(("bound", "eta"), [(5.0, 0.3), (None, None)])
def test_a_bound_knows_the_weight_that_it_was_made_with(bound: float | None, eta: float | None) -> None:
    choice = Choice(batch_size=32, reason="best_so_far", detail="", cost_bound=bound)
    trial = new_trial(run=run_key("run"), number=0, recurrence=0, choice=choice, lease_s=LEASE_S, now_s=0.0, eta=0.3)
    assert trial.bound_eta == eta


def test_a_target_that_was_reached_needs_its_epochs() -> None:
    with pytest.raises(RequestError, match="after how many epochs"):
        with_result(a_trial(), Result(outcome="reached", energy_j=5.0), 1.0)
    assert with_result(validated(a_trial(), 2), Result(outcome="reached"), 2.0).state == "reached"


@pytest.mark.parametrize("name", ["epochs", "energy_j", "duration_s", "max_power_w", "n_gpus", "carbon_g"])
@pytest.mark.parametrize("value", [-1, -0.5, math.nan, math.inf])
def test_no_measurement_is_negative_or_infinite(name: str, value: float) -> None:
    with pytest.raises(RequestError, match=f"{name} = {value!r}: expected"):
        with_result(a_trial(), replace(Result(), **{name: value}), 1.0)


def test_every_fault_of_a_result_is_told() -> None:
    wrong = Result(energy_j=-1.0, duration_s=math.nan, epochs=3, reached_epochs=4, gpu_model="A\0", money=math.inf)
    with pytest.raises(RequestError) as refused:
        with_result(a_trial(), wrong, 1.0)
    assert [fault.split(" = ")[0] for fault in refused.value.faults] == [
        "energy_j",
        "duration_s",
        "gpu_model",
        "money",
        "reached_epochs",
    ]


def test_money_may_be_negative() -> None:
    assert with_result(a_trial(), Result(money=-0.5), 1.0).result.money == -0.5


JOB = Job(user=USER, name="job", batch_sizes=(16, 32, 64), default_batch_size=32, created_at_s=0.0)
FIRST = Result(epochs=8, energy_j=800.0, duration_s=8.0, max_power_w=300.0)
SECOND = Result(epochs=2, energy_j=200.0, duration_s=2.0, max_power_w=300.0)


def test_a_process_that_numbers_its_epochs_on_counts_them_all() -> None:
    trial = with_result(validated(a_trial(), 7, now_s=8.0), FIRST, 8.0)
    trial = with_inferred_end(trial, was_lost=True, now_s=9.0)
    trial = with_inferred_end(with_result(reached_at(trial, 9, now_s=12.0), SECOND, 12.0), was_lost=False, now_s=13.0)
    assert (trial.state, n_epochs(trial), trial.has_lost_count) == ("reached", 10, False)
    assert run_cost(trial, 1.0, None) == pytest.approx(1000.0)


@pytest.mark.parametrize("was_lost", [True, False])
def test_a_process_that_numbers_its_epochs_again_has_lost_count(was_lost: bool) -> None:
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
