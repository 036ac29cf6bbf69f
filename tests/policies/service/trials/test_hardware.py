"""One job on several kinds of GPUs: what the runs on one say of those on another."""

import pytest
from msgspec.structs import replace

from policies.service.records import Job, Result, Trial
from policies.service.trials.hardware import Hardware
from policies.service.trials.lifecycle import with_cost_bound
from policies.service.trials.observations import study_of
from tests.fakes import USER
from tests.policies.service.trials.trial_reports import a_trial

JOB = Job(user=USER, name="job", batch_sizes=(16, 32, 64), default_batch_size=32, created_at_s=0.0)
A100 = Hardware(gpu_model="A100", n_gpus=1)
T4 = Hardware(gpu_model="T4", n_gpus=1)


def a_run(number: int, hardware: Hardware, *, epoch_j: float, batch_size: int = 32, **changes: object) -> Trial:
    """Return a run that has reached its target after 4 epochs."""
    result = Result(
        epochs=4, reached_epochs=4, energy_j=4 * epoch_j, gpu_model=hardware.gpu_model, n_gpus=hardware.n_gpus
    )
    trial = Trial(
        user=USER,
        job="job",
        run=f"run-{number}",
        number=number,
        recurrence=number,
        batch_size=batch_size,
        state="reached",
        reason="best_so_far",
        detail="",
        requested_at_s=0.0,
        heard_at_s=0.0,
        lease_s=100.0,
        ended_at_s=float(number),
        result=result,
    )
    return replace(trial, **changes)


def test_a_study_matches_other_gpus_than_those_of_the_newest_end() -> None:
    trials = [a_run(0, T4, epoch_j=900.0, batch_size=16), a_run(1, A100, epoch_j=100.0)]
    assert study_of(JOB, trials, 1.0, now_s=9.0).epoch_costs == {32: pytest.approx(100.0)}
    assert study_of(JOB, trials, 1.0, now_s=9.0, hardware=T4).epoch_costs == {16: pytest.approx(900.0)}


def test_what_a_run_cost_elsewhere_is_what_its_epochs_cost_here_where_that_is_known() -> None:
    trials = [a_run(0, T4, epoch_j=900.0), a_run(1, T4, epoch_j=900.0, batch_size=16), a_run(2, A100, epoch_j=100.0)]
    assert [seen.cost for seen in study_of(JOB, trials, 1.0, now_s=9.0).observations] == [400.0, None, 400.0]


def test_a_stop_by_the_bound_of_other_gpus_says_nothing_against_a_batch_size() -> None:
    stopped = a_run(1, T4, epoch_j=900.0, state="stopped", stop_ordered_at_s=1.0, recurrence=0)
    stopped = replace(stopped, result=replace(stopped.result, reached_epochs=None))
    mistaken = replace(stopped, bound_gpu_model="A100", bound_n_gpus=1)
    for trial, n_stopped in ((stopped, 1), (mistaken, 0)):
        study = study_of(JOB, [trial], 1.0, now_s=9.0)
        assert (len(study.observations), study.n_stopped) == (n_stopped, n_stopped)
    assert study_of(JOB, [mistaken], 1.0, now_s=9.0).epoch_costs == {32: pytest.approx(900.0)}


def test_a_stop_that_was_ordered_by_another_bound_is_taken_back_with_it() -> None:
    told_to_stop = replace(a_trial(), cost_bound=100.0, stop_ordered_at_s=1.0)
    assert with_cost_bound(told_to_stop, 300.0, 0.5).stop_ordered_at_s is None
    assert with_cost_bound(told_to_stop, None, 0.5) == told_to_stop, "nothing else is known"
