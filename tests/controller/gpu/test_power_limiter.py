"""The power limiter: journaled before it is written, within bounds, restored, reported."""

import asyncio
import logging
from pathlib import Path

import pytest

from controller.config import GpuConfig
from controller.gpu.journal.storage import Journal
from controller.gpu.power_limiter import LOG_PERIOD_S
from controller.gpu.read_back import restore_prior_limit
from controller.ports import Hold, LimitRange
from tests.controller.gpu.limiter_bench import PRIOR_W, SOON_S, LimiterBench, WitnessGpu, hours, target
from tests.fakes import MIDNIGHT_S, FakeGpu


async def test_the_prior_limit_is_on_disk_before_the_first_write(tmp_path: Path) -> None:
    gpu = WitnessGpu(tmp_path)
    bench = LimiterBench(tmp_path, gpu=gpu)
    async with bench.running():
        await bench.request(200.0)
        await bench.request(150.0)
    first, second = gpu.seen
    assert first is not None
    assert (first.prior_power_limit_w, first.written_power_limits_w) == (PRIOR_W, (PRIOR_W, 200.0))
    assert second is not None
    assert (second.prior_power_limit_w, second.written_power_limits_w) == (PRIOR_W, (200.0, 150.0))


async def test_a_kill_between_journal_and_write_is_repaired_at_the_next_start(tmp_path: Path) -> None:
    bench = LimiterBench(tmp_path)
    async with bench.running():
        await bench.request(250.0)
        bench.gpu.write_gate = asyncio.Event()
        await bench.request(200.0)
        assert bench.gpu.requested_power_limit_w == 250.0, "the write is under way"
    bench.gpu.write_gate = None
    result = await restore_prior_limit(bench.gpu, Journal.read(tmp_path), bench.gpu.clock)
    assert result is not None
    assert result.code == "restored"
    assert bench.gpu.requested_power_limit_w == PRIOR_W
    assert not bench.is_journaled()


