"""The life of a trial: what each piece of news makes of it, in whatever order and how often it comes."""

import math
from collections.abc import Callable
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from msgspec.structs import replace

from policies.batch_size import Choice, Outcome
from policies.service.errors import RequestError, TrialConflictError
from policies.service.records import ENDED, IN_FLIGHT, Result, Trial, TrialState
from policies.service.trials import (
    ended,
    heard,
    is_expired,
    is_in_flight,
    measured,
    n_epochs,
    next_recurrence,
    opened,
    told,
)

LEASE_S = 100.0
CHOICE = Choice(batch_size=32, reason="default_first", detail="nothing is known yet", cost_bound=5.0)


def a_trial(*, number: int = 0, recurrence: int = 0, **changes: object) -> Trial:
    trial = opened(
        job="job", run=f"run-{number}", number=number, recurrence=recurrence, choice=CHOICE, lease_s=LEASE_S, now_s=0.0
    )
    return replace(trial, **changes)


def reached_at(trial: Trial, epoch: int, now_s: float = 1.0) -> Trial:
    return measured(trial, epoch=epoch, value=0.9, reached=True, now_s=now_s)


def validated(trial: Trial, epoch: int, now_s: float = 1.0) -> Trial:
    return measured(trial, epoch=epoch, value=0.1, reached=False, now_s=now_s)


def test_a_new_trial_is_the_promise_of_a_batch_size() -> None:
    trial = a_trial(number=3, recurrence=2)
    assert (trial.state, trial.batch_size, trial.cost_bound, trial.number, trial.recurrence) == ("open", 32, 5.0, 3, 2)
    assert trial.requested_at_s == trial.heard_at_s == 0.0


@pytest.mark.parametrize("bound", [math.inf, math.nan])
def test_a_bound_that_is_no_number_is_none(bound: float) -> None:
    choice = Choice(batch_size=32, reason="best_so_far", detail="", cost_bound=bound)
    trial = opened(job="job", run="run", number=0, recurrence=0, choice=choice, lease_s=LEASE_S, now_s=0.0)
    assert trial.cost_bound is None


def test_a_lease_runs_out_after_its_time_of_silence_and_not_before() -> None:
    trial = a_trial()
    assert [is_expired(trial, now_s) for now_s in (LEASE_S, LEASE_S + 0.1)] == [False, True]
    assert [is_in_flight(trial, now_s) for now_s in (LEASE_S, LEASE_S + 0.1)] == [True, False]
    assert not is_expired(replace(trial, state="reached"), 1e9)


def test_a_sign_of_life_renews_the_lease_when_a_quarter_of_it_has_passed() -> None:
    running = heard(a_trial(), 1.0)
    assert (running.state, running.heard_at_s) == ("running", 1.0)
    assert heard(running, 25.9) is running
    assert heard(running, 26.0).heard_at_s == 26.0


def test_a_lost_trial_that_is_heard_of_later_lives_again() -> None:
    lost = ended(a_trial(), was_lost=True, now_s=50.0)
    assert heard(lost, 50.0) is lost
    alive = heard(lost, 51.0)
    assert (alive.state, alive.heard_at_s, alive.ended_at_s) == ("running", 51.0, None)


def test_what_comes_late_from_before_the_loss_does_not_undo_it_nor_turn_a_lease_back() -> None:
    lost = ended(a_trial(), was_lost=True, now_s=50.0)
    assert validated(lost, 2, 40.0).state == told(lost, Result(epochs=3), 40.0).state == "lost"
    assert told(heard(a_trial(), 60.0), Result(epochs=3), 40.0).heard_at_s == 60.0


def test_an_ended_trial_is_deaf_to_signs_of_life() -> None:
    trial = told(a_trial(), Result(outcome="stopped", epochs=3), 5.0)
    assert heard(trial, 1e6) is trial


def test_the_earliest_epoch_that_reached_the_target_counts() -> None:
    assert reached_at(reached_at(a_trial(), 7), 9).result.reached_epochs == 8
    assert reached_at(reached_at(a_trial(), 9), 7).result.reached_epochs == 8


def test_the_newest_validation_is_kept() -> None:
    trial = measured(validated(a_trial(), 5), epoch=4, value=0.7, reached=False, now_s=2.0)
    assert (trial.last_epoch, trial.last_metric) == (5, 0.1)


