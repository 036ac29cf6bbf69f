"""A question for a batch size: which answers count, when it is asked again, and when the default is used."""

import itertools
import logging
import threading
import time
from collections.abc import Iterable, Iterator

import msgpack
import numpy as np
import pytest

from gridchase import Publisher
from publishers.messages.codec import encode
from publishers.messages.training import MAX_CANDIDATES, TrialRequest
from publishers.training.trial.policy_client import BatchSizeQuery, BatchSizeTrial, read_options
from tests.publishers.training.fake_connection import (
    SIZES,
    TIMEOUT_S,
    Failing,
    FakeConnection,
    answer,
    answering,
    publisher_on,
    unused_broker,
    wait_until,
)

LONG_S = 1_000.0
"""A timeout that does not elapse."""


def question() -> BatchSizeQuery:
    return BatchSizeQuery(read_options(SIZES, 32, 10.0), why="nobody was asked")


def requests(asked: BatchSizeQuery, *times: tuple[float, int]) -> Iterator[TrialRequest | None]:
    return (asked.next_request(now_s, connection, run="r1", reply_to="answers") for now_s, connection in times)


def test_the_answer_is_returned_and_published_in_the_status(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "publishers")
    connection = answering()
    with publisher_on(connection, heartbeat_s=1_000.0) as publisher:
        before = publisher.trial
        assert publisher.batch_size(SIZES, default=32) == 16
        assert before is None
        assert publisher.trial == BatchSizeTrial(
            batch_size=16, reason="explored", detail="little is known of 16", recurrence=3, cost_bound=5e5
        )
    assert [status.batch_size for status in connection.statuses()][-1] == 16
    request = connection.requests()[0]
    assert (request.batch_sizes, request.default_batch_size) == (SIZES, 32)
    assert request.reply_to == "gridchase/v1/user/alice/job/toy/run/r1/trial/answer"
    assert [record.message for record in caplog.records if "batch size" in record.message] == [
        "batch size 16 of [8, 16, 32, 64]: explored: little is known of 16"
    ]
    assert all(qos == 1 for topic, _, qos, _ in connection.sent if "trial" in topic)


def test_an_answer_without_a_recurrence_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    connection = answering(reason="run_has_ended", detail="give it another id", recurrence=None, lease_s=None)
    with publisher_on(connection) as publisher:
        assert publisher.batch_size(SIZES, default=32) == 16
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("WARNING", "batch size 16 of [8, 16, 32, 64]: run_has_ended: give it another id")
    ]


def test_the_status_is_published_before_the_first_request() -> None:
    connection = answering()
    with publisher_on(connection) as publisher:
        publisher.batch_size(SIZES, default=32)
    assert [topic.rpartition("/")[2] for topic, *_ in connection.sent][:2] == ["status", "request"]


def test_a_request_is_repeated_each_second_and_at_each_connection() -> None:
    asked = question()
    seen = list(requests(asked, (5.0, 1), (5.9, 1), (6.0, 1), (6.1, 2), (6.2, 2), (7.1, 2)))
    assert [request is not None for request in seen] == [True, False, True, True, False, True]
    correlations = [request.correlation for request in seen if request is not None]
    assert len(set(correlations)) == 4
    asked.end("enough")
    assert list(requests(asked, (100.0, 3))) == [None]


def test_the_answer_to_any_request_counts() -> None:
    asked = question()
    first, *_ = requests(asked, (0.0, 1), (1.0, 1), (2.0, 1))
    assert first is not None
    asked.receive(encode(answer(first)))
    trial = asked.wait(0.001)
    assert trial is not None
    assert trial.batch_size == 16


def test_the_first_answer_counts() -> None:
    asked = question()
    (request,) = requests(asked, (0.0, 1))
    assert request is not None
    for batch_size in (64, 8):
        asked.receive(encode(answer(request, batch_size=batch_size)))
    trial = asked.wait(0.001)
    assert trial is not None
    assert trial.batch_size == 64
    late = question()
    (request,) = requests(late, (0.0, 1))
    assert request is not None
    assert late.wait(0.001) is None
    late.receive(encode(answer(request)))
    assert late.trial is None


@pytest.mark.parametrize(
    "changes",
    [
        {"run": "r2"},
        {"correlation": "somebody-elses"},
        {"batch_size": 48},
        {"batch_size": 0},
        {"batch_size": "16"},
        {"batch_size": 16.0},
        {"batch_size": None},
        {"batch_size": [16]},
        {"reason": "two words"},
        {"detail": "x" * 1_025},
        {"cost_bound": float("nan")},
        {"cost_bound": -1.0},
        {"lease_s": "long"},
    ],
    ids=str,
)
def test_foreign_and_malformed_answers_are_ignored(changes: dict[str, object]) -> None:
    asked = question()
    (request,) = requests(asked, (0.0, 1))
    assert request is not None
    good = msgpack.unpackb(encode(answer(request)))
    asked.receive(msgpack.packb(good | changes))
    assert not asked.ended
    asked.receive(encode(answer(request)))
    assert asked.trial is not None


@pytest.mark.parametrize("payload", [b"", b"\xc1", b"\x91" * 100_000, b"x" * (2 << 20), b"{}"], ids=len)
def test_bytes_that_are_no_answer_are_ignored(payload: bytes) -> None:
    connection = FakeConnection(answers=lambda request: [payload, encode(answer(request))])
    with publisher_on(connection) as publisher:
        assert publisher.batch_size(SIZES, default=32) == 16


def test_every_fault_is_named_at_once() -> None:
    faults = read_options([8, 8], 0, -1).faults
    assert [fault.partition(" ")[0] for fault in faults] == ["candidates", "default", "timeout_s"]


