"""All ranks stop after the same step or none does, whatever their speeds and whenever each of them hears of it.

Each rank's training is coupled to the others' as by a collective in every step: it ends a step only once all have begun
it. Holds do not block here, but stand until the schedule lets the training look again.
"""

import dataclasses
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from publishers.training.iterations.recorder import Recorder
from publishers.training.pausing.gate import Hold, IterationGate
from publishers.training.pausing.step_agreement import MAX_ABSENT, MAX_LATE, Kind, Proposal, RankAgreement
from tests.publishers.training.fake_store import FakeStore

PATIENCE_S = 30.0


class StandingGate(IterationGate):
    """A gate at which the training stands without blocking its thread: `is_free` says whether it may go on."""

    now_s = 0.0
    stood_s: float | None = None

    def _wait(self, hold: Hold) -> None:
        if not hold.is_released:
            hold.arrived_ns, self.stood_s = 0, self.now_s

    def is_free(self) -> bool:
        hold = self.hold
        if hold is None or hold.arrived_ns is None or hold.left_ns is not None or self.stood_s is None:
            return True
        bound_s = hold._max_s if hold.is_confirmed else hold._patience_s
        if hold.is_released or self.now_s - self.stood_s >= bound_s:
            hold.left_ns = 1
            return True
        return False

    @property
    def is_paused(self) -> bool:
        return self.paused_since_ns is not None


class Site:
    """Some ranks of one run, and what its controller wants of it."""

    def __init__(self, n_ranks: int, *, max_pause_s: float = 300.0) -> None:
        self.store = FakeStore()
        self.now_s = 0.0
        self.wish: Kind | None = None
        self.gates = [StandingGate(Recorder(lambda: 0)) for _ in range(n_ranks)]
        self.begun = [1] * n_ranks
        self.last_step = 10**9
        self.ranks = [
            RankAgreement(
                gate,
                lambda: self.store,
                prefix="gridchase/toy/1",
                rank=number,
                world_size=n_ranks,
                patience_s=PATIENCE_S,
                max_pause_s=max_pause_s,
                clock_s=lambda: self.now_s,
            )
            for number, gate in enumerate(self.gates)
        ]

    def listen(self, rank: int, wish: Kind | None = None) -> None:
        """Let the thread of a rank do what is due."""
        self.ranks[rank].advance(wish or (self.wish if rank == 0 else None))

    def train(self, rank: int) -> None:
        """Let the training of a rank end its step, if the others let it, and begin the next."""
        gate = self.gates[rank]
        gate.now_s = self.now_s
        if not gate.is_free() or gate.is_ended:
            return
        if self.begun[rank] == gate.n_passed:
            self.begun[rank] += 1
        elif gate.n_passed < min(self.last_step, *self.begun) and min(self.begun) > gate.n_passed:
            gate.passed()

    def settle(self, n: int = 60, *, dt_s: float = 0.1) -> None:
        """Let everything run at an even pace."""
        for _ in range(n):
            self.now_s += dt_s
            for rank in range(len(self.ranks)):
                self.listen(rank)
            for _ in range(2):
                for rank in range(len(self.ranks)):
                    self.train(rank)

    def proposed(self) -> Proposal:
        """Return what rank 0 says."""
        proposal = Proposal.decode(self.store.values["gridchase/toy/1/proposal"])
        assert proposal is not None
        return proposal

    def steps(self) -> list[int]:
        return [gate.n_passed for gate in self.gates]

    def paused(self) -> list[bool]:
        return [gate.is_paused for gate in self.gates]


@pytest.mark.parametrize("n_ranks", [2, 3, 8])
def test_all_ranks_pause_after_the_same_step_and_go_on(n_ranks: int) -> None:
    site = Site(n_ranks)
    site.settle()
    site.wish = "pause"
    site.settle()
    assert site.paused() == [True] * n_ranks
    assert len(set(site.steps())) == 1
    before = site.steps()
    site.settle()
    assert site.steps() == before
    site.wish = None
    site.settle()
    assert site.paused() == [False] * n_ranks
    assert min(site.steps()) > before[0]


def test_there_is_a_second_pause_after_the_first() -> None:
    site = Site(2)
    for _ in range(2):
        site.wish = "pause"
        site.settle()
        assert site.paused() == [True, True]
        site.wish = None
        site.settle()
        assert site.paused() == [False, False]


def test_all_ranks_end_their_loops_after_the_same_step() -> None:
    site = Site(3)
    site.settle()
    site.listen(2, "stop")  # it alone has heard of it
    site.settle()
    assert [gate.is_ended for gate in site.gates] == [True] * 3
    assert len(set(site.steps())) == 1


