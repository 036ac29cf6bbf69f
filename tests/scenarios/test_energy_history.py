"""The history of a node beside what its controllers have published: to the gram, over restarts and midnight."""

import asyncio
from datetime import UTC
from pathlib import Path

import pytest
from sqlalchemy import Connection, func, select

from controller.history.energy_history.growth import RUN_AMOUNTS, day_of, quarter_of
from controller.history.energy_history.history_file import read_history
from controller.history.energy_history.reading import Period, RunFilter, run_parts
from controller.history.energy_history.report import entry_of
from controller.history.energy_history.schema import DECISIONS, GPU_QUARTERS, RUN_QUARTERS, RUNS
from publishers.messages.codec import decode
from publishers.messages.reports import RunEnergy
from tests.fakes import MIDNIGHT_S, FixedProvider, flat_signal
from tests.scenarios.site import ANY_PROVIDER, HOUR_S, PRIOR_W, Site, Training, energy_j, prior_gpu

CARBON = ('signal.kind="carbon"', ANY_PROVIDER)


def carbon_site(folder: Path, *, history: Path | None = None) -> Site:
    """Return a node on a grid of 300 g/kWh, with a history."""
    provider = FixedProvider(flat_signal(300.0))
    path = history or folder / "history.sqlite"
    return Site(folder, [prior_gpu()], *CARBON, "energy.pue=1.4", providers=[provider], history=path)


async def test_days_add_up_to_the_final_record_over_a_restart_and_midnight(tmp_path: Path) -> None:
    site = carbon_site(tmp_path)
    gpu = site.gpus[0]
    await asyncio.sleep(21.5 * HOUR_S)
    training = Training(site)
    async with site.controlled():
        await training.train(HOUR_S)
    await training.train(600)
    async with site.controlled():
        await training.train(2 * HOUR_S)
        training.publish_status("finished")
        await asyncio.sleep(60)
    final = site.energies()[-1]
    assert (final.final, final.evidence) == (True, "measured")
    assert (final.signal_kind, final.signal_source, final.signal_zone) == ("average", "test", "XX")
    assert (final.pue, final.host_power_w, final.signal_unmeasured_s) == (1.4, None, 0.0)

    def of_days(connection: Connection) -> list[tuple[float, float, float]]:
        whole = select(RUNS.c.id).where(RUNS.c.node == "").scalar_subquery()
        names = ("energy_j", "carbon_g", "baseline_carbon_g")
        sums = [func.sum(RUN_QUARTERS.c[name]) for name in names]
        days = []
        for at_s in (MIDNIGHT_S + HOUR_S, MIDNIGHT_S + 25 * HOUR_S):
            begin_s, end_s = day_of(at_s, UTC)
            is_in = (RUN_QUARTERS.c.starts_s >= begin_s) & (RUN_QUARTERS.c.starts_s < end_s)
            found = connection.execute(select(*sums).where(is_in & (RUN_QUARTERS.c.owner == whole))).one()
            days.append((found[0], found[1], found[2]))
        return days

    first, second = read_history(tmp_path / "history.sqlite", of_days)
    assert all(amount > 0 for amount in (*first, *second))
    expected = (final.energy_j, final.carbon_g, final.baseline_carbon_g)
    assert [a + b for a, b in zip(first, second, strict=True)] == pytest.approx(expected, abs=1e-3)
    midnight_s = MIDNIGHT_S + 24 * HOUR_S
    before_j = energy_j(gpu, training.begin_s or 0.0, midnight_s)
    assert first[0] == pytest.approx(before_j, abs=60 * PRIOR_W), "but for the age of the records"

    def record(connection: Connection) -> RunEnergy:
        row = connection.execute(select(RUNS).where(RUNS.c.node == "")).mappings().one()
        assert {name: row[name] for name in RUN_AMOUNTS if name.startswith("baseline_")} == {
            "baseline_duration_s": final.baseline_duration_s,
            "baseline_energy_j": final.baseline_energy_j,
            "baseline_carbon_g": final.baseline_carbon_g,
            "baseline_cost": None,
        }
        return decode(row["record"].encode(), RunEnergy)

    assert read_history(tmp_path / "history.sqlite", record) == final
    since_s, until_s = training.begin_s or 0.0, site.clock.now_s()
    ((part,),) = read_history(
        tmp_path / "history.sqlite",
        lambda connection: run_parts(connection, [Period(quarter_of(since_s), until_s)], RunFilter(job="resnet50")),
    )
    entry = entry_of("resnet50", [part])
    assert final.carbon_g is not None
    assert final.baseline_carbon_g is not None
    assert entry.saved_carbon_g == pytest.approx(final.baseline_carbon_g - final.carbon_g, abs=1e-3)
    assert entry.saved_carbon_ratio == pytest.approx(final.saved_ratio, abs=1e-4)
    assert entry.slowdown_ratio == pytest.approx(final.slowdown_ratio, abs=1e-4)


async def test_gpus_and_decisions_are_in_the_history_too(tmp_path: Path) -> None:
    site = carbon_site(tmp_path)
    for run in ("run-1", "run-2"):
        async with site.controlled():
            training = Training(site, run=run)
            await training.train(HOUR_S / 2)
            training.publish_status("finished")
            await asyncio.sleep(60)
    gpu = site.gpus[0]

    def of_gpus(connection: Connection) -> tuple[float, list[float]]:
        used = connection.execute(select(func.sum(GPU_QUARTERS.c.energy_j))).scalars().one()
        limits = select(DECISIONS.c.requested_power_limit_w).order_by(DECISIONS.c.time_s)
        return used, list(connection.execute(limits).scalars())

    used_j, limits_w = read_history(tmp_path / "history.sqlite", of_gpus)
    assert used_j == pytest.approx(energy_j(gpu, MIDNIGHT_S, site.clock.now_s()), rel=0.02)
    published = [change.requested_power_limit_w for change in site.limits(gpu)]
    assert limits_w == published
    assert limits_w[-1] == PRIOR_W


async def test_a_history_that_cannot_be_written_changes_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    writes = []
    for number, path in enumerate((None, tmp_path / "file" / "history.sqlite")):
        folder = tmp_path / str(number)
        site = carbon_site(folder, history=path)
        begun_s = site.clock.now_s()
        async with site.controlled():
            training = Training(site)
            await training.train(HOUR_S / 2)
            training.publish_status("finished")
            await asyncio.sleep(60)
        writes.append([(round(at_s - begun_s, 3), limit_w) for at_s, limit_w in site.gpus[0].history])
        assert site.gpus[0].requested_power_limit_w == PRIOR_W
    assert len(writes[0]) > 1
    assert len(writes[1]) == len(writes[0])
    told = [record.getMessage() for record in caplog.records if "the history is not written" in record.getMessage()]
    assert len(told) == 1
