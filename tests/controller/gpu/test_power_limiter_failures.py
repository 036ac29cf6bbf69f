"""Failures of the power limiter: each is a state with a reason, and no limit is stranded.

The actuator and what can go wrong: each failure is a state with a reason, and no limit is stranded.

The actuator at the end and at the start: what a late answer, or somebody else, must not make us do wrong.
"""

import asyncio
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from controller.errors import GpuError, GpuNotSupportedError, GpuSuspectError
from controller.gpu.journal import Journal
from controller.gpu.power_limiter import RECONCILE_S, STOP_TIMEOUT_S
from controller.ports import Hold, LiveLimit
from tests.controller.gpu.limiter_bench import PRIOR_W, SOON_S, Bench, forbidden, hours, lost
from tests.fakes import FakeGpu


async def test_without_permission_it_only_observes_and_says_so_once(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.gpu.errors = {"set_power_limit": forbidden(bench.gpu)}
    async with bench.working():
        await bench.ask(200.0)
        assert (bench.hold, bench.on_record()) == (Hold.OBSERVING, False)
        bench.gpu.errors = {}
        await bench.ask(150.0)
        await hours(1)
        assert bench.written_w == [], "not written again in this hold"
        await bench.release()
    assert bench.reasons == ["no_permission", "run_finished"]
    assert "CAP_SYS_ADMIN" in bench.changes[0].detail


async def test_the_next_hold_tries_again_to_write(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.gpu.errors = {"set_power_limit": forbidden(bench.gpu)}
    async with bench.working():
        await bench.ask(200.0)
        await bench.release()
        bench.gpu.errors = {}
        await bench.ask(200.0)
        assert bench.hold is Hold.HELD
    assert bench.written_w == [200.0]


async def test_a_gpu_without_power_limits_is_observed(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    error = GpuNotSupportedError("not supported", gpu_uuid=bench.gpu.uuid, operation="set_power_limit", code=3)
    bench.gpu.errors = {"set_power_limit": error}
    async with bench.working():
        await bench.ask(200.0)
        assert bench.hold is Hold.OBSERVING
    assert bench.reasons == ["not_supported"]


async def test_a_partitioned_gpu_is_observed(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.gpu.mig = True
    async with bench.working():
        await bench.ask(200.0)
        await bench.ask(150.0)
        assert bench.hold is Hold.OBSERVING
    assert (bench.reasons, bench.written_w) == (["mig"], [])


async def test_permission_lost_in_the_middle_of_a_hold_keeps_the_debt_on_record(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    async with bench.working():
        await bench.ask(200.0)
        bench.gpu.errors = {"set_power_limit": forbidden(bench.gpu)}
        await bench.ask(150.0)
        assert (bench.hold, bench.on_record()) == (Hold.OBSERVING, True)
        bench.gpu.errors = {}
        await bench.release()
    assert bench.gpu.requested_power_limit_w == PRIOR_W
    assert not bench.on_record()


async def test_nothing_is_written_where_the_disk_refuses_the_journal(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "state")
    shutil.rmtree(tmp_path / "state")
    async with bench.working():
        await bench.ask(200.0)
        assert bench.hold is Hold.OBSERVING
    assert (bench.reasons, bench.written_w) == (["journal_failed"], [])


async def test_a_disk_that_fills_up_in_the_middle_of_a_hold_gives_the_limit_back(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "state")
    async with bench.working():
        await bench.ask(200.0)
        shutil.rmtree(tmp_path / "state")
        await bench.ask(150.0)
        assert bench.hold is Hold.OBSERVING
    assert bench.written_w == [200.0, PRIOR_W]


async def test_a_gpu_that_is_silent_at_first_is_suspect_until_it_answers(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.gpu.errors = {"read_range": lost(bench.gpu)}
    async with bench.working():
        assert (bench.actuator.state, bench.reasons) == (None, ["gpu_suspect"])
        bench.gpu.errors = {}
        await asyncio.sleep(RECONCILE_S + SOON_S)
        assert bench.hold is Hold.FREE
    assert bench.reasons == ["gpu_suspect", "answers_again"], "the last word on it must not be that it is suspect"


async def test_a_limit_outside_a_range_that_has_just_changed_is_tried_again_within_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    async with bench.working():
        await bench.ask(200.0)
        bench.gpu.range = type(bench.gpu.range)(
            min_power_limit_w=180.0, max_power_limit_w=300.0, default_power_limit_w=300.0
        )
        await bench.ask(150.0)
        await asyncio.sleep(RECONCILE_S + SOON_S)
        assert (bench.hold, bench.gpu.requested_power_limit_w) == (Hold.HELD, 180.0)
        await bench.release()
    assert bench.written_w == [200.0, 180.0, PRIOR_W]


async def test_a_failed_restoration_is_tried_again_until_the_gpu_answers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(tmp_path)
    async with bench.working():
        await bench.ask(200.0)
        bench.gpu.errors = {"set_power_limit": lost(bench.gpu, "set_power_limit")}
        await bench.release()
        assert (bench.hold, bench.on_record()) == (Hold.SUSPECT, True)
        await hours(1)
        assert bench.on_record()
        bench.gpu.errors = {}
        await asyncio.sleep(RECONCILE_S + SOON_S)
        assert (bench.hold, bench.on_record()) == (Hold.FREE, False)
    assert bench.written_w == [200.0, PRIOR_W]
    assert bench.reasons == ["planned", "run_finished_failed", "restored_late"]
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 1, "an hour of failures is one line"


async def test_what_a_killed_controller_left_and_the_start_could_not_restore_is_restored_later(tmp_path: Path) -> None:
    first = Bench(tmp_path)
    async with first.working():
        await first.ask(200.0)
    second = Bench(tmp_path, gpu=first.gpu)
    async with second.working():
        await asyncio.sleep(RECONCILE_S + SOON_S)
        assert (second.hold, second.on_record()) == (Hold.FREE, False)
    assert second.gpu.requested_power_limit_w == PRIOR_W
    assert second.reasons == ["restored_late"]


async def test_a_suspect_gpu_that_is_released_gets_its_limit_when_it_answers(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    async with bench.working():
        await bench.ask(200.0)
        bench.gpu.errors = {operation: lost(bench.gpu) for operation in ("read_limit", "read_range", "set_power_limit")}
        await asyncio.sleep(RECONCILE_S + SOON_S)
        await bench.release()
        bench.gpu.errors = {}
        await asyncio.sleep(RECONCILE_S + SOON_S)
        assert bench.hold is Hold.FREE
    assert bench.gpu.requested_power_limit_w == PRIOR_W


async def test_a_stop_does_not_wait_for_ever_for_a_gpu_that_hangs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(tmp_path)
    async with bench.working():
        await bench.ask(200.0)
    bench.gpu.hold = asyncio.Event()
    begin_s = asyncio.get_running_loop().time()
    await bench.actuator.stop()
    assert asyncio.get_running_loop().time() - begin_s == pytest.approx(STOP_TIMEOUT_S)
    assert bench.on_record(), "the next start, or `gridchase restore`, gives it back"
    assert "gridchase restore" in caplog.text


class BuggyGpu(FakeGpu):
    """A GPU whose driver package has a bug."""

    is_buggy = False

    async def read_limit(self) -> LiveLimit:
        if self.is_buggy:
            raise ZeroDivisionError("a bug")
        return await super().read_limit()


async def test_a_bug_while_giving_back_is_told_and_keeps_the_debt_on_record(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gpu = BuggyGpu()
    gpu.requested_power_limit_w = PRIOR_W
    bench = Bench(tmp_path, gpu=gpu)
    async with bench.working():
        await bench.ask(200.0)
    gpu.is_buggy = True
    await bench.actuator.stop()
    assert "ZeroDivisionError" in caplog.text
    assert gpu.uuid in Journal.read(tmp_path).entries


async def test_a_bug_in_a_call_ends_the_worker(tmp_path: Path) -> None:
    gpu = BuggyGpu()
    bench = Bench(tmp_path, gpu=gpu)
    gpu.is_buggy = True
    with pytest.raises(ExceptionGroup) as caught:
        await bench.working().__aenter__()
    assert caught.group_contains(ZeroDivisionError)


async def test_a_stop_before_the_gpu_has_answered_still_pays_an_old_debt(tmp_path: Path) -> None:
    first = Bench(tmp_path)
    async with first.working():
        await first.ask(200.0)
    second = Bench(tmp_path, gpu=first.gpu)
    await second.actuator.stop()
    assert (second.gpu.requested_power_limit_w, second.on_record()) == (PRIOR_W, False)


@pytest.mark.parametrize("error", [forbidden, lost])
async def test_what_is_observed_or_suspect_within_a_hold_stays_unwritten_through_a_silence(
    tmp_path: Path, error: Callable[[FakeGpu], GpuError]
) -> None:
    bench = Bench(tmp_path)
    async with bench.working():
        await bench.ask(200.0)
        bench.gpu.set_externally(220.0)
        await bench.ask(150.0)
        assert bench.hold is Hold.YIELDED
        bench.gpu.errors = {"read_limit": error(bench.gpu), "read_range": lost(bench.gpu)}
        await hours(0.1)
        bench.gpu.errors = {}
        await hours(0.1)
        await bench.ask(150.0)
        assert bench.hold in {Hold.YIELDED, Hold.OBSERVING}
        await bench.release()
        await bench.ask(150.0)
    assert bench.written_w == [200.0, 150.0], "the next hold begins anew"


async def test_a_gpu_that_could_not_be_read_without_a_hold_is_free_for_the_next_job(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    async with bench.working():
        bench.gpu.errors = {"read_range": forbidden(bench.gpu)}
        await hours(0.1)
        bench.gpu.errors = {}
        await hours(0.1)
        assert bench.hold is Hold.FREE
        await bench.ask(200.0)
    assert bench.written_w == [200.0]


BUSY = GpuSuspectError("no answer within 2 s", gpu_uuid="GPU-fake-0", operation="read_limit")


async def test_a_gpu_that_is_busy_at_the_stop_is_asked_again_until_it_has_its_limit(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    async with bench.working():
        await bench.ask(150.0)
    bench.gpu.errors["read_limit"] = BUSY
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(bench.actuator.stop())
        await asyncio.sleep(3.0)
        assert bench.gpu.requested_power_limit_w == 150.0
        del bench.gpu.errors["read_limit"]
    assert bench.gpu.requested_power_limit_w == PRIOR_W
    assert not bench.journal.entries


async def test_a_gpu_that_never_answers_delays_the_stop_by_ten_seconds_at_most(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    async with bench.working():
        await bench.ask(150.0)
    bench.gpu.errors["read_limit"] = BUSY
    begin_s = asyncio.get_running_loop().time()
    await bench.actuator.stop()
    assert asyncio.get_running_loop().time() - begin_s <= 10.5
    assert bench.journal.entries


async def test_a_limit_that_the_operator_set_after_a_kill_is_the_prior_one_from_then_on(tmp_path: Path) -> None:
    gpu = FakeGpu()
    gpu.requested_power_limit_w = PRIOR_W
    killed = Bench(tmp_path, gpu=gpu)
    async with killed.working():
        await killed.ask(150.0)
    gpu.set_externally(200.0)
    bench = Bench(tmp_path, gpu=gpu)
    async with bench.working():
        await bench.ask(125.0)
        assert gpu.requested_power_limit_w == 125.0
        await bench.release()
        await asyncio.sleep(SOON_S)
    assert gpu.requested_power_limit_w == 200.0
