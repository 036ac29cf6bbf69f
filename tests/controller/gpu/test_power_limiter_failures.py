"""Failures of the power limiter: each becomes a state with a reason, and no limit is stranded."""

import asyncio
import errno
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from controller.errors import GpuError, GpuNotSupportedError, GpuSuspectError
from controller.gpu.journal.storage import Journal
from controller.gpu.power_limiter import RECONCILE_S, STOP_TIMEOUT_S
from controller.ports import Hold, LiveLimit
from tests.controller.gpu.limiter_bench import (
    PRIOR_W,
    RESTORE,
    SOON_S,
    LimiterBench,
    break_disk,
    forbidden,
    hours,
    lost,
)
from tests.fakes import FakeGpu

BUSY = GpuSuspectError("no answer within 2 s", gpu_uuid="GPU-fake-0", operation="read_limit")


async def test_without_permission_it_only_observes_and_reports_it_once(tmp_path: Path) -> None:
    bench = LimiterBench(tmp_path)
    bench.gpu.errors = {"set_power_limit": forbidden(bench.gpu)}
    async with bench.running():
        await bench.request(200.0)
        assert (bench.hold, bench.is_journaled()) == (Hold.OBSERVING, False)
        bench.gpu.errors = {}
        await bench.request(150.0)
        await hours(1)
        assert bench.written_w == [], "not written again in this hold"
        await bench.release()
    assert bench.reasons == ["no_permission", "run_finished"]
    assert bench.limiter.state is not None
    assert bench.limiter.state.reason == "run_finished", "the state says it, too"
    assert "CAP_SYS_ADMIN" in bench.changes[0].detail


async def test_the_next_hold_tries_to_write_again(tmp_path: Path) -> None:
    bench = LimiterBench(tmp_path)
    bench.gpu.errors = {"set_power_limit": forbidden(bench.gpu)}
    async with bench.running():
        await bench.request(200.0)
        await bench.release()
        bench.gpu.errors = {}
        await bench.request(200.0)
        assert bench.hold is Hold.HELD
    assert bench.written_w == [200.0]


async def test_a_gpu_without_power_limits_is_observed(tmp_path: Path) -> None:
    bench = LimiterBench(tmp_path)
    error = GpuNotSupportedError("not supported", gpu_uuid=bench.gpu.uuid, operation="set_power_limit", code=3)
    bench.gpu.errors = {"set_power_limit": error}
    async with bench.running():
        await bench.request(200.0)
        assert bench.hold is Hold.OBSERVING
    assert bench.reasons == ["not_supported"]


async def test_a_partitioned_gpu_is_observed(tmp_path: Path) -> None:
    bench = LimiterBench(tmp_path)
    bench.gpu.mig = True
    async with bench.running():
        await bench.request(200.0)
        await bench.request(150.0)
        assert bench.hold is Hold.OBSERVING
    assert (bench.reasons, bench.written_w) == (["mig"], [])


async def test_permission_lost_during_a_hold_keeps_the_journal_entry(tmp_path: Path) -> None:
    bench = LimiterBench(tmp_path)
    async with bench.running():
        await bench.request(200.0)
        bench.gpu.errors = {"set_power_limit": forbidden(bench.gpu)}
        await bench.request(150.0)
        assert (bench.hold, bench.is_journaled()) == (Hold.OBSERVING, True)
        bench.gpu.errors = {}
        await bench.release()
    assert bench.gpu.requested_power_limit_w == PRIOR_W
    assert not bench.is_journaled()


async def test_without_a_writable_journal_nothing_is_written(tmp_path: Path) -> None:
    bench = LimiterBench(tmp_path / "state")
    break_disk(tmp_path / "state")
    async with bench.running():
        await bench.request(200.0)
        assert bench.hold is Hold.OBSERVING
    assert (bench.reasons, bench.written_w) == (["journal_failed"], [])


async def test_a_journal_that_fails_during_a_hold_restores_the_limit(tmp_path: Path) -> None:
    bench = LimiterBench(tmp_path / "state")
    async with bench.running():
        await bench.request(200.0)
        break_disk(tmp_path / "state")
        await bench.request(150.0)
        assert bench.hold is Hold.OBSERVING
    assert bench.written_w == [200.0, PRIOR_W]


async def test_a_journal_that_can_be_written_again_brings_the_limit_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = LimiterBench(tmp_path)
    async with bench.running():
        await bench.request(200.0)
        with monkeypatch.context() as patch:
            patch.setattr("controller.gpu.journal.storage.replace_file", full)
            await bench.request(150.0)
            await asyncio.sleep(SOON_S)
            assert (bench.hold, bench.gpu.requested_power_limit_w) == (Hold.OBSERVING, PRIOR_W)
            await hours(0.2)
            assert bench.gpu.requested_power_limit_w == PRIOR_W, "no limit without a journal"
        await asyncio.sleep(RECONCILE_S + SOON_S)
        assert (bench.hold, bench.gpu.requested_power_limit_w) == (Hold.HELD, 150.0)
        assert bench.is_journaled()
    assert bench.reasons == ["planned", "journal_failed", "planned"]
    assert "No space left on device" in bench.changes[1].detail


