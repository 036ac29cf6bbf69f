"""What a job's trials tell: observations, costs of runs and epochs, and when a run costs too much."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from policies.batch_size import LearningSettings, Observation, choose_batch_size
from policies.service.config import LearningConfig
from policies.service.records import Job, JobSettings, Result, Trial
from policies.service.trials.hardware import max_power_w
from policies.service.trials.learning import BatchSizeLearning
from policies.service.trials.observations import (
    cost_so_far,
    epoch_costs,
    epoch_times,
    run_cost,
    stop_reason,
    study_of,
)
from publishers.messages.reports import TrialState
from tests.fakes import USER

JOB = Job(user=USER, name="job", batch_sizes=(16, 32, 64), default_batch_size=32, created_at_s=0.0)
MEASURED = Result(epochs=4, reached_epochs=4, energy_j=1000.0, duration_s=10.0, max_power_w=300.0)
ON_A_T4 = Result(gpu_model="T4", n_gpus=1)


def a_trial(number: int = 0, state: TrialState = "reached", result: Result = MEASURED, **changes: object) -> Trial:
    trial = Trial(
        user=USER,
        job="job",
        run=f"run-{number}",
        number=number,
        recurrence=number,
        batch_size=32,
        state=state,
        reason="default_first",
        detail="",
        requested_at_s=0.0,
        heard_at_s=0.0,
        lease_s=100.0,
        ended_at_s=None if state in {"open", "running"} else float(number),
        result=result,
    )
    return replace(trial, **changes)


@pytest.mark.parametrize(("eta", "cost"), [(0.0, 3000.0), (0.5, 2000.0), (1.0, 1000.0)])
def test_a_run_costs_what_zeus_says(eta: float, cost: float) -> None:
    assert run_cost(a_trial(), eta, None) == pytest.approx(cost)


def test_what_was_trained_after_the_target_is_not_counted() -> None:
    trial = a_trial(result=replace(MEASURED, epochs=8))
    assert run_cost(trial, 1.0, None) == pytest.approx(500.0)
    assert run_cost(replace(trial, state="stopped"), 1.0, None) == pytest.approx(1000.0)


@pytest.mark.parametrize("state", ["reached", "stopped"])
def test_epochs_that_nobody_measured_cost_what_the_others_did(state: TrialState) -> None:
    trial = a_trial(result=replace(MEASURED, epochs=2, reached_epochs=8), state=state, last_epoch=7)
    assert run_cost(trial, 1.0, None) == pytest.approx(4000.0)
    unmeasured = replace(trial, result=replace(trial.result, epochs=0))
    assert run_cost(unmeasured, 1.0, None) is None
    assert epoch_costs([unmeasured], 1.0) == {}


@pytest.mark.parametrize(
    ("eta", "changes", "is_known"),
    [
        (1.0, {"duration_s": None, "max_power_w": None}, True),
        (0.0, {"energy_j": None}, True),
        (0.5, {"energy_j": None}, False),
        (0.5, {"duration_s": None}, False),
        (0.5, {"max_power_w": None}, False),
    ],
)
def test_a_cost_needs_what_has_a_weight_in_it_and_no_more(eta: float, changes: dict[str, None], is_known: bool) -> None:
    result = replace(MEASURED, **changes)
    assert (cost_so_far(a_trial(result=result), eta, None) is not None) is is_known


def test_a_power_that_a_trial_does_not_say_is_the_greatest_of_its_job() -> None:
    silent = a_trial(result=replace(MEASURED, max_power_w=None))
    others = [a_trial(result=replace(MEASURED, max_power_w=limit_w)) for limit_w in (200.0, 400.0)]
    assert max_power_w([silent, *others]) == 400.0
    assert max_power_w([silent, a_trial(result=replace(MEASURED, max_power_w=None, energy_j=500.0))]) == 100.0
    assert max_power_w([a_trial(result=Result())]) is None
    assert run_cost(silent, 0.0, 400.0) == pytest.approx(4000.0)


def test_a_power_that_is_guessed_is_that_of_as_many_gpus() -> None:
    four = a_trial(0, result=replace(MEASURED, max_power_w=1200.0, n_gpus=4))
    one = a_trial(1, result=replace(MEASURED, max_power_w=None, n_gpus=1), batch_size=16)
    assert max_power_w([four, one], 1) == 300.0
    assert max_power_w([four, one]) == 1200.0
    mean = replace(four, result=replace(four.result, max_power_w=None, energy_j=8000.0))
    assert max_power_w([mean, one], 2) == 400.0
    observed = study_of(JOB, [four, one], 0.0, now_s=10.0).observations
    assert [seen.cost for seen in observed] == [12000.0, 3000.0]


def test_observations_come_in_the_order_of_their_ends() -> None:
    first = a_trial(0, ended_at_s=9.0, batch_size=16)
    second = a_trial(1, ended_at_s=5.0, batch_size=64)
    study = study_of(JOB, [first, second], 1.0, now_s=10.0)
    assert [seen.batch_size for seen in study.observations] == [64, 16]
    assert study.observations[1] == Observation(batch_size=16, outcome="reached", epochs=4.0, cost=1000.0)


def test_what_ended_is_an_observation_unless_nobody_knows_how_far_it_came() -> None:
    nothing, told_none = Result(), Result(epochs=0, energy_j=5.0, duration_s=1.0)
    trials = [
        a_trial(0, "stopped", Result(epochs=3)),
        a_trial(1, "stopped", nothing),
        a_trial(2, "stopped", told_none),
        a_trial(3, "stopped", nothing, stop_ordered_at_s=1.0),
        a_trial(4, "stopped", nothing, last_epoch=6),
        a_trial(5, "failed", nothing),
        a_trial(6, "lost", MEASURED),
        a_trial(7, "running", MEASURED),
    ]
    seen = study_of(JOB, trials, 1.0, now_s=1.0).observations
    assert [(one.outcome, one.epochs) for one in seen] == [
        ("stopped", 3.0),
        ("stopped", 0.0),
        ("stopped", 0.0),
        ("stopped", 7.0),
        ("failed", 0.0),
    ]
    assert [one.cost for one in seen] == [None, 5.0, None, None, None]


def test_those_in_flight_are_those_whose_lease_holds() -> None:
    trials = [
        a_trial(0, "open", Result(), batch_size=16),
        a_trial(1, "running", Result(), heard_at_s=50.0, batch_size=64),
        a_trial(2, "lost", Result()),
    ]
    assert study_of(JOB, trials, 0.5, now_s=100.0).in_flight == (16, 64)
    assert study_of(JOB, trials, 0.5, now_s=120.0).in_flight == (64,)


def test_an_epoch_costs_what_it_did_on_the_gpu_of_the_last_end() -> None:
    old = [a_trial(i, result=replace(MEASURED, gpu_model="V100")) for i in range(3)]
    new = a_trial(3, result=replace(MEASURED, gpu_model="A40", energy_j=600.0), batch_size=16)
    assert epoch_costs(old, 1.0) == {32: pytest.approx(250.0)}
    assert epoch_costs([*old, new], 1.0) == {16: pytest.approx(150.0)}
    back = replace(old[0], number=4, ended_at_s=4.0)
    assert epoch_costs([*old, new, back], 1.0) == {32: pytest.approx(250.0)}


def test_an_end_that_nobody_measured_takes_nothing_from_what_is_known() -> None:
    known = a_trial(0, result=replace(MEASURED, gpu_model="A40", n_gpus=2))
    blind = a_trial(1, result=Result(epochs=4, reached_epochs=4))
    assert epoch_costs([known, blind], 1.0) == {32: pytest.approx(250.0)}
    other = a_trial(2, result=replace(MEASURED, gpu_model=None), batch_size=16)
    assert set(epoch_costs([known, blind, other], 1.0)) == {16, 32}


def test_an_epoch_costs_what_it_did_on_as_many_gpus_as_the_newest_had() -> None:
    two = a_trial(0, result=replace(MEASURED, gpu_model="A40", n_gpus=2), batch_size=16)
    four = a_trial(1, result=replace(MEASURED, gpu_model="A40", n_gpus=4))
    assert set(epoch_costs([two, four], 1.0)) == {32}
    assert set(epoch_times([two, four], {})) == {32}


def test_numbers_that_nobody_can_have_measured_are_left_out() -> None:
    tiny = a_trial(0, result=replace(MEASURED, energy_j=1e-12, duration_s=1e-300), batch_size=16)
    study = study_of(JOB, [tiny, a_trial(1)], 0.5, now_s=1.0)
    assert set(study.epoch_costs) == {32}
    assert set(epoch_times([tiny, a_trial(1)], {})) == {32}
    huge = a_trial(2, result=replace(MEASURED, energy_j=1e308, epochs=1), batch_size=64)
    assert set(epoch_costs([huge, replace(huge, run="again")], 1.0)) == set()


@pytest.mark.parametrize("state", ["reached", "stopped"])
@pytest.mark.parametrize(("eta", "duration_s"), [(1.0, 3600.0), (0.5, 0.0)])
def test_a_cost_of_nothing_was_measured_by_nobody_and_bounds_no_other_run(
    state: TrialState, eta: float, duration_s: float
) -> None:
    unmeasured = a_trial(0, state, result=replace(MEASURED, energy_j=0.0, duration_s=duration_s))
    study = study_of(JOB, [unmeasured], eta, now_s=1.0)
    assert [seen.cost for seen in study.observations] == [None]
    choice = choose_batch_size(study, LearningSettings(policy="zeus"), rng=np.random.default_rng(0))
    assert choice.cost_bound is None


def test_what_failed_on_another_gpu_model_has_not_failed_on_this_one() -> None:
    failed = a_trial(0, "failed", Result(gpu_model="V100"), batch_size=64)
    unsaid = a_trial(1, "failed", Result(), batch_size=64)
    newer = a_trial(2, result=replace(MEASURED, gpu_model="A40"))
    assert [seen.outcome for seen in study_of(JOB, [failed], 1.0, now_s=9.0).observations] == ["failed"]
    assert [seen.outcome for seen in study_of(JOB, [failed, newer], 1.0, now_s=9.0).observations] == ["reached"]
    assert [seen.outcome for seen in study_of(JOB, [unsaid, newer], 1.0, now_s=9.0).observations] == [
        "failed",
        "reached",
    ]


def test_the_cost_of_an_epoch_is_the_mean_over_epochs_and_not_over_runs() -> None:
    long = a_trial(0, result=replace(MEASURED, epochs=9, energy_j=900.0))
    short = a_trial(1, "stopped", result=replace(MEASURED, epochs=1, energy_j=200.0))
    assert epoch_costs([long, short], 1.0) == {32: pytest.approx(110.0)}


def test_runs_that_go_on_and_runs_without_measurements_cost_no_epochs() -> None:
    assert epoch_costs([a_trial(0, "running"), a_trial(1, "lost"), a_trial(2, "stopped", Result(epochs=3))], 1.0) == {}


def test_a_run_that_goes_on_tells_how_long_an_epoch_takes() -> None:
    done, going = a_trial(0), a_trial(1, "running", replace(MEASURED, duration_s=45.0), batch_size=64)
    times_s = epoch_times([done, going], {32: 1.0})
    assert times_s == {32: pytest.approx(2.5), 64: pytest.approx(10.0)}


def test_times_that_say_nothing_new_are_left_out() -> None:
    assert epoch_times([a_trial(0), a_trial(1)], {32: 1.0}) == {}
    assert epoch_times([], {}) == {}


@given(st.floats(0, 1), st.floats(0, 1))
def test_another_weight_changes_costs_and_nothing_else(eta: float, other: float) -> None:
    trials = [a_trial(0), a_trial(1, "stopped"), a_trial(2, "open", Result())]
    one, two = study_of(JOB, trials, eta, now_s=1.0), study_of(JOB, trials, other, now_s=1.0)
    assert [(seen.outcome, seen.epochs) for seen in one.observations] == [
        (seen.outcome, seen.epochs) for seen in two.observations
    ]
    assert one.in_flight == two.in_flight
    assert one.epoch_costs[32] == pytest.approx((eta * 1000.0 + (1 - eta) * 3000.0) / 4)


@pytest.mark.parametrize(
    ("changes", "cost", "stops"),
    [
        ({"cost_bound": 10.0}, 10.1, True),
        ({"cost_bound": 10.0}, 10.0, False),
        ({"cost_bound": 10.0}, None, False),
        ({"cost_bound": None}, 1e9, False),
        ({"cost_bound": 10.0, "stop_ordered_at_s": 1.0}, 5.0, True),
        ({"cost_bound": 10.0, "stop_ordered_at_s": 1.0}, None, True),
        ({"cost_bound": 10.0, "result": Result(reached_epochs=3)}, 11.0, False),
        ({"cost_bound": 10.0, "state": "stopped"}, 11.0, False),
        ({"cost_bound": 10.0, "bound_eta": 0.4}, 11.0, False),
        ({"cost_bound": 10.0, "bound_eta": None}, 11.0, False),
        ({"cost_bound": 10.0, "bound_gpu_model": "A100", "result": ON_A_T4}, 11.0, False),
        ({"cost_bound": 10.0, "bound_gpu_model": "A100", "result": ON_A_T4, "stop_ordered_at_s": 1.0}, 11.0, False),
        ({"cost_bound": 10.0, "bound_gpu_model": "T4", "bound_n_gpus": 4, "result": ON_A_T4}, 11.0, False),
        ({"cost_bound": 10.0, "bound_gpu_model": "T4", "bound_n_gpus": 1, "result": ON_A_T4}, 11.0, True),
        ({"cost_bound": 10.0, "bound_gpu_model": "A100", "result": Result(n_gpus=1)}, 11.0, True),
    ],
)
def test_when_a_run_is_ordered_to_stop(changes: dict[str, object], cost: float | None, stops: bool) -> None:
    trial = replace(a_trial(0, "running", Result(), bound_eta=0.5), **changes)
    reason = stop_reason(trial, cost, 0.5)
    assert (reason is not None) is stops
    assert reason is None or "the bound of 10 J" in reason


def test_a_run_stops_before_the_epoch_that_would_exceed_its_bound() -> None:
    """As in the replay, which trains `bound // cost of an epoch` epochs."""
    for bound in (10.0, 10.9, 99.5, 7.0):
        epochs = 0
        while True:
            epochs += 1
            trial = a_trial(0, "running", Result(epochs=epochs), cost_bound=bound, bound_eta=0.5)
            if stop_reason(trial, 2.0 * epochs, 0.5, has_ended_epoch=True) is not None:
                break
        assert epochs == bound // 2.0


def test_within_an_epoch_only_what_was_spent_counts() -> None:
    trial = a_trial(0, "running", Result(epochs=1), cost_bound=10.0, bound_eta=0.5)
    assert stop_reason(trial, 9.0, 0.5) is None
    assert "with its next epoch" in (stop_reason(trial, 9.0, 0.5, has_ended_epoch=True) or "")


def test_the_settings_of_a_job_go_before_the_configuration() -> None:
    learning = BatchSizeLearning(
        LearningConfig(policy="gridchase", eta=0.3, beta=3.0, horizon=20.0, forgetting_ratio=0.9)
    )
    assert (learning.eta(JOB), learning._settings(JOB).forgetting_ratio) == (0.3, 0.9)
    own = replace(JOB, settings=JobSettings(policy="zeus", eta=0.0, beta=1.5, forgetting_ratio=0.5))
    assert learning.eta(own) == 0.0
    assert learning._settings(own) == LearningSettings(policy="zeus", beta=1.5, horizon=20.0, forgetting_ratio=0.5)


def test_no_rate_of_forgetting_means_the_one_that_predicts_best() -> None:
    assert BatchSizeLearning(LearningConfig())._settings(JOB).forgetting_ratio is None


def test_a_retry_knows_how_often_its_recurrence_was_stopped() -> None:
    """Its bound is higher each time, so that a job that has become dearer is not stopped for ever."""
    first = [a_trial(0, state="stopped", recurrence=0), a_trial(1, state="stopped", recurrence=0)]
    assert [study_of(JOB, first[:n], 0.5, 100.0).n_stopped for n in (0, 1, 2)] == [0, 1, 2]
    assert study_of(JOB, [*first, a_trial(2, state="reached", recurrence=0)], 0.5, 100.0).n_stopped == 0


def test_the_best_batch_size_is_one_that_has_reached_the_target() -> None:
    learning = BatchSizeLearning(LearningConfig(eta=1.0))
    assert learning.best_batch_size(JOB, [a_trial(0, "stopped")]) is None
    cheaper_where_smaller = [
        a_trial(0, result=replace(MEASURED, energy_j=900.0), batch_size=16),
        a_trial(1, result=replace(MEASURED, energy_j=1000.0), batch_size=32),
    ]
    with_a_smaller_one = replace(JOB, batch_sizes=(8, 16, 32))
    assert learning.best_batch_size(with_a_smaller_one, cheaper_where_smaller) == 16
