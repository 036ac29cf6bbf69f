"""Whole days of training under each objective, in virtual time."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from policies.providers.sources.csv_file import CsvProvider
from policies.vocabulary.signal import NOT_ESTIMATED
from policies.vocabulary.units import DAY_S
from publishers.messages.codec import decode
from publishers.messages.reports import GpuEnergy, GridSignal
from tests.fakes import MIDNIGHT_S, FakeGpu, FixedProvider, flat_signal
from tests.scenarios.site import (
    ANY_PROVIDER,
    HOUR_S,
    LADDER_W,
    NODE,
    POWER_RATIO,
    PRIOR_W,
    TOPICS,
    Site,
    Training,
    energy_j,
    prior_gpu,
    rate_per_s,
    told_saving,
    without_looks,
)

CLEAN, DIRTY = 100.0, 500.0
J_PER_KWH = 3_600_000.0
SLOW = (
    "profiler.window_s=600",
    "profiler.settle_s=60",
    "energy.period_s=60",
    "plan.period_s=60",
    "signal.kind=carbon",
    ANY_PROVIDER,
    "signal.zone=XX",
    "job.lease_s=120",
)
"""A day needs no intervals of half a second."""
WEIGHED = ("plan.objective=eta", "plan.eta=0.8")
CLEAN_W, DIRTY_W = 165.0, 100.0
"""By eq. 6 with eta = 0.8, at 100 and at 500 g/kWh."""


def intensity_g_per_kwh(hour: int) -> float:
    """Return a day that is dirty from 8 to 16 o'clock."""
    return DIRTY if 8 <= hour % 24 < 16 else CLEAN


def trace(path: Path, *, until_hour: int = 48) -> CsvProvider:
    """Return two days before midnight and some hours after it, as a file of the usual kind."""
    midnight = datetime.fromtimestamp(MIDNIGHT_S, UTC)
    rows = [
        f"{midnight + timedelta(hours=hour):%Y-%m-%dT%H:%MZ},{intensity_g_per_kwh(hour)}"
        for hour in range(-48, until_hour)
    ]
    file = path / "day.csv"
    file.write_text("\n".join(["# made up for a test", "timestamp,gco2_per_kwh", *rows]), encoding="utf-8")
    return CsvProvider(file, zone="XX", kind="average")


