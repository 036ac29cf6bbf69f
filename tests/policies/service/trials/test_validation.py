"""What an import may bring: nothing that would hold a job for ever, or that the database does not take."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from policies.service.errors import RequestError, TrialConflictError
from policies.service.records import Job, JobExport, RecurrenceNumber, Result, Trial
from policies.service.trials.lifecycle import (
    next_recurrence,
    reconcile_batch_size,
    with_inferred_end,
    with_metric,
    with_renewed_lease,
    with_result,
)
from policies.service.trials.validation import MAX_RECURRENCE, check_exports, new_trials, with_sorted_batch_sizes
from policies.vocabulary.units import DAY_S
from publishers.messages.reports import TrialState
from tests.fakes import USER

NOW_S = 1e9
JOB = Job(user=USER, name="job", batch_sizes=(16, 32), default_batch_size=32, created_at_s=NOW_S)
TRIAL = Trial(
    user=USER,
    job="job",
    run="run",
    recurrence=0,
    batch_size=32,
    state="running",
    reason="default_first",
    detail="",
    requested_at_s=NOW_S,
    heard_at_s=NOW_S,
    lease_s=600.0,
)


def check(**changes: object) -> None:
    check_exports([JobExport(job=JOB, trials=(replace(TRIAL, **changes),))], NOW_S)


@pytest.mark.parametrize("name", ["requested_at_s", "heard_at_s"])
def test_nothing_happened_more_than_a_day_from_now(name: str) -> None:
    check(**{name: NOW_S + DAY_S})
    with pytest.raises(RequestError, match=f"{name} = .*: must be at most a day from now"):
        check(**{name: NOW_S + DAY_S + 1})


@pytest.mark.parametrize("lease_s", [0.0, -1.0, 604_801.0, float("inf"), float("nan")])
def test_a_lease_is_at_most_a_week(lease_s: float) -> None:
    check(lease_s=604_800.0)
    with pytest.raises(RequestError, match="lease_s"):
        check(lease_s=lease_s)


@pytest.mark.parametrize("recurrence", [MAX_RECURRENCE + 1, 1 << 31, (1 << 31) + 1])
def test_a_recurrence_is_a_number_from_which_can_be_counted_on(recurrence: int) -> None:
    check(recurrence=MAX_RECURRENCE)
    with pytest.raises(RequestError, match="recurrence"):
        check(recurrence=recurrence)


def test_recurrences_after_the_highest_imported_one_can_be_exported_and_imported() -> None:
    known = replace(TRIAL, state="reached", recurrence=MAX_RECURRENCE)
    following = next_recurrence([known], NOW_S)
    assert msgspec.convert(following, RecurrenceNumber) + (1 << 30) - 1 == 1 << 31


@pytest.mark.parametrize("state", ["open", "running", "reached", "stopped", "failed", "lost"])
def test_no_result_says_another_end_than_the_state(state: TrialState) -> None:
    for outcome in ("reached", "stopped", "failed"):
        result = Result(outcome=outcome, epochs=3)
        if state == outcome:
            check(state=state, result=result)
        else:
            with pytest.raises(RequestError, match=f"state = {state}: must be {outcome}, as result.outcome"):
                check(state=state, result=result)


def test_a_run_that_reached_its_target_says_after_how_many_epochs() -> None:
    for result in (Result(), Result(epochs=0), Result(outcome="reached", energy_j=5.0)):
        with pytest.raises(RequestError, match="state = reached: the result must say after how many epochs"):
            check(state="reached", result=result)
        check(state="reached", result=result, last_epoch=0)
        check(state="reached", result=replace(result, reached_epochs=1))


COUNTS = st.none() | st.integers(0, 5)
RESULTS = st.builds(
    Result, outcome=st.sampled_from([None, "reached", "stopped", "failed"]), epochs=COUNTS, reached_epochs=COUNTS
)
STEPS = st.one_of(
    st.builds(lambda result: partial(with_result, result=result), RESULTS),
    st.builds(
        lambda epoch, reached: partial(with_metric, epoch=epoch, value=0.5, reached=reached),
        st.integers(0, 5),
        st.booleans(),
    ),
    st.builds(lambda was_lost: partial(with_inferred_end, was_lost=was_lost), st.booleans()),
    st.just(with_renewed_lease),
    st.builds(
        lambda batch_size, n_ranks: partial(
            reconcile_batch_size, batch_size=batch_size, n_ranks=n_ranks, batch_sizes=(16, 32)
        ),
        st.sampled_from([16, 32, 48]),
        st.sampled_from([None, 1, 2]),
    ),
    st.just(lambda trial, now_s: replace(trial, stop_ordered_at_s=now_s)),
)


@given(st.lists(STEPS, max_size=8))
def test_whatever_becomes_of_a_run_its_export_can_be_recorded(steps: list[Callable[..., Trial]]) -> None:
    trial = replace(TRIAL, state="open")
    for i, step in enumerate(steps):
        with suppress(RequestError, TrialConflictError):
            trial = step(trial, now_s=NOW_S + i)
    check_exports([JobExport(job=JOB, trials=(trial,))], NOW_S)


def test_the_batch_sizes_of_a_job_may_stand_in_any_order_but_each_once() -> None:
    turned = replace(JOB, batch_sizes=(64, 16, 32))
    check_exports([JobExport(job=turned, trials=(TRIAL,))], NOW_S)
    assert with_sorted_batch_sizes(turned) == replace(JOB, batch_sizes=(16, 32, 64))
    with pytest.raises(RequestError, match="batch_sizes has 16 more than once"):
        check_exports([JobExport(job=replace(JOB, batch_sizes=(16, 32, 16)), trials=())], NOW_S)


def test_what_was_counted_late_is_no_contradiction() -> None:
    check(state="reached", result=Result(epochs=4, reached_epochs=10, energy_j=5.0))


def test_imported_trials_are_numbered_in_their_order_after_the_known_ones() -> None:
    known = [replace(TRIAL, run=f"known-{number}", number=number) for number in (0, 4)]
    brought = [replace(TRIAL, run=run, number=number) for run, number in (("b", 9), ("known-4", 1), ("a", 3))]
    assert [(trial.run, trial.number) for trial in new_trials(brought, known)] == [("a", 5), ("b", 6)]
    assert [trial.number for trial in new_trials(brought, [])] == [0, 1, 2]


def test_an_imported_trial_that_ended_at_an_unknown_time_ended_at_its_last_report() -> None:
    ended = replace(TRIAL, state="reached", heard_at_s=NOW_S + 5, ended_at_s=None)
    known_end = replace(ended, run="other", number=1, ended_at_s=NOW_S + 9)
    assert [trial.ended_at_s for trial in new_trials([ended, known_end], [])] == [NOW_S + 5, NOW_S + 9]
