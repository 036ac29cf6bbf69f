"""The journal of prior limits: durable before a write, never guessed at; and the restore of what it lists."""

import os
import shutil
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from controller.errors import GpuError, GpuLostError, JournalError
from controller.gpu.journal import FILE_NAME, Journal, JournalEntry, RestoreResult, restore_prior_limit
from tests.controller.gpu.limiter_bench import PRIOR_W, break_disk
from tests.fakes import FakeGpu

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
    with pytest.raises(JournalError, match=FILE_NAME):
        journal.forget("GPU-1")
    assert journal.entries == {"GPU-1": ENTRY}


FORMER_JOURNAL = b"""{
  "version": 1,
  "gpus": {
    "GPU-fake-0": {
      "prior_power_limit_w": 280.0,
      "written_power_limits_w": [
        250.0,
        200.0
      ],
      "written_at_s": 1700006400.25
    }
  }
}"""
"""As version 0.1.0 wrote it."""


async def test_a_journal_of_a_former_version_is_restored(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(FORMER_JOURNAL)
    gpu = FakeGpu()
    gpu.requested_power_limit_w = 200.0
    result = await restored(gpu, Journal.open(tmp_path))
    assert (result.code, gpu.requested_power_limit_w) == ("restored", PRIOR_W)
    assert Journal.read(tmp_path).entries == {}


def journal_of(state_dir: Path, gpu: FakeGpu, *written_power_limits_w: float, prior_w: float = PRIOR_W) -> Journal:
    """Return a journal that lists this GPU."""
    journal = Journal.open(state_dir)
    entry = JournalEntry(prior_power_limit_w=prior_w, written_power_limits_w=written_power_limits_w, written_at_s=1.0)
    journal.record(gpu.uuid, entry)
    return journal


async def restored(gpu: FakeGpu, journal: Journal) -> RestoreResult:
    """Restore a GPU that the journal lists."""
    result = await restore_prior_limit(gpu, journal)
    assert result is not None
    return result


def lost(gpu: FakeGpu, operation: str) -> GpuError:
    """Return the error of a GPU that fell off the bus."""
    return GpuLostError("fell off the bus", gpu_uuid=gpu.uuid, operation=operation, code=15)


async def test_a_gpu_that_is_not_journaled_is_not_even_read(tmp_path: Path) -> None:
    gpu = FakeGpu()
    gpu.errors = {operation: lost(gpu, operation) for operation in ("read_limit", "read_range", "set_power_limit")}
    assert await restore_prior_limit(gpu, Journal.open(tmp_path)) is None


@pytest.mark.parametrize("live_w", [250.0, 200.0], ids=["killed before the write", "killed after the write"])
async def test_either_limit_around_a_kill_is_restored(tmp_path: Path, live_w: float) -> None:
    gpu = FakeGpu()
    gpu.requested_power_limit_w = live_w
    result = await restored(gpu, journal_of(tmp_path, gpu, 250.0, 200.0))
    assert result.code == "restored"
    assert result.live is not None
    assert result.live.requested_power_limit_w == PRIOR_W
    assert [limit_w for _, limit_w in gpu.history] == [PRIOR_W]
    assert Journal.read(tmp_path).entries == {}


async def test_a_prior_limit_that_is_in_force_already_is_not_written_again(tmp_path: Path) -> None:
    gpu = FakeGpu()
    gpu.requested_power_limit_w = PRIOR_W
    result = await restored(gpu, journal_of(tmp_path, gpu, PRIOR_W, 200.0))
    assert (result.code, gpu.history) == ("restored", [])
    assert Journal.read(tmp_path).entries == {}


async def test_a_limit_of_another_writer_stays_and_is_no_longer_ours(tmp_path: Path) -> None:
    gpu = FakeGpu()
    gpu.requested_power_limit_w = 220.0
    result = await restored(gpu, journal_of(tmp_path, gpu, 250.0, 200.0))
    assert (result.code, gpu.history) == ("untouched", [])
    assert "220 W" in result.detail
    assert Journal.read(tmp_path).entries == {}


@pytest.mark.parametrize(("live_w", "code"), [(200.5, "restored"), (200.6, "untouched")])
async def test_a_limit_within_half_a_watt_is_the_same_limit(tmp_path: Path, live_w: float, code: str) -> None:
    gpu = FakeGpu()
    gpu.requested_power_limit_w = live_w
    assert (await restored(gpu, journal_of(tmp_path, gpu, 200.0))).code == code


@pytest.mark.parametrize("operation", ["read_limit", "read_range", "set_power_limit"])
async def test_a_gpu_that_fails_stays_in_the_journal_until_it_answers(tmp_path: Path, operation: str) -> None:
    gpu = FakeGpu()
    gpu.requested_power_limit_w = 200.0
    journal = journal_of(tmp_path, gpu, 200.0)
    gpu.errors = {operation: lost(gpu, operation)}
    result = await restored(gpu, journal)
    assert result.code == "failed"
    assert "gridchase restore" in result.detail
    assert Journal.read(tmp_path).entries == journal.entries != {}
    gpu.errors = {}
    assert (await restored(gpu, journal)).code == "restored"
    assert gpu.requested_power_limit_w == PRIOR_W


@pytest.mark.parametrize(("prior_w", "restored_w"), [(400.0, 300.0), (90.0, 100.0)])
async def test_a_prior_limit_outside_the_range_of_a_new_driver_is_clamped(
    tmp_path: Path, prior_w: float, restored_w: float
) -> None:
    gpu = FakeGpu()
    gpu.requested_power_limit_w = 200.0
    assert (await restored(gpu, journal_of(tmp_path, gpu, 200.0, prior_w=prior_w))).code == "restored"
    assert gpu.requested_power_limit_w == restored_w


async def test_a_full_disk_does_not_keep_the_limit_from_the_gpu(tmp_path: Path) -> None:
    gpu = FakeGpu()
    gpu.requested_power_limit_w = 200.0
    journal = journal_of(tmp_path / "state", gpu, 200.0)
    break_disk(tmp_path / "state")
    assert (await restored(gpu, journal)).code == "failed"
    assert gpu.requested_power_limit_w == PRIOR_W
    assert gpu.uuid in journal.entries
