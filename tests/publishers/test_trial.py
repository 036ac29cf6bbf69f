"""A question for a batch size: which answers count, and when it is asked again."""

import logging
import threading
from collections.abc import Iterator

import msgpack
import pytest

from publishers.trial import Question, Trial, read_choices
from publishers.wire import TrialRequest, encode
from tests.publishers.answers import SIZES, answer, answering
from tests.publishers.fake_connection import FakeConnection, publisher_on, wait_until


def question() -> Question:
    return Question(read_choices(SIZES, 32, 10.0), run="r1", reply_to="answers")


def requests(asked: Question, *times: tuple[float, int]) -> Iterator[TrialRequest | None]:
    return (asked.next_request(now_s, connection) for now_s, connection in times)


def test_the_answer_is_the_batch_size_and_the_status_says_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "publishers")
    connection = answering()
    with publisher_on(connection, heartbeat_s=1_000.0) as publisher:
        before = publisher.trial
        assert publisher.batch_size(SIZES, default=32) == 16
        assert before is None
        assert publisher.trial == Trial(
            batch_size=16, reason="explored", detail="little is known of 16", recurrence=3, cost_bound=5e5
        )
    assert [status.batch_size for status in connection.statuses()][-1] == 16
    request = connection.requests()[0]
    assert (request.batch_sizes, request.default_batch_size) == (SIZES, 32)
    assert request.reply_to == "gridchase/v1/job/toy/run/r1/trial/answer"
    assert [record.message for record in caplog.records if "batch size" in record.message] == [
        "batch size 16 of [8, 16, 32, 64]: explored: little is known of 16"
    ]
    assert all(qos == 1 for topic, _, qos, _ in connection.sent if "trial" in topic)


def test_an_answer_from_whose_run_nothing_is_learned_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    connection = answering(reason="run_has_ended", detail="give it another id", recurrence=None, lease_s=None)
    with publisher_on(connection) as publisher:
        assert publisher.batch_size(SIZES, default=32) == 16
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("WARNING", "batch size 16 of [8, 16, 32, 64]: run_has_ended: give it another id")
    ]


def test_the_status_comes_before_the_first_question() -> None:
    connection = answering()
    with publisher_on(connection) as publisher:
        publisher.batch_size(SIZES, default=32)
    assert [topic.rpartition("/")[2] for topic, *_ in connection.sent][:2] == ["status", "request"]


def test_a_question_is_asked_again_each_second_and_at_once_on_a_new_connection() -> None:
    asked = question()
    seen = list(requests(asked, (5.0, 1), (5.9, 1), (6.0, 1), (6.1, 2), (6.2, 2), (7.1, 2)))
    assert [request is not None for request in seen] == [True, False, True, True, False, True]
    correlations = [request.correlation for request in seen if request is not None]
    assert len(set(correlations)) == 4
    asked.end("enough")
    assert asked.next_request(100.0, 3) is None


def test_the_answer_to_any_of_its_questions_counts() -> None:
    asked = question()
    first, *_ = requests(asked, (0.0, 1), (1.0, 1), (2.0, 1))
    assert first is not None
    asked.hear(encode(answer(first)))
    trial = asked.wait(0.001)
    assert trial is not None
    assert trial.batch_size == 16


def test_the_first_answer_counts_and_a_late_one_changes_nothing() -> None:
    asked = question()
    (request,) = requests(asked, (0.0, 1))
    assert request is not None
    for batch_size in (64, 8):
        asked.hear(encode(answer(request, batch_size=batch_size)))
    trial = asked.wait(0.001)
    assert trial is not None
    assert trial.batch_size == 64
    late = question()
    (request,) = requests(late, (0.0, 1))
    assert request is not None
    assert late.wait(0.001) is None
    late.hear(encode(answer(request)))
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
def test_answers_for_others_or_malformed_ones_are_passed_over(changes: dict[str, object]) -> None:
    asked = question()
    (request,) = requests(asked, (0.0, 1))
    assert request is not None
    good = msgpack.unpackb(encode(answer(request)))
    asked.hear(msgpack.packb(good | changes))
    assert not asked.ended
    asked.hear(encode(answer(request)))
    assert asked.trial is not None


@pytest.mark.parametrize("payload", [b"", b"\xc1", b"\x91" * 100_000, b"x" * (2 << 20), b"{}"], ids=len)
def test_bytes_that_are_no_answer_are_passed_over(payload: bytes) -> None:
    connection = FakeConnection(answers=lambda request: [payload, encode(answer(request))])
    with publisher_on(connection) as publisher:
        assert publisher.batch_size(SIZES, default=32) == 16


def test_every_fault_is_named_at_once() -> None:
    faults = read_choices([8, 8], 0, -1).faults
    assert [fault.partition(" ")[0] for fault in faults] == ["candidates", "default", "timeout_s"]


def test_the_later_of_two_questions_counts_and_the_earlier_one_ends() -> None:
    connection = FakeConnection()
    sizes: list[int] = []
    with publisher_on(connection) as publisher:
        first = threading.Thread(target=lambda: sizes.append(publisher.batch_size(SIZES, default=32)))
        first.start()
        wait_until(connection.requests)
        connection.answers = lambda request: [answer(request)]
        assert publisher.batch_size(SIZES, default=64) == 16
        first.join(5.0)
    assert sizes in ([32], [16])
    assert len(connection.subscriptions) == 2


def test_a_second_question_of_a_run_is_asked_on_its_own() -> None:
    connection = answering()
    with publisher_on(connection) as publisher:
        assert [publisher.batch_size(SIZES, default=32) for _ in range(3)] == [16, 16, 16]
    assert len({request.correlation for request in connection.requests()}) == 3
