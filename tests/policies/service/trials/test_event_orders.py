"""The life of a trial in any order: what is believed of it does not hang on when its news come, nor how often."""

from collections.abc import Callable
from itertools import permutations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from policies.batch_size import Outcome
from policies.service.errors import TrialConflictError
from policies.service.records import ENDED, IN_FLIGHT, Result, Trial
from policies.service.trials.lifecycle import (
    is_expired,
    n_epochs,
    with_inferred_end,
    with_metric,
    with_renewed_lease,
    with_result,
)
from tests.policies.service.trials.trial_reports import a_trial, reached_at, validated

PIECES: dict[str, Callable[[Trial, float], Trial]] = {
    "validated": lambda trial, at_s: validated(trial, 2, at_s),
    "reached": lambda trial, at_s: reached_at(trial, 3, at_s),
    "used": lambda trial, at_s: with_result(trial, Result(epochs=4, energy_j=8.0, duration_s=2.0), at_s),
    "over": lambda trial, at_s: with_inferred_end(trial, was_lost=False, now_s=at_s),
    "lost": lambda trial, at_s: with_inferred_end(trial, was_lost=True, now_s=at_s),
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
            trial = with_inferred_end(trial, was_lost=True, now_s=1e3)
        assert trial.state == "reached"
        assert trial.result == Result(epochs=4, reached_epochs=4, energy_j=8.0, duration_s=2.0)


def test_a_target_reached_before_the_loss_counts_though_reported_after_it() -> None:
    lost = with_inferred_end(a_trial(), was_lost=True, now_s=160.0)
    for late in (
        with_metric(lost, epoch=1, value=0.9, reached=True, now_s=120.0),
        with_result(lost, Result(reached_epochs=2), 120.0),
    ):
        assert (late.state, n_epochs(late), late.ended_at_s) == ("reached", 2, 160.0)


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
        self.trial = with_renewed_lease(self.trial, self.now_s)
        assert self.trial.state in {before.state, "running"}

    @rule(epoch=st.integers(0, 20), reached=st.booleans())
    def is_measured(self, epoch: int, reached: bool) -> None:
        self.trial = with_metric(self.trial, epoch=epoch, value=0.5, reached=reached, now_s=self.now_s)

    @rule(epochs=st.none() | st.integers(0, 20), energy_j=st.none() | st.floats(0, 1e6))
    def progresses(self, epochs: int | None, energy_j: float | None) -> None:
        before = self.trial
        self.trial = with_result(before, Result(epochs=epochs, energy_j=energy_j), self.now_s)
        is_longer = (self.trial.result.epochs or 0) > (before.result.epochs or 0)  # another process's, then
        assert is_longer or (self.trial.result.energy_j or 0.0) >= (before.result.energy_j or 0.0)
        assert with_result(self.trial, Result(epochs=epochs, energy_j=energy_j), self.now_s) == self.trial

    @rule(outcome=st.sampled_from(["reached", "stopped", "failed"]))
    def is_told(self, outcome: Outcome) -> None:
        if self.told_end not in {None, outcome}:
            with pytest.raises(TrialConflictError):
                with_result(self.trial, Result(outcome=outcome, epochs=5), self.now_s)
            return
        self.trial = with_result(self.trial, Result(outcome=outcome, epochs=5), self.now_s)
        self.told_end = outcome

    @rule(was_lost=st.booleans())
    def is_over(self, was_lost: bool) -> None:
        self.trial = with_inferred_end(self.trial, was_lost=was_lost, now_s=self.now_s)
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
