"""The restore of prior limits: done when the limit is confirmed, and only then."""

import asyncio
from pathlib import Path

import pytest

from controller.errors import GpuError, GpuLostError
from controller.gpu.journal.entry import JournalEntry, entry_before_write
from controller.gpu.journal.storage import FILE_NAME, Journal
from controller.gpu.read_back import (
    LOOK_AGAIN_S,
    MAX_REWRITES,
    ReadBack,
    RestoreResult,
    judge_read_back,
    restore_prior_limit,
)
from controller.ports import LiveLimit
from tests.controller.gpu.limiter_bench import PRIOR_W, break_disk, fill_disk
from tests.fakes import FakeGpu

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
    result = await restored(gpu, Journal.read(tmp_path))
    assert (result.code, gpu.requested_power_limit_w) == ("restored", PRIOR_W)
    assert Journal.read(tmp_path).entries == {}


async def journal_of(
    state_dir: Path, gpu: FakeGpu, *written_power_limits_w: float, prior_w: float = PRIOR_W, is_confirmed: bool = True
) -> Journal:
    """Return a journal that lists this GPU."""
    journal = Journal.read(state_dir)
    entry = JournalEntry(
        prior_power_limit_w=prior_w,
        written_power_limits_w=written_power_limits_w,
        written_at_s=1.0,
        is_confirmed=is_confirmed,
    )
    await journal.record(gpu.uuid, entry)
    return journal


async def restored(gpu: FakeGpu, journal: Journal) -> RestoreResult:
    """Restore a GPU that the journal lists."""
    result = await restore_prior_limit(gpu, journal, gpu.clock)
    assert result is not None
    return result


def lost(gpu: FakeGpu, operation: str) -> GpuError:
    """Return the error of a GPU that fell off the bus."""
    return GpuLostError("fell off the bus", gpu_uuid=gpu.uuid, operation=operation, code=15)


async def test_a_gpu_that_is_not_journaled_is_not_even_read(tmp_path: Path) -> None:
    gpu = FakeGpu()
    gpu.errors = {operation: lost(gpu, operation) for operation in ("read_limit", "read_range", "set_power_limit")}
    assert await restore_prior_limit(gpu, Journal.read(tmp_path), gpu.clock) is None


@pytest.mark.parametrize("live_w", [250.0, 200.0], ids=["killed before the write", "killed after the write"])
async def test_either_limit_around_a_kill_is_restored(tmp_path: Path, live_w: float) -> None:
    gpu = FakeGpu()
    gpu.requested_power_limit_w = live_w
    result = await restored(gpu, await journal_of(tmp_path, gpu, 250.0, 200.0))
    assert result.code == "restored"
    assert result.live is not None
    assert result.live.requested_power_limit_w == PRIOR_W
    assert [limit_w for _, limit_w in gpu.history] == [PRIOR_W]
    assert Journal.read(tmp_path).entries == {}


async def test_a_prior_limit_that_is_in_force_already_is_not_written_again(tmp_path: Path) -> None:
    gpu = FakeGpu()
    gpu.requested_power_limit_w = PRIOR_W
    result = await restored(gpu, await journal_of(tmp_path, gpu, PRIOR_W, 200.0))
    assert (result.code, gpu.history) == ("restored", [])
    assert Journal.read(tmp_path).entries == {}


async def test_a_limit_of_another_writer_stays_and_is_no_longer_ours(tmp_path: Path) -> None:
    gpu = FakeGpu()
    gpu.requested_power_limit_w = 220.0
    result = await restored(gpu, await journal_of(tmp_path, gpu, 250.0, 200.0))
    assert (result.code, gpu.history) == ("untouched", [])
    assert "220 W" in result.detail
    assert Journal.read(tmp_path).entries == {}


@pytest.mark.parametrize(("live_w", "code"), [(200.5, "restored"), (200.6, "untouched")])
async def test_a_limit_within_half_a_watt_is_the_same_limit(tmp_path: Path, live_w: float, code: str) -> None:
    gpu = FakeGpu()
    gpu.requested_power_limit_w = live_w
    assert (await restored(gpu, await journal_of(tmp_path, gpu, 200.0))).code == code


@pytest.mark.parametrize("operation", ["read_limit", "read_range", "set_power_limit"])
async def test_a_gpu_that_fails_stays_in_the_journal_until_it_answers(tmp_path: Path, operation: str) -> None:
    gpu = FakeGpu()
    gpu.requested_power_limit_w = 200.0
    journal = await journal_of(tmp_path, gpu, 200.0)
    gpu.errors = {operation: lost(gpu, operation)}
    result = await restored(gpu, journal)
    assert result.code == "failed"
    assert "gridchase restore" in result.detail
    assert Journal.read(tmp_path).entries.keys() == journal.entries.keys() == {gpu.uuid}
    gpu.errors = {}
    assert (await restored(gpu, journal)).code == "restored"
    assert gpu.requested_power_limit_w == PRIOR_W


