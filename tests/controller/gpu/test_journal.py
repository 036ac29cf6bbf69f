"""The journal of prior limits: durable before a write, never guessed at."""

import errno
import os
import shutil
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from controller.errors import JournalError
from controller.gpu.journal import FILE_NAME, Journal, JournalEntry
from tests.controller.gpu.limiter_bench import break_disk

ENTRY = JournalEntry(prior_power_limit_w=280.0, written_power_limits_w=(280.0, 200.0), written_at_s=1_700_000_000.0)
OTHER = JournalEntry(prior_power_limit_w=150.5, written_power_limits_w=(150.5,), written_at_s=1_700_000_001.5)


def test_a_journal_that_was_never_written_is_empty(tmp_path: Path) -> None:
    assert Journal.open(tmp_path / "new" / "state").entries == {}


def test_a_recorded_gpu_is_on_disk_when_the_call_returns(tmp_path: Path) -> None:
    Journal.open(tmp_path).record("GPU-1", ENTRY)
    assert Journal.read(tmp_path).entries == {"GPU-1": ENTRY}


def test_recording_a_gpu_again_replaces_its_entry_and_leaves_the_others(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path)
    journal.record("GPU-1", ENTRY)
    journal.record("GPU-2", ENTRY)
    journal.record("GPU-1", OTHER)
    assert journal.entries == Journal.read(tmp_path).entries == {"GPU-1": OTHER, "GPU-2": ENTRY}


def test_a_forgotten_gpu_is_off_the_disk_when_the_call_returns(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path)
    journal.record("GPU-1", ENTRY)
    journal.record("GPU-2", OTHER)
    journal.forget("GPU-1")
    assert journal.entries == Journal.read(tmp_path).entries == {"GPU-2": OTHER}


def test_forgetting_an_unknown_gpu_writes_nothing(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path)
    shutil.rmtree(tmp_path)
    journal.forget("GPU-1")
    assert not tmp_path.exists()


def test_opening_keeps_what_a_killed_controller_left(tmp_path: Path) -> None:
    Journal.open(tmp_path).record("GPU-1", ENTRY)
    assert Journal.open(tmp_path).entries == {"GPU-1": ENTRY}


def test_reading_makes_no_directory_and_no_file(tmp_path: Path) -> None:
    assert Journal.read(tmp_path / "absent").entries == {}
    assert list(tmp_path.iterdir()) == []


def test_half_a_temporary_file_from_a_kill_is_ignored(tmp_path: Path) -> None:
    Journal.open(tmp_path).record("GPU-1", ENTRY)
    (tmp_path / FILE_NAME).with_name("journal.json.new").write_bytes(b'{"version": 1, "gpus": {"GPU-')
    assert Journal.open(tmp_path).entries == {"GPU-1": ENTRY}


def test_the_new_file_is_synced_before_the_rename_and_the_directory_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal.open(tmp_path)
    synced: list[tuple[str, bool]] = []
    real_fsync = os.fsync

    def fsync(fd: int) -> None:
        what = "directory" if stat.S_ISDIR(os.fstat(fd).st_mode) else "file"
        synced.append((what, "GPU-1" in Journal.read(tmp_path).entries))
        real_fsync(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    journal.record("GPU-1", ENTRY)
    assert synced == [("file", False), ("directory", True)]


def test_concurrent_threads_lose_no_entry(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path)
    uuids = [f"GPU-{number}" for number in range(16)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda uuid: journal.record(uuid, ENTRY), uuids))
    assert Journal.read(tmp_path).entries == dict.fromkeys(uuids, ENTRY)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe\x00",
        b"[]",
        b'{"gpus": {}}',
        b'{"version": 1}',
        b'{"version": 1, "gpus": {"GPU-1": {}}}',
        b'{"version": 1, "gpus": {"A": {"prior_power_limit_w": "1", "written_power_limits_w": [], "written_at_s": 0}}}',
    ],
)
def test_a_journal_that_cannot_be_understood_is_an_error_and_stays_as_it_is(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / FILE_NAME
    path.write_bytes(content)
    for access in (Journal.open, Journal.read):
        with pytest.raises(JournalError, match="no GPU was touched") as caught:
            access(tmp_path)
        assert str(path) in str(caught.value)
    assert path.read_bytes() == content


@pytest.mark.parametrize("content", [b'{"version": 2, "gpus": {}}', b'{"version": 2, "boards": []}'])
def test_a_journal_of_a_newer_version_is_an_error_that_names_the_version(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    with pytest.raises(JournalError, match=r"version 2: this gridchase reads version 1; no GPU was touched"):
        Journal.open(tmp_path)
    assert (tmp_path / FILE_NAME).read_bytes() == content


def test_a_journal_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).mkdir()
    with pytest.raises(JournalError, match="no GPU was touched"):
        Journal.read(tmp_path)


@pytest.mark.parametrize("state_dir", ["file", "file/below", "/proc/gridchase"])
def test_a_directory_that_cannot_be_created_is_an_error_that_names_the_key(tmp_path: Path, state_dir: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(JournalError, match=r"set node\.state_dir"):
        Journal.open(tmp_path / state_dir)


def test_a_directory_that_cannot_be_written_is_detected_at_opening() -> None:
    # Even root cannot make a file there.
    with pytest.raises(JournalError, match=r"set node\.state_dir"):
        Journal.open(Path("/proc/self"))


def test_an_entry_that_the_disk_refuses_is_not_taken_for_recorded(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "state")
    journal.record("GPU-1", ENTRY)
    break_disk(tmp_path / "state")
    with pytest.raises(JournalError, match=FILE_NAME):
        journal.record("GPU-2", ENTRY)
    assert journal.entries == {"GPU-1": ENTRY}


def test_an_entry_that_cannot_be_struck_is_struck_with_the_next_one_that_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal.open(tmp_path)
    journal.record("GPU-1", ENTRY)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse)
        with pytest.raises(JournalError, match="No space left"):
            journal.forget("GPU-1")
        assert journal.entries == {}
    journal.record("GPU-2", OTHER)
    assert Journal.read(tmp_path).entries == {"GPU-2": OTHER}


def refuse(_: int) -> None:
    """Stand in for fsync on a full disk."""
    raise OSError(errno.ENOSPC, "No space left on device")