@pytest.mark.parametrize(
    ("epoch", "value", "n_faults"),
    [(-1, 0.5, 1), (1 << 60, 0.5, 1), (0, math.nan, 1), (0, 2e18, 1), (-1, -math.inf, 2)],
)
def test_a_validation_that_is_no_number_is_refused(epoch: int, value: float, n_faults: int) -> None:
    with pytest.raises(RequestError) as refused:
        measured(a_trial(), epoch=epoch, value=value, reached=False, now_s=1.0)
    assert len(refused.value.faults) == n_faults


def test_progress_makes_a_trial_run_and_grows() -> None:
    trial = told(a_trial(), Result(epochs=2, energy_j=10.0, gpu_model="A40"), 1.0)
    trial = told(trial, Result(epochs=1, energy_j=5.0, duration_s=3.0), 2.0)
    assert trial.state == "running"
    assert trial.result == Result(epochs=2, energy_j=10.0, duration_s=3.0, gpu_model="A40")
    assert trial.heard_at_s == 2.0


def test_an_end_that_was_told_is_told_once() -> None:
    trial = told(a_trial(), Result(outcome="reached", epochs=4, energy_j=10.0), 5.0)
    assert (trial.state, trial.ended_at_s) == ("reached", 5.0)
    assert told(trial, Result(outcome="reached", epochs=9, energy_j=99.0), 6.0) == trial


def test_an_ended_trial_takes_what_it_does_not_know_yet() -> None:
    trial = told(told(a_trial(), Result(outcome="reached", epochs=4), 5.0), Result(energy_j=7.0, epochs=9), 6.0)
    assert trial.result == Result(outcome="reached", epochs=9, reached_epochs=4, energy_j=7.0)
    assert (trial.ended_at_s, n_epochs(trial)) == (5.0, 4)


def test_the_last_account_counts_though_it_comes_after_the_end() -> None:
    so_far = told(a_trial(), Result(epochs=2, energy_j=5.0, duration_s=1.0, carbon_g=1.0, money=2.0), 1.0)
    over = told(so_far, Result(outcome="reached", reached_epochs=4), 5.0)
    last = Result(epochs=4, energy_j=10.0, duration_s=2.0, carbon_g=3.0, money=1.5)
    whole = told(over, last, 6.0)
    assert whole.result == replace(last, outcome="reached", reached_epochs=4)
    assert told(whole, Result(epochs=3, energy_j=7.0, duration_s=1.5, money=9.0), 7.0) == whole


ACCOUNT = Result(outcome="reached", epochs=12, reached_epochs=12, energy_j=8.4e6, duration_s=14400.0)


@pytest.mark.parametrize("account", [ACCOUNT, replace(ACCOUNT, outcome=None)])
@pytest.mark.parametrize("epochs", [2, 30])
def test_what_a_run_has_used_comes_with_the_epochs_that_it_was_used_for(account: Result, epochs: int) -> None:
    over = told(told(a_trial(), Result(epochs=epochs), 1.0), Result(outcome="reached"), 2.0)
    whole = told(over, account, 3.0)
    assert whole.result == ACCOUNT
    assert told(whole, account, 4.0) == whole


def test_an_account_of_fewer_epochs_does_not_shorten_a_run_that_was_stopped() -> None:
    over = told(a_trial(), Result(outcome="stopped", epochs=12), 1.0)
    assert n_epochs(told(over, Result(epochs=2, energy_j=5.0, duration_s=1.0), 2.0)) == 12


@pytest.mark.parametrize(("bound", "eta"), [(5.0, 0.3), (None, None)])
def test_a_bound_knows_the_weight_that_it_was_made_with(bound: float | None, eta: float | None) -> None:
    choice = Choice(batch_size=32, reason="best_so_far", detail="", cost_bound=bound)
    trial = opened(job="job", run="run", number=0, recurrence=0, choice=choice, lease_s=LEASE_S, now_s=0.0, eta=0.3)
    assert trial.bound_eta == eta


def test_a_run_has_one_end() -> None:
    trial = told(a_trial(), Result(outcome="reached", epochs=4), 5.0)
    with pytest.raises(TrialConflictError, match="has ended as reached, and cannot end as failed"):
        told(trial, Result(outcome="failed"), 6.0)


@pytest.mark.parametrize("outcome", ["reached", "stopped", "failed"])
def test_a_late_result_of_a_lost_trial_is_taken(outcome: Outcome) -> None:
    lost = ended(a_trial(), was_lost=True, now_s=50.0)
    assert told(lost, Result(outcome=outcome, epochs=4), 90.0).state == outcome