@pytest.mark.parametrize(("prior_w", "restored_w"), [(400.0, 300.0), (90.0, 100.0)])
async def test_a_prior_limit_outside_the_range_of_a_new_driver_is_clamped(
    tmp_path: Path, prior_w: float, restored_w: float
) -> None:
    gpu = FakeGpu()
    gpu.requested_power_limit_w = 200.0
    assert (await restored(gpu, await journal_of(tmp_path, gpu, 200.0, prior_w=prior_w))).code == "restored"
    assert gpu.requested_power_limit_w == restored_w


async def test_a_full_disk_does_not_keep_the_limit_from_the_gpu(tmp_path: Path) -> None:
    gpu = FakeGpu()
    gpu.requested_power_limit_w = 200.0
    journal = await journal_of(tmp_path / "state", gpu, 200.0)
    break_disk(tmp_path / "state")
    result = await restored(gpu, journal)
    assert (result.code, gpu.requested_power_limit_w) == ("restored", PRIOR_W)
    assert "its entry stays in the journal until that can be written" in result.journal_fault
    assert journal.entries == {}


def limited_gpu(limit_w: float = 200.0) -> FakeGpu:
    """Return a GPU with a limit that a controller has left behind."""
    gpu = FakeGpu()
    gpu.requested_power_limit_w = limit_w
    return gpu


async def test_a_restore_that_the_driver_ignores_has_failed_and_stays_in_the_journal(tmp_path: Path) -> None:
    gpu = limited_gpu()
    journal = await journal_of(tmp_path, gpu, 200.0)
    gpu.n_ignored_writes = 1
    result = await restored(gpu, journal)
    assert result.code == "failed"
    assert "still is 200 W, not the prior 280 W" in result.detail
    assert Journal.read(tmp_path).entries == journal.entries != {}
    assert (await restored(gpu, journal)).code == "restored", "the next try has an effect"
    assert gpu.requested_power_limit_w == PRIOR_W


async def test_a_restore_that_takes_effect_late_is_waited_for(tmp_path: Path) -> None:
    gpu = limited_gpu()
    gpu.write_delay_s = 0.8 * LOOK_AGAIN_S
    result = await restored(gpu, await journal_of(tmp_path, gpu, 200.0))
    assert (result.code, gpu.requested_power_limit_w) == ("restored", PRIOR_W)
    assert Journal.read(tmp_path).entries == {}


async def test_a_late_write_that_lands_after_the_restore_is_noticed_and_undone(tmp_path: Path) -> None:
    gpu = limited_gpu(PRIOR_W)
    journal = await journal_of(tmp_path, gpu, PRIOR_W, 200.0)
    gpu.write_delay_s = 0.3
    await gpu.set_power_limit(200.0)  # by a controller that was stopped before it took effect
    assert gpu.requested_power_limit_w == PRIOR_W
    assert (await restored(gpu, journal)).code == "restored"
    assert gpu.requested_power_limit_w == PRIOR_W
    assert [limit_w for _, limit_w in gpu.history] == [200.0, PRIOR_W]


async def test_after_a_write_that_was_never_seen_back_the_prior_limit_is_always_written(tmp_path: Path) -> None:
    gpu = limited_gpu(PRIOR_W)
    journal = await journal_of(tmp_path, gpu, PRIOR_W, 200.0, is_confirmed=False)
    gpu.write_delay_s = 5.0
    await gpu.set_power_limit(200.0)
    assert (await restored(gpu, journal)).code == "restored"
    await gpu.clock.sleep_until(gpu.clock.now_s() + 10.0)
    assert gpu.requested_power_limit_w == PRIOR_W, "later than anybody looks, but in the order of the writes"


async def test_a_limit_that_keeps_coming_back_is_not_taken_for_restored(tmp_path: Path) -> None:
    gpu = limited_gpu()
    journal = await journal_of(tmp_path, gpu, 200.0)
    real_read, n_reads = gpu.read_limit, 0

    async def read_limit() -> LiveLimit:
        nonlocal n_reads
        n_reads += 1
        if n_reads % 3 == 0:
            gpu.set_externally(200.0)
        return await real_read()

    gpu.read_limit = read_limit  # type: ignore[method-assign]
    assert (await restored(gpu, journal)).code == "failed"
    assert len(gpu.history) == 1 + MAX_REWRITES
    assert gpu.uuid in Journal.read(tmp_path).entries


async def test_what_another_writer_sets_while_the_restore_is_looked_at_stays(tmp_path: Path) -> None:
    gpu = limited_gpu()
    journal = await journal_of(tmp_path, gpu, 200.0)
    async with asyncio.TaskGroup() as tasks:
        restoring = tasks.create_task(restored(gpu, journal))
        await asyncio.sleep(LOOK_AGAIN_S / 2)
        gpu.set_externally(222.0)
    assert (restoring.result().code, gpu.requested_power_limit_w) == ("untouched", 222.0)


