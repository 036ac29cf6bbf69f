"""When a run that lives has stopped iterating, and that it goes on."""

from typing import Any

import pytest

from controller.accounting.ranks import Ranks
from controller.runs.idleness import END_GRACE_S, MAX_KNOWN_PAUSE_S, Idleness
from tests.controller.messages import iterations, ns, rank_status

IDLE_S = 60.0


class Training:
    """The iterations of a run, one a second unless told otherwise, and what is made of them."""

    def __init__(self, n_ranks: int = 1, **status: Any) -> None:  # noqa: ANN401 — the record checks them
        self.ranks = Ranks(name="toy", lease_s=60.0)
        self.idleness = Idleness(idle_s=IDLE_S)
        self._status: dict[str, Any] = {"world_size": n_ranks} | status
        self._sent = [(0, 0)] * n_ranks
        for number in range(n_ranks):
            self.say(number, 0.0)

    def say(self, number: int, at_s: float, **changes: Any) -> None:  # noqa: ANN401 — as above
        self._status |= changes
        self.ranks.on_status(number, rank_status(**self._status), now_s=at_s)

    def iterate(self, begin_s: float, n: int, *, step_s: float = 1.0, rank: int = 0) -> float:
        seq, first = self._sent[rank]
        ends_s = [begin_s + step_s * (k + 1) for k in range(n)]
        message = iterations(begin_s, ends_s, seq=seq, first=first)
        assert self.ranks.members[rank].log.append(message, now_ns=ns(ends_s[-1]))
        self._sent[rank] = seq + 1, first + n
        return ends_s[-1]

    def reason(self, at_s: float) -> str | None:
        for number, rank in self.ranks.members.items():
            if not rank.ended:
                self.say(number, at_s)
        blocked = self.idleness.update(self.ranks, now_ns=ns(at_s))
        return blocked.reason if blocked is not None else None


def test_a_run_that_stops_is_idle_after_a_while_and_goes_on_with_the_next_iteration() -> None:
    training = Training()
    end_s = training.iterate(0.0, 100)
    assert training.reason(end_s + IDLE_S - 1) is None
    assert training.reason(end_s + IDLE_S) == "idle"
    assert training.reason(end_s + 500.0) == "idle"
    end_s = training.iterate(end_s + 500.0, 2)
    assert training.reason(end_s) is None


def test_a_run_that_was_asked_to_wait_is_not_idle_for_as_long_as_it_allows() -> None:
    training = Training(pausable=True, max_pause_s=4 * MAX_KNOWN_PAUSE_S)
    end_s = training.iterate(0.0, 100)
    training.say(0, end_s, paused_since_ns=ns(end_s))
    for hours in range(1, 4):
        assert training.reason(end_s + hours * MAX_KNOWN_PAUSE_S) is None
    assert training.reason(end_s + 4 * MAX_KNOWN_PAUSE_S - 1.0) is None
    assert training.reason(end_s + 4 * MAX_KNOWN_PAUSE_S + IDLE_S) == "idle"


def test_a_wait_that_begins_in_the_future_is_none() -> None:
    training = Training(pausable=True, max_pause_s=2 * MAX_KNOWN_PAUSE_S)
    end_s = training.iterate(0.0, 100)
    training.say(0, end_s, paused_since_ns=(1 << 62) - 1)
    assert training.reason(end_s + IDLE_S) == "idle"


def test_long_iterations_are_no_idleness() -> None:
    training = Training()
    end_s = training.iterate(0.0, 3, step_s=300.0)
    assert training.reason(end_s + 5_000.0) is None
    assert training.reason(end_s + 6_000.0) == "idle"


def test_a_pause_that_the_training_tells_of_is_none_for_an_hour() -> None:
    training = Training()
    end_s = training.iterate(0.0, 100)
    training.say(0, end_s + 10.0, in_pause=True)
    for after_s in (10.0, 1_000.0, MAX_KNOWN_PAUSE_S - 1, MAX_KNOWN_PAUSE_S + IDLE_S - 2):
        assert training.reason(end_s + after_s) is None
    assert training.reason(end_s + MAX_KNOWN_PAUSE_S + IDLE_S) == "idle"


def test_after_such_a_pause_the_next_iteration_may_take_its_time() -> None:
    training = Training()
    end_s = training.iterate(0.0, 100)
    training.say(0, end_s, in_pause=True)
    assert training.reason(end_s + 1_000.0) is None
    training.say(0, end_s + 1_000.0, in_pause=False)
    assert training.reason(end_s + 1_000.0 + IDLE_S - 1) is None
    assert training.reason(end_s + 1_000.0 + IDLE_S) == "idle"


def test_a_gap_that_it_went_on_after_is_waited_for_twice_as_long_the_next_time() -> None:
    training = Training()
    end_s = training.iterate(0.0, 100)
    assert training.reason(end_s + 90.0) == "idle"
    end_s = training.iterate(end_s + 99.0, 50)  # the first one after the gap ends a second later
    assert training.reason(end_s + 170.0) is None
    assert training.reason(end_s + 300.0) == "idle"


def test_a_run_that_has_done_all_it_announced_is_at_its_end_at_once() -> None:
    training = Training(total_iterations=100)
    end_s = training.iterate(0.0, 99)
    assert training.reason(end_s + END_GRACE_S) is None
    end_s = training.iterate(end_s, 1)
    assert training.reason(end_s + END_GRACE_S - 1) is None
    assert training.reason(end_s + END_GRACE_S) == "run_at_its_end"


def test_a_run_that_goes_on_after_its_announced_end_is_not_believed_again() -> None:
    training = Training(total_iterations=100)
    end_s = training.iterate(0.0, 100)
    assert training.reason(end_s + 10.0) == "run_at_its_end"
    training.say(0, end_s + 20.0, total_iterations=200)
    end_s = training.iterate(end_s + 20.0, 100)
    assert training.reason(end_s + 10.0) is None
    assert training.reason(end_s + IDLE_S) == "idle"


@pytest.mark.parametrize("total", [None, 100])
def test_one_rank_that_iterates_keeps_the_run(total: int | None) -> None:
    training = Training(2, total_iterations=total)
    training.iterate(0.0, 100, rank=0)
    assert training.reason(200.0) is None  # the other one has not begun
    end_s = training.iterate(0.0, 200, rank=1)
    assert training.reason(end_s + 1.0) is None
    assert training.reason(end_s + IDLE_S) is not None


def test_a_rank_that_has_ended_is_not_waited_for() -> None:
    training = Training(2)
    training.iterate(0.0, 10, rank=0)
    end_s = training.iterate(0.0, 100, rank=1)
    training.say(0, 10.0, state="finished")
    training._status["state"] = "running"
    assert training.reason(end_s + IDLE_S) == "idle"


def test_a_run_that_is_silent_is_not_called_idle() -> None:
    training = Training()
    end_s = training.iterate(0.0, 100)
    assert training.idleness.update(training.ranks, now_ns=ns(end_s + IDLE_S)) is None


def test_a_run_that_has_not_begun_or_has_ended_is_not_idle() -> None:
    training = Training()
    assert training.reason(1_000.0) is None
    end_s = training.iterate(1_000.0, 10)
    training.say(0, end_s, state="finished")
    assert training.reason(end_s + 1_000.0) is None