class LateGpu(FakeGpu):
    """A GPU that accepts a write, but does not return from it until `may_return` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.requested_power_limit_w = PRIOR_W
        self.may_return = asyncio.Event()
        self.may_return.set()

    async def set_power_limit(self, power_limit_w: float) -> None:
        await super().set_power_limit(power_limit_w)
        await self.may_return.wait()


async def test_a_kill_between_write_and_read_back_is_repaired_at_the_next_start(tmp_path: Path) -> None:
    gpu = LateGpu()
    bench = LimiterBench(tmp_path, gpu=gpu)
    async with bench.running():
        gpu.may_return.clear()
        await bench.request(200.0)
        assert bench.state.requested_power_limit_w == PRIOR_W, "the write was not read back"
    gpu.may_return.set()
    assert gpu.requested_power_limit_w == 200.0
    result = await restore_prior_limit(gpu, Journal.read(tmp_path), gpu.clock)
    assert result is not None
    assert result.code == "restored"
    assert gpu.requested_power_limit_w == PRIOR_W


async def test_a_released_gpu_gets_its_prior_limit_not_its_default(tmp_path: Path) -> None:
    bench = LimiterBench(tmp_path)
    async with bench.running():
        await bench.request(200.0)
        assert (bench.hold, bench.is_journaled()) == (Hold.HELD, True)
        await bench.release()
    assert bench.written_w == [200.0, PRIOR_W]
    assert (bench.hold, bench.is_journaled()) == (Hold.FREE, False)


async def test_each_change_is_published_with_its_reason(tmp_path: Path) -> None:
    bench = LimiterBench(tmp_path)
    bench.gpu.out_of_band_power_limit_w = 190.0
    async with bench.running():
        await bench.request(200.0)
        assert (bench.hold, bench.state.enforced_power_limit_w) == (Hold.HELD, 190.0)
        await bench.release()
    held, released = bench.changes
    assert (held.reason, held.detail, held.job, held.signal) == ("planned", "a test wants it", "resnet50", "410 g/kWh")
    assert (held.requested_power_limit_w, held.enforced_power_limit_w) == (200.0, 190.0)
    assert held.time_s == MIDNIGHT_S + SOON_S
    assert (released.reason, released.requested_power_limit_w) == ("run_finished", PRIOR_W)
    assert released.previous_power_limit_w == 200.0


async def test_the_speed_is_told_while_the_limit_that_was_asked_for_is_in_force(tmp_path: Path) -> None:
    bench = LimiterBench(tmp_path)
    async with bench.running():
        await bench.request(200.0)
        bench.gpu.out_of_band_power_limit_w = 150.0
        await bench.request(220.0)
        await bench.release()
    speeds = [(change.reason, change.speed_ratio) for change in bench.changes]
    assert speeds == [("planned", 0.9), ("enforced_changed", None), ("planned", None), ("run_finished", None)]


async def test_the_same_order_twice_is_written_and_reported_once(tmp_path: Path) -> None:
    bench = LimiterBench(tmp_path)
    async with bench.running():
        await bench.request(200.0)
        await bench.request(200.2)
    assert bench.written_w == [200.0]
    assert bench.reasons == ["planned"]


async def test_an_order_for_the_limit_in_force_writes_nothing(tmp_path: Path) -> None:
    bench = LimiterBench(tmp_path)
    async with bench.running():
        await bench.request(PRIOR_W)
        assert (bench.hold, bench.is_journaled()) == (Hold.HELD, False)
        await bench.release()
    assert bench.written_w == []


async def test_only_the_latest_order_is_carried_out(tmp_path: Path) -> None:
    bench = LimiterBench(tmp_path)
    async with bench.running():
        for limit_w in (250.0, 225.0, 175.0):
            bench.limiter.request(target(limit_w))
        await bench.request(200.0)
    assert bench.written_w == [200.0]


async def test_each_hold_reads_the_prior_limit_again(tmp_path: Path) -> None:
    bench = LimiterBench(tmp_path)
    async with bench.running():
        await bench.request(200.0)
        await bench.release()
        bench.gpu.set_externally(260.0)
        await bench.request(200.0)
        await bench.release()
    assert bench.written_w == [200.0, PRIOR_W, 200.0, 260.0]


@pytest.mark.parametrize(
    ("config", "asked_w", "given_w"),
    [
        (GpuConfig(), 290.0, PRIOR_W),
        (GpuConfig(), 50.0, 100.0),
        (GpuConfig(allow_above_prior=True), 290.0, 290.0),
        (GpuConfig(allow_above_prior=True), 999.0, 300.0),
        (GpuConfig(allow_above_prior=True, max_power_limit_w=285.0), 999.0, 285.0),
        (GpuConfig(max_power_limit_w=240.0), 290.0, 240.0),
        (GpuConfig(min_power_limit_w=180.0), 50.0, 180.0),
        (GpuConfig(min_power_limit_w=290.0), 50.0, PRIOR_W),
        (GpuConfig(min_power_limit_w=50.0, max_power_limit_w=900.0), 10.0, 100.0),
    ],
)
async def test_a_limit_stays_within_the_bounds_of_hardware_operator_and_prior_limit(
    tmp_path: Path, config: GpuConfig, asked_w: float, given_w: float
) -> None:
    bench = LimiterBench(tmp_path, config=config)
    async with bench.running():
        await bench.request(200.0)
        await bench.request(asked_w)
        assert bench.gpu.requested_power_limit_w == given_w
        assert bench.state.floor_power_limit_w <= given_w <= bench.state.ceiling_power_limit_w
        await bench.release()
    assert bench.gpu.requested_power_limit_w == PRIOR_W


async def test_after_a_kill_the_journaled_prior_limit_still_counts(tmp_path: Path) -> None:
    first = LimiterBench(tmp_path)
    async with first.running():
        await first.request(200.0)
    second = LimiterBench(tmp_path, gpu=first.gpu)
    async with second.running():
        await second.request(150.0)
        await second.release()
    assert second.gpu.requested_power_limit_w == PRIOR_W


async def test_the_range_of_a_reloaded_driver_counts_from_the_next_hold_on(tmp_path: Path) -> None:
    bench = LimiterBench(tmp_path)
    async with bench.running():
        await bench.request(200.0)
        await bench.release()
        bench.gpu.range = LimitRange(min_power_limit_w=150.0, max_power_limit_w=250.0, default_power_limit_w=250.0)
        bench.gpu.set_externally(250.0)
        await bench.request(120.0)
        assert bench.written_w[-1] == 150.0
        await bench.release()
    assert bench.gpu.requested_power_limit_w == 250.0


async def test_stop_restores_the_limit_and_reports_it(tmp_path: Path) -> None:
    bench = LimiterBench(tmp_path)
    async with bench.running():
        await bench.request(200.0)
    await bench.limiter.stop()
    assert bench.written_w == [200.0, PRIOR_W]
    assert bench.reasons == ["planned", "controller_stopped"]
    assert not bench.is_journaled()


async def test_stop_leaves_a_free_gpu_alone(tmp_path: Path) -> None:
    bench = LimiterBench(tmp_path)
    async with bench.running():
        pass
    await bench.limiter.stop()
    assert (bench.written_w, bench.changes) == ([], [])


async def test_stop_before_the_first_read_is_harmless(tmp_path: Path) -> None:
    bench = LimiterBench(tmp_path)
    await bench.limiter.stop()
    assert (bench.written_w, bench.changes, bench.limiter.state) == ([], [], None)


async def test_limits_for_one_reason_are_all_published_but_logged_once_in_a_while(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    bench = LimiterBench(tmp_path)
    async with bench.running():
        for number in range(20):
            await bench.request(200.0 + number, reason="refining")
        assert len(bench.changes) == 20
        assert len(caplog.messages) == 1
        await hours(LOG_PERIOD_S / 3_600)
        await bench.request(180.0, reason="refining")
    assert len(caplog.messages) == 2, "still refining, ten minutes later"


async def test_another_reason_is_logged_at_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    reasons = ["refining", "slowdown_signal", "refining", "another_writer"]
    bench = LimiterBench(tmp_path)
    async with bench.running():
        for number, reason in enumerate(reasons):
            await bench.request(200.0 + number, reason=reason)
    assert [message.split(": ")[2] for message in caplog.messages] == reasons