def test_a_target_that_was_reached_needs_its_epochs() -> None:
    with pytest.raises(RequestError, match="after how many epochs"):
        told(a_trial(), Result(outcome="reached", energy_j=5.0), 1.0)
    assert told(validated(a_trial(), 2), Result(outcome="reached"), 2.0).state == "reached"


@pytest.mark.parametrize("name", ["epochs", "energy_j", "duration_s", "max_power_w", "n_gpus", "carbon_g"])
@pytest.mark.parametrize("value", [-1, -0.5, math.nan, math.inf])
def test_no_measurement_is_negative_or_infinite(name: str, value: float) -> None:
    with pytest.raises(RequestError, match=f"{name} = {value!r}: expected"):
        told(a_trial(), replace(Result(), **{name: value}), 1.0)


def test_every_fault_of_a_result_is_told() -> None:
    wrong = Result(energy_j=-1.0, duration_s=math.nan, epochs=3, reached_epochs=4, gpu_model="A\0", money=math.inf)
    with pytest.raises(RequestError) as refused:
        told(a_trial(), wrong, 1.0)
    assert [fault.split(" = ")[0] for fault in refused.value.faults] == [
        "energy_j",
        "duration_s",
        "gpu_model",
        "money",
        "reached_epochs",
    ]


def test_money_may_be_negative() -> None:
    assert told(a_trial(), Result(money=-0.5), 1.0).result.money == -0.5


@pytest.mark.parametrize(
    ("trial", "was_lost", "state"),
    [
        (reached_at(a_trial(), 3), True, "reached"),
        (reached_at(a_trial(), 3), False, "reached"),
        (validated(a_trial(), 0), False, "stopped"),
        (validated(a_trial(), 0), True, "lost"),
        (told(a_trial(), Result(epochs=1), 1.0), False, "stopped"),
        (a_trial(), False, "lost"),
        (a_trial(stop_ordered_at_s=1.0), True, "stopped"),
    ],
)
def test_how_a_run_is_over_of_which_nobody_said_how(trial: Trial, was_lost: bool, state: str) -> None:
    over = ended(trial, was_lost=was_lost, now_s=9.0)
    assert (over.state, over.ended_at_s) == (state, 9.0)
    assert ended(over, was_lost=was_lost, now_s=20.0) == over


def test_an_end_that_was_inferred_is_corrected() -> None:
    stopped = ended(validated(a_trial(), 5), was_lost=False, now_s=9.0)
    for corrected in (
        reached_at(stopped, 5, 10.0),
        told(stopped, Result(outcome="reached"), 10.0),
        told(stopped, Result(reached_epochs=6), 10.0),
    ):
        assert (corrected.state, n_epochs(corrected), corrected.ended_at_s) == ("reached", 6, 9.0)


def test_an_end_that_was_told_is_not_corrected_by_a_validation() -> None:
    stopped = told(a_trial(), Result(outcome="stopped", epochs=6), 9.0)
    assert reached_at(stopped, 3, 10.0).state == "stopped"
    assert n_epochs(reached_at(stopped, 3, 10.0)) == 6
    assert reached_at(stopped, 3, 10.0).result == stopped.result
    late = reached_at(told(a_trial(), Result(outcome="reached", epochs=6), 9.0), 3, 10.0)
    assert (late.state, n_epochs(late)) == ("reached", 4)


def test_the_last_word_of_a_lost_run_that_comes_again_does_not_raise_it() -> None:
    word = Result(epochs=2, energy_j=5.0)
    lost = ended(told(a_trial(), word, 1.0), was_lost=True, now_s=2.0)
    assert told(lost, word, 50.0) is lost
    assert told(lost, Result(epochs=3), 50.0).state == "running"


