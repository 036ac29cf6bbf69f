"""What is read back after a write: late, clamped, ignored; none of these is another writer."""

import asyncio
import logging
from pathlib import Path

import pytest

from controller.gpu.journal.storage import Journal
from controller.gpu.power_limiter import MAX_IGNORED, RECONCILE_S
from controller.gpu.read_back import LOOK_AGAIN_S
from controller.ports import Hold
from tests.controller.gpu.limiter_bench import PRIOR_W, RESTORE, SOON_S, LimiterBench, hours, target


async def test_a_late_driver_is_waited_for(tmp_path: Path) -> None:
    bench = LimiterBench(tmp_path)
    bench.gpu.write_delay_s = 0.3
    async with bench.running():
        await bench.request(200.0)
        assert (bench.hold, bench.state.requested_power_limit_w) == (Hold.HELD, 200.0)
        await bench.release()
        assert (bench.hold, bench.is_journaled()) == (Hold.FREE, False)
    assert bench.written_w == [200.0, PRIOR_W]
    assert bench.reasons == ["planned", "run_finished"]


async def test_a_stop_while_a_late_write_is_under_way_restores_the_prior_limit(tmp_path: Path) -> None:
    bench = LimiterBench(tmp_path)
    bench.gpu.write_delay_s = 0.3
    async with bench.running():
        bench.limiter.request(target(200.0))
        await asyncio.sleep(0.1)
    assert bench.gpu.requested_power_limit_w == PRIOR_W, "it has not landed yet"
    assert await bench.limiter.stop() == ""
    await asyncio.sleep(10.0)
    assert (bench.gpu.requested_power_limit_w, bench.is_journaled()) == (PRIOR_W, False)


async def test_a_write_without_effect_is_told_and_tried_again(tmp_path: Path) -> None:
    bench = LimiterBench(tmp_path)
    bench.gpu.n_ignored_writes = 2
    async with bench.running():
        await bench.request(200.0)
        assert (bench.hold, bench.is_journaled()) == (Hold.HELD, True)
        assert bench.state.requested_power_limit_w == PRIOR_W
        await asyncio.sleep(5.0)
        assert (bench.hold, bench.gpu.requested_power_limit_w) == (Hold.HELD, 200.0)
        await bench.release()
    assert bench.reasons == ["write_ignored", "planned", "run_finished"]
    assert "accepted 200 W, but the limit still is 280 W" in bench.changes[0].detail
    assert bench.gpu.requested_power_limit_w == PRIOR_W


