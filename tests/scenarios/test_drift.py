"""Jobs that drift from their curve, and processes that the network loses for a moment."""

import asyncio
from pathlib import Path

import pytest

from tests.fakes import LoopClock
from tests.scenarios.site import FINE, HOUR_S, POWER_RATIO, PRIOR_W, Site, Training, prior_gpu, rate_per_s, told_saving

COLD_S = 900.0


def slow_while_cold(clock: LoopClock) -> float:
    """Return how fast a cold cache lets a job be [1/s]: the same at every limit."""
    return 0.2 if clock.now_s() - clock.start_s < COLD_S else float("inf")


async def test_a_job_whose_cache_has_warmed_is_profiled_anew_within_its_budget(tmp_path: Path) -> None:
    gpu = prior_gpu()
    site = Site(tmp_path, [gpu])
    async with site.controlled():
        job = Training(site, rate=lambda limit_w: min(rate_per_s(limit_w), slow_while_cold(site.clock)))
        await job.train(COLD_S)
        assert site.profiles()[-1].points[-1].iterations_per_s == pytest.approx(0.2, rel=0.02)
        await job.train(3 * HOUR_S)
        warm, begin_s = job.n_iterations, site.clock.now_s()
        await job.train(2 * HOUR_S)
        ideal_s = (job.n_iterations - warm) / rate_per_s(PRIOR_W)
        assert (site.clock.now_s() - begin_s) / ideal_s <= 1.03
    measured = {point.power_limit_w: point.iterations_per_s for point in site.profiles()[-1].points}
    assert measured[PRIOR_W] == pytest.approx(rate_per_s(PRIOR_W), rel=0.02)


async def test_a_job_that_keeps_to_its_curve_is_not_profiled_again(tmp_path: Path) -> None:
    site = Site(tmp_path, [prior_gpu()])
    async with site.controlled():
        await Training(site).train(4 * HOUR_S)
    states = [report.state for report in site.profiles()]
    assert list(dict.fromkeys(states)) == ["waiting", "profiling", "planned"]
    assert set(states[states.index("planned") :]) == {"planned"}


async def test_a_last_will_for_a_moment_does_not_split_the_account(tmp_path: Path) -> None:
    gpu = prior_gpu()
    site = Site(tmp_path, [gpu], FINE, "plan.max_slowdown=1.3")
    async with site.controlled():
        job = Training(site)
        await job.train(HOUR_S)
        job.publish_status("lost")
        await asyncio.sleep(2)
        assert gpu.requested_power_limit_w == PRIOR_W
        job.publish_status("running")
        await job.train(600)
        planned = [change for change in site.limits(gpu) if change.reason != "refining"]  # a look may be under way
        assert (planned[-1].power_limit_w or PRIOR_W) < PRIOR_W
        job.publish_status("finished")
        await asyncio.sleep(30)
    finals = [energy for energy in site.energies() if energy.final]
    assert [final.iterations for final in finals] == [job.n_iterations]


async def test_what_ran_on_a_dropped_curve_keeps_its_ratios(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    site = Site(tmp_path, [prior_gpu()])
    async with site.controlled():
        divisor = 1
        job = Training(site, rate=lambda limit_w: rate_per_s(limit_w) / divisor)
        await job.train(3 * HOUR_S)  # it has rested: its curve is not refined while drift is suspected
        n_before, divisor = job.n_iterations, 2
        await job.train(3 * HOUR_S)
        job.publish_status("finished")
        await asyncio.sleep(60)
    final = site.energies()[-1]
    assert final.evidence == "measured"
    assert final.slowdown_ratio is not None
    assert 1.0 <= final.slowdown_ratio <= 1.1
    baseline_s = (n_before + 2 * (job.n_iterations - n_before)) / rate_per_s(PRIOR_W)
    assert final.slowdown_ratio == pytest.approx(final.duration_s / baseline_s, abs=0.003)
    lower, upper = told_saving(caplog.text)
    assert lower - 0.002 <= 1 - final.energy_j / (baseline_s * POWER_RATIO * PRIOR_W) <= upper + 0.002