def test_the_later_of_two_queries_counts_and_the_earlier_one_ends() -> None:
    connection = FakeConnection()
    sizes: list[int] = []
    with publisher_on(connection) as publisher:
        first = threading.Thread(target=lambda: sizes.append(publisher.batch_size(SIZES, default=32)))
        first.start()
        wait_until(connection.requests)
        connection.answers = lambda request: [answer(request)]
        assert publisher.batch_size(SIZES, default=64) == 16
        first.join(TIMEOUT_S)
    assert sizes in ([32], [16])
    assert {topic.rpartition("/")[2] for topic in connection.subscriptions} == {
        "notice",
        "energy",
        "command",
        "answer",
    }


def test_a_second_query_of_a_run_is_sent_on_its_own() -> None:
    connection = answering()
    with publisher_on(connection) as publisher:
        assert [publisher.batch_size(SIZES, default=32) for _ in range(3)] == [16, 16, 16]
    assert len({request.correlation for request in connection.requests()}) == 3


def test_an_answer_that_is_no_candidate_gives_the_default(caplog: pytest.LogCaptureFixture) -> None:
    with publisher_on(answering(batch_size=48)) as publisher:
        assert publisher.batch_size(SIZES, default=32, timeout_s=1.0) == 32
        assert publisher.trial is None
    assert [record.message for record in caplog.records] == [
        "the batch size is the default, 32: the answer, 48, is none of the candidates, and no other came within 1 s"
    ]


def test_without_a_service_the_default_is_returned_in_time(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("publishers.training.trial.policy_client.REQUEST_INTERVAL_S", 0.02)
    connection = FakeConnection()
    with publisher_on(connection, heartbeat_s=1_000.0) as publisher:
        begin_s = time.monotonic()
        assert publisher.batch_size(SIZES, default=32, timeout_s=0.5) == 32
        assert 0.49 < time.monotonic() - begin_s < TIMEOUT_S
        n_asked = len(connection.requests())
        assert n_asked >= 3
        assert publisher.trial is None
    assert connection.statuses()[-1].batch_size == 32
    assert len(connection.requests()) == n_asked
    assert len({request.correlation for request in connection.requests()}) == n_asked
    assert len(caplog.records) == 1
    assert "no policy service answers at mqtt://127.0.0.1:1883 within 0.5 s" in caplog.text


def test_a_broker_that_was_never_there_is_tried_twice(caplog: pytest.LogCaptureFixture) -> None:
    publisher = Publisher(job="alone", rank=0, world_size=1, broker=unused_broker(), heartbeat_s=5.0)
    begin_s = time.monotonic()
    assert publisher.batch_size(SIZES, default=32, timeout_s=LONG_S) == 32
    assert 0.9 < time.monotonic() - begin_s < TIMEOUT_S
    publisher.close()
    assert [("no connection to" in record.message) for record in caplog.records] == [True, True]


def test_a_broker_that_returns_gets_the_request_at_once() -> None:
    connection = answering()
    with publisher_on(connection) as publisher:
        wait_until(connection.statuses)
        connection.up = False
        wait_until(lambda: connection.failure)
        asked = threading.Thread(target=publisher.batch_size, args=(SIZES,), kwargs={"default": 32})
        asked.start()
        failures = connection.failures
        wait_until(lambda: connection.n_retries and connection.failures > failures + 10)
        connection.up = True
        asked.join(TIMEOUT_S)
        assert not asked.is_alive()
        assert publisher.trial is not None


def test_closing_ends_the_wait_at_once(caplog: pytest.LogCaptureFixture) -> None:
    connection = FakeConnection()
    publisher = publisher_on(connection)
    begin_s = time.monotonic()

    def close_soon() -> None:
        wait_until(connection.requests)
        publisher.close()

    closing = threading.Thread(target=close_soon)
    closing.start()
    assert publisher.batch_size(SIZES, default=32, timeout_s=LONG_S) == 32
    closing.join(TIMEOUT_S)
    assert time.monotonic() - begin_s < TIMEOUT_S
    assert connection.statuses()[-1].state == "finished"
    assert [record.message for record in caplog.records] == [
        "the batch size is the default, 32: publishing was closed meanwhile"
    ]


def test_a_publisher_that_is_closed_off_or_copied_returns_the_default(
    caplog: pytest.LogCaptureFixture,
) -> None:
    closed = publisher_on(FakeConnection())
    closed.close()
    off = publisher_on(FakeConnection(), job="two words")
    for publisher in (closed, off):
        begin_s = time.monotonic()
        assert publisher.batch_size(SIZES, default=32, timeout_s=LONG_S) == 32
        assert time.monotonic() - begin_s < TIMEOUT_S
        assert publisher.trial is None
    assert [record.message for record in caplog.records][-1].endswith("publishing is off, or closed")


def test_a_publisher_whose_thread_has_ended_returns_the_default() -> None:
    def fail(_broker: object, _will: object) -> FakeConnection:
        raise RuntimeError("broken")

    publisher = Publisher(job="failing", rank=0, world_size=1, connect=fail)
    begin_s = time.monotonic()
    assert publisher.batch_size(SIZES, default=32, timeout_s=LONG_S) == 32
    assert time.monotonic() - begin_s < TIMEOUT_S
    publisher.close()


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
def test_invalid_arguments_return_the_default_with_one_warning(
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
def test_any_iterable_of_candidates_is_accepted(candidates: Iterable[int]) -> None:
    with publisher_on(answering()) as publisher:
        batch_size = publisher.batch_size(candidates, default=np.int64(32), timeout_s=np.float32(5.0))  # type: ignore[arg-type]
    assert batch_size == 16
    assert type(batch_size) is int
