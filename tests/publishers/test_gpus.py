"""Which GPUs a training process claims, and when it is known whether it uses any."""

from pathlib import Path

import pytest

from publishers.iterations import PublishedSized
from publishers.wire import RankStatus, decode
from tests.publishers.fake_connection import FakeConnection, publisher_on, wait_until


@pytest.fixture
def maps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the memory map of a process that nobody has told its GPUs, without CUDA so far."""
    for variable in ("CUDA_VISIBLE_DEVICES", "LOCAL_RANK"):
        monkeypatch.delenv(variable, raising=False)
    file = tmp_path / "maps"
    file.write_text("7f3a10000000-7f3a10021000 r--p 00000000 08:01 1311 /opt/torch/lib/libtorch_cuda.so\n")
    monkeypatch.setattr("publishers.sender.MAPS", file)
    monkeypatch.setattr("publishers.sender._SEEK_S", 0.001)
    return file


LIBCUDA = "7f3a30000000-7f3a30021000 r--p 00000000 08:01 1313 /usr/lib/x86_64-linux-gnu/libcuda.so.550.54.15\n"


def test_a_process_that_names_no_gpu_claims_the_first_one_as_soon_as_it_has_loaded_cuda(maps: Path) -> None:
    connection = FakeConnection()
    publisher = publisher_on(connection, heartbeat_s=1_000.0)
    wait_until(connection.statuses)
    maps.write_text(LIBCUDA)
    wait_until(lambda: len(connection.statuses()) == 2)
    maps.write_text("")  # a claim is kept
    publisher.close()
    assert [(status.state, status.gpus) for status in connection.statuses()] == [
        ("running", []),
        ("running", [0]),
        ("finished", [0]),
    ]


def test_a_process_without_cuda_claims_nothing_to_its_end(maps: Path) -> None:
    connection = FakeConnection()
    with publisher_on(connection, heartbeat_s=0.001):
        wait_until(lambda: len(connection.statuses()) >= 20)
    assert maps.exists()
    assert all(status.gpus == [] for status in connection.statuses())


@pytest.mark.parametrize("content", [LIBCUDA, None], ids=["with CUDA", "unreadable"])
def test_a_process_that_has_loaded_cuda_or_cannot_tell_claims_its_gpu_from_the_first_status(
    content: str | None, maps: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "3")
    maps.unlink() if content is None else maps.write_text(content)
    connection = FakeConnection()
    publisher_on(connection).close()
    assert [status.gpus for status in connection.statuses()] == [[3], [3]]
    assert connection.will is not None
    assert decode(connection.will.payload, RankStatus).gpus == [3]


def test_gpus_that_are_named_are_claimed_whatever_is_loaded(maps: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
    for changes, gpus in (({}, [2]), ({"gpus": [0]}, [0]), ({"gpus": []}, [])):
        connection = FakeConnection()
        publisher_on(connection, **changes).close()
        assert connection.statuses()[0].gpus == gpus
    assert maps.exists()


def test_after_a_minute_a_process_without_cuda_is_looked_at_once_a_heartbeat(
    maps: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("publishers.sender._OFTEN_S", 0.0)
    connection = FakeConnection()
    publisher = publisher_on(connection, heartbeat_s=1_000.0)
    wait_until(connection.statuses)
    maps.write_text(LIBCUDA)
    list(PublishedSized(range(10), publisher))
    wait_until(lambda: connection.n_iterations() == 10)
    publisher.close()
    assert [status.gpus for status in connection.statuses()] == [[], []]