async def test_what_is_told_at_the_end_holds_what_was_saved_by_following_the_grid(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A run at the highest limit would have been ahead of ours, in other hours: clean and dirty ones take turns."""
    caplog.set_level("DEBUG")
    gpu, hours = prior_gpu(), np.arange(-720.0, 24.0)
    values, starts_s = np.where(hours % 2, DIRTY, CLEAN), MIDNIGHT_S + HOUR_S * hours
    signal = replace(
        flat_signal(CLEAN), starts_s=starts_s, values=values, ends_s=starts_s[-1] + HOUR_S, estimated=NOT_ESTIMATED
    )
    carbon = ("signal.kind=carbon", "signal.zone=XX", ANY_PROVIDER)
    site = Site(
        tmp_path, [gpu], *carbon, "energy.period_s=10", "plan.max_slowdown=1.1", providers=[FixedProvider(signal)]
    )
    training = Training(site)
    async with site.controlled():
        await training.train(4 * HOUR_S)
        training.publish_status("finished")
        await asyncio.sleep(60)
    assert training.begin_s is not None
    begin_s, twin_s = training.begin_s, training.begin_s + training.n_iterations / rate_per_s(PRIOR_W)
    own = twin = 0.0
    for value, hour_s in zip(values, starts_s, strict=True):
        end_s = hour_s + HOUR_S
        own += value * energy_j(gpu, max(begin_s, hour_s), min(end_s, training.end_s))
        twin += value * POWER_RATIO * PRIOR_W * max(0.0, min(end_s, twin_s) - max(begin_s, hour_s))
    lower, upper = told_saving(caplog.text)
    assert lower <= 1 - own / twin <= upper
    check_the_schedules(site)


def check_the_schedules(site: Site) -> None:
    """Check what the plan expects: told while there is one, once a minute at most; dirty hours are slower."""
    start, *schedules, end = site.schedules()
    assert (start, end) == (None, None), "one that a former controller may have left is cleared, too"
    told = [each for each in schedules if each is not None]
    times_s = [each.time_s or 0.0 for each in told]
    assert len(told) == len(schedules) > 20, "it is not cleared meanwhile"
    assert min(np.diff(times_s)) >= 60
    last = told[-1]
    assert (last.objective, last.max_slowdown_ratio, last.expected_end_s) == ("slowdown", 1.1, None)
    assert 20 * HOUR_S < last.until_s - times_s[-1] <= DAY_S
    speeds = {(int(each.starts_s // HOUR_S) % 2): each.speed_ratio for each in last.entries[1:]}
    assert speeds[1] < 0.9 < speeds[0], "odd hours are dirty"
    expected = [(each.expected_slowdown_ratio, each.expected_slowdown_ci90_ratio) for each in told]
    assert expected[0] == (None, None), "too few looks"
    slowdown_ratio, ci90_ratio = expected[-1]
    assert slowdown_ratio == pytest.approx(1.1, abs=0.005)
    assert ci90_ratio is not None
    assert 0 < ci90_ratio <= 0.01
    saved = [(each.expected_saved_energy_ratio, each.expected_saved_energy_ci90_ratio) for each in told]
    assert saved[0] == (None, None), "too few looks"
    energy_ratio, energy_ci90_ratio = saved[-1]
    assert energy_ratio is not None
    assert energy_ci90_ratio is not None
    assert 0 < energy_ci90_ratio <= 0.01 < energy_ratio < 0.5


def slow_rate_per_s(power_limit_w: float) -> float:
    """Return a rate of a tenth of the usual one: an iteration takes about 20 s."""
    return rate_per_s(power_limit_w) / 10


def plan_of(gpu: FakeGpu) -> list[tuple[float, float]]:
    """Return (hour, limit) of what was written after the sweep, which takes less than three hours."""
    sweep_s = MIDNIGHT_S + 3 * HOUR_S
    return [
        ((time_s - MIDNIGHT_S) / HOUR_S, limit_w) for time_s, limit_w in without_looks(gpu.history) if time_s > sweep_s
    ]


async def test_a_whole_day_follows_a_signal_of_two_levels_by_the_hour(tmp_path: Path) -> None:
    gpu = prior_gpu()
    site = Site(tmp_path / "state", [gpu], *SLOW, *WEIGHED, providers=[trace(tmp_path)])
    training = Training(site, rate=slow_rate_per_s)
    async with site.controlled():
        await training.train(24 * HOUR_S, flush_s=60)
        training.publish_status("finished")
        await site.clock.sleep_until(site.clock.now_s() + 120)
    assert [limit_w for _, limit_w in without_looks(gpu.history)] == [*LADDER_W[1:], CLEAN_W, DIRTY_W, CLEAN_W, PRIOR_W]
    # Within a minute for the signal, one for the plan, and half a one for the run's tick; at the end a look of 12 min
    # may be under way.
    *changed, ended = [hour for hour, _ in plan_of(gpu)]
    assert changed == pytest.approx([8, 16], abs=5 / 60)
    assert 24 - 13 / 60 <= ended <= 24 + 5 / 60
    planned = [change for change in site.limits(gpu) if change.reason == "eta_signal"]
    assert list(dict.fromkeys(change.signal for change in planned)) == [
        "100 g/kWh (day.csv)",
        "500 g/kWh (day.csv)",
    ]
    for change in planned:
        assert change.power_limit_w is not None
        assert change.speed_ratio == pytest.approx(
            slow_rate_per_s(change.power_limit_w) / slow_rate_per_s(PRIOR_W), rel=0.01
        )
    running = [energy for energy in site.energies() if energy.reason == "eta_signal"]
    speeds = {energy.speed_ratio for energy in running} - {None}  # it is not told before the limit is in force
    assert speeds == {change.speed_ratio for change in planned}
    check_the_carbon(site, gpu, training)


def check_the_carbon(site: Site, gpu: FakeGpu, training: Training) -> None:
    """Compare the carbon of the run and of its baseline with what the trace and the fake's arithmetic make."""
    final = site.energies()[-1]
    hours_s = [MIDNIGHT_S + hour * HOUR_S for hour in range(25)]
    carbon_g = (
        sum(
            energy_j(gpu, max(begin_s, training.begin_s or 0), min(begin_s + HOUR_S, training.end_s))
            * intensity_g_per_kwh(hour)
            for hour, begin_s in enumerate(hours_s)
        )
        / J_PER_KWH
    )
    assert final.carbon_g is not None
    assert final.baseline_carbon_g is not None
    assert final.saved_ratio is not None
    assert final.carbon_g == pytest.approx(carbon_g, rel=2e-3)
    assert final.saved_ratio == pytest.approx(1 - final.carbon_g / final.baseline_carbon_g, abs=1e-4)
    assert 0.15 < final.saved_ratio < 0.5
    *_, energy, cleared = site.bus.payloads(TOPICS.gpu(NODE, gpu.uuid, "energy"))
    assert cleared == b""
    last = decode(energy, GpuEnergy)
    whole_j = energy_j(gpu, MIDNIGHT_S, last.time_s)
    assert last.energy_j == pytest.approx(whole_j, rel=1e-3)
    assert last.carbon_g == pytest.approx(carbon_g + (whole_j - final.energy_j) * CLEAN / J_PER_KWH, rel=2e-3)


async def test_the_signal_is_published_with_every_new_hour(tmp_path: Path) -> None:
    site = Site(tmp_path / "state", [prior_gpu()], *SLOW, providers=[trace(tmp_path)])
    async with site.controlled():
        for _ in range(5 * 60):
            await site.clock.sleep_until(site.clock.now_s() + 60)
    messages = [decode(payload, GridSignal) for payload in site.bus.payloads(TOPICS.grid("XX", "carbon"))]
    assert len(messages) == 6
    assert (messages[0].unit, messages[0].kind, messages[0].source) == ("g/kWh", "average", "day.csv")


@pytest.mark.parametrize(("objective", "least_w", "most_w"), [("eta", 100.0, 100.0), ("slowdown", 180.0, 225.0)])
async def test_a_signal_that_dies_is_stale_after_two_hours_and_the_plan_ignores_it(
    tmp_path: Path, objective: str, least_w: float, most_w: float
) -> None:
    gpu = prior_gpu()
    overrides = (f"plan.objective={objective}", "plan.eta=0.8", "plan.max_slowdown=1.10")
    site = Site(tmp_path / "state", [gpu], *SLOW, *overrides, providers=[trace(tmp_path, until_hour=6)])
    training = Training(site, rate=slow_rate_per_s)
    async with site.controlled():
        await training.train(9 * HOUR_S, flush_s=60)
        assert least_w <= gpu.requested_power_limit_w <= most_w
    stale = [change for change in site.limits(gpu) if change.reason == "signal_stale"]
    assert stale
    assert (stale[0].time_s - MIDNIGHT_S) / HOUR_S == pytest.approx(8, abs=0.1)
    assert "the signal is stale" in stale[0].detail
    assert stale[0].signal is None


async def test_a_restarted_controller_resumes_run_and_profile_without_a_second_sweep(tmp_path: Path) -> None:
    gpu = prior_gpu()
    site = Site(tmp_path / "state", [gpu], *SLOW, *WEIGHED, providers=[trace(tmp_path)])
    training = Training(site, rate=slow_rate_per_s)
    async with site.controlled():
        await training.train(4 * HOUR_S, flush_s=60)
    assert gpu.requested_power_limit_w == PRIOR_W
    n_written = len(gpu.history)
    await training.train(600, flush_s=60)
    async with site.controlled():
        await training.train(4.5 * HOUR_S, flush_s=60)
    assert [limit_w for _, limit_w in without_looks(gpu.history[n_written:])] == [CLEAN_W, DIRTY_W, PRIOR_W]
    assert [report.state for report in site.profiles()][-2:] == ["waiting", "planned"]
    assert len(site.profiles()[-1].points) == 6


async def test_an_interrupted_sweep_resumes_after_a_restart(tmp_path: Path) -> None:
    gpu = prior_gpu()
    site = Site(tmp_path / "state", [gpu], *SLOW, *WEIGHED, providers=[trace(tmp_path)])
    training = Training(site, rate=slow_rate_per_s)
    async with site.controlled():
        while len(site.profiles()) < 1 or len(site.profiles()[-1].points) < 3:
            await training.train(300, flush_s=60)
    n_written = len(gpu.history)
    async with site.controlled():
        await training.train(3 * HOUR_S, flush_s=60)
    assert [limit_w for _, limit_w in without_looks(gpu.history[n_written:])] == [*LADDER_W[3:], CLEAN_W, PRIOR_W]


N_ITERATIONS = 3_000
SHORTEST_S = N_ITERATIONS / rate_per_s(PRIOR_W)
CURIOUS = ("profiler.n_blocks=24", "profiler.block_s=40")


async def run_all(site: Site, training: Training) -> None:
    """Train until the run has as many iterations as it has announced."""
    async with site.controlled():
        while training.n_iterations < N_ITERATIONS:
            await training.train(60)
        training.publish_status("finished")
        await asyncio.sleep(30)


@pytest.mark.parametrize("share", [1.1, 1.3])
async def test_a_deadline_is_met_and_the_time_until_then_is_used(tmp_path: Path, share: float) -> None:
    gpu = prior_gpu()
    hours = share * SHORTEST_S / HOUR_S
    site = Site(tmp_path, [gpu], *CURIOUS, "plan.objective=deadline", f"plan.deadline={hours:.4f}h")
    training = Training(site, total_iterations=N_ITERATIONS)
    await run_all(site, training)
    assert training.begin_s is not None
    took_s = training.end_s - training.begin_s
    assert 0.97 * share * SHORTEST_S <= took_s <= share * SHORTEST_S + 60
    assert {change.reason for change in site.limits(gpu)} >= {"deadline_static"}


async def test_a_budget_is_kept_and_all_of_it_is_used_for_time(tmp_path: Path) -> None:
    gpu = prior_gpu()
    whole_kwh = POWER_RATIO * PRIOR_W * SHORTEST_S / J_PER_KWH
    site = Site(tmp_path, [gpu], *CURIOUS, "plan.objective=budget", f"plan.budget={0.85 * whole_kwh:.4f}")
    training = Training(site, total_iterations=N_ITERATIONS)
    await run_all(site, training)
    assert training.begin_s is not None
    used_kwh = energy_j(gpu, training.begin_s, training.end_s) / J_PER_KWH
    assert 0.82 * whole_kwh <= used_kwh <= 0.855 * whole_kwh


@pytest.mark.parametrize(
    "overrides", [("plan.objective=deadline", "plan.deadline=9h"), ("plan.objective=budget", "plan.budget=1")]
)
async def test_without_a_known_end_the_run_falls_back_with_a_reason(tmp_path: Path, overrides: tuple[str, ...]) -> None:
    gpu = prior_gpu()
    site = Site(tmp_path, [gpu], *overrides)
    async with site.controlled():
        await Training(site).train(1_500)
        assert gpu.requested_power_limit_w <= PRIOR_W
    last = [change for change in site.limits(gpu) if change.reason not in {"profiling", "controller_stopped"}][-1]
    assert "remaining iterations" in last.detail


async def test_a_job_is_planned_by_the_table_of_its_own(tmp_path: Path) -> None:
    gpus = [prior_gpu("GPU-fake-0", 0), prior_gpu("GPU-fake-1", 1)]
    tables = 'plan.job=[{name="bert*", objective="eta", eta=1.0}]'
    site = Site(tmp_path, gpus, "plan.max_slowdown=1.0", tables)
    own, other = Training(site, [gpus[0]], job="bert-large"), Training(site, [gpus[1]], run="run-2")
    async with site.controlled():
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(own.train(1_800))
            tasks.create_task(other.train(1_800))
        assert (gpus[0].requested_power_limit_w, gpus[1].requested_power_limit_w) == (100.0, PRIOR_W)


SWEEP_S = 2_000.0


@pytest.mark.parametrize(("host_power_w", "limit_w"), [(0, 100.0), (1_000, PRIOR_W)])
async def test_a_host_that_draws_much_makes_slowing_down_not_worth_it(
    tmp_path: Path, host_power_w: float, limit_w: float
) -> None:
    # An iteration costs (0.9 p + host) / p^0.3: it would be least at 0 W without a host, at 476 W with one of 1000 W.
    gpu = prior_gpu()
    site = Site(tmp_path, [gpu], "plan.max_slowdown=2", f"energy.host_power_w={host_power_w}")
    async with site.controlled():
        await Training(site).train(SWEEP_S)
        assert site.profiles()[-1].state == "planned"
        planned = [change for change in site.limits(gpu) if change.reason != "refining"]  # a look may be under way
        assert planned[-1].power_limit_w == limit_w
