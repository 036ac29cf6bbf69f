"""Giving a limit back: the prior one, only where the live one still is ours, and never forgotten before it is done."""

import shutil
from pathlib import Path

import pytest

from controller.errors import GpuError, GpuLostError
from controller.journal import Entry, Journal
from controller.restoration import give_back
from tests.fakes import FakeGpu

PRIOR_W = 280.0


def journal_of(state_dir: Path, gpu: FakeGpu, *written_power_limits_w: float, prior_w: float = PRIOR_W) -> Journal:
    """Return a journal that has this GPU on record."""
    journal = Journal.open(state_dir)
    entry = Entry(prior_power_limit_w=prior_w, written_power_limits_w=written_power_limits_w, written_at_s=1.0)
    journal.record(gpu.uuid, entry)
    return journal


def lost(gpu: FakeGpu, operation: str) -> GpuError:
    """Return what a GPU that fell off the bus says."""
    return GpuLostError("fell off the bus", gpu_uuid=gpu.uuid, operation=operation, code=15)


async def test_a_gpu_that_is_not_on_record_is_not_even_read(tmp_path: Path) -> None:
    gpu = FakeGpu()
    gpu.errors = {operation: lost(gpu, operation) for operation in ("read_limit", "read_range", "set_power_limit")}
    assert await give_back(gpu, Journal.open(tmp_path)) is None


@pytest.mark.parametrize("live_w", [250.0, 200.0], ids=["killed before the write", "killed after the write"])
async def test_either_of_the_limits_around_a_kill_is_given_back(tmp_path: Path, live_w: float) -> None:
    gpu = FakeGpu()
    gpu.requested_power_limit_w = live_w
    journal = journal_of(tmp_path, gpu, 250.0, 200.0)
    result = await give_back(gpu, journal)
    assert result is not None
    assert result.code == "restored"
    assert result.live is not None
    assert result.live.requested_power_limit_w == PRIOR_W
    assert [limit_w for _, limit_w in gpu.history] == [PRIOR_W]
    assert Journal.read(tmp_path).entries == {}


async def test_a_limit_that_is_the_prior_one_already_is_not_written_again(tmp_path: Path) -> None:
    gpu = FakeGpu()
    gpu.requested_power_limit_w = PRIOR_W
    result = await give_back(gpu, journal_of(tmp_path, gpu, PRIOR_W, 200.0))
    assert result is not None
    assert result.code == "restored"
    assert gpu.history == []
    assert Journal.read(tmp_path).entries == {}


async def test_a_limit_of_another_writer_stays_and_is_no_longer_ours(tmp_path: Path) -> None:
    gpu = FakeGpu()
    gpu.requested_power_limit_w = 220.0
    result = await give_back(gpu, journal_of(tmp_path, gpu, 250.0, 200.0))
    assert result is not None
    assert (result.code, gpu.history) == ("untouched", [])
    assert "220 W" in result.detail
    assert Journal.read(tmp_path).entries == {}


@pytest.mark.parametrize(("live_w", "code"), [(200.5, "restored"), (200.6, "untouched")])
async def test_a_limit_within_half_a_watt_is_the_same_limit(tmp_path: Path, live_w: float, code: str) -> None:
    gpu = FakeGpu()
    gpu.requested_power_limit_w = live_w
    result = await give_back(gpu, journal_of(tmp_path, gpu, 200.0))
    assert result is not None
    assert result.code == code


@pytest.mark.parametrize("operation", ["read_limit", "read_range", "set_power_limit"])
async def test_a_gpu_that_fails_stays_on_record_until_it_answers(tmp_path: Path, operation: str) -> None:
    gpu = FakeGpu()
    gpu.requested_power_limit_w = 200.0
    journal = journal_of(tmp_path, gpu, 200.0)
    gpu.errors = {operation: lost(gpu, operation)}
    result = await give_back(gpu, journal)
    assert result is not None
    assert result.code == "failed"
    assert "gridchase restore" in result.detail
    assert Journal.read(tmp_path).entries == journal.entries != {}
    gpu.errors = {}
    result = await give_back(gpu, journal)
    assert result is not None
    assert result.code == "restored"
    assert gpu.requested_power_limit_w == PRIOR_W


@pytest.mark.parametrize(("prior_w", "given_w"), [(400.0, 300.0), (90.0, 100.0)])
async def test_a_prior_limit_outside_the_range_of_a_new_driver_is_clamped(
    tmp_path: Path, prior_w: float, given_w: float
) -> None:
    gpu = FakeGpu()
    gpu.requested_power_limit_w = 200.0
    result = await give_back(gpu, journal_of(tmp_path, gpu, 200.0, prior_w=prior_w))
    assert result is not None
    assert result.code == "restored"
    assert gpu.requested_power_limit_w == given_w


async def test_a_full_disk_does_not_keep_the_limit_from_the_gpu(tmp_path: Path) -> None:
    gpu = FakeGpu()
    gpu.requested_power_limit_w = 200.0
    journal = journal_of(tmp_path / "state", gpu, 200.0)
    shutil.rmtree(tmp_path / "state")
    result = await give_back(gpu, journal)
    assert result is not None
    assert result.code == "failed"
    assert gpu.requested_power_limit_w == PRIOR_W
    assert gpu.uuid in journal.entries
