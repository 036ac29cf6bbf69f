"""Jobs that are taken in as somebody wrote them are good for all that the service does with a job."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from policies.service.config import LearningConfig
from policies.service.records import JobExport, Result, Trial
from policies.service.store.store import open_store
from tests.policies.service.repositories import Repositories

pytestmark = pytest.mark.live
DONE = Result(outcome="reached", epochs=5, energy_j=1000.0, duration_s=10.0, max_power_w=100.0, gpu_model="A40")


@asynccontextmanager
async def open_repositories(folder: Path) -> AsyncIterator[Repositories]:
    async with open_store(f"sqlite:///{folder}/policy.db", timeout_s=20.0) as store:
        yield Repositories(store, LearningConfig())


async def ask(db: Repositories, run: str) -> Trial:
    return await db.trials.get_or_create("job", run, batch_sizes=(16, 32, 64), default_batch_size=32, now_s=1.0)


async def exported(db: Repositories) -> JobExport:
    await ask(db, "run-0")
    await db.trials.report("job", "run-0", DONE, now_s=2.0)
    (export,) = await db.jobs.export()
    return export


async def test_batch_sizes_in_another_order_are_those_of_the_job_that_its_runs_describe(tmp_path: Path) -> None:
    async with open_repositories(tmp_path) as db:
        export = await exported(db)
        turned = replace(export, job=replace(export.job, batch_sizes=(64, 16, 32)))
        assert (await db.jobs.import_([turned], now_s=9.0)).n_known_jobs == 1
        await db.jobs.forget("job")
        assert (await db.jobs.import_([turned], now_s=9.0)).n_jobs == 1
        assert await db.jobs.export() == [export]
        assert (await db.jobs.posterior("job")).n_observations == 1
        assert (await ask(db, "run-1")).number == 1


async def test_the_highest_recurrence_that_is_recorded_is_counted_on(tmp_path: Path) -> None:
    async with open_repositories(tmp_path) as db:
        export = await exported(db)
        await db.jobs.forget("job")
        (trial,) = export.trials
        await db.jobs.import_([replace(export, trials=(replace(trial, recurrence=1 << 30),))], now_s=9.0)
        assert (await ask(db, "run-1")).recurrence == (1 << 30) + 1
