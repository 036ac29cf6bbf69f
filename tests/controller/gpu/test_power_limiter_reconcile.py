"""Reconciling: a reloaded driver gets the limit again, another writer is left alone."""

import asyncio
import logging
from pathlib import Path

import pytest

from controller.gpu.power_limiter import MAX_REVERSIONS, RECONCILE_S, REVERSIONS_S
from controller.ports import Hold, LimitRange
from tests.controller.gpu.limiter_bench import PRIOR_W, SOON_S, LimiterBench, WitnessGpu, hours, lost

DEFAULT_W = 300.0


async def next_reconcile() -> None:
    """Wait until the limiter has reconciled."""
    await asyncio.sleep(RECONCILE_S + SOON_S)


async def test_a_limit_back_at_the_default_is_written_again(tmp_path: Path) -> None:
    bench = LimiterBench(tmp_path)
    async with bench.running():
        await bench.request(200.0)
        bench.gpu.set_externally(DEFAULT_W)
        await next_reconcile()
        assert (bench.hold, bench.gpu.requested_power_limit_w) == (Hold.HELD, 200.0)
        await bench.release()
    assert bench.written_w == [200.0, 200.0, PRIOR_W]
    assert bench.reasons == ["planned", "limit_reset", "run_finished"]
    assert "300 W" in bench.changes[1].detail, "the detail names the limit that was found"


async def test_a_kill_during_the_rewrite_after_a_reload_can_be_restored(tmp_path: Path) -> None:
    gpu = WitnessGpu(tmp_path)
    bench = LimiterBench(tmp_path, gpu=gpu)
    async with bench.running():
        await bench.request(200.0)
        gpu.set_externally(DEFAULT_W)
        await next_reconcile()
    entry = gpu.seen[-1]
    assert entry is not None
    assert entry.written_power_limits_w == (DEFAULT_W, 200.0), "either of them may be left on the GPU"


async def test_after_some_reversions_the_limit_is_yielded(tmp_path: Path) -> None:
    bench = LimiterBench(tmp_path)
    async with bench.running():
        await bench.request(200.0)
        for _ in range(MAX_REVERSIONS + 2):
            bench.gpu.set_externally(DEFAULT_W)
            await next_reconcile()
        assert bench.hold is Hold.YIELDED
    assert bench.written_w == [200.0] * (1 + MAX_REVERSIONS)
    assert bench.reasons[-1] == "another_writer"
    assert bench.gpu.requested_power_limit_w == DEFAULT_W


async def test_resets_that_are_far_apart_are_no_other_writer(tmp_path: Path) -> None:
    bench = LimiterBench(tmp_path)
    async with bench.running():
        await bench.request(200.0)
        for _ in range(3 * MAX_REVERSIONS):
            bench.gpu.set_externally(DEFAULT_W)
            await bench.gpu.clock.sleep_until(bench.gpu.clock.now_s() + REVERSIONS_S / MAX_REVERSIONS + RECONCILE_S)
            assert bench.gpu.requested_power_limit_w == 200.0
        assert bench.hold is Hold.HELD


async def test_each_hold_counts_its_own_reversions(tmp_path: Path) -> None:
    bench = LimiterBench(tmp_path)
    async with bench.running():
        for _ in range(2):
            await bench.request(200.0)
            for _ in range(MAX_REVERSIONS):
                bench.gpu.set_externally(DEFAULT_W)
                await next_reconcile()
            assert bench.hold is Hold.HELD
            await bench.release()
    assert bench.gpu.requested_power_limit_w == PRIOR_W


async def test_another_writer_is_left_alone_until_the_release_and_after_it(tmp_path: Path) -> None:
    bench = LimiterBench(tmp_path)
    async with bench.running():
        await bench.request(200.0)
        bench.gpu.set_externally(220.0)
        await next_reconcile()
        assert (bench.hold, bench.is_journaled()) == (Hold.YIELDED, False)
        await bench.request(150.0)
        await hours(1)
        await bench.release()
        assert bench.hold is Hold.FREE
    await bench.limiter.stop()
    assert bench.written_w == [200.0]
    assert bench.gpu.requested_power_limit_w == 220.0
    assert bench.reasons == ["planned", "another_writer", "run_finished"]


async def test_another_writer_is_detected_before_the_next_order_overwrites_it(tmp_path: Path) -> None:
    bench = LimiterBench(tmp_path)
    async with bench.running():
        await bench.request(200.0)
        bench.gpu.set_externally(220.0)
        await bench.request(150.0)
        assert bench.hold is Hold.YIELDED
    assert bench.written_w == [200.0]


async def test_the_next_hold_takes_another_writers_limit_as_prior(tmp_path: Path) -> None:
    bench = LimiterBench(tmp_path)
    async with bench.running():
        await bench.request(200.0)
        bench.gpu.set_externally(220.0)
        await next_reconcile()
        await bench.release()
        await bench.request(150.0)
        await bench.release()
    assert bench.written_w == [200.0, 150.0, 220.0]


