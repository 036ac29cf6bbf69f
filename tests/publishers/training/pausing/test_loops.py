"""Loops over published loaders wait where they are asked to, and end where the training should stop; no others do."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from gridchase import Publisher
from publishers.messages.reports import Command
from publishers.shared.boot_id import read_boot_id
from tests.publishers.training.fake_connection import FakeConnection, ticking, wait_until


class Loader:
    """A loader whose class can be derived from, as a framework's."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.n_asked = 0

    def __iter__(self) -> Iterator[int]:
        for k in range(self.n):
            self.n_asked += 1
            yield k

    def __len__(self) -> int:
        return self.n


def published(connection: FakeConnection, **options: Any) -> Publisher:  # noqa: ANN401 — the publisher checks them
    arguments: dict[str, Any] = {"job": "toy", "run": "r1", "username": "alice", "flush_s": 0.001, "world_size": 1}
    return Publisher(**{**arguments, "clock_ns": ticking(), **options}, connect=connection.connect)


@pytest.mark.parametrize("kind", [Loader, lambda n: list(range(n)), lambda n: iter(range(n))])
def test_a_loop_ends_at_the_next_batch_once_the_target_is_reached(kind: Any) -> None:  # noqa: ANN401
    with published(FakeConnection(), early_stop=True) as publisher:
        done = []
        for batch in publisher.iterations(kind(100)):
            done.append(batch)
            if batch == 41:
                publisher.metric(0.9, reached=True)
        assert done == list(range(42))


def test_later_passes_over_that_loader_are_empty_and_ask_it_for_nothing() -> None:
    with published(FakeConnection(), early_stop=True) as publisher:
        loader = Loader(10)
        batches = publisher.iterations(loader)
        epochs = []
        for epoch in range(4):
            epochs.append(list(batches))
            if epoch == 1:
                publisher.metric(0.9, reached=True)
        assert [len(epoch) for epoch in epochs] == [10, 10, 0, 0]
        assert loader.n_asked == 20


def test_a_validation_is_not_cut_short() -> None:
    with published(FakeConnection(), early_stop=True) as publisher:
        training, validation = publisher.iterations(Loader(50)), publisher.iterations(Loader(7))
        done = []
        for batch in training:
            if batch == 20:
                publisher.metric(0.9, reached=True)
                done.append(len(list(validation)))
                done.append(len(list(validation)))
        assert done == [7, 7]
        assert batch == 20


def test_epochs_end_too() -> None:
    with published(FakeConnection(), early_stop=True) as publisher:
        batches, done = publisher.iterations(Loader(5)), []
        for epoch in publisher.epochs(10):
            done.append(len(list(batches)))
            if epoch == 2:
                publisher.metric(0.9, reached=True)
        assert done == [5, 5, 5]


def test_a_stop_of_the_policy_service_ends_the_loop() -> None:
    connection = FakeConnection()
    with published(connection, early_stop=True) as publisher:
        wait_until(lambda: any(topic.endswith("/command") for topic in connection.subscriptions))
        for n, _ in enumerate(publisher.iterations(Loader(10**9))):
            if n == 10:
                connection.command(Command(command="stop", reason="it costs too much"))
        assert publisher.stop_reason == "it costs too much"


def test_without_the_option_no_loop_ends_early() -> None:
    with published(FakeConnection(), pausable=True) as publisher:
        publisher.metric(0.9, reached=True)
        assert publisher.should_stop
        assert len(list(publisher.iterations(Loader(30)))) == 30


def test_a_second_wrap_of_a_loader_may_bring_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRIDCHASE_BROKER", "mqtt://127.0.0.1:1")
    first, second = (
        Publisher.for_callback(job="late", run="r1", world_size=1, pausable=pausable) for pausable in (False, True)
    )
    assert first is second
    assert first.recorder.gate is not None
    first.close()


@pytest.mark.parametrize("is_told", [False, True])
def test_a_loop_stands_between_two_batches_and_counts_every_iteration_once(*, is_told: bool) -> None:
    connection = FakeConnection()
    publisher = published(connection, pausable=True, clock_ns=time.monotonic_ns)
    gate, done = publisher.recorder.gate, list[int]()
    ids: dict[str, Any] = {"user": "alice", "job": "toy", "run": "r1", "boot_id": read_boot_id(), "pause_id": "p1"}

    def train() -> None:
        loader = Loader(100)
        for batch in loader if is_told else publisher.iterations(loader):
            if batch == 39:
                until_ns = time.monotonic_ns() + 30_000_000_000
                connection.command(Command(**ids, command="pause", reason="a test", until_ns=until_ns))
                wait_until(lambda: gate is not None and gate.hold is not None)
            done.append(batch)
            if is_told:
                publisher.iteration()

    wait_until(lambda: any(topic.endswith("/command") for topic in connection.subscriptions))
    thread = threading.Thread(target=train)
    thread.start()
    wait_until(lambda: connection.statuses() and connection.statuses()[-1].paused_since_ns is not None)
    n_before = len(done)
    connection.command(Command(**ids, command="resume", reason="enough"))
    thread.join(60.0)
    publisher.close()
    assert n_before == 40
    assert done == list(range(100))
    assert connection.n_iterations() == (99 if is_told else 100)