def test_a_stop_ends_a_pause() -> None:
    site = Site(2)
    site.wish = "pause"
    site.settle()
    site.listen(1, "stop")
    site.settle(200)
    assert [gate.is_ended for gate in site.gates] == [True, True]
    assert len(set(site.steps())) == 1


def test_without_all_ranks_nothing_is_proposed() -> None:
    site = Site(3)
    site.wish = "pause"
    for _ in range(50):
        site.now_s += 0.5
        site.listen(0)
        site.listen(1)
    assert not site.ranks[0].is_complete
    assert site.gates[0].hold is None


def proposed_to_rank_0(site: Site) -> Hold:
    """Let rank 0 propose a step, and all train up to it; the other has not heard of it."""
    site.settle(5)
    site.wish = "pause"
    site.listen(0)
    hold = site.gates[0].hold
    assert hold is not None
    assert hold.step is not None
    for _ in range(4 * hold.step):
        site.train(0)
        site.train(1)
    assert site.steps() == [hold.step] * 2
    return hold


def test_a_rank_that_hears_of_the_step_too_late_postpones_the_pause_at_once() -> None:
    site = Site(2)
    hold = proposed_to_rank_0(site)
    assert hold.arrived_ns is not None
    assert site.gates[1].hold is None
    before_s = site.now_s
    while not hold.is_released:
        site.now_s += 0.05
        site.listen(0)
        site.listen(1)
    assert site.now_s - before_s < 1.0  # rank 0 does not stand there for the whole of its patience
    site.settle(200)
    assert site.paused() == [True, True]
    assert len(set(site.steps())) == 1


def test_a_rank_that_is_about_to_stop_is_not_late() -> None:
    """Its thread is between counting the step and looking at the gate when the other looks at it."""
    site = Site(2)
    site.settle(5)
    site.wish = "pause"
    site.listen(0)
    hold, gate = site.gates[0].hold, site.gates[0]
    assert hold is not None
    assert hold.step is not None
    gate.n_passed = hold.step
    site.listen(0)
    assert not hold.is_released
    gate.n_passed -= 1
    gate.passed()
    site.listen(0)
    assert not hold.is_released


def test_rank_0_that_is_past_its_own_step_proposes_another() -> None:
    site = Site(2)
    site.settle(5)
    site.wish = "pause"
    site.listen(0)
    hold, gate = site.gates[0].hold, site.gates[0]
    assert hold is not None
    assert hold.step is not None
    gate.n_passed = hold.step + 1
    site.listen(0)
    assert hold.is_released
    site.gates[1].n_passed = gate.n_passed
    site.begun = [gate.n_passed] * 2
    site.settle(300)
    assert site.paused() == [True, True]


def test_ranks_that_do_not_count_alike_go_on_and_are_not_asked_for_ever() -> None:
    """Rank 0 draws more batches than the other, as where it alone validates with a wrapped loader."""
    site = Site(2)
    site.settle(5)
    site.gates[0].n_passed += 7
    site.begun[0] += 7
    site.wish = "pause"

    def coupled(rank: int, lead: int) -> None:
        gate, other = site.gates[rank], site.gates[1 - rank]
        gate.now_s = site.now_s
        if gate.is_free() and gate.n_passed + lead <= other.n_passed:
            gate.passed()

    standing = 0.0
    for _ in range(3_000):
        site.now_s += 0.1
        for rank in range(2):
            site.listen(rank)
        for _ in range(3):
            coupled(0, -7)
            coupled(1, 7)
        standing += 0.1 * any(not gate.is_free() for gate in site.gates)
    assert "not all ranks have come to one step" in site.ranks[0].fault
    assert standing <= MAX_ABSENT * PATIENCE_S
    assert site.gates[0].n_passed > 5_000
    assert not any(site.paused())


def test_a_rank_that_is_always_late_ends_it() -> None:
    site = Site(2)
    site.wish = "pause"
    numbers = set()
    for _ in range(400):
        site.now_s += 1.0
        site.listen(1)
        site.listen(0)
        numbers.add(site.proposed().number)
        site.store.counters.update({f"gridchase/toy/1/late/{site.proposed().number}": 1})
    assert site.ranks[0].fault == "some rank is always past the step that was proposed"
    assert len(numbers) == MAX_LATE + 1