PIECES: dict[str, Callable[[Trial, float], Trial]] = {
    "validated": lambda trial, at_s: validated(trial, 2, at_s),
    "reached": lambda trial, at_s: reached_at(trial, 3, at_s),
    "used": lambda trial, at_s: told(trial, Result(epochs=4, energy_j=8.0, duration_s=2.0), at_s),
    "over": lambda trial, at_s: ended(trial, was_lost=False, now_s=at_s),
    "lost": lambda trial, at_s: ended(trial, was_lost=True, now_s=at_s),
}
ORDERS = [order for end in ("over", "lost") for order in permutations(("validated", "reached", "used", end))]
TIMES_S = dict(zip(PIECES, (10.0, 11.0, 12.0, 13.0, 13.0), strict=True))


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_the_order_of_the_pieces_does_not_matter(order: tuple[str, ...]) -> None:
    """The end may have to be said again where nothing was known when it was: so it is, by what is retained."""
    trial = a_trial()
    for name in (*order, *order, "over"):
        trial = PIECES[name](trial, TIMES_S[name])
    assert trial.state == "reached"
    assert trial.result == Result(epochs=4, reached_epochs=4, energy_j=8.0, duration_s=2.0)


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_nor_does_it_where_their_times_are_in_another_order(order: tuple[str, ...]) -> None:
    """Each comes once; only a run that was heard of after its end is in flight again, until its lease runs out."""
    for times_s in permutations((10.0, 11.0, 12.0, 13.0)):
        trial = a_trial()
        for name, at_s in zip(order, times_s, strict=True):
            trial = PIECES[name](trial, at_s)
        if is_expired(trial, 1e3):
            trial = ended(trial, was_lost=True, now_s=1e3)
        assert trial.state == "reached"
        assert trial.result == Result(epochs=4, reached_epochs=4, energy_j=8.0, duration_s=2.0)


def test_a_target_that_was_reached_before_the_loss_counts_though_it_is_heard_of_after_it() -> None:
    lost = ended(a_trial(), was_lost=True, now_s=160.0)
    for late in (
        measured(lost, epoch=1, value=0.9, reached=True, now_s=120.0),
        told(lost, Result(reached_epochs=2), 120.0),
    ):
        assert (late.state, n_epochs(late), late.ended_at_s) == ("reached", 2, 160.0)


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


class Life(RuleBasedStateMachine):
    """Anything may happen to a run, in any order; what is believed of it stays sound."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.trial = a_trial()
        self.told_end: Outcome | None = None

    @rule(pause_s=st.floats(0, 80))
    def waits(self, pause_s: float) -> None:
        self.now_s += pause_s

    @rule()
    def is_heard(self) -> None:
        before = self.trial
        self.trial = heard(self.trial, self.now_s)
        assert self.trial.state in {before.state, "running"}

    @rule(epoch=st.integers(0, 20), reached=st.booleans())
    def is_measured(self, epoch: int, reached: bool) -> None:
        self.trial = measured(self.trial, epoch=epoch, value=0.5, reached=reached, now_s=self.now_s)

    @rule(epochs=st.none() | st.integers(0, 20), energy_j=st.none() | st.floats(0, 1e6))
    def progresses(self, epochs: int | None, energy_j: float | None) -> None:
        before = self.trial
        self.trial = told(before, Result(epochs=epochs, energy_j=energy_j), self.now_s)
        assert (self.trial.result.energy_j or 0.0) >= (before.result.energy_j or 0.0)
        assert told(self.trial, Result(epochs=epochs, energy_j=energy_j), self.now_s) == self.trial

    @rule(outcome=st.sampled_from(["reached", "stopped", "failed"]))
    def is_told(self, outcome: Outcome) -> None:
        if self.told_end not in {None, outcome}:
            with pytest.raises(TrialConflictError):
                told(self.trial, Result(outcome=outcome, epochs=5), self.now_s)
            return
        self.trial = told(self.trial, Result(outcome=outcome, epochs=5), self.now_s)
        self.told_end = outcome

    @rule(was_lost=st.booleans())
    def is_over(self, was_lost: bool) -> None:
        self.trial = ended(self.trial, was_lost=was_lost, now_s=self.now_s)
        assert self.trial.state not in IN_FLIGHT

    @invariant()
    def has_an_end_exactly_where_it_is_over(self) -> None:
        assert (self.trial.ended_at_s is None) == (self.trial.state in IN_FLIGHT)

    @invariant()
    def ends_as_was_told(self) -> None:
        assert self.told_end is None or self.trial.state == self.told_end

    @invariant()
    def has_epochs_where_it_reached_its_target(self) -> None:
        assert self.trial.state != "reached" or n_epochs(self.trial) > 0

    @invariant()
    def keeps_its_promise(self) -> None:
        first = a_trial()
        kept = ("job", "run", "number", "recurrence", "batch_size", "reason", "detail", "cost_bound", "requested_at_s")
        assert [getattr(self.trial, name) for name in kept] == [getattr(first, name) for name in kept]
        assert self.trial.state in ENDED | IN_FLIGHT | {"lost"}


TestLife = Life.TestCase
