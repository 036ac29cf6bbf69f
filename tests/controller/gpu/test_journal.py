"""The journal of prior limits: durable before a write, never guessed at."""

import asyncio
import errno
import math
import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.errors import JournalError
from controller.gpu.journal.entry import MAX_WRITTEN, JournalEntry
from controller.gpu.journal.format import decode_journal, encode_journal
from controller.gpu.journal.storage import FILE_NAME, PROBE_PERIOD_S, Journal, copy_path_of
from tests.controller.gpu.limiter_bench import break_disk, fill_disk

ENTRY = JournalEntry(prior_power_limit_w=280.0, written_power_limits_w=(280.0, 200.0), written_at_s=1_700_000_000.0)
OTHER = JournalEntry(
    prior_power_limit_w=150.5, written_power_limits_w=(150.5,), written_at_s=1_700_000_001.5, is_confirmed=False
)
UUIDS = ("GPU-8f6d1c7e-52f5-4f0e-9a9d-0b1c2d3e4f50", "GPU-8f6d1c7e-52f5-4f0e-9a9d-0b1c2d3e4f51")


def test_a_journal_that_was_never_written_is_empty(tmp_path: Path) -> None:
    assert Journal.read(tmp_path / "new" / "state").entries == {}


async def test_a_recorded_gpu_is_on_disk_when_the_call_returns(tmp_path: Path) -> None:
    await Journal.read(tmp_path / "new").record("GPU-1", ENTRY)
    assert Journal.read(tmp_path / "new").entries == {"GPU-1": ENTRY}
    assert (await Journal.load(tmp_path / "new")).entries == {"GPU-1": ENTRY}


async def test_recording_a_gpu_again_replaces_its_entry_and_leaves_the_others(tmp_path: Path) -> None:
    journal = Journal.read(tmp_path)
    await journal.record("GPU-1", ENTRY)
    await journal.record("GPU-2", ENTRY)
    await journal.record("GPU-1", OTHER)
    assert journal.entries == Journal.read(tmp_path).entries == {"GPU-1": OTHER, "GPU-2": ENTRY}


async def test_a_forgotten_gpu_is_off_the_disk_when_the_call_returns(tmp_path: Path) -> None:
    journal = Journal.read(tmp_path)
    await journal.record("GPU-1", ENTRY)
    await journal.record("GPU-2", OTHER)
    await journal.forget("GPU-1")
    assert journal.entries == Journal.read(tmp_path).entries == {"GPU-2": OTHER}


def test_forgetting_an_unknown_gpu_writes_nothing(tmp_path: Path) -> None:
    asyncio.run(Journal.read(tmp_path / "absent").forget("GPU-1"))
    assert list(tmp_path.iterdir()) == []


async def test_proving_that_it_can_be_written_keeps_what_a_killed_controller_left(tmp_path: Path) -> None:
    await Journal.read(tmp_path).record("GPU-1", ENTRY)
    journal = Journal.read(tmp_path)
    assert await journal.fault() == ""
    assert journal.entries == Journal.read(tmp_path).entries == {"GPU-1": ENTRY}


def test_reading_makes_no_directory_and_no_file(tmp_path: Path) -> None:
    assert Journal.read(tmp_path / "absent").entries == {}
    assert list(tmp_path.iterdir()) == []


def test_half_a_temporary_file_from_a_kill_is_ignored(tmp_path: Path) -> None:
    asyncio.run(Journal.read(tmp_path).record("GPU-1", ENTRY))
    (tmp_path / "journal.json.new").write_bytes(b'{"version": 2, "n_ent')
    assert asyncio.run(Journal.read(tmp_path).fault()) == ""
    assert Journal.read(tmp_path).entries == {"GPU-1": ENTRY}
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]


