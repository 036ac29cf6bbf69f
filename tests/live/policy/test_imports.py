"""Jobs that are taken in as somebody wrote them are good for all that the service does with a job."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from policies.service.config import LearningConfig
from policies.service.store.store import opened_store
from policies.service.records import JobExport, Result, Trial
from policies.service.trials.repository import TrialRepository

pytestmark = pytest.mark.live
DONE = Result(outcome="reached", epochs=5, energy_j=1000.0, duration_s=10.0, max_power_w=100.0, gpu_model="A40")


@asynccontextmanager
async def a_desk(folder: Path) -> AsyncIterator[TrialRepository]:
    async with opened_store(f"sqlite:///{folder}/policy.db", timeout_s=20.0) as store:
        yield TrialRepository(store, LearningConfig())


async def ask(desk: TrialRepository, run: str) -> Trial:
    return await desk.ask("job", run, batch_sizes=(16, 32, 64), default_batch_size=32, now_s=1.0)


async def exported(desk: TrialRepository) -> JobExport:
    await ask(desk, "run-0")
    await desk.tell("job", "run-0", DONE, now_s=2.0)
    (export,) = await desk.export()
    return export


async def test_batch_sizes_in_another_order_are_those_of_the_job_that_its_runs_describe(tmp_path: Path) -> None:
    async with a_desk(tmp_path) as desk:
        export = await exported(desk)
        turned = replace(export, job=replace(export.job, batch_sizes=(64, 16, 32)))
        assert (await desk.import_([turned], now_s=9.0)).n_known_jobs == 1
        await desk.forget("job")
        assert (await desk.import_([turned], now_s=9.0)).n_jobs == 1
        assert await desk.export() == [export]
        assert (await desk.posterior("job")).n_observations == 1
        assert (await ask(desk, "run-1")).number == 1


async def test_the_highest_recurrence_that_is_taken_in_is_counted_on(tmp_path: Path) -> None:
    async with a_desk(tmp_path) as desk:
        export = await exported(desk)
        await desk.forget("job")
        (trial,) = export.trials
        await desk.import_([replace(export, trials=(replace(trial, recurrence=1 << 30),))], now_s=9.0)
        assert (await ask(desk, "run-1")).recurrence == (1 << 30) + 1
