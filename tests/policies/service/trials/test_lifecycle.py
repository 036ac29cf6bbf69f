"""The life of a trial: what each piece of news makes of its state, its lease, its end and its recurrence."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from policies.batch_size import Choice, Outcome
from policies.service.errors import TrialConflictError
from policies.service.records import IN_FLIGHT, Result, Trial, TrialState
from policies.service.trials.lifecycle import (
    is_expired,
    is_in_flight,
    n_epochs,
    new_trial,
    next_recurrence,
    with_ended_reason,
    with_expired_lease,
    with_inferred_end,
    with_renewed_lease,
    with_result,
)
from tests.policies.service.trials.trial_reports import LEASE_S, a_trial, reached_at, validated


def test_a_new_trial_is_the_promise_of_a_batch_size() -> None:
    trial = a_trial(number=3, recurrence=2)
    assert (trial.state, trial.batch_size, trial.cost_bound, trial.number, trial.recurrence) == ("open", 32, 5.0, 3, 2)
    assert trial.requested_at_s == trial.heard_at_s == 0.0


@pytest.mark.parametrize("bound", [math.inf, math.nan])
def test_a_bound_that_is_no_number_is_none(bound: float) -> None:
    choice = Choice(batch_size=32, reason="best_so_far", detail="", cost_bound=bound)
    trial = new_trial(job="job", run="run", number=0, recurrence=0, choice=choice, lease_s=LEASE_S, now_s=0.0)
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


def test_what_comes_late_from_before_the_loss_does_not_undo_it_nor_turn_a_lease_back() -> None:
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