async def test_a_change_while_the_gpu_is_free_is_not_reported(tmp_path: Path) -> None:
    bench = LimiterBench(tmp_path)
    async with bench.running():
        bench.gpu.set_externally(220.0)
        await next_reconcile()
        assert (bench.hold, bench.state.prior_power_limit_w) == (Hold.FREE, 220.0)
    assert (bench.written_w, bench.changes) == ([], [])


async def test_stop_leaves_another_writers_limit_that_was_not_detected_yet(tmp_path: Path) -> None:
    bench = LimiterBench(tmp_path)
    async with bench.running():
        await bench.request(200.0)
        bench.gpu.set_externally(220.0)
    await bench.limiter.stop()
    assert bench.gpu.requested_power_limit_w == 220.0
    assert bench.reasons[-1] == "controller_stopped_untouched"


async def test_a_narrower_range_after_a_reload_clamps_the_rewritten_limit(tmp_path: Path) -> None:
    bench = LimiterBench(tmp_path)
    async with bench.running():
        await bench.request(120.0)
        bench.gpu.range = LimitRange(min_power_limit_w=150.0, max_power_limit_w=250.0, default_power_limit_w=250.0)
        bench.gpu.set_externally(250.0)
        await next_reconcile()
        assert (bench.hold, bench.gpu.requested_power_limit_w) == (Hold.HELD, 150.0)
        assert (bench.state.floor_power_limit_w, bench.state.ceiling_power_limit_w) == (150.0, 250.0)
        await bench.release()
    assert bench.gpu.requested_power_limit_w == 250.0, "the prior limit, clamped to the new range"


async def test_a_power_brake_is_reported_once_and_the_hold_goes_on(tmp_path: Path) -> None:
    bench = LimiterBench(tmp_path)
    async with bench.running():
        await bench.request(200.0)
        since_ns = bench.state.since_ns
        bench.gpu.out_of_band_power_limit_w = 160.0
        await next_reconcile()
        assert (bench.hold, bench.state.enforced_power_limit_w) == (Hold.HELD, 160.0)
        assert bench.state.since_ns > since_ns, "what was measured before it was another limit"
        await hours(1)
    assert bench.reasons == ["planned", "enforced_changed"]


async def test_a_hold_without_changes_keeps_the_time_of_its_last_change(tmp_path: Path) -> None:
    bench = LimiterBench(tmp_path)
    async with bench.running():
        await bench.request(200.0)
        since_ns = bench.state.since_ns
        await hours(1)
        assert bench.state.since_ns == since_ns
    assert bench.written_w == [200.0]


async def test_a_suspect_gpu_is_read_again_and_gets_the_latest_order(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    bench = LimiterBench(tmp_path)
    async with bench.running():
        await bench.request(200.0)
        bench.gpu.errors = {"read_limit": lost(bench.gpu)}
        await next_reconcile()
        assert bench.hold is Hold.SUSPECT
        await bench.request(150.0)
        bench.gpu.errors = {}
        await next_reconcile()
        assert (bench.hold, bench.gpu.requested_power_limit_w) == (Hold.HELD, 150.0)
        await bench.release()
    assert bench.written_w == [200.0, 150.0, PRIOR_W]
    assert bench.reasons == ["planned", "gpu_suspect", "planned", "run_finished"]
    assert sum("gpu_suspect" in record.getMessage() for record in caplog.records) == 1


async def test_a_limit_that_somebody_set_while_the_gpu_was_suspect_is_not_overwritten(tmp_path: Path) -> None:
    bench = LimiterBench(tmp_path)
    async with bench.running():
        await bench.request(200.0)
        bench.gpu.errors = {"read_limit": lost(bench.gpu)}
        await next_reconcile()
        bench.gpu.set_externally(220.0)
        bench.gpu.errors = {}
        await next_reconcile()
        assert bench.hold is Hold.YIELDED
        await bench.release()
    assert bench.written_w == [200.0]
    assert bench.gpu.requested_power_limit_w == 220.0


async def test_a_driver_reloaded_while_the_gpu_was_suspect_gets_the_limit_again(tmp_path: Path) -> None:
    bench = LimiterBench(tmp_path)
    async with bench.running():
        await bench.request(200.0)
        bench.gpu.errors = {"read_limit": lost(bench.gpu)}
        await next_reconcile()
        bench.gpu.set_externally(DEFAULT_W)
        bench.gpu.errors = {}
        await next_reconcile()
        assert (bench.hold, bench.gpu.requested_power_limit_w) == (Hold.HELD, 200.0)
        await bench.release()
    assert bench.gpu.requested_power_limit_w == PRIOR_W
