"""When a training should stop: its target, its own word, and the command of the policy service."""

import copy
import logging
import pickle
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest

from gridchase import Publisher
from publishers.messages.reports import Command
from publishers.training.iterations.published_loader import PublishedSized
from publishers.training.publish_iterations import publisher_of
from tests.publishers.training.fake_connection import (
    SIZES,
    FakeConnection,
    aimed,
    answering,
    epochs,
    publisher_on,
    unused_broker,
    wait_until,
)

STOP = Command(command="stop", reason="it costs more than 5e5 J")
COMMANDS = "gridchase/v1/user/alice/job/toy/run/r1/command"


def stops(publisher: Publisher) -> bool:
    """Return whether a publisher says stop; asked twice, it may say something else."""
    return publisher.should_stop


@pytest.mark.parametrize(
    ("mode", "values", "reached"),
    [
        ("max", [0.5, 0.84], [False, True]),
        ("max", [0.85, 0.5], [True, False]),
        ("min", [0.85, 0.84], [False, True]),
        ("max", [0.83, float("nan")], [False]),
        ("max", [float("inf"), 0.1], [False]),
        ("min", [float("-inf"), float("nan"), 0.9], [False]),
    ],
)
def test_a_metric_reaches_its_target(mode: str, values: list[float], reached: list[bool]) -> None:
    connection = answering()
    publisher = aimed(connection, 0.84, mode)
    for value in values:
        publisher.metric(value)
    assert publisher.should_stop is any(reached)
    publisher.close()
    assert [metric.reached for metric in connection.metrics()] == reached
    assert connection.statuses()[-1].reached is any(reached)


def test_the_stop_reason_has_the_numbers() -> None:
    publisher = aimed(answering(), 0.84)
    before = publisher.stop_reason
    publisher.metric(0.9)
    publisher.metric(0.95)
    assert before is None
    assert publisher.stop_reason == "the metric, 0.9, has reached its target, 0.84"
    publisher.close()


def test_the_trainings_own_verdict_wins() -> None:
    connection = answering()
    publisher = aimed(connection, 0.84)
    publisher.metric(0.9, reached=False)
    assert not stops(publisher)
    publisher.metric(0.1, reached=np.bool_(True))  # type: ignore[arg-type]
    assert stops(publisher)
    publisher.close()
    assert [metric.reached for metric in connection.metrics()] == [False, True]


@pytest.mark.parametrize(
    ("said", "end"), [([], None), ([None], None), ([False], None), ([True], True), ([True, False], True)]
)
def test_without_a_target_only_the_trainings_own_verdict_counts(said: list[bool | None], end: bool | None) -> None:
    connection = FakeConnection()
    with publisher_on(connection) as publisher:
        for reached in said:
            publisher.metric(0.5, reached=reached)
        assert publisher.should_stop is bool(end)
    assert connection.statuses()[-1].reached is end


def test_the_verdict_given_to_close_wins_over_the_metrics() -> None:
    for reached, values, end in ((True, [0.1], True), (False, [0.9], False), (None, [], None)):
        connection = answering()
        publisher = aimed(connection, 0.84)
        for value in values:
            publisher.metric(value)
        publisher.close(reached)
        assert connection.statuses()[-1].reached is end


def test_the_target_works_where_nothing_is_published() -> None:
    publisher = publisher_on(FakeConnection(), job="two words")
    publisher.batch_size(SIZES, default=32, target=0.84)
    seen = []
    for epoch in publisher.epochs(20):
        seen.append(epoch)
        publisher.metric(0.8 + 0.01 * epoch)
    assert seen == [0, 1, 2, 3, 4]


def test_epochs_end_when_the_target_is_reached() -> None:
    connection = answering()
    publisher = aimed(connection, 0.84)
    for epoch in publisher.epochs(20):
        assert list(publisher.iterations(range(10))) == list(range(10))
        publisher.metric(0.5 + 0.1 * epoch)
    publisher.close()
    assert [metric.epoch for metric in connection.metrics()] == [0, 1, 2, 3, 4]
    assert epochs(connection) == dict.fromkeys(range(5), 10)
    assert connection.statuses()[-1].reached is True


def test_epochs_count_for_loops_without_an_iterable() -> None:
    connection = FakeConnection()
    with publisher_on(connection) as publisher:
        for _ in publisher.epochs(3):
            publisher.begin()
            for _ in range(4):
                publisher.iteration()
            publisher.metric(0.5)
    assert epochs(connection) == {0: 4, 1: 4, 2: 4}
    assert [metric.epoch for metric in connection.metrics()] == [0, 1, 2]


def test_epochs_count_where_no_iteration_is_published() -> None:
    connection = FakeConnection()
    with publisher_on(connection) as publisher:
        for epoch in publisher.epochs(4):
            if epoch == 2:  # one of them is looked at more closely
                assert list(publisher.iterations(range(5))) == list(range(5))
            publisher.metric(0.5)
    assert [metric.epoch for metric in connection.metrics()] == [0, 1, 2, 3]
    assert epochs(connection) == {2: 5}


