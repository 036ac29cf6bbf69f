"""What is told of a trial: what it has measured and used, which word of it counts, and what is refused."""

import math

import pytest
from msgspec.structs import replace

from policies.batch_size import Choice
from policies.service.errors import RequestError
from policies.service.records import Result
from policies.service.trials.lifecycle import n_epochs, new_trial, with_metric, with_result
from tests.policies.service.trials.trial_reports import LEASE_S, a_trial, reached_at, validated


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
    trial = new_trial(job="job", run="run", number=0, recurrence=0, choice=choice, lease_s=LEASE_S, now_s=0.0, eta=0.3)
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