async def test_the_new_file_is_synced_before_the_rename_and_the_directory_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal.read(tmp_path)
    synced: list[tuple[str, bool]] = []
    real_fsync = os.fsync

    def fsync(fd: int) -> None:
        what = "directory" if stat.S_ISDIR(os.fstat(fd).st_mode) else "file"
        synced.append((what, journal.path.exists()))
        real_fsync(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    await journal.record("GPU-1", ENTRY)
    assert synced == [("file", False), ("directory", True)]


async def test_gpus_that_are_recorded_at_the_same_time_are_all_kept(tmp_path: Path) -> None:
    journal = Journal.read(tmp_path)
    uuids = [f"GPU-{number}" for number in range(16)]
    async with asyncio.TaskGroup() as tasks:
        for uuid in uuids:
            tasks.create_task(journal.record(uuid, ENTRY))
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
        b'{"version": 2, "gpus": {}}',
        b'{"version": 1, "gpus": {"GPU-1": {}}}',
        b'{"version": 1, "gpus": {"A": {"prior_power_limit_w": "1", "written_power_limits_w": [], "written_at_s": 0}}}',
        b'{"version": 1, "gpus": {"A": {"prior_power_limit_w": -1, "written_power_limits_w": [], "written_at_s": 0}}}',
        b'{"version": 1, "gpus": {"A": {"prior_power_limit_w": 1e5, "written_power_limits_w": [], "written_at_s": 0}}}',
        b'{"version": 1, "gpus": {"/": {"prior_power_limit_w": 100, "written_power_limits_w": [], "written_at_s": 0}}}',
        b"[" * 100_000,
    ],
)
def test_a_journal_that_cannot_be_understood_is_an_error_and_stays_as_it_is(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / FILE_NAME
    path.write_bytes(content)
    with pytest.raises(JournalError, match="no GPU was touched") as caught:
        Journal.read(tmp_path)
    assert str(path) in str(caught.value)
    assert path.read_bytes() == content


@pytest.mark.parametrize("content", [b'{"version": 3, "gpus": {}}', b'{"version":3}\n{"boards": []}\n'])
def test_a_journal_of_a_newer_version_is_an_error_that_names_the_version(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    with pytest.raises(JournalError, match=r"version 3: this gridchase reads versions 1 and 2; no GPU was touched"):
        Journal.read(tmp_path)
    assert (tmp_path / FILE_NAME).read_bytes() == content


def test_no_single_bit_that_flips_changes_what_is_restored() -> None:
    whole = {UUIDS[0]: ENTRY, UUIDS[1]: OTHER}
    content = encode_journal(whole, 17)
    assert decode_journal(content) == (whole, [], 17)
    for position in range(8 * len(content)):
        flipped = bytearray(content)
        flipped[position // 8] ^= 1 << position % 8
        try:
            entries, damage, _ = decode_journal(bytes(flipped))
        except ValueError:
            continue
        assert damage, "it is told"
        assert entries.items() <= whole.items(), "no entry has another value"
        assert len(entries) >= len(whole) - 1, "the other GPU is restored"


def test_no_truncation_changes_what_is_restored() -> None:
    whole = {UUIDS[0]: ENTRY, UUIDS[1]: OTHER}
    content = encode_journal(whole, 17)
    for length in range(len(content)):
        try:
            entries, damage, _ = decode_journal(content[:length])
        except ValueError:
            continue
        assert damage
        assert entries.items() < whole.items() or length == len(content) - 1


@given(st.binary(max_size=400))
def test_no_bytes_are_a_traceback(content: bytes) -> None:
    for damaged in (content, encode_journal({UUIDS[0]: ENTRY}, 3) + content):
        with suppress(ValueError):
            decode_journal(damaged)


def entries() -> st.SearchStrategy[JournalEntry]:
    """Return any entry that can be true."""
    limits_w = st.floats(0.001, 9_999.0)
    return st.builds(
        JournalEntry,
        prior_power_limit_w=limits_w,
        written_power_limits_w=st.lists(limits_w, max_size=MAX_WRITTEN).map(tuple),
        written_at_s=st.floats(0.0, 1e11),
        is_confirmed=st.booleans(),
    )


@given(st.dictionaries(st.from_regex(r"\AGPU-[a-f0-9-]{1,40}\Z"), entries(), max_size=4))
def test_what_is_written_is_what_is_read(whole: dict[str, JournalEntry]) -> None:
    assert decode_journal(encode_journal(whole, 17)) == (whole, [], 17)


async def test_whole_numbers_are_read_as_they_were_written(tmp_path: Path) -> None:
    entry = JournalEntry(prior_power_limit_w=280, written_power_limits_w=(180, 200.0), written_at_s=1)
    await Journal.read(tmp_path).record("GPU-1", entry)
    assert Journal.read(tmp_path).entries == {"GPU-1": entry}


@pytest.mark.parametrize("limit_w", [0.0, -1.0, 1e4, math.nan, math.inf])
async def test_an_entry_that_could_not_be_read_again_is_not_stored(tmp_path: Path, limit_w: float) -> None:
    journal = Journal.read(tmp_path)
    for entry in (
        JournalEntry(prior_power_limit_w=limit_w, written_power_limits_w=(), written_at_s=1.0),
        JournalEntry(prior_power_limit_w=280.0, written_power_limits_w=(limit_w,), written_at_s=1.0),
    ):
        with pytest.raises(JournalError, match="is not stored: a limit is not between"):
            await journal.record("GPU-1", entry)
    assert journal.entries == Journal.read(tmp_path).entries == {}


def test_one_bad_entry_leaves_the_others_and_the_file_is_not_written_again(tmp_path: Path) -> None:
    content = encode_journal({UUIDS[0]: ENTRY, UUIDS[1]: OTHER}, 3).replace(b"150.5", b"950.5", 1)
    (tmp_path / FILE_NAME).write_bytes(content)
    journal = Journal.read(tmp_path)
    assert journal.entries == {UUIDS[0]: ENTRY}
    assert "only those of GPU-8f6d1c7e-52f5-4f0e-9a9d-0b1c2d3e4f50 are sound" in journal.damage[0]
    assert "nvidia-smi" in journal.damage[0]
    with pytest.raises(JournalError, match="is damaged, and left as it is"):
        asyncio.run(journal.forget(UUIDS[0]))
    assert (tmp_path / FILE_NAME).read_bytes() == content


def test_a_bad_entry_of_the_first_version_leaves_the_others(tmp_path: Path) -> None:
    good = b'"GPU-1": {"prior_power_limit_w": 280.0, "written_power_limits_w": [200.0], "written_at_s": 1.0}'
    (tmp_path / FILE_NAME).write_bytes(
        b'{"version": 1, "gpus": {%s, %s}}' % (good, good.replace(b"GPU-1", b"GPU-2").replace(b"280.0", b"28000.0"))
    )
    journal = Journal.read(tmp_path)
    assert list(journal.entries) == ["GPU-1"]
    assert "the entry of 'GPU-2' is damaged (a limit is not between 0 W and 10000 W)" in journal.damage[0]


def test_a_journal_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).mkdir()
    with pytest.raises(JournalError, match="no GPU was touched"):
        Journal.read(tmp_path)


def test_a_planted_link_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "planted").write_bytes(encode_journal({"GPU-1": ENTRY}, 3))
    (tmp_path / FILE_NAME).symlink_to(tmp_path / "planted")
    with pytest.raises(JournalError, match="no GPU was touched"):
        Journal.read(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_journal_of_another_user_is_not_read(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(encode_journal({"GPU-1": ENTRY}, 3))
    os.chown(tmp_path / FILE_NAME, 65_534, 65_534)
    with pytest.raises(JournalError, match="belongs to user 65534; no GPU was touched"):
        Journal.read(tmp_path)


@pytest.mark.parametrize("state_dir", ["file", "file/below", "/proc/gridchase", "/proc/self"])
async def test_a_directory_that_cannot_be_written_is_a_fault_that_names_the_key(tmp_path: Path, state_dir: str) -> None:
    (tmp_path / "file").touch()
    fault = await Journal(tmp_path / state_dir / FILE_NAME, {}).fault()  # even root cannot make a file in /proc
    assert "set node.state_dir" in fault


async def test_an_entry_that_the_disk_refuses_is_not_taken_for_recorded(tmp_path: Path) -> None:
    journal = Journal.read(tmp_path / "state")
    await journal.record("GPU-1", ENTRY)
    break_disk(tmp_path / "state")
    with pytest.raises(JournalError, match=FILE_NAME):
        await journal.record("GPU-2", ENTRY)
    assert journal.entries == {"GPU-1": ENTRY}


async def test_an_entry_that_cannot_be_struck_is_struck_with_the_next_one_that_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal.read(tmp_path)
    await journal.record("GPU-1", ENTRY)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse)
        with pytest.raises(JournalError, match="No space left"):
            await journal.forget("GPU-1")
        assert journal.entries == {}
    await journal.record("GPU-2", OTHER)
    assert Journal.read(tmp_path).entries == {"GPU-2": OTHER}


def refuse(_: int) -> None:
    """Stand in for fsync on a full disk."""
    raise OSError(errno.ENOSPC, "No space left on device")


async def test_a_disk_that_fails_is_noticed_by_a_probe_within_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal.read(tmp_path)
    await journal.record("GPU-1", ENTRY)
    monkeypatch.setattr(os, "fsync", refuse)
    await journal.probe()
    await asyncio.sleep(PROBE_PERIOD_S)
    with pytest.raises(JournalError, match="No space left"):
        await journal.probe()
    with pytest.raises(JournalError, match="No space left"):
        await journal.probe()


def test_the_journal_is_for_its_owner_alone(tmp_path: Path) -> None:
    former = os.umask(0)
    try:
        asyncio.run(Journal.read(tmp_path / "above" / "state").record("GPU-1", ENTRY))
    finally:
        os.umask(former)
    assert stat.S_IMODE((tmp_path / "above" / "state").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "above" / "state" / FILE_NAME).stat().st_mode) == 0o600


async def test_what_a_full_disk_does_not_take_is_read_from_the_copy_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal.read(tmp_path)
    await journal.record("GPU-1", ENTRY)
    await journal.record("GPU-2", ENTRY)
    fill_disk(monkeypatch, tmp_path)
    await journal.note("GPU-1", OTHER)
    with pytest.raises(JournalError, match="No space left"):
        await journal.forget("GPU-2")
    assert Journal.read(tmp_path).entries == {"GPU-1": OTHER}


async def test_the_copy_is_stored_on_the_disk_as_soon_as_it_takes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal.read(tmp_path)
    await journal.record("GPU-1", ENTRY)
    with monkeypatch.context() as patch:
        fill_disk(patch, tmp_path)
        await journal.note("GPU-1", OTHER)
    await Journal.read(tmp_path).flush()
    copy = copy_path_of(tmp_path)
    assert copy is not None
    copy.unlink()
    assert Journal.read(tmp_path).entries == {"GPU-1": OTHER}


async def test_an_entry_that_the_disk_has_refused_is_not_in_the_copy_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal.read(tmp_path)
    await journal.record("GPU-1", ENTRY)
    fill_disk(monkeypatch, tmp_path)
    with pytest.raises(JournalError, match="No space left"):
        await journal.record("GPU-2", OTHER)
    assert Journal.read(tmp_path).entries == {"GPU-1": ENTRY}


async def test_a_journal_that_is_gone_is_read_from_its_copy_and_stored_again(tmp_path: Path) -> None:
    state_dir = tmp_path / "state"
    await Journal.read(state_dir).record("GPU-1", ENTRY)
    shutil.rmtree(state_dir)
    journal = Journal.read(state_dir)
    assert (journal.entries, journal.is_missing) == ({"GPU-1": ENTRY}, True)
    await journal.flush()
    copy = copy_path_of(state_dir)
    assert copy is not None
    copy.unlink()
    stored = Journal.read(state_dir)
    assert (stored.entries, stored.is_missing) == ({"GPU-1": ENTRY}, False)


async def test_of_a_journal_that_was_never_written_nothing_is_known(tmp_path: Path) -> None:
    journal = Journal.read(tmp_path)
    assert (journal.entries, journal.is_missing) == ({}, True)
    await journal.record("GPU-1", ENTRY)
    assert not Journal.read(tmp_path).is_missing


@pytest.mark.parametrize("n_refused", [1, 2])
async def test_a_store_that_failed_beside_one_that_did_not_is_made_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_refused: int
) -> None:
    """Two GPUs strike their entries at once; the disk takes the content of one of them alone."""
    journal = Journal.read(tmp_path)
    await journal.record("GPU-1", ENTRY)
    await journal.record("GPU-2", ENTRY)
    replace, n_calls = journal._replace, 0

    def refuse_one(content: bytes) -> None:
        nonlocal n_calls
        n_calls += 1
        if n_calls == n_refused:
            raise OSError(errno.ENOSPC, "No space left on device")
        replace(content)

    monkeypatch.setattr(journal, "_replace", refuse_one)

    async def forget(gpu_uuid: str) -> None:
        with suppress(JournalError):
            await journal.forget(gpu_uuid)

    async with asyncio.TaskGroup() as tasks:
        for gpu_uuid in ("GPU-1", "GPU-2"):
            tasks.create_task(forget(gpu_uuid))
    await journal.flush()
    stored = decode_journal((tmp_path / FILE_NAME).read_bytes())
    assert (stored.entries, journal.entries) == ({}, {})