@pytest.mark.parametrize(
    ("job", "world_size", "variable"),
    [("toy", 2, "1"), ("toy", None, "2"), ("two words", 2, "1"), ("two words", None, "2")],
)
def test_one_of_several_ranks_does_not_stop_by_itself(
    job: str, world_size: int | None, variable: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("WORLD_SIZE", variable)
    with publisher_on(FakeConnection(), job=job, world_size=world_size) as publisher:
        for _ in publisher.epochs(5):
            publisher.metric(0.9, reached=True)
        assert list(publisher.epochs(3)) == [0, 1, 2]
        assert publisher.should_stop
    assert [record.message for record in caplog.records if "ranks" in record.message] == [
        "epochs go on, since this is one of 2 ranks: pass early_stop=True"
    ]


@pytest.mark.parametrize(
    ("n", "count"),
    [(3, 3), (np.int64(2), 2), (2.0, 2), ("2", 2), (0, 0), (-1, 0), (float("-inf"), 0)],
)
def test_epochs_never_raise(n: int, count: int) -> None:
    with publisher_on(FakeConnection()) as publisher:
        assert list(publisher.epochs(n)) == list(range(count))


@pytest.mark.parametrize(
    ("n", "n_warnings"), [(None, 0), (float("inf"), 0), ("x", 1), (float("nan"), 1), (object(), 1)]
)
def test_epochs_without_a_valid_number_end_at_the_target(
    n: float | None, n_warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    with aimed(answering(), 0.84) as publisher:
        caplog.clear()
        for epoch in publisher.epochs(n):
            publisher.metric(0.9 if epoch == 300 else 0.1)
    assert epoch == 300
    assert len([record for record in caplog.records if "epochs have no end" in record.message]) == n_warnings


def test_a_stop_command_ends_the_epochs_and_gives_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "publishers")
    connection = FakeConnection()
    seen = []
    with publisher_on(connection) as publisher:
        for epoch in publisher.epochs(20):
            seen.append(epoch)
            if epoch == 2:
                for _ in range(2):
                    connection.command(STOP)
                wait_until(lambda: publisher.should_stop)
        assert publisher.stop_reason == STOP.reason
        assert publisher_of(publisher.iterations(range(3))).should_stop
    assert seen == [0, 1, 2]
    assert [record.message for record in caplog.records if "stop" in record.message] == [
        "run r1 is to stop: it costs more than 5e5 J"
    ]
    assert connection.statuses()[-1].reached is None


def test_the_reason_of_a_command_cannot_act_on_the_terminal_of_the_training(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "publishers")
    connection = FakeConnection()
    with publisher_on(connection) as publisher:
        connection.command(Command(command="stop", reason="a\x1b[2J\nforged\u202e"))
        wait_until(lambda: publisher.stop_reason)
        assert publisher.stop_reason == r"a\x1b[2J\nforged\u202e"
    assert all(record.message.isprintable() for record in caplog.records)


@pytest.mark.parametrize(
    "payload",
    [
        Command(command="pause", reason="dirty grid"),
        Command(command="resume", reason="clean grid"),
        b"",
        b"{}",
        b'{"command": "stop"}',
        b'{"command": "halt", "reason": "x"}',
        b'{"command": "stop", "reason": 5}',
        b'{"command": "stop", "reason": "' + b"x" * 2_000 + b'"}',
        b"[" * 100_000,
        b"x" * (2 << 20),
    ],
    ids=range(10),
)
def test_other_and_malformed_commands_are_ignored(payload: Command | bytes) -> None:
    connection = FakeConnection()
    with publisher_on(connection) as publisher:
        assert not publisher.should_stop
        wait_until(lambda: COMMANDS in connection.subscriptions)
        connection.command(payload)
        wait_until(lambda: not connection._inbox)
        list(PublishedSized(range(3), publisher))
        wait_until(lambda: connection.n_iterations() == 3)
        assert not publisher.should_stop


def test_a_run_that_asks_nothing_hears_notices_and_its_energy_alone() -> None:
    connection = FakeConnection()
    with publisher_on(connection) as publisher:
        list(publisher.iterations(range(10)))
        wait_until(lambda: connection.n_iterations() == 10)
        assert [topic.rpartition("/")[2] for topic in connection.subscriptions] == ["notice", "energy"]


def test_the_loaders_batch_size_is_used_unless_one_was_chosen() -> None:
    class Loader:
        batch_size = 48

        def __iter__(self) -> Iterator[int]:
            return iter(range(3))

        def __len__(self) -> int:
            return 3

    for connection, asks, expected in ((FakeConnection(), False, 48), (answering(), True, 16)):
        with publisher_on(connection) as publisher:
            if asks:
                publisher.batch_size(SIZES, default=32)
            batches = publisher.iterations(Loader())
            assert list(batches) == [0, 1, 2]
        assert connection.statuses()[-1].batch_size == expected


def test_a_copy_in_another_process_asks_nothing() -> None:
    publisher = aimed(answering(), 0.84)
    for twin in (pickle.loads(pickle.dumps(publisher)), copy.deepcopy(publisher)):  # noqa: S301 — our own bytes
        assert (twin.trial, twin.should_stop, twin.batch_size(SIZES, default=32)) == (None, False, 32)
        twin.fail()
        assert list(twin.epochs(2)) == [0, 1]
    publisher.close()


@pytest.mark.live
def test_a_forked_child_does_not_wait_for_an_answer() -> None:
    script = f"""
import os, sys, time
from gridchase import Publisher
publisher = Publisher(job="toy", rank=0, world_size=1, broker={unused_broker()!r})
child = os.fork()
if child == 0:
    begin_s = time.monotonic()
    assert publisher.batch_size([8, 16], default=8, target=0.5) == 8
    assert time.monotonic() - begin_s < 5  # half of what it would wait for an answer
    publisher.metric(0.6)
    assert publisher.should_stop
    publisher.fail()
    publisher.close()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=False)
    assert (result.returncode, result.stdout) == (0, "")
    lines = result.stderr.splitlines()  # the parent may end before it has found out that there is no broker
    assert {line.partition(":")[0] for line in lines} == {"gridchase"}
    assert 1 <= len(lines) <= 2
