"""A training with sequences of unequal length: by its tokens its curve is found sooner and more exactly."""

import asyncio
from itertools import pairwise
from pathlib import Path

import pytest

from tests.fakes import FakeGpu
from tests.scenarios.site import (
    DRAW_S,
    FINE,
    HOUR_S,
    LADDER_W,
    POWER_RATIO,
    PRIOR_W,
    Site,
    energy_j,
    prior_gpu,
    rate_per_s,
)
from tests.scenarios.work import MEAN_TOKENS, LanguageTraining

QUICK = (FINE, "plan.max_slowdown=1.10", "profiler.window_s=30")


def fast_rate_per_s(power_limit_w: float) -> float:
    """Return how many steps of mean length a second are done at a limit."""
    return 4 * rate_per_s(power_limit_w)


async def trained(folder: Path, gpu: FakeGpu, duration_s: float, *, tells: bool) -> tuple[Site, LanguageTraining]:
    """Train for some time, and end."""
    site = Site(folder, [gpu], *QUICK)
    training = LanguageTraining(site, tells=tells, rate=fast_rate_per_s)
    async with site.controlled():
        await training.train(duration_s)
        training.publish_status("finished")
        await asyncio.sleep(30)
    return site, training


def worst_ratio(site: Site) -> float:
    """Return by how much a ratio of the curve is off that of the GPU, at worst."""
    (*points, top) = sorted(site.profiles()[-1].points, key=lambda point: point.power_limit_w)
    return max(
        abs(
            (point.iterations_per_s / top.iterations_per_s)
            / (rate_per_s(point.power_limit_w) / rate_per_s(top.power_limit_w))
            - 1
        )
        for point in points
        if point.power_limit_w >= LADDER_W[3]
    )


async def test_a_curve_of_unequal_steps_is_found_sooner_and_better_by_their_work(tmp_path: Path) -> None:
    gpus = [prior_gpu(), prior_gpu()]
    (with_work, _), (without, _) = [
        await trained(tmp_path / str(tells), gpu, 1_800, tells=tells)
        for gpu, tells in zip(gpus, (True, False), strict=True)
    ]
    assert worst_ratio(with_work) < 0.004
    assert worst_ratio(without) > 2 * worst_ratio(with_work)
    swept_s = [gpu.history[len(LADDER_W) - 2][0] for gpu in gpus]
    assert swept_s[0] <= swept_s[1]
    last = with_work.profiles()[-1]
    assert last.work_per_iteration == pytest.approx(MEAN_TOKENS, rel=0.06)
    assert without.profiles()[-1].work_per_iteration is None
    top = last.points[-1]
    assert top.iterations_per_s == pytest.approx(fast_rate_per_s(PRIOR_W), rel=0.06), "steps a second, as without work"


async def test_the_account_of_a_run_that_tells_its_work_is_that_of_its_tokens(tmp_path: Path) -> None:
    gpu = prior_gpu()
    site, training = await trained(tmp_path, gpu, 2 * HOUR_S, tells=True)
    final = site.energies()[-1]
    assert training.begin_s is not None
    top_s = training.n_tokens / MEAN_TOKENS / fast_rate_per_s(PRIOR_W) + training.n_iterations * DRAW_S
    used_j = energy_j(gpu, training.begin_s, training.end_s)
    baseline_j = POWER_RATIO * PRIOR_W * top_s
    assert final.work == pytest.approx(training.n_tokens, rel=1e-3)
    assert final.iterations == training.n_iterations
    assert final.baseline_energy_j == pytest.approx(baseline_j, rel=2e-3)
    assert final.saved_ratio == pytest.approx(1 - used_j / baseline_j, abs=2e-3)
    assert final.slowdown_ratio == pytest.approx((training.end_s - training.begin_s) / top_s, rel=2e-3)
    assert (training.end_s - training.begin_s) / top_s <= 1.101


async def test_a_deadline_is_kept_by_the_work_that_is_left(tmp_path: Path) -> None:
    """The steps grow longer as the training goes on: by iterations it would seem to be ahead."""
    gpu = prior_gpu()
    site = Site(tmp_path, [gpu], *QUICK, "plan.objective=deadline", "plan.deadline=2h")
    work = 1.7 * HOUR_S * fast_rate_per_s(PRIOR_W) * MEAN_TOKENS
    training = LanguageTraining(site, rate=fast_rate_per_s, total_work=work, work_unit="tokens")
    async with site.controlled():
        while training.n_tokens < work:
            training.longer_ratio = 1 + training.n_tokens / work
            await training.train(60)
        training.publish_status("finished")
        await asyncio.sleep(30)
    assert training.begin_s is not None
    duration_s = training.end_s - training.begin_s
    assert 1.9 * HOUR_S < duration_s <= 2.0 * HOUR_S + 60, "it ends on a whole minute"
    assert min(limit_w for _, limit_w in gpu.history) < PRIOR_W


async def test_a_run_that_stops_to_tell_its_work_goes_on_with_its_curve(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gpu = prior_gpu()
    site = Site(tmp_path, [gpu], *QUICK)
    training = LanguageTraining(site, rate=fast_rate_per_s)
    async with site.controlled():
        await training.train(900)
        n_written = len(gpu.history)
        training.tells = False
        await training.train(900)
        training.publish_status("finished")
        await asyncio.sleep(30)
    assert caplog.text.count("rank 0 does not tell the work of its iterations") == 1
    assert not {LADDER_W[-1], LADDER_W[-2]} & {limit_w for _, limit_w in gpu.history[n_written:]}, "no second sweep"
    states = [report.state for report in site.profiles()]
    assert states.index("planned") > max(k for k, state in enumerate(states) if state == "profiling")
    assert training.begin_s is not None
    top_s = training.n_tokens / MEAN_TOKENS / fast_rate_per_s(PRIOR_W) + training.n_iterations * DRAW_S
    assert (training.end_s - training.begin_s) / top_s <= 1.105


async def test_the_next_run_goes_on_with_the_curve_of_the_last_one(tmp_path: Path) -> None:
    """Its first steps are longer by chance, so that its mean iteration is another: the curve is converted."""
    gpu = prior_gpu()
    site = Site(tmp_path, [gpu], *QUICK)
    async with site.controlled():
        for number in (1, 2):
            training = LanguageTraining(site, rate=fast_rate_per_s, run=f"run-{number}", seed=number, pid=100 + number)
            await training.train(1_800)
            training.publish_status("finished")
            await asyncio.sleep(60)
    reports = [site.profiles(run=f"run-{number}") for number in (1, 2)]
    assert "profiling" in {report.state for report in reports[0]}
    assert "profiling" not in {report.state for report in reports[1]}, "it is not measured again"
    for before, after in pairwise(site.limits(gpu)):
        assert not (before.reason == "run_finished" and after.reason == "profiling")