async def test_a_disk_that_fails_while_a_limit_is_held_gives_it_back_within_two_minutes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = LimiterBench(tmp_path)
    async with bench.running():
        await bench.request(200.0)
        monkeypatch.setattr("controller.gpu.journal.storage.replace_file", full)
        await asyncio.sleep(100.0)
        assert (bench.hold, bench.gpu.requested_power_limit_w) == (Hold.OBSERVING, PRIOR_W)
    assert bench.reasons == ["planned", "journal_failed"]


async def test_a_release_on_a_full_disk_is_done_and_says_what_stays_in_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = LimiterBench(tmp_path)
    async with bench.running():
        await bench.request(200.0)
        monkeypatch.setattr("controller.gpu.journal.storage.replace_file", full)
        await bench.release()
        assert (bench.hold, bench.gpu.requested_power_limit_w) == (Hold.FREE, PRIOR_W)
    assert await bench.limiter.stop() == "", "nothing is left to restore"
    assert bench.reasons == ["planned", "run_finished"]
    assert "its entry stays in the journal until that can be written" in bench.changes[-1].detail


def full(_: Path, __: bytes, **_options: object) -> None:
    """Stand in for `replace_file` on a full disk."""
    raise OSError(errno.ENOSPC, "No space left on device")


async def test_a_gpu_that_fails_at_first_is_suspect_until_it_answers(tmp_path: Path) -> None:
    bench = LimiterBench(tmp_path)
    bench.gpu.errors = {"read_range": lost(bench.gpu)}
    async with bench.running():
        assert (bench.limiter.state, bench.reasons) == (None, ["gpu_suspect"])
        bench.gpu.errors = {}
        await asyncio.sleep(RECONCILE_S + SOON_S)
        assert bench.hold is Hold.FREE
    assert bench.reasons == ["gpu_suspect", "answers_again"], "the last word on it must not be that it is suspect"


async def test_a_limit_outside_a_range_that_has_just_changed_is_retried_within_it(tmp_path: Path) -> None:
    bench = LimiterBench(tmp_path)
    async with bench.running():
        await bench.request(200.0)
        bench.gpu.range = type(bench.gpu.range)(
            min_power_limit_w=180.0, max_power_limit_w=300.0, default_power_limit_w=300.0
        )
        await bench.request(150.0)
        await asyncio.sleep(RECONCILE_S + SOON_S)
        assert (bench.hold, bench.gpu.requested_power_limit_w) == (Hold.HELD, 180.0)
        await bench.release()
    assert bench.written_w == [200.0, 180.0, PRIOR_W]


async def test_a_failed_restore_is_retried_until_the_gpu_answers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench = LimiterBench(tmp_path)
    async with bench.running():
        await bench.request(200.0)
        bench.gpu.errors = {"set_power_limit": lost(bench.gpu, "set_power_limit")}
        await bench.release()
        assert (bench.hold, bench.is_journaled()) == (Hold.SUSPECT, True)
        await hours(1)
        assert bench.is_journaled()
        bench.gpu.errors = {}
        await asyncio.sleep(RECONCILE_S + SOON_S)
        assert (bench.hold, bench.is_journaled()) == (Hold.FREE, False)
    assert bench.written_w == [200.0, PRIOR_W]
    assert bench.reasons == ["planned", "run_finished_failed", "restored_late"]
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 1, "an hour of failures is one line"


async def test_a_limit_that_the_start_could_not_restore_is_restored_later(tmp_path: Path) -> None:
    first = LimiterBench(tmp_path)
    async with first.running():
        await first.request(200.0)
    second = LimiterBench(tmp_path, gpu=first.gpu)
    async with second.running():
        await asyncio.sleep(RECONCILE_S + SOON_S)
        assert (second.hold, second.is_journaled()) == (Hold.FREE, False)
    assert second.gpu.requested_power_limit_w == PRIOR_W
    assert second.reasons == ["restored_late"]


async def test_a_suspect_gpu_that_is_released_gets_its_limit_when_it_answers(tmp_path: Path) -> None:
    bench = LimiterBench(tmp_path)
    async with bench.running():
        await bench.request(200.0)
        bench.gpu.errors = {operation: lost(bench.gpu) for operation in ("read_limit", "read_range", "set_power_limit")}
        await asyncio.sleep(RECONCILE_S + SOON_S)
        await bench.release()
        bench.gpu.errors = {}
        await asyncio.sleep(RECONCILE_S + SOON_S)
        assert bench.hold is Hold.FREE
    assert bench.gpu.requested_power_limit_w == PRIOR_W


def hang(gpu: FakeGpu) -> None:
    """Let writes hang."""
    gpu.write_gate = asyncio.Event()