async def test_a_restore_that_the_board_clamps_has_failed_and_is_ours_at_the_next_try(tmp_path: Path) -> None:
    gpu = limited_gpu()
    journal = await journal_of(tmp_path, gpu, 200.0)
    gpu.board_limit_w = lambda limit_w: min(limit_w, 260.0)
    assert (await restored(gpu, journal)).code == "failed"
    assert 260.0 in Journal.read(tmp_path).entries[gpu.uuid].written_power_limits_w
    gpu.board_limit_w = lambda limit_w: limit_w
    assert (await restored(gpu, Journal.read(tmp_path))).code == "restored"
    assert gpu.requested_power_limit_w == PRIOR_W


async def test_a_restore_clamped_while_the_disk_is_full_is_ours_after_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = limited_gpu()
    journal = await journal_of(tmp_path, gpu, 200.0)
    gpu.board_limit_w = lambda limit_w: min(limit_w, 251.0)
    with monkeypatch.context() as patch:
        fill_disk(patch, tmp_path)
        assert (await restored(gpu, journal)).code == "failed"
    gpu.board_limit_w = lambda limit_w: limit_w
    assert gpu.requested_power_limit_w == 251.0
    assert (await restored(gpu, Journal.read(tmp_path))).code == "restored"
    assert gpu.requested_power_limit_w == PRIOR_W


async def test_what_the_board_made_of_a_restore_that_was_killed_is_ours(tmp_path: Path) -> None:
    gpu = limited_gpu()
    journal = await journal_of(tmp_path, gpu, 200.0)
    gpu.board_limit_w = lambda limit_w: min(limit_w, 160.0)
    async with asyncio.TaskGroup() as tasks:
        killed = tasks.create_task(restored(gpu, journal))
        await asyncio.sleep(LOOK_AGAIN_S / 2)
        killed.cancel()
    assert gpu.requested_power_limit_w == 160.0
    gpu.board_limit_w = lambda limit_w: limit_w
    assert (await restored(gpu, Journal.read(tmp_path))).code == "restored"
    assert gpu.requested_power_limit_w == PRIOR_W


async def test_what_the_board_made_of_a_write_before_a_kill_is_ours(tmp_path: Path) -> None:
    gpu = limited_gpu(220.0)
    journal = await journal_of(tmp_path, gpu, PRIOR_W, 200.0, is_confirmed=False)
    assert (await restored(gpu, journal)).code == "restored"
    assert gpu.requested_power_limit_w == PRIOR_W


@pytest.mark.parametrize("live_w", [300.0, 290.0], ids=["the default", "above the prior limit"])
async def test_after_a_kill_no_limit_above_the_prior_one_is_ours(tmp_path: Path, live_w: float) -> None:
    gpu = limited_gpu(live_w)
    journal = await journal_of(tmp_path, gpu, PRIOR_W, 200.0, is_confirmed=False)
    assert (await restored(gpu, journal)).code == "untouched"
    assert gpu.history == []


async def test_a_kill_after_a_clamped_restore_leaves_a_limit_that_is_ours(tmp_path: Path) -> None:
    gpu = limited_gpu()
    journal = await journal_of(tmp_path, gpu, 200.0, prior_w=400.0)
    gpu.set_externally(300.0)  # the prior limit, within what the new driver accepts; the kill came before the strike
    assert (await restored(gpu, journal)).code == "restored"


@pytest.mark.parametrize(
    ("live_w", "outcome"),
    [(200.4, ReadBack.OURS), (240.0, ReadBack.LATE), (PRIOR_W, ReadBack.LATE), (220.0, ReadBack.CLAMPED)],
)
def test_what_is_read_right_after_a_write_is_never_another_writers(live_w: float, outcome: ReadBack) -> None:
    entry = entry_before_write(
        None, prior_power_limit_w=PRIOR_W, live_power_limit_w=240.0, asked_power_limit_w=200.0, now_s=1.0
    )
    live = LiveLimit(requested_power_limit_w=live_w, enforced_power_limit_w=live_w)
    assert judge_read_back(live, 200.0, entry) is outcome


async def test_a_restore_that_was_clamped_and_cancelled_is_ours_at_the_next_try(tmp_path: Path) -> None:
    gpu = limited_gpu()
    journal = await journal_of(tmp_path, gpu, 200.0)
    gpu.board_limit_w = lambda limit_w: min(limit_w, 260.0)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(LOOK_AGAIN_S / 2):  # a controller that is stopped, or killed, at that moment
            await restored(gpu, journal)
    assert gpu.requested_power_limit_w == 260.0
    gpu.board_limit_w = lambda limit_w: limit_w
    assert (await restored(gpu, Journal.read(tmp_path))).code == "restored"
    assert gpu.requested_power_limit_w == PRIOR_W
