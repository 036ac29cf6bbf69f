"""What a controller tells a training reaches its log once a kind; so does it where no controller answers."""

import logging
from pathlib import Path
from typing import Any

import pytest

from publishers.messages.codec import encode
from publishers.messages.reports import Notice
from publishers.messages.topics import RunKey
from publishers.shared.boot_id import read_boot_id
from publishers.shared.process_identity import run_mark
from publishers.training.reporting.notices import UNHEARD_AFTER_S, RunNotices
from publishers.training.settings import resolve
from tests.publishers.training.fake_connection import FakeConnection, publisher_on, wait_until

TOPIC = "gridchase/v1/user/alice/job/toy/run/r1/notice"


def notice(code: str, **changes: Any) -> Notice:  # noqa: ANN401 — the record checks them
    """Return what this node's controller says."""
    fields: dict[str, Any] = {
        "user": "alice",
        "job": "toy",
        "run": "r1",
        "rank": 3,
        "node": "node-a",
        "boot_id": read_boot_id(),
        "time_s": 1.7e9,
        "code": code,
        "detail": f"because of {code}",
    }
    return Notice(**fields | changes)


@pytest.fixture
def notices(caplog: pytest.LogCaptureFixture) -> tuple[RunNotices, FakeConnection]:
    """Return the notices of a run that has subscribed."""
    caplog.set_level(logging.INFO, "publishers")
    settings = resolve({}, job="toy", run="r1", username="alice")
    heard, connection = RunNotices(settings), FakeConnection()
    heard.begin(settings)
    heard.subscribe(connection)
    heard.subscribe(connection)
    return heard, connection


def hear(connection: FakeConnection, *messages: Notice | bytes) -> None:
    for message in messages:
        connection.subscriptions[TOPIC](message if isinstance(message, bytes) else encode(message))


def test_a_refusal_is_one_line_however_often_it_comes(
    notices: tuple[RunNotices, FakeConnection], caplog: pytest.LogCaptureFixture
) -> None:
    hear(notices[1], *[notice("gpu_unknown"), notice("shared")] * 3)
    assert caplog.messages == [
        "rank 3: because of gpu_unknown (gpu_unknown, controller of node-a)",
        "rank 3: because of shared (shared, controller of node-a)",
    ]


def test_success_is_quiet_and_so_is_what_another_node_says(
    notices: tuple[RunNotices, FakeConnection], caplog: pytest.LogCaptureFixture
) -> None:
    hear(notices[1], notice("heard"), notice("shared", boot_id="another"), b"not json", b"{}")
    notices[0].check(is_connected=True, now_s=0.0)
    notices[0].check(is_connected=True, now_s=10 * UNHEARD_AFTER_S)
    assert caplog.messages == []


def test_a_training_on_the_cpu_is_not_told_that_it_names_no_gpu(
    notices: tuple[RunNotices, FakeConnection],
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    maps = tmp_path / "maps"
    maps.write_text("")
    monkeypatch.setattr("publishers.training.reporting.notices.MAPS", maps)
    hear(notices[1], notice("no_gpu"))
    assert caplog.messages == []
    maps.write_text("7f3a30000000-7f3a30021000 r--p 00000000 08:01 1313 /usr/lib/x86_64-linux-gnu/libcuda.so.1\n")
    hear(notices[1], notice("no_gpu"))
    assert caplog.messages == ["rank 3: because of no_gpu (no_gpu, controller of node-a)"]


def test_where_no_controller_answers_one_line_says_so_after_a_minute(
    notices: tuple[RunNotices, FakeConnection], caplog: pytest.LogCaptureFixture
) -> None:
    check = notices[0].check
    check(is_connected=True, now_s=100.0)
    check(is_connected=True, now_s=99.0 + UNHEARD_AFTER_S)
    assert caplog.messages == []
    for n_more in range(3):
        check(is_connected=True, now_s=100.0 + UNHEARD_AFTER_S + n_more)
    (line,) = caplog.messages
    assert line.startswith("no controller of this machine listens at mqtt://127.0.0.1:1883")
    assert "do its access rules let user alice publish?" in line


def test_a_minute_without_a_broker_says_nothing_about_controllers(
    notices: tuple[RunNotices, FakeConnection], caplog: pytest.LogCaptureFixture
) -> None:
    check = notices[0].check
    check(is_connected=True, now_s=100.0)
    check(is_connected=False, now_s=100.0 + UNHEARD_AFTER_S)
    check(is_connected=True, now_s=101.0 + UNHEARD_AFTER_S)
    assert caplog.messages == []


def test_a_run_listens_before_its_first_status_and_bears_its_mark() -> None:
    connection = FakeConnection()
    with publisher_on(connection, username="alice"):
        wait_until(connection.statuses)
        assert TOPIC in connection.subscriptions
        names = [(thread / "comm").read_text().strip() for thread in Path("/proc/self/task").iterdir()]
        assert run_mark(RunKey("alice", "toy", "r1")) in names


def test_a_process_that_is_joined_to_another_run_is_refused_nothing_any_more(
    notices: tuple[RunNotices, FakeConnection], caplog: pytest.LogCaptureFixture
) -> None:
    heard, connection = notices
    hear(connection, notice("gpu_taken"), notice("joined", joined="r9", rank=2))
    assert (heard.joined, heard.refusal) == (("r9", 2), None)
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


def test_a_process_that_is_counted_anew_by_itself_is_joined_to_no_run_any_more(
    notices: tuple[RunNotices, FakeConnection],
) -> None:
    heard, connection = notices
    hear(connection, notice("joined", joined="r9", rank=2), notice("heard"))
    assert heard.joined is None