def be_busy(gpu: FakeGpu) -> None:
    """Let reads fail because the driver does not answer in time."""
    gpu.errors["read_limit"] = BUSY


@pytest.mark.parametrize("fail", [hang, be_busy])
async def test_a_gpu_that_does_not_answer_delays_the_stop_by_ten_seconds_at_most(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, fail: Callable[[FakeGpu], None]
) -> None:
    bench = LimiterBench(tmp_path)
    async with bench.running():
        await bench.request(200.0)
    fail(bench.gpu)
    begin_s = asyncio.get_running_loop().time()
    await bench.limiter.stop()
    assert asyncio.get_running_loop().time() - begin_s == pytest.approx(STOP_TIMEOUT_S)
    assert bench.is_journaled(), "the next start, or `gridchase restore`, restores it"
    assert f"not restored in 10 s; run `{RESTORE}`" in caplog.text


async def test_stop_retries_a_busy_gpu_until_it_has_its_limit(tmp_path: Path) -> None:
    bench = LimiterBench(tmp_path)
    async with bench.running():
        await bench.request(150.0)
    be_busy(bench.gpu)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(bench.limiter.stop())
        await asyncio.sleep(3.0)
        assert bench.gpu.requested_power_limit_w == 150.0
        bench.gpu.errors = {}
    assert bench.gpu.requested_power_limit_w == PRIOR_W
    assert not bench.is_journaled()


class BuggyGpu(FakeGpu):
    """A GPU whose driver package has a bug."""

    is_buggy = False

    async def read_limit(self) -> LiveLimit:
        if self.is_buggy:
            raise ZeroDivisionError("a bug")
        return await super().read_limit()


async def test_a_bug_during_a_restore_is_logged_and_keeps_the_journal_entry(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gpu = BuggyGpu()
    gpu.requested_power_limit_w = PRIOR_W
    bench = LimiterBench(tmp_path, gpu=gpu)
    async with bench.running():
        await bench.request(200.0)
    gpu.is_buggy = True
    await bench.limiter.stop()
    assert "ZeroDivisionError" in caplog.text
    assert gpu.uuid in Journal.read(tmp_path).entries


async def test_a_bug_in_a_call_ends_the_worker(tmp_path: Path) -> None:
    gpu = BuggyGpu()
    bench = LimiterBench(tmp_path, gpu=gpu)
    gpu.is_buggy = True
    with pytest.raises(ExceptionGroup) as caught:
        await bench.running().__aenter__()
    assert caught.group_contains(ZeroDivisionError)


async def test_stop_before_the_first_read_still_restores_what_a_kill_left(tmp_path: Path) -> None:
    first = LimiterBench(tmp_path)
    async with first.running():
        await first.request(200.0)
    second = LimiterBench(tmp_path, gpu=first.gpu)
    await second.limiter.stop()
    assert (second.gpu.requested_power_limit_w, second.is_journaled()) == (PRIOR_W, False)


@pytest.mark.parametrize("error", [forbidden, lost])
async def test_a_yielded_gpu_that_fails_meanwhile_stays_unwritten_until_the_release(
    tmp_path: Path, error: Callable[[FakeGpu], GpuError]
) -> None:
    bench = LimiterBench(tmp_path)
    async with bench.running():
        await bench.request(200.0)
        bench.gpu.set_externally(220.0)
        await bench.request(150.0)
        assert bench.hold is Hold.YIELDED
        bench.gpu.errors = {"read_limit": error(bench.gpu), "read_range": lost(bench.gpu)}
        await hours(0.1)
        bench.gpu.errors = {}
        await hours(0.1)
        await bench.request(150.0)
        assert bench.hold in {Hold.YIELDED, Hold.OBSERVING}
        await bench.release()
        await bench.request(150.0)
    assert bench.written_w == [200.0, 150.0], "the next hold writes again"


async def test_a_gpu_that_failed_while_free_is_free_again_for_the_next_job(tmp_path: Path) -> None:
    bench = LimiterBench(tmp_path)
    async with bench.running():
        bench.gpu.errors = {"read_range": forbidden(bench.gpu)}
        await hours(0.1)
        bench.gpu.errors = {}
        await hours(0.1)
        assert bench.hold is Hold.FREE
        await bench.request(200.0)
    assert bench.written_w == [200.0]


async def test_a_limit_that_the_operator_set_after_a_kill_becomes_the_prior_one(tmp_path: Path) -> None:
    gpu = FakeGpu()
    gpu.requested_power_limit_w = PRIOR_W
    killed = LimiterBench(tmp_path, gpu=gpu)
    async with killed.running():
        await killed.request(150.0)
    gpu.set_externally(200.0)
    bench = LimiterBench(tmp_path, gpu=gpu)
    async with bench.running():
        await bench.request(125.0)
        assert gpu.requested_power_limit_w == 125.0
        await bench.release()
        await asyncio.sleep(SOON_S)
    assert gpu.requested_power_limit_w == 200.0