async def test_a_copy_is_not_newer_than_the_journal_of_a_version_without_numbers(tmp_path: Path) -> None:
    journal = Journal.read(tmp_path)
    await journal.record("GPU-1", ENTRY)
    (tmp_path / FILE_NAME).write_bytes(encode_journal({"GPU-1": OTHER}, 0))
    assert Journal.read(tmp_path).entries == {"GPU-1": OTHER}


async def test_no_copy_is_left_once_every_entry_is_struck(tmp_path: Path) -> None:
    copy = copy_path_of(tmp_path)
    journal = Journal.read(tmp_path)
    await journal.record("GPU-1", ENTRY)
    assert copy is not None
    assert copy.exists()
    await journal.forget("GPU-1")
    assert list(copy.parent.iterdir()) == []


@pytest.mark.parametrize("how", ["damaged", "planted link", "open to others", "no directory"])
async def test_a_copy_that_cannot_be_trusted_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    journal = Journal.read(tmp_path)
    await journal.record("GPU-1", ENTRY)
    fill_disk(monkeypatch, tmp_path)
    await journal.note("GPU-1", OTHER)
    copy = copy_path_of(tmp_path)
    assert copy is not None
    content = copy.read_bytes()
    copy.unlink()
    if how == "damaged":
        copy.write_bytes(content.replace(b"150.5", b"150.6"))
    elif how == "planted link":
        (copy.parent / "planted").write_bytes(content)
        copy.symlink_to(copy.parent / "planted")
    elif how == "open to others":
        copy.write_bytes(content)
        copy.parent.chmod(0o777)
    else:
        copy.parent.rmdir()
        copy.parent.write_bytes(content)
    assert Journal.read(tmp_path).entries == {"GPU-1": ENTRY}


async def test_without_a_run_directory_the_disk_alone_has_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 65_534)
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert copy_path_of(tmp_path) is None
    state_dir = tmp_path / "state"
    journal = Journal(state_dir / FILE_NAME, {})
    monkeypatch.undo()
    await journal.record("GPU-1", ENTRY)
    assert Journal.read(state_dir).entries == {"GPU-1": ENTRY}