def test_a_pause_that_is_withdrawn_in_time_never_begins() -> None:
    site = Site(2)
    site.settle(20)
    site.wish = "pause"
    site.listen(0)
    site.wish = None
    site.settle()
    assert site.paused() == [False, False]
    assert site.gates[0].hold is not None
    assert site.gates[0].hold.arrived_ns is None


def test_a_rank_whose_lead_vanishes_goes_on_by_itself() -> None:
    site = Site(2, max_pause_s=20.0)
    site.wish = "pause"
    site.settle()
    assert site.paused() == [True, True]
    paused_at = site.steps()
    for _ in range(250):  # rank 0's thread has died
        site.now_s += 0.1
        site.listen(1)
        site.train(0)
        site.train(1)
    assert site.steps() > paused_at


@pytest.mark.parametrize("phase", ["proposed", "go"])
def test_what_an_earlier_process_group_has_left_in_the_store_stops_nobody(phase: str) -> None:
    site = Site(2)
    site.store.set("gridchase/toy/1/proposal", f"1 pause 3 {phase}")
    site.store.counters.update({"gridchase/toy/1/arrived/1": 1, "gridchase/toy/1/arrived/2": 1})
    site.listen(1)
    site.settle(20)
    assert min(site.steps()) > 10
    assert all(gate.hold is None or gate.hold.is_released for gate in site.gates)
    site.wish = "pause"
    site.settle()
    assert site.paused() == [True, True]
    assert len(set(site.steps())) == 1


def test_a_store_that_fails_is_an_exception_of_this_call() -> None:
    site = Site(2)
    site.settle(5)
    site.store.is_gone = True
    with pytest.raises(RuntimeError, match="reset by peer"):
        site.listen(1)


def test_a_step_ahead_gives_every_rank_the_time_to_hear_of_it() -> None:
    site = Site(2)
    site.settle(30, dt_s=0.1)  # 10 iterations a second
    site.wish = "pause"
    site.settle(1)
    hold = site.gates[0].hold
    assert hold is not None
    assert hold.step is not None
    assert 0.9 < (hold.step - site.gates[0].n_passed) / 10 < 1.5


@pytest.mark.parametrize("value", [b"", b"1 pause", b"x pause 3 go", b"1 nap 3 go", b"1 pause -3 go", b"\xff" * 9])
def test_what_another_version_has_written_is_no_proposal(value: bytes) -> None:
    assert Proposal.decode(value) is None


def test_a_proposal_travels() -> None:
    proposal = Proposal(3, "pause", 120, "go")
    assert Proposal.decode(proposal.encode().encode()) == proposal


ACTIONS = st.lists(
    st.tuples(st.sampled_from(["listen", "train", "train", "wait", "pause", "resume", "stop"]), st.integers(0, 2)),
    max_size=400,
)


@settings(max_examples=150, deadline=None)
@given(ACTIONS, st.integers(2, 3))
def test_whatever_the_schedule_all_ranks_stand_at_one_step_and_none_stands_for_ever(
    actions: list[tuple[str, int]], n_ranks: int
) -> None:
    site = Site(n_ranks, max_pause_s=60.0)
    seen = Seen()
    for action, number in actions:
        rank = number % n_ranks
        match action:
            case "listen":
                site.listen(rank)
            case "train":
                site.train(rank)
            case "wait":
                site.now_s += (0.05, 0.5, 5.0)[number]
            case "stop":
                site.listen(rank, "stop")
            case _:
                site.wish = "pause" if action == "pause" else None
        seen.check(site)
    site.wish = None
    before = site.steps()
    for _ in range(40):
        site.settle(30, dt_s=0.1)
        seen.check(site)
    if any(gate.is_ended for gate in site.gates):
        assert all(gate.is_ended for gate in site.gates)
        assert len(set(site.steps())) == 1
    else:
        assert all(after > then for after, then in zip(site.steps(), before, strict=True))


@dataclasses.dataclass
class Seen:
    """What must hold at any moment."""

    last: dict[int, Any] = dataclasses.field(default_factory=dict)

    def check(self, site: Site) -> None:
        for gate in site.gates:
            hold = gate.hold
            if hold is not None and hold.is_confirmed and id(hold) not in self.last:
                self.last[id(hold)] = hold
                # When the first one is told that the run is paused, all stand at its step.
                others = [each.hold for each in site.gates if each.hold is not None and each.hold.step == hold.step]
                if not any(each.is_confirmed for each in others if each is not hold):
                    assert len(others) == len(site.gates)
                    assert all(each.arrived_ns is not None for each in others)
                    assert {each.n_passed for each in site.gates} == {hold.step}