async def test_a_gpu_that_ignores_every_write_is_observed_and_tried_again_ever_less_often(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    bench = LimiterBench(tmp_path)
    bench.gpu.n_ignored_writes = 1e6
    async with bench.running():
        await bench.request(200.0)
        await hours(1)
        assert (bench.hold, bench.is_journaled()) == (Hold.OBSERVING, True)
        n_tries = 1e6 - bench.gpu.n_ignored_writes
        assert MAX_IGNORED < n_tries <= 3_600 / RECONCILE_S + 5
        assert bench.reasons == ["write_ignored"] * 2, "held at first, then observed"
        assert len(caplog.messages) == 1
        bench.gpu.n_ignored_writes = 0
        await asyncio.sleep(RECONCILE_S + SOON_S)
        assert (bench.hold, bench.gpu.requested_power_limit_w) == (Hold.HELD, 200.0)


async def test_a_write_that_lands_later_than_anybody_looks_is_ours(tmp_path: Path) -> None:
    bench = LimiterBench(tmp_path)
    bench.gpu.write_delay_s = 1.0 + LOOK_AGAIN_S
    async with bench.running():
        await bench.request(200.0)
        bench.gpu.write_delay_s = 0.0
        await asyncio.sleep(RECONCILE_S + SOON_S)
        assert (bench.hold, bench.state.requested_power_limit_w) == (Hold.HELD, 200.0)
        await bench.release()
    assert bench.gpu.requested_power_limit_w == PRIOR_W
    assert "another_writer" not in bench.reasons


async def test_an_order_after_an_ignored_write_keeps_both_limits_in_the_journal(tmp_path: Path) -> None:
    bench = LimiterBench(tmp_path)
    bench.gpu.n_ignored_writes = 9
    async with bench.running():
        await bench.request(200.0)
        await bench.request(150.0)
        entry = Journal.read(tmp_path).entries[bench.gpu.uuid]
        assert set(entry.written_power_limits_w) == {PRIOR_W, 200.0, 150.0}
        assert not entry.is_confirmed


async def test_a_limit_that_the_board_clamps_is_ours_and_told(tmp_path: Path) -> None:
    bench = LimiterBench(tmp_path)
    bench.gpu.board_limit_w = lambda limit_w: max(limit_w, 220.0)
    async with bench.running():
        await bench.request(200.0)
        assert (bench.hold, bench.state.requested_power_limit_w, bench.state.asked_for_w) == (Hold.HELD, 220.0, 200.0)
        assert Journal.read(tmp_path).entries[bench.gpu.uuid].written_power_limits_w == (220.0,)
        await hours(0.1)
        await bench.request(200.0)
        assert bench.written_w == [220.0], "what was asked for is not written again"
        await bench.release()
    assert bench.written_w == [220.0, PRIOR_W]
    assert bench.reasons == ["clamped", "planned", "run_finished"]
    assert "requested 200 W; the board set 220 W" in bench.changes[0].detail


async def test_a_clamped_limit_above_the_prior_one_is_given_back(tmp_path: Path) -> None:
    bench = LimiterBench(tmp_path)
    bench.gpu.board_limit_w = lambda limit_w: limit_w if limit_w == PRIOR_W else 295.0
    async with bench.running():
        await bench.request(200.0)
        await asyncio.sleep(SOON_S)
        assert (bench.hold, bench.gpu.requested_power_limit_w) == (Hold.OBSERVING, PRIOR_W)
        assert not bench.is_journaled()
    assert bench.reasons == ["clamped"]


async def test_a_kill_before_a_clamped_write_is_read_back_is_repaired_at_the_next_start(tmp_path: Path) -> None:
    killed = LimiterBench(tmp_path)
    killed.gpu.board_limit_w = lambda limit_w: max(limit_w, 220.0) if limit_w < PRIOR_W else limit_w
    async with killed.running():
        killed.limiter.request(target(200.0))
        await asyncio.sleep(0.5)
        assert killed.gpu.requested_power_limit_w == 220.0
    started = LimiterBench(tmp_path, gpu=killed.gpu)
    assert await started.limiter.stop() == ""
    assert (started.gpu.requested_power_limit_w, started.is_journaled()) == (PRIOR_W, False)


async def test_a_release_that_the_driver_ignores_is_tried_again_within_seconds(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench = LimiterBench(tmp_path)
    async with bench.running():
        await bench.request(200.0)
        bench.gpu.n_ignored_writes = 2
        await bench.release()
        assert (bench.hold, bench.is_journaled()) == (Hold.SUSPECT, True)
        await asyncio.sleep(5.0)
        assert (bench.hold, bench.is_journaled()) == (Hold.FREE, False)
    assert bench.gpu.requested_power_limit_w == PRIOR_W
    assert bench.reasons == ["planned", "run_finished_failed", "restored_late"]
    assert sum(record.levelno == logging.ERROR for record in caplog.records) == 1


async def test_a_stop_that_the_driver_ignores_says_which_limit_the_gpu_still_has(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench = LimiterBench(tmp_path)
    async with bench.running():
        await bench.request(200.0)
    bench.gpu.n_ignored_writes = 1e6
    left = await bench.limiter.stop()
    assert left.startswith("GPU-fake-0 still has 200 W instead of its prior limit 280 W")
    assert f"run `{RESTORE}`" in left
    assert f"unless it is restored later, run `{RESTORE}`" in caplog.text
    assert bench.is_journaled()


async def test_a_stop_tries_again_what_the_driver_ignores_once(tmp_path: Path) -> None:
    bench = LimiterBench(tmp_path)
    async with bench.running():
        await bench.request(200.0)
    bench.gpu.n_ignored_writes = 2
    assert await bench.limiter.stop() == ""
    assert (bench.gpu.requested_power_limit_w, bench.is_journaled()) == (PRIOR_W, False)


async def test_a_limit_set_back_to_the_prior_one_is_written_again_a_few_times(tmp_path: Path) -> None:
    bench = LimiterBench(tmp_path)
    async with bench.running():
        await bench.request(200.0)
        bench.gpu.set_externally(PRIOR_W)
        await asyncio.sleep(RECONCILE_S + SOON_S)
        assert (bench.hold, bench.gpu.requested_power_limit_w) == (Hold.HELD, 200.0)
        for _ in range(5):
            bench.gpu.set_externally(PRIOR_W)
            await asyncio.sleep(RECONCILE_S + SOON_S)
        assert bench.hold is Hold.YIELDED
    assert bench.reasons[:2] == ["planned", "limit_reset"]
    assert bench.gpu.requested_power_limit_w == PRIOR_W
