"""One rank's training waits while its controller asks for it, and goes on with whatever ends that."""

import itertools
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from publishers.messages.reports import Command
from publishers.messages.training import RankStatus
from publishers.shared.boot_id import read_boot_id
from publishers.training.pausing.gate import IterationGate
from tests.publishers.training.fake_connection import FakeConnection, publisher_on, wait_until, worker_of

S = 1_000_000_000


class SlowClock:
    """A clock that moves by hand, from 100 s on."""

    def __init__(self) -> None:
        self.now_ns = 100 * S

    def __call__(self) -> int:
        return self.now_ns


class Training:
    """A training in a thread of its own, which the test lets end one iteration after the other."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401 — the publisher checks them
        self.clock_ns = SlowClock()
        self.connection = FakeConnection()
        options = {"pausable": True, "username": "alice", "clock_ns": self.clock_ns} | options
        self.publisher = publisher_on(self.connection, **options)
        self.error: BaseException | None = None
        self.n_asked = 0
        self._ids = itertools.count(1)
        self._steps = threading.Semaphore(0)
        self._is_over = False
        self._thread = threading.Thread(target=self._train, daemon=True)
        self._thread.start()

    @property
    def gate(self) -> IterationGate:
        pauses = worker_of(self.publisher).commands.pauses
        assert pauses is not None
        return pauses.gate

    def train(self, n: int = 1) -> None:
        """Let it end some iterations, and wait until it has."""
        self.train_on(n)
        wait_until(lambda: self.gate.n_passed == self.n_asked)

    def train_on(self, n: int = 1) -> None:
        """Let it end some iterations when it can."""
        self.n_asked += n
        for _ in range(n):
            self._steps.release()

    def end(self) -> None:
        self._is_over = True
        self._steps.release()
        self.publisher.close()
        self._thread.join(60.0)
        assert not self._thread.is_alive()

    def say(self, word: str, **changes: Any) -> None:  # noqa: ANN401 — the record checks them
        """Let the controller of this machine say something to the run."""
        fields: dict[str, Any] = {
            "user": "alice",
            "job": "toy",
            "run": "r1",
            "command": word,
            "reason": "the grid is short of power",
            "boot_id": read_boot_id(),
            "node": "node-a",
            "pause_id": "p1",
            "until_ns": self.clock_ns.now_ns + 30 * S if word == "pause" else None,
        }
        wait_until(lambda: any(topic.endswith("/command") for topic in self.connection.subscriptions))
        self.connection.command(Command(**fields | changes))

    def status(self) -> RankStatus:
        """Return the newest status."""
        return self.connection.statuses()[-1]

    def is_paused(self) -> bool:
        return self.status().paused_since_ns is not None

    def is_waiting(self) -> bool:
        hold = self.gate.hold
        return hold is not None and hold.arrived_ns is not None and hold.left_ns is None

    def pause(self, **changes: Any) -> None:  # noqa: ANN401 — the record checks them
        """Let it be paused, with one more iteration to end."""
        self.say("pause", **changes)
        wait_until(lambda: self.gate.hold is not None and not self.gate.hold.is_released)
        self.train_on()
        wait_until(self.is_paused)

    def _train(self) -> None:
        try:
            while not self._is_over:
                self._steps.acquire()
                if not self._is_over:
                    self.gate.passed()
        except BaseException as error:  # noqa: BLE001 — it is what the test looks at
            self.error = error


Begin = Callable[..., Training]


@pytest.fixture
def begin() -> Iterator[Begin]:
    trainings: list[Training] = []

    def start(**options: Any) -> Training:  # noqa: ANN401 — the publisher checks them
        trainings.append(Training(**options))
        return trainings[-1]

    yield start
    for training in trainings:
        training.end()


def test_the_status_says_that_it_can_pause_once_an_iteration_has_ended(begin: Begin) -> None:
    training = begin(max_pause_s=120.0)
    wait_until(training.connection.statuses)
    assert (training.status().pausable, training.status().max_pause_s) == (False, None)
    training.train()
    wait_until(lambda: training.status().pausable)
    assert training.status().max_pause_s == 120.0


def test_a_training_without_the_option_hears_of_nothing() -> None:
    connection = FakeConnection()
    with publisher_on(connection):
        wait_until(connection.statuses)
    assert not any(topic.endswith("/command") for topic in connection.subscriptions)
    assert not any(status.pausable for status in connection.statuses())


def test_it_waits_after_its_iteration_until_it_may_go_on(begin: Begin) -> None:
    training = begin()
    training.train(3)
    training.pause()
    assert training.status().paused_since_ns == 100 * S
    training.train_on(2)
    training.clock_ns.now_ns += 5 * S
    assert training.gate.n_passed == 4
    training.say("resume", reason="enough")
    wait_until(lambda: training.gate.n_passed == 6)
    wait_until(lambda: not training.is_paused())
    assert (training.status().paused_s, training.status().pausable) == (5.0, True)


def test_a_pause_that_is_not_asked_for_any_more_ends(begin: Begin) -> None:
    """Its controller has gone, or does not hold the run any more."""
    training = begin()
    training.pause()
    training.clock_ns.now_ns += 29 * S
    training.say("pause")
    training.clock_ns.now_ns += 29 * S
    training.train_on()
    assert training.is_waiting()
    training.clock_ns.now_ns += 2 * S
    wait_until(lambda: training.gate.n_passed == 2)


def test_the_loss_of_the_broker_ends_it_and_its_messages_do_not_begin_it_anew(begin: Begin) -> None:
    training = begin()
    training.pause()
    training.train_on()
    training.connection.up = False
    wait_until(lambda: training.gate.n_passed == 2)
    training.connection.up = True
    training.say("pause")
    training.train(5)
    assert not training.is_waiting()


def test_closing_ends_it(begin: Begin) -> None:
    training = begin()
    training.pause()
    training.train_on()
    training.publisher.close()
    wait_until(lambda: training.gate.n_passed == 2)
    assert training.status().state == "finished"
    assert not training.status().pausable


def test_no_pause_is_longer_than_the_training_allows(begin: Begin) -> None:
    training = begin(max_pause_s=0.05)
    training.pause()
    training.train_on()
    wait_until(lambda: training.gate.n_passed == 2)  # though nobody says resume
    training.say("pause")
    training.train(3)
    assert not training.is_waiting()


def test_a_pause_that_is_withdrawn_before_the_iteration_ends_never_begins(begin: Begin) -> None:
    training = begin()
    training.train()
    training.say("pause")
    wait_until(lambda: training.gate.hold is not None)
    training.say("resume")
    wait_until(lambda: training.gate.hold is not None and training.gate.hold.is_released)
    training.train(3)
    assert not any(status.paused_since_ns for status in training.connection.statuses())


def test_a_second_pause_follows_the_first(begin: Begin) -> None:
    training = begin()
    training.pause()
    training.say("resume")
    wait_until(lambda: not training.is_paused())
    training.say("pause", pause_id="p2")
    wait_until(lambda: training.gate.hold is not None and not training.gate.hold.is_released)
    training.train_on(2)
    wait_until(training.is_paused)
    assert training.gate.n_passed == 2


@pytest.mark.parametrize("changes", [{"boot_id": "of-another"}, {"job": "other"}, {"until_ns": 1}])
def test_nobody_else_pauses_it(begin: Begin, changes: dict[str, Any]) -> None:
    training = begin()
    training.train()
    training.say("pause", **changes)
    training.connection.command(b"no json")
    wait_until(lambda: not training.connection._inbox)
    training.train(3)
    assert not training.is_waiting()


@pytest.mark.parametrize(("asked_s", "told_s"), [(None, 300), (10.0, 10), (1e6, 300)])
def test_what_stands_still_says_why_once_and_that_it_goes_on(
    begin: Begin, caplog: pytest.LogCaptureFixture, asked_s: float | None, told_s: int
) -> None:
    caplog.set_level(logging.WARNING, "publishers")
    training = begin()
    training.pause(for_s=asked_s)
    training.say("pause")
    wait_until(lambda: not training.connection._inbox)
    training.say("resume", reason="ada ends it")
    wait_until(lambda: not training.is_paused())
    first, second = [message for message in caplog.messages if "paus" in message]
    told = f"paused after 1 iterations of this process, for {told_s} s at most: the grid is short of power"
    assert first.startswith(told)
    assert first.endswith(" (controller of node-a)")
    assert second == "the training goes on after a pause: ada ends it"


@pytest.mark.parametrize(
    ("options", "pausable", "max_pause_s"),
    [
        ({"pausable": 1}, True, 300.0),
        ({"pausable": "no tensor of one element"}, True, 300.0),
        ({"pausable": None}, False, None),
    ],
)
def test_the_option_may_be_anything_that_is_true_or_false(
    begin: Begin, options: dict[str, Any], max_pause_s: float | None, *, pausable: bool
) -> None:
    training = begin(early_stop=True, **options)
    training.train()
    wait_until(training.connection.statuses)
    wait_until(lambda: training.status().pausable == pausable)
    assert training.status().max_pause_s == max_pause_s


def test_a_stop_ends_the_loop_and_a_pause_with_it(begin: Begin) -> None:
    training = begin(early_stop=True)
    training.pause()
    training.train_on()
    training.connection.command(Command(command="stop", reason="it costs too much"))
    wait_until(lambda: training.gate.n_passed == 2)
    assert training.gate.requested()
    assert training.publisher.stop_reason == "it costs too much"


def test_without_early_stop_a_stop_is_only_told(begin: Begin) -> None:
    training = begin()
    training.train()
    training.connection.command(Command(command="stop", reason="it costs too much"))
    wait_until(lambda: training.publisher.should_stop)
    assert not training.gate.requested()


def test_an_interrupt_ends_the_pause_for_good(begin: Begin) -> None:
    training = begin()
    training.train()
    training.say("pause")
    wait_until(lambda: training.gate.hold is not None)
    hold = training.gate.hold
    assert hold is not None

    class Interrupted(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            raise KeyboardInterrupt(timeout)

    hold._released = Interrupted()
    training.train_on()
    wait_until(lambda: training.error is not None)
    assert isinstance(training.error, KeyboardInterrupt)
    wait_until(lambda: hold.is_released)
    training.say("pause")
    wait_until(lambda: not training.connection._inbox)
    assert not training.is_paused()
