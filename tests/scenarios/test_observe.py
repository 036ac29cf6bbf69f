"""`plan.observe`: everything is measured and published, nothing is written, and what would be saved is estimated."""

import asyncio
import shutil
from pathlib import Path

import pytest

from controller.control.observe_mode import MAX_CI90_RATIO
from controller.ports import LimitRange
from publishers.training.reporting.run_summary import summarize
from tests.scenarios.site import PRIOR_W, Site, Training, prior_gpu

OBSERVE = "plan.observe=true"


async def _run(site: Site, duration_s: float, run: str) -> None:
    async with site.controlled():
        training = Training(site, run=run)
        await training.train(duration_s)
        training.publish_status("finished")
        await asyncio.sleep(60)


async def test_with_a_stored_curve_nothing_is_written_and_the_saving_is_estimated(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    gpu = prior_gpu()
    await _run(Site(tmp_path, [gpu]), 3_600.0, "measured")
    n_written = len(gpu.history)
    site = Site(tmp_path, [gpu], OBSERVE)
    await _run(site, 1_800.0, "observed")
    assert (len(gpu.history), gpu.requested_power_limit_w) == (n_written, PRIOR_W)
    final = site.energies(run="observed")[-1]
    assert final.final
    assert final.energy_j > 0
    assert final.would_save_ratio is not None
    assert final.would_save_ci90_ratio is not None
    assert 0.01 < final.would_save_ratio < 0.5
    assert 0.01 < final.would_save_ci90_ratio <= MAX_CI90_RATIO
    assert (final.evidence, final.saved_ratio, final.saved_ci90_ratio) == ("nothing_changed", 0.0, 0.0)
    assert (final.slowdown_ratio, final.baseline_energy_j) == (1.0, final.energy_j)
    assert {change.reason for change in site.limits(gpu)} <= {"observe_mode", "run_finished"}
    assert site.profiles(run="observed")[-1].state == "observing"
    assert site.schedules(run="observed") == [None], "a plan that is not followed is not announced"
    assert "the plan would have saved about" in caplog.text


async def test_without_a_curve_it_says_that_nothing_is_known(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    gpu = prior_gpu()
    site = Site(tmp_path, [gpu], OBSERVE)
    await _run(site, 1_800.0, "observed")
    assert gpu.history == []
    final = site.energies(run="observed")[-1]
    assert (final.would_save_ratio, final.would_save_ci90_ratio, final.energy_j > 0) == (None, None, True)
    assert (final.evidence, final.saved_ratio, final.slowdown_ratio) == ("nothing_changed", 0.0, 1.0)
    line = str(summarize("resnet50", "observed", final, unmeasured=("", "")))
    assert line.endswith("Wh, nothing saved: plan.observe is on: limits are planned, but never written")
    assert "what would be saved is unknown (not_profiled)" in caplog.text


async def test_where_only_one_limit_is_allowed_record_and_log_say_why_nothing_is_saved(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    gpu = prior_gpu()
    gpu.range = LimitRange(min_power_limit_w=PRIOR_W, max_power_limit_w=PRIOR_W, default_power_limit_w=PRIOR_W)
    site = Site(tmp_path, [gpu])
    await _run(site, 3_600.0, "fixed")
    assert gpu.history == []
    final = site.energies(run="fixed")[-1]
    assert (final.evidence, final.saved_ratio, final.slowdown_ratio) == ("nothing_changed", 0.0, 1.0)
    assert final.baseline_energy_j == final.energy_j > 0
    line = str(summarize("resnet50", "fixed", final, unmeasured=("", "")))
    assert "nothing saved: no limit below 280 W may be set: there is nothing to lower" in line
    assert [said for said in caplog.messages if " Wh, " in said] == [f"alice/{line}"]


async def test_what_a_killed_controller_left_is_given_back_all_the_same(tmp_path: Path) -> None:
    gpu = prior_gpu()
    site = Site(tmp_path / "state", [gpu])
    async with site.controlled():
        await Training(site).train(500.0)
        shutil.copytree(tmp_path / "state", tmp_path / "killed", ignore=shutil.ignore_patterns("*.new"))
        left_w = gpu.requested_power_limit_w
    assert left_w < PRIOR_W
    gpu.set_externally(left_w)
    n_written = len(gpu.history)
    async with Site(tmp_path / "killed", [gpu], OBSERVE).controlled():
        await asyncio.sleep(60)
        assert gpu.requested_power_limit_w == PRIOR_W
    assert len(gpu.history) == n_written + 1


@pytest.mark.parametrize("has_account", [True, False])
async def test_a_run_that_a_killed_controller_limited_has_not_saved_nothing(
    tmp_path: Path, *, has_account: bool
) -> None:
    gpu = prior_gpu()
    site = Site(tmp_path / "state", [gpu], "energy.period_s=10")
    training = Training(site)
    async with site.controlled():
        await training.train(700.0)
        shutil.copytree(tmp_path / "state", tmp_path / "killed", ignore=shutil.ignore_patterns("*.new"))
        left_w = gpu.requested_power_limit_w
    assert left_w < PRIOR_W
    gpu.set_externally(left_w)
    if not has_account:
        shutil.rmtree(tmp_path / "killed" / "runs")
    site = Site(tmp_path / "killed", [gpu], "energy.period_s=10", OBSERVE)
    training.moves_to(site)
    async with site.controlled():
        await training.train(1_800.0)
        training.publish_status("finished")
        await asyncio.sleep(60)
    final = site.energies()[-1]
    line = str(summarize("resnet50", "run-1", final, unmeasured=("", "")))
    if has_account:
        assert (final.evidence, final.incomplete) == ("too_early", [])
        assert final.iterations == training.n_iterations
    else:
        assert (final.evidence, final.incomplete) == ("incomplete", ["earlier_controller"])
        assert line.endswith("Wh, what was saved is not known: not all of the run was measured")
