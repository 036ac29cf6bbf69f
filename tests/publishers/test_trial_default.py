"""A question for a batch size that ends in the default: nobody answers, nobody may ask, or it is none."""

import itertools
import threading
import time
from collections.abc import Iterable, Iterator

import numpy as np
import pytest

from publishers import Publisher
from publishers.wire import MAX_CANDIDATES
from tests.publishers.answers import SIZES, answering
from tests.publishers.fake_connection import FakeConnection, publisher_on, unused_broker, wait_until


def test_an_answer_that_is_no_candidate_ends_in_the_default_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with publisher_on(answering(batch_size=48)) as publisher:
        assert publisher.batch_size(SIZES, default=32, timeout_s=0.1) == 32
        assert publisher.trial is None
    assert [record.message for record in caplog.records] == [
        "the batch size is the default, 32: the answer, 48, is none of the candidates, and no other came within 0.1 s"
    ]


def test_without_a_service_the_default_comes_back_in_time_with_one_warning(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("publishers.trial.ASK_AGAIN_S", 0.02)
    connection = FakeConnection()
    with publisher_on(connection, heartbeat_s=1_000.0) as publisher:
        begin_s = time.monotonic()
        assert publisher.batch_size(SIZES, default=32, timeout_s=0.2) == 32
        assert 0.19 < time.monotonic() - begin_s < 2.0
        n_asked = len(connection.requests())
        assert n_asked >= 3
        assert publisher.trial is None
    assert connection.statuses()[-1].batch_size == 32
    assert len(connection.requests()) == n_asked
    assert len({request.correlation for request in connection.requests()}) == n_asked
    assert len(caplog.records) == 1
    assert "no policy service answers at mqtt://127.0.0.1:1883 within 0.2 s" in caplog.text


def test_a_broker_that_was_never_there_is_tried_twice_and_costs_no_more(caplog: pytest.LogCaptureFixture) -> None:
    publisher = Publisher(job="alone", rank=0, world_size=1, broker=unused_broker(), heartbeat_s=5.0)
    begin_s = time.monotonic()
    assert publisher.batch_size(SIZES, default=32) == 32
    assert 0.9 < time.monotonic() - begin_s < 3.0
    publisher.close()
    assert [("no broker at" in record.message) for record in caplog.records] == [True, True]


def test_a_broker_that_was_there_is_waited_for_and_asked_at_once_when_it_is_back() -> None:
    connection = answering()
    with publisher_on(connection) as publisher:
        wait_until(connection.statuses)
        connection.up = False
        wait_until(lambda: connection.failure)
        asked = threading.Thread(target=publisher.batch_size, args=(SIZES,), kwargs={"default": 32})
        asked.start()
        failures = connection.failures
        wait_until(lambda: connection.hurries and connection.failures > failures + 10)
        connection.up = True
        asked.join(5.0)
        assert not asked.is_alive()
        assert publisher.trial is not None


def test_closing_meanwhile_ends_the_wait_at_once(caplog: pytest.LogCaptureFixture) -> None:
    connection = FakeConnection()
    publisher = publisher_on(connection)
    begin_s = time.monotonic()

    def close_soon() -> None:
        wait_until(connection.requests)
        publisher.close()

    closing = threading.Thread(target=close_soon)
    closing.start()
    assert publisher.batch_size(SIZES, default=32) == 32
    closing.join(5.0)
    assert time.monotonic() - begin_s < 5.0
    assert connection.statuses()[-1].state == "finished"
    assert [record.message for record in caplog.records] == [
        "the batch size is the default, 32: publishing was closed meanwhile"
    ]


def test_a_publisher_that_is_closed_off_or_a_copy_returns_the_default_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    closed = publisher_on(FakeConnection())
    closed.close()
    off = publisher_on(FakeConnection(), job="two words")
    for publisher in (closed, off):
        begin_s = time.monotonic()
        assert publisher.batch_size(SIZES, default=32) == 32
        assert time.monotonic() - begin_s < 1.0
        assert publisher.trial is None
    assert [record.message for record in caplog.records][-1].endswith("publishing is off, or closed")


def test_a_publisher_whose_thread_has_ended_by_a_fault_returns_the_default_at_once() -> None:
    def fail(_broker: object, _will: object) -> FakeConnection:
        raise RuntimeError("broken")

    publisher = Publisher(job="failing", rank=0, world_size=1, connect=fail)
    begin_s = time.monotonic()
    assert publisher.batch_size(SIZES, default=32) == 32
    assert time.monotonic() - begin_s < 5.0
    publisher.close()


class Failing:
    """What a tensor becomes when its device has failed."""

    def __iter__(self) -> Iterator[int]:
        raise RuntimeError("device-side assert")

    def __repr__(self) -> str:
        raise RuntimeError("device-side assert")

    __float__ = __index__ = __repr__


@pytest.mark.parametrize(
    ("candidates", "default", "changes"),
    [
        ([], 32, {}),
        (None, 32, {}),
        (32, 32, {}),
        ("8 16", 32, {}),
        ([8, 8, 32], 32, {}),
        ([8, 16], 32, {}),
        ([8, 16.5], 8, {}),
        ([0, 8], 8, {}),
        ([8, 1 << 40], 8, {}),
        (["a"], "a", {}),
        (Failing(), 32, {}),
        ([Failing(), 32], 32, {}),
        (SIZES, None, {}),
        (SIZES, Failing(), {}),
        (itertools.count(1), 1, {}),
        (range(1, MAX_CANDIDATES + 2), 1, {}),
        (SIZES, 32, {"target": "high"}),
        (SIZES, 32, {"target": float("nan")}),
        (SIZES, 32, {"target": Failing()}),
        (SIZES, 32, {"target": 0.8, "target_mode": "up"}),
        (SIZES, 32, {"target_mode": Failing()}),
        (SIZES, 32, {"timeout_s": 0}),
        (SIZES, 32, {"timeout_s": -1.0}),
        (SIZES, 32, {"timeout_s": float("inf")}),
        (SIZES, 32, {"timeout_s": "soon"}),
        (SIZES, 32, {"timeout_s": Failing()}),
    ],
    ids=range(26),
)
def test_whatever_the_arguments_are_the_default_comes_back_as_it_is_at_once_with_one_warning(
    candidates: object, default: object, changes: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    connection = answering()
    with publisher_on(connection) as publisher:
        assert publisher.batch_size(candidates, default=default, **changes) is default  # type: ignore[arg-type]
    assert connection.requests() == []
    assert len(caplog.records) == 1
    assert "must be" in caplog.text


@pytest.mark.parametrize(
    "candidates",
    [(8, 16, 32), range(8, 40, 8), np.array([8, 16, 32]), {8: "a", 16: "b", 32: "c"}, iter([8, 16, 32]), ["8", 16, 32]],
    ids=lambda candidates: type(candidates).__name__,
)
def test_candidates_of_any_kind_are_taken(candidates: Iterable[int]) -> None:
    with publisher_on(answering()) as publisher:
        batch_size = publisher.batch_size(candidates, default=np.int64(32), timeout_s=np.float32(5.0))  # type: ignore[arg-type]
    assert batch_size == 16
    assert type(batch_size) is int
